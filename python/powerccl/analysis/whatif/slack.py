# SPDX-License-Identifier: Apache-2.0
"""How much more slowly GPUs compute that wait for others anyway, as `fixed` and `auto` find it out by iterating.

Where marks tell what computation waits for, each stretch of the iteration has a clock of its own, as far as a change of
clock is worth it; else what is least holds for all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerccl.analysis.whatif.lanes import Job, Lane
from powerccl.analysis.whatif.meetings import PAIRS
from powerccl.analysis.whatif.replay import Course
from powerccl.analysis.whatif.timeline import deviation_of, numbers_of

# As native/policy/slack.h has it; shares are of an iteration.
GAIN, MARGIN, LEAST, MOST, GIVEN_BACK, IDLE, ALIKE, BUSY_SHARE = 0.75, 0.002, 1.02, 2.0, -0.2, 0.005, 0.05, 0.25
SHORTEST = 0.02
SMALL_MARGIN, CLEAR = 0.0005, 6.0  # where it waits for so many deviations of that
LATE_SHARE, LATE = 0.22, 0.015
FREE = 1e9
ROUNDS = 8  # that a job of half a minute has time for

Values = npt.NDArray[np.float64]


@dataclass
class Rhythm:
    """Where each operation of a lane is in its iteration: place and number, and the calls of one."""

    calls: int
    place: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]


def rhythm_of(lane: Lane, calls: int) -> Rhythm:
    """Of a lane whose iteration has so many calls."""
    number = numbers_of(lane.line)
    first = int(number[0]) if len(number) else 0
    number = number - first // calls * calls
    return Rhythm(calls, (number % calls).astype(np.int64), (number // calls).astype(np.int64))


@dataclass
class Usual:
    """What a lane's iteration is like on average: ns from its first operation's start on, by place (NaN: not seen)."""

    length: float
    offset: Values
    duration: Values
    deviation: Values
    exposed: npt.NDArray[np.bool_]


def usual_of(lane: Lane, course: Course, rhythm: Rhythm, deviation: Values | None = None) -> Usual | None:
    """Means over the complete iterations of a replay; `deviation` of the recording, which a replay does not have."""
    starts, stops = np.array(course.starts), np.array(course.stops)
    count = int(rhythm.number.max()) + 1 if len(rhythm.number) else 0
    table = np.full((2, count, rhythm.calls), np.nan)
    table[0, rhythm.number, rhythm.place] = starts
    table[1, rhythm.number, rhythm.place] = stops
    begins = table[0, :, 0]
    known = np.flatnonzero(np.isfinite(begins))
    if len(known) < 4 or np.isnan(table[0]).all(axis=0).any():
        return None
    length = float(begins[known[-1]] - begins[known[0]]) / float(known[-1] - known[0])
    duration = table[1] - table[0]
    offset = table[0] - begins[:, None]
    inner = known[1:-1]
    if np.isnan(table[:, inner]).all(axis=1).any():
        return None
    mean = np.nanmean(duration[inner], axis=0)
    off = deviation
    if off is None:
        off = np.array([deviation_of(column[np.isfinite(column)]) for column in duration[inner].T])
    stalled = np.zeros(rhythm.calls, dtype=np.bool_)
    if course.stalls:
        ends = np.array([stop for _, stop in course.stalls])
        near = np.clip(np.searchsorted(ends, stops), 0, len(ends) - 1)
        hit = (np.abs(ends[near] - stops) < 1e3) | (np.abs(ends[np.maximum(near - 1, 0)] - stops) < 1e3)
        share = np.bincount(rhythm.place, weights=hit, minlength=rhythm.calls)
        stalled = share > 0.5 * np.maximum(np.bincount(rhythm.place, minlength=rhythm.calls), 1)
    return Usual(length, np.nanmean(offset[inner], axis=0), mean, off, stalled)


def _kinds_of(lane: Lane, rhythm: Rhythm) -> list[tuple[str, int, str, int]]:
    """Of the operation at each place: host, communicator, pattern, bytes."""
    kinds: list[tuple[str, int, str, int]] = [("", 0, "", 0)] * rhythm.calls
    for operation, place in zip(lane.line.operations, rhythm.place.tolist(), strict=True):
        # Exchanges of all sizes are one kind; who else is in a communicator is told by who is met there.
        size = 0 if operation.pattern == PAIRS else operation.size_bytes
        kinds[place] = (lane.line.host, operation.comm_id, operation.pattern, size)
    return kinds


def at_one_clock(lane: Lane, rhythm: Rhythm, deviation: Values) -> Values:
    """Deviations of a GPU at its power limit, as they are once a clock is held: what a governor adds, now in one place
    and now in another, is gone, so each is as that of its kind that deviates least.

    In a pipeline on the emulated T4 the last gradient's transfer deviated by 0.17 ms, and by 0.00 when managed.
    """
    kinds = _kinds_of(lane, rhythm)
    least = {kind: min(off for off, its in zip(deviation, kinds, strict=True) if its == kind) for kind in set(kinds)}
    return np.array([least[kind] for kind in kinds])


def least_ns(job: Job, usual: list[Usual | None], rhythms: list[Rhythm]) -> list[Values]:
    """How long an operation at each place takes without waiting: what the rank of a host sees that comes last."""
    least: dict[tuple[str, int, str, int], float] = {}
    kinds: list[list[tuple[str, int, str, int]]] = []
    for lane, mine, rhythm in zip(job.lanes, usual, rhythms, strict=True):
        of = _kinds_of(lane, rhythm)
        kinds.append(of)
        if mine is not None:
            for kind, took in zip(of, mine.duration.tolist(), strict=True):
                least[kind] = min(least.get(kind, np.inf), took)
    return [np.array([least.get(kind, 0.0) for kind in of]) for of in kinds]


@dataclass
class Stretches:
    """By place, of the computation before it, as factors: what it may have and what it has.

    FREE: there is nothing to be late with. `computed`: how long it takes, in ns, beside no communication that is waited
    for.
    """

    may: Values
    has: Values
    computed: Values

    @staticmethod
    def none(count: int) -> Stretches:
        """Nothing is stretched yet."""
        return Stretches(np.ones(count), np.ones(count), np.zeros(count))


def again(mine: Usual, transfer: Values, before: Stretches, marked: bool, too_long: bool) -> Stretches:
    """After another look; what it has is as before."""
    stretch, has = before.may, before.has
    alone = np.zeros(len(stretch))
    found = stretch.copy()
    exposed = mine.exposed if marked else np.ones(len(stretch), dtype=np.bool_)
    order = np.argsort(mine.offset, kind="stable").tolist()
    end = mine.offset + mine.duration
    ended = float(end.max()) - mine.length
    least, computed, begin = FREE, 0.0, 0
    for number, place in enumerate(order):
        begins = float(mine.offset[place])
        alone[place] = max(0.0, begins - ended)
        computed += float(alone[place])
        if computed > IDLE * mine.length:
            waits, off = float(mine.duration[place]) - float(transfer[place]), float(mine.deviation[place])
            clear = waits + computed * (1 - 1 / float(has[place])) > CLEAR * off
            margin = SMALL_MARGIN * mine.length + 2 * off if clear else MARGIN * mine.length + 3 * off
            least = min(least, (waits - margin) / computed)
        ended = float(end[place]) if exposed[place] else max(ended, begins)
        if not exposed[place] and number + 1 < len(order):
            continue
        slack = GIVEN_BACK if too_long and least > GIVEN_BACK else least
        for other in order[begin : number + 1]:
            if slack >= FREE:
                found[other] = FREE
                continue
            if slack < 0 and found[other] < has[other] and not too_long:
                continue  # late by intent: by how much does not show
            now = min(found[other], has[other]) if slack < 0 else has[other]
            found[other] = min(max(now * (1 + (slack if slack < 0 else GAIN * slack)), 1.0), MOST)
        begin, least, computed = number + 1, FREE, 0.0
    return Stretches(found, has, alone)


def before_transfers(clocks: list[int]) -> list[int]:
    """The clock that each of a lane's operations has while it moves data: up already where it is higher behind it."""
    return [
        after if after == 0 or 0 < mine < after else mine
        for mine, after in zip(clocks, clocks[1:] + clocks[-1:], strict=True)
    ]


