# SPDX-License-Identifier: Apache-2.0
"""The least energy that any clock schedule could reach on an emulated platform (docs/decisions/0009-oracle.md)."""
