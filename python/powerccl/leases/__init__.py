# SPDX-License-Identifier: Apache-2.0
"""The client of powerccld: who holds which clock, and leases held from Python."""
