# SPDX-License-Identifier: Apache-2.0
"""A job again under per-call, event by event: clocks come when the driver gets to them, whatever runs by then.

Each call above its overhead point holds its clock from when it is made until a callback behind it. A GPU's clock thread
asks for the newest clock held, or for the default once nothing is; one question at a time, and drivers that serve one
GPU after the other keep the others waiting. A clock that is changed again on its way never gets where it was going
first. A lower clock makes computation and transfers slower from then on, so that all that follows moves.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from powerccl.analysis.whatif.lanes import EDGE, GATHER, HOLD, RESUME, START, Job, Lane
from powerccl.analysis.whatif.paces import Pace
from powerccl.analysis.whatif.platform import ClockPlatform
from powerccl.analysis.whatif.power import BURST_NS, LOOKS_EVERY_NS, PowerModel
from powerccl.analysis.whatif.replay import UNKNOWN, Course
from powerccl.analysis.whatif.slack import Rhythm

CALLBACK_NS = 40_000  # a host callback holds its stream as long (measured on an H200)
_REACHED, _NEXT, _CALLED, _END, _ASK, _ANSWERED, _EFFECT, _LOOKED, _CALMED = range(9)


@dataclass
class _Gpu:
    """Where a GPU is: its next item, since when it has computed towards it, or what it waits for; and its clock."""

    item: int = 0
    computes: bool = False
    since: float = 0.0
    left: float = 0.0  # of computation then, at the speed it was recorded at
    times: float = 1.0
    version: int = 0  # of what was foreseen for it
    waits_for: int = -1
    stalled_since: float = 0.0  # or when it came to where it waits for all others
    mhz: int = 0
    behind: bool = False  # it has had a low clock
    freed: float = 0.0  # the driver has reset it
    wound_ns: float = 0.0  # communication alone since
    bursts_until: float = 0.0  # if a governor has wound up by then
    talks: int = 0  # operations that have begun and are not over
    talked: float = 0.0  # the last of those that are
    fits_both: bool = False  # its governor has let as much as fits beside communication, which goes on
    called: float = 0.0  # the last call
    holds: int = 0
    wish: int = 0
    asked: int = 0
    busy: bool = False  # with the driver
    coming: int = 0  # the clock it is on its way to
    change: int = 0


class Percall:
    """One replay; `run` is all of it."""

    def __init__(
        self,
        job: Job,
        models: list[PowerModel],
        paces: list[Pace],
        leads_to: list[list[int]],
        begins_at: list[int],
        even: list[list[float]],
        platform: ClockPlatform,
    ) -> None:
        """`leads_to`: of each lane's items, the place of the operation that computation before them leads to.

        `begins_at`: of each lane, the clock that the job's first iteration has let arrive. `even`: by how much longer
        computation before each item takes at any low clock.
        """
        self.job, self.models, self.paces, self.leads_to, self.platform = job, models, paces, leads_to, platform
        self.begins_at, self.even = begins_at, even
        self.gpus = [_Gpu() for _ in job.lanes]
        self.courses = [
            Course([UNKNOWN] * len(lane.before), [UNKNOWN] * len(lane.before), [], [], [(0.0, 0)]) for lane in job.lanes
        ]
        self.issued = [[UNKNOWN] * len(lane.before) for lane in job.lanes]
        self.held = [[False] * len(lane.before) for lane in job.lanes]
        self.missing = [len(meeting.members) for meeting in job.meetings]
        # Of meetings that move data: what is left of them at the highest clock, since when, how fast.
        self.moving: dict[int, list[float]] = {}
        self.moves_on: list[set[int]] = [set() for _ in job.lanes]
        self.versions = [0] * len(job.meetings)
        self.driver_free: dict[str, float] = {}
        self.slowed: list[dict[tuple[int, int], tuple[float, float]]] = [{} for _ in job.lanes]
        self.events: list[tuple[float, int, int, int, int]] = []
        self.gathering: dict[int, list[int]] = {}  # lanes that wait for the others
        self.serial = 0
        # Clock threads wake up sooner or later, and drivers serve who came first: another order each time.
        self.chance = random.Random(0)
        self.now = 0.0

    def run(self) -> list[Course]:
        """All of it."""
        handlers: list[Callable[[int, int], None]] = [
            self._reached,
            self._next,
            self._called,
            self._end,
            self._ask,
            self._answered,
            self._effect,
            self._looked,
            self._calmed,
        ]
        for lane, gpu in enumerate(self.gpus):
            # A job's first iteration lasts long enough for any clock to arrive, and where a low one is what lets the
            # next arrive in time, it stays.
            gpu.mhz = gpu.coming = gpu.asked = self.begins_at[lane]
            gpu.behind = gpu.mhz != 0
            self.courses[lane].clocks = [(0.0, gpu.mhz)]
            self._next(lane)
        while True:
            while self.events:
                self.now, _, what, one, other = heapq.heappop(self.events)
                handlers[what](one, other)
            if not self._force():
                return self.courses

    def _at(self, time_ns: float, what: int, one: int, other: int = 0) -> int:
        self.serial += 1
        heapq.heappush(self.events, (time_ns, self.serial, what, one, other))
        return self.serial

    def _times(self, lane: int) -> float:
        gpu, leads_to = self.gpus[lane], self.leads_to[lane]
        if not gpu.mhz and not gpu.behind:
            return 1.0
        key = (leads_to[min(gpu.item, len(leads_to) - 1)], gpu.mhz)
        known = self.slowed[lane]
        if key not in known:
            pace, model = self.paces[lane], self.models[lane]
            known[key] = pace.times(model, *key) if gpu.mhz else pace.behind(model, key[0]), pace.burst(model, key[0])
        first, burst = known[key]
        if gpu.mhz:
            even = self.even[lane]
            return first * even[min(gpu.item, len(even) - 1)]
        unfound = max(0.0, 1 - gpu.wound_ns / LOOKS_EVERY_NS)  # how likely no governor has wound up
        return unfound * first + (1 - unfound) * (burst if self.now < gpu.bursts_until else 1.0)

    def _compute(self, lane: int, left: float) -> None:
        """Towards the next item, from now on."""
        gpu = self.gpus[lane]
        gpu.left, gpu.since, gpu.times = left, self.now, self._times(lane)
        gpu.computes = True
        gpu.version += 1
        self._at(self.now + left * gpu.times, _REACHED, lane, gpu.version)

    def _next(self, lane: int, _: int = 0) -> None:
        """Computation goes on towards the lane's next item."""
        gpu, mine = self.gpus[lane], self.job.lanes[lane]
        if gpu.item < len(mine.what):
            before = mine.progress[gpu.item - 1] if gpu.item else 0
            self._compute(lane, mine.progress[gpu.item] - before)

    def _reached(self, lane: int, version: int) -> None:
        """Computation has got to the lane's next item."""
        gpu, mine, course = self.gpus[lane], self.job.lanes[lane], self.courses[lane]
        if version != gpu.version:
            return
        gpu.computes = False
        while gpu.item < len(mine.what):
            what, index = mine.what[gpu.item], mine.index[gpu.item]
            if what == HOLD:
                # Calls come one after the other, whether or not computation goes on meanwhile.
                gpu.called = max(self.now, gpu.called + mine.lasted[gpu.item])
                self._at(gpu.called, _CALLED, lane, index)
            elif what == START:
                # A host that waits for its GPU calls when that is done, not so long behind the call before as it did.
                if mine.percall_mhz[index] and not self.held[lane][index]:
                    gpu.called = self.now
                    self._called(lane, index)
                self.issued[lane][index] = self.now
                before = mine.before[index]
                if before < 0 or course.stops[before] != UNKNOWN:
                    self._come(lane, index)
            elif what == RESUME:
                if index < 0:
                    until = self.now + mine.lasted[gpu.item]
                    course.stalls.append((self.now, until))
                    gpu.item += 1
                    self._at(until, _NEXT, lane)
                    return
                if course.stops[index] == UNKNOWN:
                    gpu.waits_for, gpu.stalled_since = index, self.now
                    return
            elif what == EDGE:
                course.edges_ns.append(self.now)
            elif what == GATHER:
                gpu.stalled_since = self.now
                waiting = self.gathering.setdefault(index, [])
                waiting.append(lane)
                if len(waiting) == len(self.gpus):
                    self._go_on(index)
                return
            gpu.item += 1
            if gpu.item < len(mine.what):
                left = mine.progress[gpu.item] - mine.progress[gpu.item - 1]
                if left > 0:
                    return self._compute(lane, left)

    def _go_on(self, number: int) -> None:
        """All have come to where they wait for each other."""
        for lane in self.gathering.pop(number):
            gpu = self.gpus[lane]
            if self.now > gpu.stalled_since:
                self.courses[lane].waits.append((gpu.stalled_since, self.now))
            gpu.item += 1
            self._at(self.now, _NEXT, lane)

    def _called(self, lane: int, operation: int) -> None:
        if self.held[lane][operation]:
            return
        self.held[lane][operation] = True
        gpu = self.gpus[lane]
        gpu.holds, gpu.wish = gpu.holds + 1, self.job.lanes[lane].percall_mhz[operation]
        self._wake(lane)

    def _come(self, lane: int, operation: int) -> None:
        self.courses[lane].starts[operation] = self.now
        self.gpus[lane].talks += 1
        number = self.job.lanes[lane].meeting[operation]
        self.missing[number] -= 1
        if self.missing[number]:
            return
        meeting = self.job.meetings[number]
        unknown = meeting.unknown_ns * (self._times(lane) if meeting.unknown_ns else 1.0)
        self.moving[number] = [meeting.transfer_ns + unknown, self.now, 1.0]
        for other, _ in meeting.members:
            self.moves_on[other].add(number)
        self._rate(number)

    def _rate(self, number: int) -> None:
        """Data moves as fast as the lowest clock lets it."""
        moving, meeting = self.moving[number], self.job.meetings[number]
        moving[0] -= (self.now - moving[1]) / moving[2]
        clocks = [self.gpus[lane].mhz for lane, _ in meeting.members if self.gpus[lane].mhz]
        moving[1] = self.now
        moving[2] = self.platform.time_ratio(meeting.pattern, meeting.size_bytes, min(clocks)) if clocks else 1.0
        self.versions[number] += 1
        self._at(self.now + max(moving[0], 0.0) * moving[2], _END, number, self.versions[number])

    def _end(self, number: int, version: int) -> None:
        if version != self.versions[number]:
            return
        if number in self.moving:
            del self.moving[number]
            members = self.job.meetings[number].members
            for lane, _ in members:
                self.moves_on[lane].discard(number)
            lane, operation = members[0]
            if any(self.job.lanes[lane].percall_mhz[operation] for lane, operation in members):
                self._at(self.now + CALLBACK_NS, _END, number, version)
                return
        for lane, operation in self.job.meetings[number].members:
            self._over(lane, operation)

    def _over(self, lane: int, operation: int) -> None:
        gpu, mine, course = self.gpus[lane], self.job.lanes[lane], self.courses[lane]
        course.stops[operation] = self.now
        gpu.talks = max(0, gpu.talks - 1)
        gpu.talked = self.now
        if gpu.fits_both and not gpu.talks:
            self._at(self.now + LOOKS_EVERY_NS / 2, _LOOKED, lane)
        if mine.percall_mhz[operation]:
            gpu.holds = max(0, gpu.holds - 1)
            self._wake(lane)
        after = mine.after[operation]
        if after >= 0 and self.issued[lane][after] != UNKNOWN:
            self._come(lane, after)
        if gpu.waits_for == operation:
            gpu.waits_for = -1
            if self.now > gpu.stalled_since:
                course.stalls.append((gpu.stalled_since, self.now))
            # Communication alone lets a power governor wind up again, once the clock is free to.
            if not gpu.mhz:
                if gpu.behind:
                    gpu.fits_both = False
                    self._burst(lane)
                gpu.wound_ns += self.now - max(gpu.stalled_since, gpu.freed)
            gpu.item += 1
            self._next(lane)

    def _wake(self, lane: int) -> None:
        """The clock thread looks at what is held, where it is not busy asking."""
        gpu = self.gpus[lane]
        wanted = gpu.wish if gpu.holds else 0
        if wanted == gpu.asked or gpu.busy:
            return
        gpu.busy = True
        asking_us = self.platform.switch.asking_us * 2 * self.chance.random()
        self._at(self.now + asking_us * 1e3, _ASK, lane)

    def _ask(self, lane: int, _: int) -> None:
        gpu, switch = self.gpus[lane], self.platform.switch
        wanted = gpu.wish if gpu.holds else 0
        if wanted == gpu.asked:
            gpu.busy = False
            return
        gpu.asked = wanted
        queue = self.job.lanes[lane].line.host if switch.serialised else str(lane)
        until = max(self.now, self.driver_free.get(queue, 0.0)) + switch.call_us * 1e3
        self.driver_free[queue] = until
        self.courses[lane].switches += 1
        self._at(until, _ANSWERED, lane)

    def _answered(self, lane: int, _: int) -> None:
        gpu = self.gpus[lane]
        gpu.busy = False
        gpu.change += 1
        gpu.coming = gpu.asked
        self._at(self.now + self.platform.switch.transition_us * 1e3, _EFFECT, lane, gpu.change)
        self._wake(lane)

    def _effect(self, lane: int, change: int) -> None:
        gpu = self.gpus[lane]
        if change != gpu.change or gpu.coming == gpu.mhz:
            return
        gpu.mhz = gpu.coming
        gpu.behind = True
        gpu.freed, gpu.wound_ns, gpu.bursts_until = self.now, 0.0, 0.0
        gpu.fits_both = not gpu.mhz and gpu.talks > 0
        self.courses[lane].clocks.append((self.now, gpu.mhz))
        if gpu.computes:
            self._compute(lane, max(0.0, gpu.left - (self.now - gpu.since) / gpu.times))
        for number in tuple(self.moves_on[lane]):
            self._rate(number)

    def _looked(self, lane: int, _: int) -> None:
        """A governor looks at computation that has more room than it takes, unless communication is back."""
        gpu = self.gpus[lane]
        if gpu.fits_both and not gpu.talks and self.now - gpu.talked >= LOOKS_EVERY_NS / 2:
            gpu.fits_both, gpu.wound_ns = False, LOOKS_EVERY_NS
            self._burst(lane)

    def _burst(self, lane: int) -> None:
        gpu = self.gpus[lane]
        gpu.bursts_until = self.now + BURST_NS
        self._at(gpu.bursts_until, _CALMED, lane)
        self._calmed(lane, 0)

    def _calmed(self, lane: int, _: int) -> None:
        gpu = self.gpus[lane]
        if gpu.computes:
            self._compute(lane, max(0.0, gpu.left - (self.now - gpu.since) / gpu.times))

    def _force(self) -> bool:
        """Lets a lane go on that waits for what can never end: operations were taken for one that are not."""
        for lane, gpu in enumerate(self.gpus):
            if gpu.waits_for >= 0:
                self._over(lane, gpu.waits_for)
                return True
        if self.gathering:
            self._go_on(min(self.gathering))
            return True
        return False


def first_mhz(lane: Lane, rhythm: Rhythm | None) -> int:
    """The clock of the first call of an iteration that per-call sets one for, 0: of none; a stretch may begin later."""
    managed = np.flatnonzero(lane.percall_mhz)
    if not len(managed):
        return 0
    return lane.percall_mhz[int(managed[0] if rhythm is None else managed[np.argmin(rhythm.place[managed])])]
