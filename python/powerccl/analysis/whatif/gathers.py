# SPDX-License-Identifier: Apache-2.0
"""Where a job's host lets all its GPUs go on together: a barrier between iterations, which no trace of GPUs shows.

GPUs whose last operation ended at different times begin the next iteration at one, and have had nothing to do in
between: what they waited for follows the last of them, however long that takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerccl.analysis.whatif.timeline import GpuTimeline

Values = npt.NDArray[np.float64]

LEAST_NS, LEAST_SHARE = 1_000_000, 0.02  # of an iteration: ends that are no further apart need no explanation
TOGETHER = 0.3  # of how far apart iterations end, that they begin apart at most
IDLE = 0.5  # of what GPUs then have waited, that samples must have found them idle


@dataclass(frozen=True)
class Gather:
    """All GPUs go on at `at_ns`; how long each had waited by then, ns in the order of the lines."""

    at_ns: int
    waited_ns: tuple[int, ...]


@dataclass(frozen=True)
class Gathered:
    """`each` in order. Of each GPU: the share of the time before its iterations that it idles besides."""

    each: tuple[Gather, ...] = ()
    idle: tuple[float, ...] = ()


def gathered(
    lines: list[GpuTimeline],
    begins: list[npt.NDArray[np.int64]],
    idle: list[float],
    span: tuple[int, int],
) -> Gathered:
    """`begins[i]`: which operations of the i-th line begin an iteration; `idle[i]`: of the time before, by samples."""
    if len(lines) < 2 or any(len(mine) < 2 for mine in begins):
        return Gathered()
    starts = [line.starts[mine] for line, mine in zip(lines, begins, strict=True)]
    ends = [_ends(line)[mine - 1] for line, mine in zip(lines, begins, strict=True)]
    length = float(np.median(np.diff(starts[0])))
    first = np.array([np.abs(each[None, :] - starts[0][:, None]).argmin(axis=1) for each in starts])
    start = np.array([each[at] for each, at in zip(starts, first, strict=True)], dtype=np.float64)
    end = np.array([each[at] for each, at in zip(ends, first, strict=True)], dtype=np.float64)
    near = (np.abs(start - starts[0]) < length / 2).all(axis=0) & (end < start).all(axis=0)
    near &= (end.min(axis=0) >= span[0]) & (start.max(axis=0) < span[1]) & (start.min(axis=0) > end.max(axis=0))
    start, end = start[:, near], end[:, near]
    if start.shape[1] < 2:
        return Gathered()
    at = start.min(axis=0)
    waited = end.max(axis=0) - end
    apart, together = float(np.median(waited.max(axis=0))), float(np.median(start.max(axis=0) - at))
    if apart < max(LEAST_NS, LEAST_SHARE * length) or together > TOGETHER * apart:
        return Gathered()
    usual, before = np.median(waited, axis=1), np.median(start - end, axis=1)
    idled = np.array(idle) * before
    if (idled < IDLE * usual)[usual > apart / 2].any():
        return Gathered()
    rest = np.maximum(idled - usual, 0.0) / np.maximum(before - usual, 1.0)
    each = [Gather(int(t) - 1, tuple(w.astype(np.int64).tolist())) for t, w in zip(at, waited.T, strict=True)]
    return Gathered(tuple(each), tuple(rest.tolist()))


def _ends(line: GpuTimeline) -> npt.NDArray[np.int64]:
    """When all operations up to each were over."""
    return np.maximum.accumulate(np.array([operation.stop_ns for operation in line.operations], dtype=np.int64))
