# SPDX-License-Identifier: Apache-2.0
"""The clock of every time in a run folder: the host's CLOCK_MONOTONIC, as native/abi/host_clock.h reads it.

In a time namespace (`unshare --time`, some containers) the kernel adds an offset to CLOCK_MONOTONIC. This process, the
ranks and the agent can be in different ones, so each takes its own offset out.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path


@functools.cache
def shift_ns(clock: str = "monotonic") -> int:
    """How far a clock of this process, `monotonic` or `boottime`, is ahead of the host's."""
    try:
        if Path("/proc/self/ns/time").readlink() != Path("/proc/self/ns/time_for_children").readlink():
            return 0  # the file is about the other one
        # Bytes: a helper with another user's rights may not be able to load a codec.
        lines = Path("/proc/self/timens_offsets").read_bytes().splitlines()
        fields = next(line.split() for line in lines if line.startswith(clock.encode()))
        return int(fields[1]) * 10**9 + int(fields[2])
    except (OSError, StopIteration, ValueError, IndexError):
        return 0  # before Linux 5.6, or no /proc


def monotonic_ns() -> int:
    """The host's CLOCK_MONOTONIC."""
    return time.monotonic_ns() - shift_ns()
