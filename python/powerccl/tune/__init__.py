# SPDX-License-Identifier: Apache-2.0
"""Search for the parameters of NCCL that suit a job."""
