# SPDX-License-Identifier: Apache-2.0
"""powerccl-bench as a measuring instrument: starting it, its questions and its answers."""
