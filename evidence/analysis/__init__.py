# SPDX-License-Identifier: Apache-2.0
"""What `evidence/scripts/figures-analysis.py` measures."""
