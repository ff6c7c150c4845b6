# SPDX-License-Identifier: Apache-2.0
"""Memory that was freed goes back to the system, where a command needs much of it for a moment."""

from __future__ import annotations

import contextlib
import ctypes
import os


def return_freed() -> None:
    """Let polars return what it frees immediately; call this before anything imports polars.

    Its allocator keeps freed memory for ten seconds. In a report of eight million kernels that is half a gigabyte.
    """
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")


def give_back() -> None:
    """Return what the C library keeps for later. Other libraries than glibc have no such call."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
