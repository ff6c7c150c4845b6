# SPDX-License-Identifier: Apache-2.0
"""What this machine can do: the checks of `powerccl doctor`."""
