# SPDX-License-Identifier: Apache-2.0
"""What an administrator puts on a node: the daemon's unit and configuration, Slurm's scripts, a dashboard."""
