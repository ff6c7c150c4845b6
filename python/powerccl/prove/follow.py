# SPDX-License-Identifier: Apache-2.0
"""Become a `powerccl` command that ends when the process that started it dies.

`powerccl run` goes on without its starter, and its job keeps its clock. A killed `powerccl prove` must leave no clock,
so the kernel sends this process SIGTERM, which `powerccl run` passes on to its job.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # of prctl(2); it outlives exec


def main() -> None:
    """`PID ARGUMENTS`: the process to follow, and what `powerccl` is to do."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != int(sys.argv[1]):  # it died before the line above
        sys.exit(1)
    os.execv(sys.executable, [sys.executable, "-m", "powerccl", *sys.argv[2:]])


if __name__ == "__main__":
    main()
