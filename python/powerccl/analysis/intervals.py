# SPDX-License-Identifier: Apache-2.0
"""Sets of time as sorted, disjoint [start, stop) pairs: int64 arrays of shape (n, 2), ns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Intervals = npt.NDArray[np.int64]

EMPTY: Intervals = np.empty((0, 2), dtype=np.int64)


def union(start_ns: npt.ArrayLike, stop_ns: npt.ArrayLike) -> Intervals:
    """The union of possibly overlapping intervals; those of no length vanish."""
    start = np.asarray(start_ns, dtype=np.int64)
    stop = np.asarray(stop_ns, dtype=np.int64)
    keep = stop > start
    start, stop = start[keep], stop[keep]
    if not len(start):
        return EMPTY
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, stop = start[order], stop[order]
    reach = np.maximum.accumulate(stop)
    opens = np.concatenate([[True], start[1:] > reach[:-1]])
    first = np.flatnonzero(opens)
    last = np.concatenate([first[1:] - 1, [len(start) - 1]])
    return np.stack([start[first], reach[last]], axis=1)


def clip(intervals: Intervals, start_ns: int, stop_ns: int) -> Intervals:
    """The part of the set inside [start_ns, stop_ns)."""
    clipped = np.clip(intervals, start_ns, stop_ns)
    result: Intervals = clipped[clipped[:, 1] > clipped[:, 0]]
    return result


def length_ns(intervals: Intervals) -> int:
    """Total length, ns."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def covered_before(intervals: Intervals, time_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How much of the set is before each time, ns."""
    if not len(intervals):
        return np.zeros(len(time_ns), dtype=np.int64)
    lengths = intervals[:, 1] - intervals[:, 0]
    before = np.concatenate([[0], np.cumsum(lengths)])
    index = np.searchsorted(intervals[:, 0], time_ns, side="right")
    inside = np.where(index > 0, np.minimum(time_ns, intervals[index - 1, 1]) - intervals[index - 1, 0], 0)
    result: npt.NDArray[np.int64] = np.where(index > 0, before[index - 1] + inside, 0)
    return result


def contains(intervals: Intervals, time_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which times are inside the set."""
    if not len(intervals):
        return np.zeros(len(time_ns), dtype=np.bool_)
    index = np.searchsorted(intervals[:, 0], time_ns, side="right") - 1
    result: npt.NDArray[np.bool_] = (index >= 0) & (time_ns < intervals[index, 1])
    return result


def minus(intervals: Intervals, holes: Intervals) -> Intervals:
    """The part of the set outside all holes, another set."""
    if not len(holes) or not len(intervals):
        return intervals
    ends = np.iinfo(np.int64)
    between = np.concatenate([[ends.min], holes.ravel(), [ends.max]]).reshape(-1, 2)
    return intersection(intervals, between)


def intersection(one: Intervals, other: Intervals) -> Intervals:
    """The times in both sets."""
    if not len(one) or not len(other):
        return EMPTY
    if len(one) > len(other):  # each of the fewer looks for its place among the more
        one, other = other, one
    first = np.searchsorted(other[:, 1], one[:, 0], side="right")
    count = np.maximum(np.searchsorted(other[:, 0], one[:, 1]) - first, 0)
    left = np.repeat(np.arange(len(one)), count)
    right = np.arange(len(left)) + np.repeat(first - np.cumsum(count) + count, count)
    start = np.maximum(one[left, 0], other[right, 0])
    stop = np.minimum(one[left, 1], other[right, 1])
    keep = stop > start  # holes that touch have nothing between them
    return np.stack([start[keep], stop[keep]], axis=1)


def distinct(*times_ns: Intervals) -> Intervals:
    """All distinct times of these arrays, rising. Sorting takes a tenth of the time of numpy's unique."""
    times = np.sort(np.concatenate([each.ravel() for each in times_ns]))
    return times[np.append(True, times[1:] != times[:-1])] if len(times) else times


def touches(intervals: Intervals, other: Intervals) -> npt.NDArray[np.bool_]:
    """Which intervals (in any order) share time with a set."""
    return np.asarray(covered_before(other, intervals[:, 1]) > covered_before(other, intervals[:, 0]))
