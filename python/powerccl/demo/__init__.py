# SPDX-License-Identifier: Apache-2.0
"""The jobs of `powerccl demo`, and what they came to."""
