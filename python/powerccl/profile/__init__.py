# SPDX-License-Identifier: Apache-2.0
"""Measure what collectives need of clocks on a machine."""
