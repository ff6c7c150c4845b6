# SPDX-License-Identifier: Apache-2.0
"""Two networks on one machine: network namespaces joined by shaped links, and MPI's collectives between them."""
