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

MERGE_NS = 1_000_000  # windows closer together are held across, as the runtime does


@dataclass
class Windows:
    """Exposed communication of a GPU as `phase` sees it: spans, the clock each would get (0: too short, or none known).

    `ratio`: how many times as long the window's communication takes at that clock.
    """

    spans: iv.Intervals
    mhz: npt.NDArray[np.int64]
    ratio: npt.NDArray[np.float64]
    short: int = 0  # windows that do not outlast a switch
    late_ns: float = 0.0  # the clock is low so much later than the window begins
    early_ns: float = 0.0  # and up again so much before it ends


def windows(line: GpuTimeline, platform: ClockPlatform, gpus: int, span: tuple[int, int]) -> Windows:
    """The exposed windows of a GPU and their clocks: the highest of the minimum clocks of what communicates in them."""
    exposed = iv.clip(line.exposed, *span)
    spans = iv.union(exposed[:, 0], exposed[:, 1] + MERGE_NS) if len(exposed) else exposed
    if len(spans):
        spans = spans - np.array([0, MERGE_NS])
    mhz = np.zeros(len(spans), dtype=np.int64)
    ratio = np.ones(len(spans))
    long = spans[:, 1] - spans[:, 0] > platform.switch.window_us(gpus) * 1e3
    starts = np.array([operation.start_ns for operation in line.operations], dtype=np.int64)
    reach = np.maximum.accumulate(np.array([operation.stop_ns for operation in line.operations], dtype=np.int64))
    for index in np.flatnonzero(long).tolist():
        start, stop = spans[index].tolist()
        first, last = int(np.searchsorted(reach, start, side="right")), int(np.searchsorted(starts, stop))
        inside = [o for o in line.operations[first:last] if o.stop_ns > start]
        clocks = [platform.minimum_mhz(o.pattern, o.size_bytes) for o in inside]
        if not clocks or min(clocks) == 0:
            continue
        mhz[index] = max(clocks)
        ratio[index] = max(platform.time_ratio(o.pattern, o.size_bytes, float(mhz[index])) for o in inside)
    # All GPUs ask at once, early enough for the last of them; the first are where they are going a little sooner.
    call_ns = platform.switch.call_us * 1e3 if platform.switch.serialised else 0.0
    return Windows(spans, mhz, ratio, int((~long).sum()), line.place * call_ns, (gpus - 1 - line.place) * call_ns)


def observed(line: GpuTimeline, span: tuple[int, int], edges_ns: list[int]) -> Replay:
    """The run as it was."""
    return _warped(line, span, edges_ns, None, np.ones(0), np.ones(0), [(float(span[0]), 0)])


def phase(line: GpuTimeline, model: PowerModel, found: Windows, span: tuple[int, int], edges_ns: list[int]) -> Replay:
    """Clocks low in windows that pay, up again when computation goes on, which is then as ever."""
    return capped_phase(line, model, found, 0, span, edges_ns)


def capped_phase(
    line: GpuTimeline, model: PowerModel, found: Windows, cap_mhz: int, span: tuple[int, int], edges_ns: list[int]
) -> Replay:
    """`phase` in windows that pay, and outside of them the clock held at `cap_mhz` (0: as ever)."""
    # The stretch before each window, and the last one.
    computing = np.full(len(found.spans) + 1, model.slowdown(cap_mhz) if cap_mhz else 1.0)
    managed = found.mhz > 0
    clocks = [(float(span[0]), cap_mhz)]
    replay = _warped(line, span, edges_ns, found, computing, found.ratio, clocks)
    replay.switches = 2 * int(managed.sum()) + (2 if cap_mhz else 0)
    return replay


def job(
    line: GpuTimeline, model: PowerModel, platform: ClockPlatform, mhz: int, span: tuple[int, int], edges_ns: list[int]
) -> Replay:
    """One clock for all of it."""
    exposed = iv.clip(line.exposed, *span)
    ratios = []
    starts = np.array([operation.start_ns for operation in line.operations], dtype=np.int64)
    for start, stop in exposed.tolist():
        last = max(0, int(np.searchsorted(starts, stop)) - 1)
        operation = line.operations[last]
        waited = operation.waiting_ns / max(operation.stop_ns - operation.start_ns, 1)
        transfer = platform.time_ratio(operation.pattern, operation.size_bytes, mhz)
        ratios.append(waited * model.waiting(mhz) + (1 - waited) * transfer if stop > start else 1.0)
    found = Windows(exposed, np.zeros(len(exposed), dtype=np.int64), np.array(ratios))
    computing = np.full(len(exposed) + 1, model.slowdown(mhz))
    replay = _warped(line, span, edges_ns, found, computing, found.ratio, [(float(span[0]), mhz)])
    replay.switches = 2
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
        for (start, stop), mhz in zip(found.spans.tolist(), found.mhz.tolist(), strict=True):
            if mhz:
                low = min(mhz, outside) if outside else mhz
                changes += [(float(to(start)) + found.late_ns, low), (float(to(stop)) - found.early_ns, outside)]
    return Replay(
        computing=[tuple(pair) for pair in to(rest).tolist()],
        communicating=[tuple(pair) for pair in to(iv.clip(line.communicating, *span)).tolist()],
        clocks=changes,
        edges_ns=to(edges_ns).tolist(),
    )
