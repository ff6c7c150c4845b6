# SPDX-License-Identifier: Apache-2.0
"""Platform profiles: what is known of a machine, measured once, and the policy tables made from them."""
