# SPDX-License-Identifier: Apache-2.0
"""`powerccl prove`: what a machine's clocks, power and clock calls are, measured in one run, as a file and a page."""
