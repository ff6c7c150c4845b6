# SPDX-License-Identifier: Apache-2.0
"""Schedules that can be carried out, simulated and within the budget: how far from the truth the bound can be."""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .baseline import Measured, Stretch, compute_time_ms, run
from .bound import COMPUTE_TOLERANCE
from .gpu import Gpu
from .order import classes_of
from .platform import Platform
from .program import Program, Task
from .simulator import Call, Host, Iteration

REPEATS = 4  # iterations of a pass where all are alike, so that clocks between two steps can be had on average
LEAST_LOW_MS = (math.inf, 20.0, 8.0, 4.0, 2.0, 1.0, 0.3)
ROUNDS = 2  # a plan is made from the times that the last one led to
PASSES = 2
TRIES = 6
Targets = list[list[dict[int, float]]]  # by iteration, rank and task: the clock's index, between two steps if need be


@dataclass
class Schedule:
    """What it comes to: J of all GPUs and ms, means over the stretch's iterations."""

    joules: float
    total_ms: float
    name: str
    calls: list[Call] = field(default_factory=list)
    compute_ms: list[float] = field(default_factory=list)  # by rank, of an iteration on average


@dataclass
class Lowering:
    """How gaps between computations are treated: below this length the clock stays."""

    least_ms: float
    clocks: list[list[dict[int, float]]]  # by iteration, rank and communication


def changes_of(
    programs: Sequence[Program],
    iterations: Sequence[Iteration],
    length_ns: float,
    rank: int,
    targets: Targets,
    low: Lowering,
) -> list[tuple[float, int]]:
    """(ns since the pass began, clock) of one GPU, by the times of a pass that was simulated."""
    start = iterations[0].start_ns
    stretches: list[tuple[int, int, int]] = []  # begin, end, clock of each computation
    communications: list[tuple[int, int, int]] = []
    for i, (program, iteration) in enumerate(zip(programs, iterations, strict=True)):
        dither = (i % REPEATS + 0.5) / REPEATS
        for task in program.tasks(rank):
            begin, end = iteration.spans[rank][task.number]
            if task.comm is None:
                stretches.append((begin - start, end - start, math.floor(targets[i][rank][task.number] + dither)))
            else:
                clock = math.ceil(low.clocks[i][rank].get(task.number, 0.0) - 1e-6)
                communications.append((begin - start, end - start, clock))
    stretches.sort()
    changes: list[tuple[float, int]] = []
    until, current = stretches[-1][1] - length_ns, stretches[-1][2]
    for begin, end, clock in stretches:
        if (begin - until) * 1e-6 >= low.least_ms:
            # The gap before the first computation began in the pass before.
            inside = [c for b, e, c in communications if _meet(until, begin, b, e, length_ns)]
            current = max(inside, default=0)
            changes.append((until, current))
        if clock != current:
            changes.append((begin, clock))
            current = clock
        until = end
    return changes


def _meet(until: float, begin: float, since: float, end: float, length_ns: float) -> bool:
    return any(end + shift > until and since + shift < begin for shift in (0.0, -length_ns))


def calls_of(
    platform: Platform,
    programs: Sequence[Program],
    iterations: Sequence[Iteration],
    length_ns: float,
    changes: list[list[tuple[float, int]]],
) -> list[Call]:
    """When to call so that clocks are up when computation begins, and down no earlier than it ends."""
    call_ns, transition_ns = platform["set_clock_call_us"] * 1e3, platform["clock_transition_us"] * 1e3
    due: list[tuple[float, int, int]] = []
    raises: list[tuple[float, int, int]] = []
    for gpu, mine in enumerate(changes):
        clock = mine[-1][1] if mine else 0
        for at, new in mine:
            if new != clock:
                (raises if new > clock else due).append((at - transition_ns - call_ns, gpu, new))
            clock = new
    if platform["set_clock_serialised"]:
        # Backwards: who must be up last calls last.
        latest = math.inf
        for at, gpu, new in sorted(raises, reverse=True):
            latest = min(at, latest - call_ns)
            due.append((latest, gpu, new))
    else:
        due += raises
    calls = []
    anchors = [_anchors(programs, iterations, gpu) for gpu in range(platform.gpus)]
    for at, gpu, new in due:
        at %= length_ns
        begin, i, task = anchors[gpu][max(bisect.bisect_right(anchors[gpu], at, key=lambda a: a[0]) - 1, 0)]
        calls.append(Call(i, at - begin, gpu, new, task))
    return calls


