# SPDX-License-Identifier: Apache-2.0
"""Clock policies measured on emulated platforms: what `scripts/figures-policies-emulated` is made of."""
