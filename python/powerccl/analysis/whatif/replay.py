# SPDX-License-Identifier: Apache-2.0
"""A job again, each stretch of its computation and each operation taking so many times as long as it did."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from powerccl.analysis import intervals as iv
from powerccl.analysis.whatif.lanes import EDGE, GATHER, RESUME, START, Job, Lane
from powerccl.analysis.whatif.timeline import GpuTimeline

UNKNOWN = -1.0


@dataclass
class Course:
    """What came of one GPU, new host time in ns from the stretch's start on: its operations, and when it stalled.

    `edges_ns`: where the old run's block edges came to lie, for comparing stretch by stretch. `waits`: for the others,
    with nothing to do.
    """

    starts: list[float] = field(default_factory=list)
    stops: list[float] = field(default_factory=list)
    stalls: list[tuple[float, float]] = field(default_factory=list)
    edges_ns: list[float] = field(default_factory=list)
    clocks: list[tuple[float, int]] = field(default_factory=list)  # set from when on, 0: the default
    switches: int = 0
    waits: list[tuple[float, float]] = field(default_factory=list)


def run(job: Job, computing: Sequence[npt.ArrayLike], transfer: Sequence[float], waiting: float = 1.0) -> list[Course]:
    """Replay with fixed factors: of the computation before each item of each lane, and of each meeting's transfer.

    `waiting`: of the time for peers that are not known.
    """
    lanes = job.lanes
    courses = [Course([UNKNOWN] * len(lane.before), [UNKNOWN] * len(lane.before), [], [], [(0.0, 0)]) for lane in lanes]
    takes = [m.transfer_ns * factor + m.unknown_ns * waiting for m, factor in zip(job.meetings, transfer, strict=True)]
    missing = [len(meeting.members) for meeting in job.meetings]
    latest = [0.0] * len(job.meetings)
    issued = [[UNKNOWN] * len(lane.before) for lane in lanes]
    blocked = [-1] * len(lanes)  # the operation that a lane waits for
    place, now = [0] * len(lanes), [0.0] * len(lanes)
    work = [_work(lane, factors) for lane, factors in zip(lanes, computing, strict=True)]
    ready = deque(range(len(lanes)))
    gathering: dict[int, list[int]] = {}  # lanes that wait for the others

    def go_on(waiting: list[int]) -> None:
        """All have come, or never will."""
        time_ns = max(now[lane] for lane in waiting)
        for lane in waiting:
            if time_ns > now[lane]:
                courses[lane].waits.append((now[lane], time_ns))
            now[lane], place[lane] = time_ns, place[lane] + 1
            ready.append(lane)

    def come(lane: int, operation: int, time_ns: float) -> None:
        """An operation's GPU has come to it, and where it was the last it moves data, and all go on."""
        arrived = [(lane, operation, time_ns)]
        while arrived:
            lane, operation, time_ns = arrived.pop()
            courses[lane].starts[operation] = time_ns
            number = lanes[lane].meeting[operation]
            missing[number] -= 1
            latest[number] = max(latest[number], time_ns)
            if missing[number]:
                continue
            stop = latest[number] + takes[number]
            for other, index in job.meetings[number].members:
                courses[other].stops[index] = stop
                if blocked[other] == index:
                    blocked[other] = -1
                    ready.append(other)
                after = lanes[other].after[index]
                if after >= 0 and issued[other][after] != UNKNOWN:
                    arrived.append((other, after, max(stop, issued[other][after])))

    while True:
        if not ready and not _force(job, place, courses, blocked, ready):
            if not gathering:
                break
            go_on(gathering.pop(min(gathering)))
        mine = ready.popleft()
        lane, course, took = lanes[mine], courses[mine], work[mine]
        what, index, stalled = lane.what, lane.index, lane.lasted
        i, time = place[mine], now[mine]
        while i < len(what):
            kind = what[i]
            if kind == RESUME:
                stop = course.stops[index[i]] if index[i] >= 0 else time + took[i] + stalled[i]
                if stop == UNKNOWN:
                    blocked[mine] = index[i]
                    break
                time += took[i]
                if stop > time:
                    course.stalls.append((time, stop))
                    time = stop
            else:
                time += took[i]
                if kind == START:
                    operation = index[i]
                    before = lane.before[operation]
                    issued[mine][operation] = time
                    if before < 0 or course.stops[before] != UNKNOWN:
                        come(mine, operation, time if before < 0 else max(time, course.stops[before]))
                elif kind == EDGE:
                    course.edges_ns.append(time)
                elif kind == GATHER:
                    gathering.setdefault(index[i], []).append(mine)
                    break
            i += 1
        place[mine], now[mine] = i, time
        if i < len(what) and what[i] == GATHER and len(gathering[index[i]]) == len(lanes):
            go_on(gathering.pop(index[i]))
    return courses


def _work(lane: Lane, factors: npt.ArrayLike) -> list[float]:
    """What computation before each item takes now."""
    steps = np.diff(np.array(lane.progress, dtype=np.float64), prepend=0.0)
    return list((steps * np.asarray(factors, dtype=np.float64)).tolist())


def _force(job: Job, place: list[int], courses: list[Course], blocked: list[int], ready: deque[int]) -> bool:
    """Lets a lane go on that waits for what can never end, since operations were taken for one that are not."""
    for lane, operation in enumerate(blocked):
        if operation >= 0 and place[lane] < len(job.lanes[lane].what):
            known = [courses[lane].starts[operation], *(stop for _, stop in courses[lane].stalls[-1:]), 0.0]
            courses[lane].stops[operation] = max(known)
            blocked[lane] = -1
            ready.append(lane)
            return True
    return False


def moved(lane: Lane, course: Course) -> GpuTimeline:
    """The lane's timeline as it is now; times from the stretch's start on."""
    operations = [
        replace(operation, start_ns=int(start), stop_ns=int(stop))
        for operation, start, stop in zip(lane.line.operations, course.starts, course.stops, strict=True)
        if start != UNKNOWN and stop != UNKNOWN
    ]
    operations.sort(key=lambda operation: operation.start_ns)
    return GpuTimeline(
        gpu=lane.line.gpu,
        rank=lane.line.rank,
        place=lane.line.place,
        host=lane.line.host,
        operations=operations,
        calls=lane.line.calls,
        exposed=spans_of(course.stalls),
        communicating=iv.union([o.start_ns for o in operations], [o.stop_ns for o in operations]),
    )


def spans_of(pairs: list[tuple[float, float]]) -> iv.Intervals:
    """Pairs of times as a set."""
    array = np.rint(np.array(pairs, dtype=np.float64).reshape(-1, 2)).astype(np.int64)
    return iv.union(array[:, 0], array[:, 1])