def _in_common(found: Stretches, least: float) -> float:
    """Of an iteration that must have one: more than the least, where little of it is late by little."""
    low, high = least, MOST
    known = found.may[found.may < FREE]
    most = max(float(known.max()) if len(known) else 1.0, 1.0)
    in_all, takes = float(found.computed.sum()), found.computed / found.has
    for _ in range(12):
        middle = 0.5 * (low + high)
        behind = found.may < middle
        late = float((takes[behind] * (middle - found.may[behind])).sum())
        fits = late <= LATE * in_all and float(takes[behind].sum()) <= LATE_SHARE * in_all and middle <= most
        low, high = (middle, high) if fits else (low, middle)
    return low


def arranged(mine: Usual, wishes: Stretches, call_ns: float, change_ns: float, marked: bool) -> Values:
    """The stretches by place, of stages none of which is shorter than is worth a change of clock."""
    stretch = wishes.may
    shortest = max(2 * change_ns if marked else mine.length, SHORTEST * mine.length)
    most = BUSY_SHARE * mine.length / max(call_ns, 1.0)
    order = np.argsort(mine.offset, kind="stable").tolist()
    end = mine.offset + mine.duration
    began = float(end.max()) - mine.length
    stages: list[tuple[float, float, list[int]]] = []  # until, times, places
    for place in order:
        until, times = float(end[place]), float(stretch[place])
        if stages:
            last, its, places = stages[-1]
            alike = abs(times / its - 1) < ALIKE
            if times >= FREE or its >= FREE or alike or last - began < shortest or len(stages) + 1 > most:
                stages[-1] = (max(last, until), min(its, times), [*places, place])
                continue
            began = last
        stages.append((until, times, [place]))
    if len(stages) > 1 and stages[-1][0] - stages[-2][0] < shortest:
        until, times, places = stages.pop()
        stages[-1] = (until, min(stages[-1][1], times), stages[-1][2] + places)
    if marked and len(stages) == 1 and stages[0][1] < FREE:
        stages[0] = (stages[0][0], _in_common(wishes, stages[0][1]), stages[0][2])
    found = np.ones(len(stretch))
    for _, times, places in stages:
        found[places] = 1.0 if times >= FREE or times < LEAST else times
    return found
