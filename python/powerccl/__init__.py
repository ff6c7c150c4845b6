# SPDX-License-Identifier: Apache-2.0
"""PowerCCL: jobs that communicate through NCCL or MPI use less energy at the same speed."""

__version__ = "0.1.0"
