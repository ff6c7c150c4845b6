# SPDX-License-Identifier: Apache-2.0
"""Kernels of one call that ran several times: those of a captured call, whose graph is launched again and again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def replays(call: Ints, start: Ints) -> Ints:
    """Of each kernel, how many of the same call began before it."""
    in_order = np.sort(call)
    if (in_order[1:] != in_order[:-1]).all():  # none was captured
        return np.zeros(len(call), np.int64)
    order = np.lexsort((start, call))
    in_order = call[order]
    opens = np.flatnonzero(np.append(True, in_order[1:] != in_order[:-1]))
    counted = np.empty(len(call), np.int64)
    counted[order] = np.arange(len(call)) - np.repeat(opens, np.diff(np.append(opens, len(call))))
    return counted
