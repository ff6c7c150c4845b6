# SPDX-License-Identifier: Apache-2.0
"""One GPU's run again, with clocks set by percall: what computes meanwhile takes longer, all behind it comes later.

Computation and communication keep the order they were seen in: an operation starts when computation has got as far as
it had, and the operation before it in its communicator is over; computation that stalled for an operation goes on when
that is over. The host calls when computation has got as far as it had. A lower clock stretches computation, the
transfer by what the profile says, and waiting for late peers as computation is stretched, since theirs is.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from powerccl.analysis import intervals as iv
from powerccl.analysis.whatif_platform import ClockPlatform
from powerccl.analysis.whatif_power import PowerModel
from powerccl.analysis.whatif_timeline import GpuTimeline, Operation

CALLBACK_NS = 40_000  # a host callback holds its stream as long (measured on an H200)
WINDING_UP_S = 1e-4  # less of communication at the default clock changes nothing for a power governor
NEAR_NS = 1_000_000  # what two clocks, a GPU's and the host's, may differ by
_HOLD, _START, _RESUME, _EDGE = range(4)


@dataclass
class Replay:
    """What came of it: when the GPU computed and communicated, and which clock was set from when (0: none), new time.

    `edges_ns`: where the old run's block edges came to lie, for comparing stretch by stretch. `resets_behind`: a clock
    is reset only when computation goes on, so that a power governor has not wound up by then.
    """

    computing: list[tuple[float, float]] = field(default_factory=list)
    communicating: list[tuple[float, float]] = field(default_factory=list)
    clocks: list[tuple[float, int]] = field(default_factory=list)
    edges_ns: list[float] = field(default_factory=list)
    switches: int = 0
    resets_behind: bool = False


class _Clock:
    """The clock thread of percall: holds of managed calls, the newest of which wins; one driver call at a time."""

    def __init__(self, call_ns: float, transition_ns: float, start_ns: float) -> None:
        self.call_ns, self.transition_ns = call_ns, transition_ns
        self.mhz = 0  # in effect; 0: default
        self.changes: list[tuple[float, int]] = [(start_ns, 0)]
        self.switches = 0
        self._holds = 0
        self._wish = self._asked = 0
        self._busy_until = start_ns
        self._events: list[tuple[float, int, str, int]] = []
        self._serial = 0
        self._newest = 0

    def at(self, time_ns: float, what: str, value: int = 0) -> None:
        self._serial += 1
        heapq.heappush(self._events, (time_ns, self._serial, what, value))

    def next_ns(self) -> float:
        return self._events[0][0] if self._events else float("inf")

    def run(self, until_ns: float) -> None:
        """Everything up to a moment."""
        while self._events and self._events[0][0] <= until_ns:
            time_ns, serial, what, value = heapq.heappop(self._events)
            if what == "hold":
                self._holds, self._wish = self._holds + 1, value
            elif what == "release":
                self._holds = max(0, self._holds - 1)
            elif what == "effect":
                # A clock that is changed again on its way never gets where it was going first.
                if serial == self._newest and value != self.mhz:
                    self.mhz = value
                    self.changes.append((time_ns, value))
                continue
            wanted = self._wish if self._holds else 0
            if wanted == self._asked:
                continue
            if time_ns < self._busy_until:
                self.at(self._busy_until, "look")
                continue
            self._asked = wanted
            self.switches += 1
            self._busy_until = time_ns + self.call_ns
            self.at(self._busy_until + self.transition_ns, "effect", wanted)
            self._newest = self._serial


def percall(
    line: GpuTimeline, model: PowerModel, platform: ClockPlatform, span: tuple[int, int], edges_ns: list[int]
) -> Replay:
    """Replay a GPU's timeline from span[0] to span[1] under percall."""
    operations = line.operations
    exposed = iv.clip(line.exposed, *span)
    items = _items(line, platform, exposed, edges_ns)
    # What was before the stretch has happened when it begins.
    progress = _progress(exposed, np.maximum([item[0] for item in items], span[0]).astype(np.int64))
    switch = platform.switch
    busy_ns = (switch.latency_us(line.place) - switch.transition_us) * 1e3
    clock = _Clock(busy_ns, switch.transition_us * 1e3, span[0])
    found = Replay(resets_behind=True)
    behind_times = model.behind()[0]
    now, done = float(span[0]), float(span[0])
    ended: dict[int, float] = {}  # by operation
    last: dict[int, float] = {}  # by communicator
    behind = False
    for (_, what, index), due in zip(items, progress, strict=True):
        left = float(due) - done
        done = float(due)
        while left > 0:
            clock.run(now)
            behind = behind or clock.mhz != 0
            times = model.late(clock.mhz) if clock.mhz else behind_times if behind else 1.0
            took = min(left * times, max(clock.next_ns() - now, 0.0))
            if took <= 0:
                continue
            found.computing.append((now, now + took))
            left = left - took / times if took < left * times else 0.0
            now += took
        if what == _HOLD:
            clock.at(now, "hold", index)
        elif what == _START:
            operation = operations[index]
            start = max(now, last.get(operation.comm, 0.0))
            managed = operation.called_ns >= 0 and platform.percall_mhz(operation.pattern, operation.size_bytes) > 0
            clock.run(start)
            stop = _end(operation, start, clock, model, platform)
            if managed:
                stop += CALLBACK_NS
                clock.at(stop, "release")
            ended[index] = last[operation.comm] = stop
            found.communicating.append((start, stop))
        elif what == _RESUME:
            if index >= 0 and index in ended and ended[index] > now:
                now = ended[index]
                # Communication at the default clock lets the power governor wind up again.
                clock.run(now)
                behind = behind and clock.mhz != 0
        else:
            found.edges_ns.append(now)
    clock.run(now)
    found.clocks, found.switches = clock.changes, clock.switches
    return found


