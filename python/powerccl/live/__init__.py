# SPDX-License-Identifier: Apache-2.0
"""What jobs do while they run: for `powerccl top` and `powerccl export`."""
