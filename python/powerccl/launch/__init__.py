# SPDX-License-Identifier: Apache-2.0
"""Starting one job: native files, run folder, environment, sampler, emulator, and the child itself.

What `powerccl run` needs before the child starts lives here and imports nothing heavy.
"""
