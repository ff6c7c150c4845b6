# SPDX-License-Identifier: Apache-2.0
"""Where `exposed` and `auto` lower the clock: windows of exposed communication that pay, and clocks outside of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerccl.analysis import intervals as iv
from powerccl.analysis.whatif.platform import ClockPlatform
from powerccl.analysis.whatif.power import MEMORY_BOUND_SHARE, PowerModel
from powerccl.analysis.whatif.replay import Course
from powerccl.analysis.whatif.timeline import GpuTimeline, deviation_of

# As native/policy/windows.h has it.
JOIN_SHARE = 0.01  # of two windows' length: no further apart, the clock is held across
CLOCK_STEP_MHZ = 15  # of NVIDIA's data centre GPUs
SOONER = 2.0  # deviations of its end, that a clock is up again before it
BUSY_SHARE = 0.5  # of the time, that may go by in driver calls
MOST_PER_S = 166  # changes, if each takes 27 us of a core
MOSTLY_WAITS, MUCH_HIGHER, SHORT_SHARE = 0.6, 1.3, 0.25


@dataclass
class Windows:
    """Exposed communication of a GPU as `exposed` sees it: spans and the clock each would get.

    A clock of 0: the span is too short, or no clock is known. `ratio`: how many times as long the window's
    communication takes at that clock.
    """

    spans: iv.Intervals
    mhz: npt.NDArray[np.int64]
    ratio: npt.NDArray[np.float64]
    short: int = 0  # windows that do not outlast a switch
    late_ns: npt.NDArray[np.float64] | None = None  # the clock is low so much later than the window begins
    early_ns: npt.NDArray[np.float64] | None = None  # and up again so much before it ends


def windows(line: GpuTimeline, platform: ClockPlatform, gpus: int, span: tuple[int, int], calls: int) -> Windows:
    """The exposed windows of a GPU and their clocks: the highest of the minimum clocks of what communicates in them.

    `calls`: of an iteration. Where each is another (0) there are no windows, since none can be foreseen.
    """
    spans = _joined(iv.clip(line.exposed, *span))
    mhz = np.zeros(len(spans), dtype=np.int64)
    ratio = np.ones(len(spans))
    lengths = spans[:, 1] - spans[:, 0]
    front, tail = _uncertain(line, spans, calls)
    tail = SOONER * tail
    long = lengths - front - tail > platform.switch.window_us(gpus) * 1e3
    # The driver has no more time than that for windows: the longest have it.
    most = int(BUSY_SHARE * (span[1] - span[0]) / (2e3 * max(platform.switch.calls_us(gpus), 1e-3)))
    most = min(most, int(MOST_PER_S * (span[1] - span[0]) / 2e9))
    if long.sum() > most:
        kept = np.argsort(-lengths, kind="stable")[:most]
        long &= np.isin(np.arange(len(lengths)), kept)
    starts = np.array([operation.start_ns for operation in line.operations], dtype=np.int64)
    reach = np.maximum.accumulate(np.array([operation.stop_ns for operation in line.operations], dtype=np.int64))
    for index in np.flatnonzero(long).tolist():
        start, stop = spans[index].tolist()
        first, last = int(np.searchsorted(reach, start, side="right")), int(np.searchsorted(starts, stop))
        inside = [o for o in line.operations[first:last] if o.stop_ns > start]
        clocks = [platform.minimum_mhz(o.pattern, o.size_bytes) for o in inside]
        # What runs in a CUDA graph beside other calls comes at other times than those.
        if not clocks or min(clocks) == 0 or (line.calls and any(o.called_ns < 0 for o in inside)):
            continue
        mhz[index] = max(clocks)
        # Whoever mostly waits for a peer does so at the lowest clock, and has the transfer's own outside of the window.
        ending, lowest = inside[-1], platform.clocks_mhz[0]
        waits_ns = ending.stop_ns - ending.start_ns - ending.least_ns
        mostly = ending.least_ns > 0 and waits_ns > MOSTLY_WAITS * (stop - start)
        # A short neighbour before it that needs a higher clock is left out, a longer one has its own for all of it.
        begins = max([start, *(o.stop_ns for o in inside[:-1])])
        alone = begins - start < SHORT_SHARE * (stop - begins)
        if mostly and alone and mhz[index] > MUCH_HIGHER * lowest and stop - ending.least_ns > begins:
            mhz[index], spans[index] = lowest, (begins, stop - ending.least_ns)
            continue
        ratio[index] = max(platform.time_ratio(o.pattern, o.size_bytes, float(mhz[index])) for o in inside)
    # A clock is asked for ahead, by as long as it takes.
    later_us, sooner_us = platform.switch.turns_us(gpus, line.place)
    return Windows(spans, mhz, ratio, int((~long).sum()), front + later_us * 1e3, tail + sooner_us * 1e3)


def _uncertain(
    line: GpuTimeline, spans: iv.Intervals, calls: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """By how much the beginnings and the ends of windows come otherwise than in other iterations, ns."""
    front, tail = np.zeros(len(spans)), np.zeros(len(spans))
    if not calls:
        return front + np.inf, tail + np.inf
    starts = np.array([operation.start_ns for operation in line.operations], dtype=np.int64)
    ending = np.maximum(np.searchsorted(starts, spans[:, 1]) - 1, 0)  # the operation that each window ends with
    # Numbered as they were called: some may not have been seen.
    mine = np.array([operation.call_id for operation in line.operations], dtype=np.int64)
    called = np.union1d(mine, [call[3] for call in line.calls])
    number = np.searchsorted(called, mine) if line.calls else np.arange(len(starts))
    first = np.unique(number // calls, return_index=True)
    begins = starts[first[1][np.searchsorted(first[0], number[ending] // calls)]]
    for place in np.unique(number[ending] % calls).tolist():
        here = number[ending] % calls == place
        for found, edge in ((front, 0), (tail, 1)):
            found[here] = deviation_of(spans[here, edge] - begins[here])
    return front, tail


def _joined(exposed: iv.Intervals) -> iv.Intervals:
    """What is next to each other is one."""
    found: list[list[int]] = []
    for start, stop in exposed.tolist():
        if found and start - found[-1][1] <= JOIN_SHARE * (stop - found[-1][0]):
            found[-1][1] = stop
        else:
            found.append([start, stop])
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def stretched(model: PowerModel, mhz: int, times: float, lowest_mhz: int) -> int:
    """The clock at which computation takes so many times as long as at `mhz` (0: by default), as the runtime has it."""
    if times == 1 or (times < 1 and mhz == 0):
        return mhz
    clock = (mhz or model.drawn.compute_mhz) * (1 - MEMORY_BOUND_SHARE) / (times - MEMORY_BOUND_SHARE)
    return max(lowest_mhz, int(clock / CLOCK_STEP_MHZ) * CLOCK_STEP_MHZ)


def in_windows(line: GpuTimeline, course: Course, clocks: list[int], found: Windows) -> list[int]:
    """The clock of each operation, in windows that of the window; `found` of the same replay."""
    if not (found.mhz > 0).any():
        return clocks
    stops = np.array(course.stops, dtype=np.int64)
    place = np.clip(np.searchsorted(found.spans[:, 0], stops, side="left") - 1, 0, len(found.spans) - 1)
    inside = (stops > found.spans[place, 0]) & (stops <= found.spans[place, 1] + 1) & (found.mhz[place] > 0)
    low = np.where(inside, found.mhz[place], 0)
    return [min(mhz, its) if mhz and its else mhz or its for mhz, its in zip(clocks, low.tolist(), strict=True)]


def lowered(clocks: list[tuple[float, int]], found: Windows) -> list[tuple[float, int]]:
    """The same clocks, but in windows that pay that of the window where it is lower: low and up again on time."""
    edges: list[tuple[float, float, int]] = []
    for index in np.flatnonzero(found.mhz).tolist():
        start = float(found.spans[index, 0]) + (float(found.late_ns[index]) if found.late_ns is not None else 0.0)
        stop = float(found.spans[index, 1]) - (float(found.early_ns[index]) if found.early_ns is not None else 0.0)
        if stop > start:
            edges.append((start, stop, int(found.mhz[index])))
    times = sorted({time for time, _ in clocks} | {t for start, stop, _ in edges for t in (start, stop)})
    changes = np.array([time for time, _ in clocks])
    begins = np.array([start for start, _, _ in edges])
    result: list[tuple[float, int]] = []
    for time in times:
        mhz = clocks[max(0, int(np.searchsorted(changes, time, side="right")) - 1)][1]
        near = int(np.searchsorted(begins, time, side="right")) - 1 if len(edges) else -1
        if near >= 0 and time < edges[near][1]:
            mhz = min(mhz, edges[near][2]) if mhz else edges[near][2]
        if not result or result[-1][1] != mhz:
            result.append((time, mhz))
    return result
