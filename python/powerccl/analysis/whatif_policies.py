# SPDX-License-Identifier: Apache-2.0
"""Policies that need no replay of calls: `phase`, `job`, and both together, as a warp of the recorded timeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerccl.analysis import intervals as iv
from powerccl.analysis.whatif_platform import ClockPlatform
from powerccl.analysis.whatif_power import PowerModel
from powerccl.analysis.whatif_replay import Replay
from powerccl.analysis.whatif_timeline import GpuTimeline

# As native/runtime/windows.h has it.
JOIN_SHARE = 0.01  # of two windows' length: no further apart, the clock is held across
BUSY_SHARE = 0.5  # of the time, that may go by in driver calls


@dataclass
class Windows:
    """Exposed communication of a GPU as `phase` sees it: spans, the clock each would get (0: too short, or none known).

    `ratio`: how many times as long the window's communication takes at that clock.
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
    long = lengths - front - tail > platform.switch.window_us(gpus) * 1e3
    # The driver has no more time than that for windows: the longest have it.
    most = int(BUSY_SHARE * (span[1] - span[0]) / (2e3 * max(platform.switch.calls_us(gpus), 1e-3)))
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
        # What runs in a CUDA graph is not seen as it runs.
        if not clocks or min(clocks) == 0 or any(o.called_ns < 0 for o in inside):
            continue
        mhz[index] = max(clocks)
        ratio[index] = max(platform.time_ratio(o.pattern, o.size_bytes, float(mhz[index])) for o in inside)
    # A clock is asked for ahead, by as long as it takes; whose turn it is in the driver is not known to the last.
    return Windows(spans, mhz, ratio, int((~long).sum()), front, tail + platform.switch.queue_us(gpus) * 1e3)


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
            offsets = spans[here, edge] - begins[here]
            found[here] = float(np.mean(np.abs(offsets - np.median(offsets))))
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


def no_windows(line: GpuTimeline, span: tuple[int, int]) -> Windows:
    """Exposed communication where no window is made of it."""
    spans = iv.clip(line.exposed, *span)
    return Windows(spans, np.zeros(len(spans), dtype=np.int64), np.ones(len(spans)))


def stretched(model: PowerModel, mhz: int, times: float, lowest_mhz: int) -> int:
    """The clock at which computation takes so many times as long as it does at `mhz`."""
    clock = model.clock_of(model.slowdown(mhz) * times)
    return max(lowest_mhz, min(mhz, int(clock)))


def observed(line: GpuTimeline, span: tuple[int, int], edges_ns: list[int]) -> Replay:
    """The run as it was."""
    return _warped(line, span, edges_ns, None, np.ones(0), np.ones(0), [(float(span[0]), 0)])


def phase(line: GpuTimeline, found: Windows, span: tuple[int, int], edges_ns: list[int]) -> Replay:
    """Clocks low in windows that pay, up again ahead of their ends: computation finds them, and a governor, as ever."""
    replay = _warped(line, span, edges_ns, found, np.ones(len(found.spans) + 1), found.ratio, [(float(span[0]), 0)])
    replay.switches = 2 * int((found.mhz > 0).sum())
    return replay


def held(
    line: GpuTimeline,
    model: PowerModel,
    platform: ClockPlatform,
    mhz: int,
    late: float,
    found: Windows,
    span: tuple[int, int],
    edges_ns: list[int],
) -> Replay:
    """One clock for all of it but the windows that pay (`found`; of `job`, none does).

    `late`: how many times as long computation takes on the ranks that come last. A rank that comes earlier waits as
    much less as it computes longer than they do.
    """
    own = model.slowdown(mhz)
    before = np.diff(np.append(span[0], found.spans.ravel()))[0::2][: len(found.spans)].astype(np.float64)
    length = (found.spans[:, 1] - found.spans[:, 0]).astype(np.float64)
    inside = np.diff(iv.covered_before(line.waiting, found.spans.ravel()))[0::2]
    waited = inside.astype(np.float64)
    last = np.maximum(np.searchsorted(line.starts, found.spans[:, 1]) - 1, 0).tolist()
    ratio = np.array([platform.time_ratio(o.pattern, o.size_bytes, mhz) for o in (line.operations[i] for i in last)])
    ratio = np.where(found.mhz > 0, found.ratio, ratio)
    all_waited, all_before = float(waited.sum()), max(float(before.sum()), 1.0)
    new = waited
    if model.peers_compute:
        # Nobody is later than the last.
        own = min(own, late * (1 + all_waited / all_before))
        left = (all_before + all_waited) * late - all_before * own
        new = waited * left / max(all_waited, 1.0)
    new = new + (length - waited) * ratio
    computing = np.full(len(found.spans) + 1, own)
    replay = _warped(line, span, edges_ns, found, computing, new / np.maximum(length, 1.0), [(float(span[0]), mhz)])
    replay.switches = 2 * int((found.mhz > 0).sum()) + 2
    return replay


def _warped(
    line: GpuTimeline,
    span: tuple[int, int],
    edges_ns: list[int],
    found: Windows | None,
    computing: npt.NDArray[np.float64],
    ratio: npt.NDArray[np.float64],
    clocks: list[tuple[float, int]],
) -> Replay:
    """The recorded timeline with each stretch of computation and each window stretched by its factor."""
    exposed = iv.clip(line.exposed, *span)
    knots = np.concatenate([[span[0]], found.spans.ravel() if found else np.zeros(0, np.int64), [span[1]]])
    factor = np.ones(len(knots) - 1)
    if found is not None:
        factor[0::2] = computing
        factor[1::2] = ratio
    moved = span[0] + np.concatenate([[0.0], np.cumsum(np.diff(knots) * factor)])

    def to(time_ns: npt.ArrayLike) -> npt.NDArray[np.float64]:
        return np.asarray(np.interp(np.asarray(time_ns, dtype=np.float64), knots, moved), dtype=np.float64)

    rest = iv.union(np.concatenate([[span[0]], exposed[:, 1]]), np.concatenate([exposed[:, 0], [span[1]]]))
    changes = list(clocks)
    if found is not None:
        outside = clocks[0][1]
        late = found.late_ns if found.late_ns is not None else np.zeros(len(found.mhz))
        early = found.early_ns if found.early_ns is not None else np.zeros(len(found.mhz))
        for index in np.flatnonzero(found.mhz).tolist():
            mhz = int(found.mhz[index])
            low = min(mhz, outside) if outside else mhz
            start, stop = to(found.spans[index]) + np.array([late[index], -early[index]])
            if stop > start:
                changes += [(float(start), low), (float(stop), outside)]
    return Replay(
        computing=[tuple(pair) for pair in to(rest).tolist()],
        communicating=[tuple(pair) for pair in to(iv.clip(line.communicating, *span)).tolist()],
        clocks=changes,
        edges_ns=to(edges_ns).tolist(),
    )