def _items(
    line: GpuTimeline, platform: ClockPlatform, exposed: iv.Intervals, edges_ns: list[int]
) -> list[tuple[int, int, int]]:
    """(old time, what, index) in order. Stalls are told by their ends; each by the operation that ended it."""
    items: list[tuple[int, int, int]] = []
    known = {operation.call_id for operation in line.operations}
    for called_ns, pattern, size, call_id in line.calls:
        mhz = platform.percall_mhz(pattern, size)
        if mhz and call_id in known:
            items.append((called_ns, _HOLD, mhz))
    items += [(operation.start_ns, _START, i) for i, operation in enumerate(line.operations)]
    items += [
        (stop, _RESUME, index) for (_, stop), index in zip(exposed.tolist(), _awaited(line, exposed), strict=True)
    ]
    items += [(edge, _EDGE, 0) for edge in edges_ns]
    items.sort()
    return items


def _awaited(line: GpuTimeline, exposed: iv.Intervals) -> list[int]:
    """The operation that each stall waited for: the one whose end is nearest to its own, -1 where none is near."""
    stops = np.array([operation.stop_ns for operation in line.operations], dtype=np.int64)
    order = np.argsort(stops, kind="stable")
    found: list[int] = []
    for resume in exposed[:, 1].tolist():
        place = int(np.searchsorted(stops[order], resume))
        near = [int(order[i]) for i in (place - 1, place) if 0 <= i < len(order)]
        best = min(near, key=lambda index: abs(int(stops[index]) - resume), default=-1)
        found.append(best if best >= 0 and abs(int(stops[best]) - resume) <= NEAR_NS else -1)
    return found


