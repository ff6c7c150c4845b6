# SPDX-License-Identifier: Apache-2.0
"""Runs and sweeps side by side, and what of a difference is chance."""
