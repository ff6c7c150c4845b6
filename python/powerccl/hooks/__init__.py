# SPDX-License-Identifier: Apache-2.0
"""What runs inside the Python of a job under `powerccl run --ways`. Its modules import nothing of `powerccl`."""