def _progress(exposed: iv.Intervals, time_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How far computation had got at each time: the time without the stalls before it."""
    progress: npt.NDArray[np.int64] = time_ns - iv.covered_before(exposed, time_ns)
    return progress


def _end(operation: Operation, start: float, clock: _Clock, model: PowerModel, platform: ClockPlatform) -> float:
    """When an operation that starts now ends, at the clock that is in effect and the one about to be."""
    transfer = operation.stop_ns - operation.start_ns - operation.waiting_ns
    if not clock.mhz:
        return start + transfer + operation.waiting_ns
    ratio = platform.time_ratio(operation.pattern, operation.size_bytes, clock.mhz)
    return start + transfer * ratio + operation.waiting_ns * model.waiting(clock.mhz)


def energy(
    found: Replay, model: PowerModel, platform: ClockPlatform, before_w: float | None = None
) -> tuple[npt.NDArray[np.float64], float]:
    """Joules between the replay's block edges, and the share of time at a lowered clock.

    `before_w`: mean power without the policy; a GPU that draws less than it is cooler, and leaks less for it.
    """
    computing, communicating = _spans(found.computing), _spans(found.communicating)
    changes = np.array([time for time, _ in found.clocks], dtype=np.int64)
    mhz = np.array([clock for _, clock in found.clocks])
    edges = np.rint(found.edges_ns).astype(np.int64)
    knots = np.unique(np.concatenate([computing.ravel(), communicating.ravel(), changes, edges]))
    knots = knots[(knots >= edges[0]) & (knots <= edges[-1])]
    middle = knots[:-1] + np.diff(knots) // 2
    seconds = np.diff(knots) / 1e9
    computes, talks = iv.contains(computing, middle), iv.contains(communicating, middle)
    clock = mhz[np.maximum(np.searchsorted(changes, middle, side="right") - 1, 0)]
    behind = np.zeros(len(clock), dtype=np.bool_)
    if found.resets_behind:
        behind = _behind(computes, talks & (seconds > WINDING_UP_S), clock)
    watts, leaks = _watts(model, platform, computes, talks, clock, behind)
    if before_w is not None and seconds.sum() > 0:
        kelvin_w = platform.kelvin_per_watt
        leak_w = float((leaks * seconds).sum() / seconds.sum()) * platform.leakage_watts_per_kelvin
        less_w = (float((watts * seconds).sum() / seconds.sum()) - before_w) / max(1 - kelvin_w * leak_w, 0.5)
        watts = watts + leaks * platform.leakage_watts_per_kelvin * kelvin_w * less_w
    joules = np.concatenate([[0.0], np.cumsum(watts * seconds)])
    blocks = np.diff(np.interp(edges.astype(np.float64), knots.astype(np.float64), joules))
    return blocks, float(seconds[clock > 0].sum() / max(seconds.sum(), 1e-12))


def _watts(
    model: PowerModel,
    platform: ClockPlatform,
    computes: npt.NDArray[np.bool_],
    talks: npt.NDArray[np.bool_],
    clock: npt.NDArray[np.int64],
    behind: npt.NDArray[np.bool_],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Power of each stretch, and its voltage where warmth adds to it: not where a power limit says what is drawn."""
    drawn, shape = model.drawn, model.shape
    _, behind_alone, behind_both = model.behind()
    alone_w, both_w = model.as_ever()
    watts = np.where(computes, np.where(talks, both_w, alone_w), drawn.exposed_w)
    watts = np.where(computes & behind & (clock == 0), np.where(talks, behind_both, behind_alone), watts)
    leaks = np.where(computes & np.bool_(drawn.limited), 0.0, 1.0)
    for low in np.unique(clock[clock > 0]).tolist():
        at = clock == low
        volts = float(shape.volts(low))
        # Above, the power limit says what is drawn, as it did.
        if low < max(drawn.compute_mhz, model.steady_mhz):
            both, alone = model.watts(low, True, True), model.watts(low, True, False)
            watts = np.where(at & computes, np.where(talks, both, alone), watts)
            leaks = np.where(at & computes, volts, leaks)
        watts = np.where(at & ~computes, model.lowered(low, platform.power_ratio(low)), watts)
        leaks = np.where(at & ~computes, volts, leaks)
    return watts, leaks


def _behind(
    computes: npt.NDArray[np.bool_], talks: npt.NDArray[np.bool_], clock: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Since the last lowered clock, no communication alone at the default clock."""
    index = np.arange(len(clock))
    lowered = np.maximum.accumulate(np.where(clock > 0, index, -1))
    wound = np.maximum.accumulate(np.where((clock == 0) & ~computes & talks, index, -1))
    result: npt.NDArray[np.bool_] = lowered > wound
    return result


def _spans(pairs: list[tuple[float, float]]) -> iv.Intervals:
    array = np.rint(np.array(pairs, dtype=np.float64).reshape(-1, 2)).astype(np.int64)
    return iv.union(array[:, 0], array[:, 1])
