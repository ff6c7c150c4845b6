# SPDX-License-Identifier: Apache-2.0
"""What `scripts/figures-analysis.py` measures."""