def _anchors(programs: Sequence[Program], iterations: Sequence[Iteration], gpu: int) -> list[tuple[int, int, int]]:
    # Beginnings that a call may be counted from, so that what one task is late by does not spoil all that follows.
    found = []
    for i, (program, iteration) in enumerate(zip(programs, iterations, strict=True)):
        start = iterations[0].start_ns
        found.append((iteration.start_ns - start, i, -1))
        found += [(iteration.spans[gpu][t.number][0] - start, i, t.number) for t in program.tasks(gpu) if t.stream == 0]
    return sorted(found)


class Search:
    """Schedules for one stretch of iterations."""

    def __init__(self, platform: Platform, stretch: Stretch, measured: Measured, host: Host, budget: float) -> None:
        self.p, self.host = platform, host
        count = len(stretch.programs)
        self.copies = 1 if count > 1 else REPEATS
        self.programs = list(stretch.programs) * self.copies
        self.passes = 1 if count > 1 else PASSES
        self.allowed_ms = (1 + budget) * sum(measured.total_ms) / count
        self.measured = measured
        self.rates = platform.compute_rates()
        self.base_compute_ms = self._compute_ms(measured.passes, stretch.programs)
        self.warm: list[Gpu] = measured.gpus
        self.start: Sequence[Iteration] = run(platform, self.programs, host, warm=self.warm).passes[0]

    def _compute_ms(self, passes: Sequence[Sequence[Iteration]], programs: Sequence[Program]) -> list[float]:
        found = []
        for rank in range(self.p.gpus):
            every = [compute_time_ms(q, rank, [each[i] for each in passes]) for i, q in enumerate(programs)]
            found.append(sum(every) / len(every))
        return found

    def index_at(self, rate: float) -> float:
        """The clock's index, between two steps, that computes at this rate."""
        return float(np.interp(rate, self.rates, np.arange(len(self.rates))))

    def simulate(self, targets: Targets, low: Lowering, name: str) -> Schedule:
        """Plan, run, plan again by the times of that run; what the last one comes to."""
        iterations = self.start  # the last schedule's times: most are close to what is tried next
        count = len(self.programs)
        for _ in range(ROUNDS):
            length_ns = self.length_ns(iterations)
            changes = [changes_of(self.programs, iterations, length_ns, r, targets, low) for r in range(self.p.gpus)]
            calls = calls_of(self.p, self.programs, iterations, length_ns, changes)
            # Who keeps one clock all the time is told so once.
            for gpu in (g for g, mine in enumerate(changes) if not mine):
                first = next(t for t in self.programs[0].tasks(gpu) if t.comm is None)
                calls.append(Call(0, 0.0, gpu, math.floor(targets[0][gpu][first.number] + 0.5 / REPEATS)))
            found = run(self.p, self.programs, self.host, calls, self.warm, passes=self.passes, warm_passes=1)
            iterations = found.passes[-1]
            self.pass_ms = sum(found.total_ms)
            for gpu, warm in enumerate(found.gpus):
                mean_w = sum(it.joules_of[gpu] for it in iterations) / self.pass_ms * 1e3
                warm.temperature_c = self.p["ambient_c"] + self.p["thermal_k_per_w"] * mean_w
            self.warm = found.gpus
        self.start = iterations
        compute_ms = self._compute_ms(found.passes, self.programs)
        return Schedule(sum(found.joules) / count, sum(found.total_ms) / count, name, calls, compute_ms)

    def length_ns(self, iterations: Sequence[Iteration]) -> float:
        """Of a pass, from start to start."""
        return iterations[-1].end_ns + self.host.pause_ns - iterations[0].start_ns

    # ---- what to aim at

    def targets(self, mode: str, plans: Sequence, scale: float) -> Targets:
        """By the bound's plan, a computation's clock for itself (task), its rank (rank), or all (all); rates scaled."""
        every: list[list[dict[int, float]]] = []
        busy, work = np.zeros((len(self.programs), self.p.gpus)), np.zeros((len(self.programs), self.p.gpus))
        for i, program in enumerate(self.programs):
            for rank in range(self.p.gpus):
                for task in self._computations(program, rank):
                    busy[i, rank] += plans[i % len(plans)][rank][task.number][0]
                    work[i, rank] += task.work_ns * 1e-6
        overall = float(work.sum() / busy.sum())
        for i, program in enumerate(self.programs):
            ranks = []
            for rank in range(self.p.gpus):
                own = {}
                for task in self._computations(program, rank):
                    rate = task.work_ns * 1e-6 / max(plans[i % len(plans)][rank][task.number][0], 1e-6)
                    if mode != "task":
                        rate = float(work[i, rank] / busy[i, rank]) if mode == "rank" else overall
                    own[task.number] = self.index_at(rate * scale)
                ranks.append(own)
            every.append(ranks)
        return every

    @staticmethod
    def _computations(program: Program, rank: int) -> list[Task]:
        return [t for t in program.tasks(rank) if t.comm is None]

    def lowering(self, plans: Sequence, least_ms: float) -> Lowering:
        """Clocks of communications as in the bound's plan."""
        clocks = []
        for i, program in enumerate(self.programs):
            clocks.append(
                [
                    {t.number: plans[i % len(plans)][r][t.number][1] for t in program.tasks(r) if t.comm is not None}
                    for r in range(self.p.gpus)
                ]
            )
        return Lowering(least_ms, clocks)

    def within(self, schedule: Schedule, communication_only: bool) -> bool:
        """Whether it keeps the budget (and, where asked for, slows no rank's computation)."""
        if schedule.total_ms > self.allowed_ms:
            return False
        pairs = zip(schedule.compute_ms, self.base_compute_ms, strict=True)
        return not communication_only or all(ms <= base * COMPUTE_TOLERANCE for ms, base in pairs)

    def best(self, plans: Sequence, communication_only: bool) -> Schedule:
        """The least energy found within the budget; no schedule at all where nothing was better."""
        count = len(self.measured.total_ms)
        total_ms = sum(self.measured.total_ms) / count
        found = Schedule(sum(self.measured.joules) / count, total_ms, "none", [], self.base_compute_ms)
        alike = len(set(classes_of(self.programs[0], False))) == 1
        for mode in ("all", "task") if alike else ("rank", "task"):
            scale = 1.0
            for least_ms in LEAST_LOW_MS:
                low = self.lowering(plans, least_ms)
                mine, scale = self._scaled(mode, plans, low, communication_only, scale)
                if mine is not None and mine.joules < found.joules:
                    found = mine
        return found

    def _crowded(self, schedule: Schedule) -> bool:
        # Calls that wait for each other come when they are of no use any more.
        if not self.p["set_clock_serialised"]:
            return False
        return len(schedule.calls) * self.p["set_clock_call_us"] * 1e-3 > 0.9 * self.pass_ms

    def _scaled(
        self, mode: str, plans: Sequence, low: Lowering, communication_only: bool, scale: float
    ) -> tuple[Schedule | None, float]:
        # The slowest computation that keeps the budget, to half a step of the clock.
        good: Schedule | None = None
        floor, ceiling, good_scale, failures = 0.0, math.inf, scale, 0
        for _ in range(TRIES):
            name = f"{mode}, gaps from {low.least_ms} ms"
            schedule = self.simulate(self.targets(mode, plans, scale), low, name)
            if self._crowded(schedule):
                break
            if self.within(schedule, communication_only):
                ceiling = scale
                if good is None or schedule.joules < good.joules:
                    good, good_scale = schedule, scale
                spare = self.allowed_ms / schedule.total_ms - 1
                step = max(0.002, spare)
                scale = max((floor + ceiling) / 2, scale * (1 - step)) if floor else scale * (1 - step)
            else:
                floor = max(floor, scale)
                failures += 1
                step = max(0.003, schedule.total_ms / self.allowed_ms - 1)
                scale = min((floor + ceiling) / 2, scale * (1 + (1 + failures / 2) * step))
            if floor and ceiling / floor - 1 < 0.002:
                break
        return good, good_scale
