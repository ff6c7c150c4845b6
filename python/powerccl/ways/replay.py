# SPDX-License-Identifier: Apache-2.0
"""A rank's recorded iteration with other costs of its collectives: a change is followed through all that depends on it.

Times are in microseconds. So is the progress of computation, which is what it takes while no collective runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from powerccl.analysis.programs.calls import NoProgramError
from powerccl.analysis.programs.program import Program
from powerccl.analysis.programs.progress import MOST_LOST

EVENTS = 8  # of a collective: it is released, begins, ends and is waited for; more is no progress


@dataclass(frozen=True)
class Cost:
    """What one collective takes: alone, beside computation, and what computation loses then; microseconds."""

    alone_us: float
    beside_us: float
    lost_us: float


@dataclass
class Replayed:
    """`time_us`: an iteration; `exposed_us`: what of it computation waited.

    `beside`: of each collective, the share that was carried out beside computation.
    """

    time_us: float
    exposed_us: float
    beside: list[float]


def replay(program: Program, costs: Sequence[Cost], iterations: int = 5) -> Replayed:
    """Run the iteration so often, and look at the last but one: it is steady, and another one follows.

    Raises:
        NoProgramError: the iteration can never end, or takes no time.
    """
    run = _Run(program, costs, iterations)
    for _ in range(EVENTS * iterations * (len(program.collectives) + 1)):
        if not run.advance():
            return run.found()
    raise NoProgramError("its collectives never end")


class _Run:
    def __init__(self, program: Program, costs: Sequence[Cost], iterations: int) -> None:
        collectives, work_us = program.collectives, program.work_us
        number = len(collectives)
        self._costs, self._number, self._iterations = costs, number, iterations
        self._released = [i * work_us + each.released_us for i in range(iterations) for each in collectives]
        self._done = [0.0] * (number * iterations)  # share of each
        self._beside = [0.0] * (number * iterations)
        self._queues = [
            [i * number + k for i in range(iterations) for k in range(number) if collectives[k].comm == comm]
            for comm in sorted({each.comm for each in collectives})
        ]
        needs = [
            (i * work_us + max(each.needed_us, each.released_us), i * number + k)
            for i in range(iterations)
            for k, each in enumerate(collectives)
            if each.needed_us is not None
        ]
        self._end = iterations * work_us
        self._needs = sorted((min(at, self._end), index) for at, index in needs)
        self._time = self._progress = self._exposed = 0.0
        # Where the last but one iteration begins and ends; and when, and what was exposed until then.
        self._edges = [(iterations - 2) * work_us, (iterations - 1) * work_us]
        self._marks: list[tuple[float, float]] = []

    def advance(self) -> bool:
        """To the next thing that begins or ends; False: all is done."""
        tiny = 1e-6
        self._queues = [queue[1:] if queue and self._done[queue[0]] >= 1 - 1e-9 else queue for queue in self._queues]
        while self._needs and self._done[self._needs[0][1]] >= 1 - 1e-9:
            self._needs.pop(0)
        heads = [queue[0] for queue in self._queues if queue]
        active = [head for head in heads if self._released[head] <= self._progress + tiny]
        computed = self._progress >= self._end - tiny
        if computed and not self._needs:
            return False
        waits = bool(self._needs) and self._needs[0][0] <= self._progress + tiny
        blocked = waits or computed
        if self._edges and self._edges[0] <= self._progress + tiny and not waits:
            self._edges.pop(0)
            self._marks.append((self._time, self._exposed))
        costs = [self._costs[head % self._number] for head in active]
        pace = [1 / max(cost.alone_us if blocked else cost.beside_us, tiny) for cost in costs]
        speed = 0.0
        if not blocked:
            lost = sum(cost.lost_us / max(cost.beside_us, tiny) for cost in costs)
            speed = max(1 - MOST_LOST, 1 - lost)
        steps = [(1 - self._done[head]) / each for head, each in zip(active, pace, strict=True)]
        if speed > 0:
            marks = [self._end, *(at for at, _ in self._needs[:1])]
            marks += [self._released[head] for head in heads if head not in active]
            marks += self._edges[:1]
            steps += [(mark - self._progress) / speed for mark in marks if mark > self._progress + tiny]
        if not steps:  # waits for what nothing releases: the record is not that of such a program
            raise NoProgramError("its collectives wait for each other")
        passed = max(min(steps), 0.0)
        for head, each in zip(active, pace, strict=True):
            self._done[head] += passed * each
            if not blocked:
                self._beside[head] += passed * each
            if self._done[head] >= 1 - 1e-9:
                self._done[head] = 1.0
        self._time += passed
        self._progress += passed * speed
        self._exposed += passed if waits else 0.0
        return True

    def found(self) -> Replayed:
        """What the last but one iteration came to."""
        if len(self._marks) != 2:
            raise NoProgramError("its computation takes no time")
        (began, before), (ended, exposed) = self._marks
        iteration = slice((self._iterations - 2) * self._number, (self._iterations - 1) * self._number)
        return Replayed(ended - began, exposed - before, self._beside[iteration])
