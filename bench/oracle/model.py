# SPDX-License-Identifier: Apache-2.0
"""The linear program below every schedule of one iteration: time by state and clock, and what must precede what.

A GPU's time is cut into segments: the tasks of its first stream and the gaps between them. In each segment it spends
some time at each clock, with or without communication of other streams beside it. Why this bounds all schedules:
docs/decisions/0009-oracle.md.
Times in ms, energies in mJ.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from .linear import Linear
from .order import Order, classes_of, predecessors
from .platform import Platform
from .program import Comm, Program, Task
from .simulator import Host

MS = 1e-6  # of a ns


@dataclass(eq=False)
class Segment:
    """A task of the first stream, or (None) the gap before the next one; columns by clock."""

    task: Task | None
    alone: np.ndarray | None = None  # time with nothing of other streams beside it
    beside: np.ndarray | None = None  # time with communication of other streams
    parked: int = -1  # time waiting, at the cheapest clock
    links: np.ndarray | None = None  # of the segment's own communication, its link time while others communicate
    shares: dict[Task, np.ndarray] = field(default_factory=dict)  # link time of other streams' communications


class Model:
    """Columns and rows of one iteration; `ranks_of` counts the ranks that each representative stands for."""

    def __init__(
        self, platform: Platform, program: Program, host: Host, floor_c: list[float], planning: bool = False
    ) -> None:
        self.p, self.program, self.host = platform, program, host
        self.planning = planning  # what schedules meet with, though it is not proven: no bound, but a better plan
        self.lp = Linear()
        self.rates = platform.compute_rates()
        self.count = len(self.rates)
        self.floor_c = floor_c
        self.classes = classes_of(program, host.skew_ns > 0)
        self.leaders = [self.classes.index(c) for c in range(max(self.classes) + 1)]
        self.ranks_of = [self.classes.count(c) for c in range(len(self.leaders))]
        launch_ns = platform["kernel_launch_us"] * 1e3
        self.before: dict[Task, list] = {}
        for rank in range(program.ranks):
            self.before |= predecessors(program, rank, host, launch_ns)
        self.order = Order(program, self.before)
        self.total = int(self.lp.add()[0])  # the iteration, from start to start
        self.begin: dict[tuple, int] = {}
        self.end: dict[tuple, int] = {}
        for c, leader in enumerate(self.leaders):
            for task in program.tasks(leader):
                self.begin[c, task.number], self.end[c, task.number] = (int(x) for x in self.lp.add(2))
        self.segments = [self._segments(leader) for leader in self.leaders]
        self._precedence()
        self._communications()
        self._energies()

    def key(self, task: Task) -> tuple:
        """The representative's task that stands for this one."""
        return (self.classes[task.rank], task.number)

    # ---- time of a GPU

    def _segments(self, rank: int) -> list[Segment]:
        lp, tasks = self.lp, [t for t in self.program.tasks(rank) if t.stream == 0]
        sides = [t for t in self.program.tasks(rank) if t.stream != 0]
        if any(t.comm is None for t in sides):
            raise NotImplementedError("computation in a stream other than `compute` is not modelled")
        c = self.classes[rank]
        found: list[Segment] = []
        previous: Task | None = None
        for task in [*tasks, None]:
            if task is None or previous is None or self._waits(task, previous):
                gap = self._gap(previous, task, sides)
                found.append(gap)
                length = [(gap.parked, 1.0)] + ([(gap.beside, 1.0)] if gap.beside is not None else [])
                opened = [] if previous is None else [(self.end[c, previous.number], 1.0)]
                closed = (self.total if task is None else self.begin[c, task.number], -1.0)
                lp.row([*length, *opened, closed], 0.0, equal=True)
            else:
                # Nothing else can hold it up: it begins when the one ahead ends.
                lp.row([(self.begin[c, task.number], 1.0), (self.end[c, previous.number], -1.0)], 0.0, equal=True)
            if task is not None:
                found.append(self._occupied(task, sides, c))
            previous = task
        self._side_streams(found, sides, c)
        return found

    def _waits(self, task: Task, previous: Task) -> bool:
        return any(b.task is not previous or b.delay_ns for b in self.before[task] if b.task is not None)

    def _gap(self, previous: Task | None, following: Task | None, sides: list[Task]) -> Segment:
        gap = Segment(None, parked=int(self.lp.add()[0]))
        for side in sides:
            over = previous is not None and self.order.over_by_end(side, previous)
            later = following is not None and self.order.begins_no_later(following, side)
            if not over and not later:
                gap.shares[side] = self.lp.add(self.count)
        self._beside(gap)
        return gap

    def _occupied(self, task: Task, sides: list[Task], c: int) -> Segment:
        lp, segment = self.lp, Segment(task)
        for side in sides:
            members = side.comm.tasks.values() if side.comm is not None else ()
            later = any(self.order.ends_before_begin(task, other) for other in members)
            if not later and not self.order.ends_before_begin(side, task):
                segment.shares[side] = lp.add(self.count)
        segment.alone = lp.add(self.count)
        time: list[tuple] = [(segment.alone, 1.0)]
        if task.comm is not None:
            segment.parked = int(lp.add()[0])
            time.append((segment.parked, 1.0))
            if segment.shares:
                segment.links = lp.add(self.count)
        self._beside(segment)
        if segment.beside is not None:
            time.append((segment.beside, 1.0))
        lp.row([*time, (self.begin[c, task.number], 1.0), (self.end[c, task.number], -1.0)], 0.0, equal=True)
        if task.comm is None:
            progress = [(segment.alone, self.rates)]
            if segment.beside is not None:
                progress.append((segment.beside, self.rates * self.p["overlap_compute_rate"]))
            lp.row(progress, task.work_ns * MS, equal=True)
        return segment

    def _beside(self, segment: Segment) -> None:
        if not segment.shares:
            return
        segment.beside = self.lp.add(self.count)
        taken = list(segment.shares.values()) + ([segment.links] if segment.links is not None else [])
        # Flows on a GPU share its links: what they take adds up to the time at most.
        for f in range(self.count):
            self.lp.row([*((t[f], 1.0) for t in taken), (segment.beside[f], -1.0)], 0.0)

    def _side_streams(self, segments: list[Segment], sides: list[Task], c: int) -> None:
        # A communication is resident, and draws power, from its arrival to its end.
        for stream in {side.stream for side in sides}:
            mine = [s for s in sides if s.stream == stream]
            beside = [(s.beside, 1.0) for s in segments if any(side in s.shares for side in mine)]
            length = [(self.end[c, s.number], -1.0) for s in mine] + [(self.begin[c, s.number], 1.0) for s in mine]
            self.lp.at_least([*beside, *length], 0.0)

    # ---- what precedes what

    def _precedence(self) -> None:
        for c, leader in enumerate(self.leaders):
            for task in self.program.tasks(leader):
                for b in self.before[task]:
                    after = [(self.begin[c, task.number], 1.0)]
                    if b.task is not None:
                        after.append((self.end[c, b.task.number], -1.0))
                    self.lp.at_least(after, b.delay_ns * MS)
                self._begin_at_once(c, task)
                last = [(self.total, 1.0), (self.end[c, task.number], -1.0)]
                self.lp.at_least(last, self.host.pause_ns * MS)

    def _begin_at_once(self, c: int, task: Task) -> None:
        """A task with one predecessor begins when that ends: no clock can hold it back.

        With several it begins at the latest of them, which a linear program cannot say; it may hold back such ones.
        """
        sources = {b.task for b in self.before[task]} - ({None} if not self.host.skew_ns else set())
        if len(sources) > 1:
            return
        source = next(iter(sources), None)
        delay_ns = max(b.delay_ns for b in self.before[task] if b.task is source)
        begin = [(self.begin[c, task.number], 1.0)]
        if source is not None:
            begin.append((self.end[c, source.number], -1.0))
        self.lp.row(begin, delay_ns * MS, equal=True)

    def links_of(self, task: Task) -> list[tuple[np.ndarray, Segment]]:
        """Columns of a representative's link time for one of its communications."""
        found = []
        for segment in self.segments[self.classes[task.rank]]:
            if segment.task is task and segment.alone is not None:
                found.append((segment.alone, segment))
                if segment.links is not None:
                    found.append((segment.links, segment))
            elif task in segment.shares:
                found.append((segment.shares[task], segment))
        return found

    def _communications(self) -> None:
        seen: set[tuple] = set()
        for comm in self.program.comms:
            keys = tuple(sorted(self.key(task) for task in comm.tasks.values()))
            if keys in seen:
                continue
            seen.add(keys)
            if len(comm.flows) > 1:
                self._exchange(comm)
            else:
                self._meeting(comm)

    def _leaders_in(self, comm: Comm) -> list[Task]:
        # A class may be in several alike communications; each of its representatives' tasks stands for its own.
        tasks = {}
        for task in comm.tasks.values():
            c, number = self.key(task)
            tasks[c, number] = next(t for t in self.program.tasks(self.leaders[c]) if t.number == number)
        return list(tasks.values())

    def _meeting(self, comm: Comm) -> None:
        lp, flow = self.lp, comm.flows[0]
        rates = np.maximum.accumulate(flow.rates) / flow.total / MS  # the lowest clock counts: no lower one is faster
        length = int(lp.add()[0])
        lp.at_least([(length, 1.0)], flow.least_ns * MS)
        keys = sorted({self.key(task) for task in comm.tasks.values()})
        for first, second in pairwise(keys):
            lp.row([(self.end[first], 1.0), (self.end[second], -1.0)], 0.0, equal=True)
        for key in keys:
            lp.at_least([(self.end[keys[0]], 1.0), (self.begin[key], -1.0), (length, -1.0)], 0.0)
        for task in self._leaders_in(comm):
            columns = [c for c, _ in self.links_of(task)]
            lp.at_least([(c, rates) for c in columns], 1.0)
            lp.at_least([(length, 1.0), *((c, -1.0) for c in columns)], 0.0)

    def _exchange(self, comm: Comm) -> None:
        lp = self.lp
        out: dict[int, float] = defaultdict(float)
        into: dict[int, float] = defaultdict(float)
        best = np.zeros(self.count)
        rates: dict[int, np.ndarray] = {}
        for flow in comm.flows:
            out[flow.ranks[0]] += flow.total
            into[flow.ranks[1]] += flow.total
            rates[flow.ranks[0]] = np.maximum.accumulate(flow.rates)
            best = np.maximum(best, rates[flow.ranks[0]])
        for task in self._leaders_in(comm):
            columns = [c for c, _ in self.links_of(task)]
            lp.at_least([(c, rates[task.rank] / (out[task.rank] * MS)) for c in columns], 1.0)
            lp.at_least([(c, best / (into[task.rank] * MS)) for c in columns], 1.0)
        piece = {flow.ranks: flow.total for flow in comm.flows}
        members = sorted(comm.tasks)
        together = max(max(out[r] / rates[r].max(), into[r] / best.max()) for r in members)
        for rank in members:
            # Whoever comes last serves all others at once, each at no more than its part of the bandwidth.
            served = [
                sum(min(piece[last, to], piece[last, rank]) for to in members if to != last) / rates[last].max()
                for last in members
                if last != rank
            ]
            least_ns = together if self.planning else min([*served, out[rank] / rates[rank].max()])
            tail = max(least_ns, comm.flows[0].least_ns) * MS
            for other in members:
                if other != rank:
                    mine, theirs = self.key(comm.tasks[rank]), self.key(comm.tasks[other])
                    lp.at_least([(self.end[mine], 1.0), (self.begin[theirs], -1.0)], tail)

    # ---- energy

    def _energies(self) -> None:
        """costs[c]: mJ of one GPU of the class, a vector over the columns and a constant of none."""
        p = self.p
        kappa = p["leakage_w_per_kv"]
        low_v = float(p.volts.min())
        feedback = 1 - kappa * low_v * p["thermal_k_per_w"]
        self.costs = []
        for c, segments in enumerate(self.segments):
            costs = np.zeros(self.lp.columns)
            above = self.floor_c[c] - p["leakage_reference_c"]
            base = p["static_w"] + p["tree_w"] * p.fv2 + kappa * (p.volts - low_v) * above
            computing = p["compute_w"] * p.fv2
            for segment in segments:
                side = [p.communication_w(t.comm.bytes[t.rank]) for t in segment.shares if t.comm is not None]
                least_side = np.min(side, axis=0) if side else 0.0
                if segment.task is None:
                    costs[segment.parked] = base.min()
                    if segment.beside is not None:
                        costs[segment.beside] = base + least_side
                elif segment.task.comm is None:
                    costs[segment.alone] = base + computing
                    if segment.beside is not None:
                        costs[segment.beside] = base + computing + least_side
                else:
                    power = base + p.communication_w(segment.task.comm.bytes[segment.task.rank])
                    costs[segment.alone] = power
                    costs[segment.parked] = power.min()
                    if segment.beside is not None:
                        costs[segment.beside] = power
                self._limit_peak(segment, base, above, least_side)
            costs[self.total] = kappa * low_v * (p["ambient_c"] - p["leakage_reference_c"])
            self.costs.append(costs / feedback)
        each = (n * costs for n, costs in zip(self.ranks_of, self.costs, strict=True))
        self.cost: np.ndarray = sum(each, start=np.zeros(self.lp.columns))
        self.columns = self.lp.columns

    def _limit_peak(self, segment: Segment, base: np.ndarray, above_k: float, side: np.ndarray | float) -> None:
        # No lock lifts a clock above what the peak limiter allows, at the coolest; nor, for long, the governor.
        limit_w = self.p["peak_limit_w"]
        if self.planning:
            limit_w = self.p["power_limit_w"] + self.p["governor_high_w"]
        if segment.task is None or segment.task.comm is not None or not limit_w:
            return
        power = base + self.p["compute_w"] * self.p.fv2 + self.p["leakage_w_per_kv"] * self.p.volts.min() * above_k
        for columns, watts in ((segment.alone, power), (segment.beside, power + side)):
            beyond = columns[watts > limit_w] if columns is not None else []
            if len(beyond):
                self.lp.row([(beyond, 1.0)], 0.0)

    def padded(self, costs: np.ndarray) -> np.ndarray:
        """Costs over all columns, those added since included."""
        return np.concatenate([costs, np.zeros(self.lp.columns - len(costs))])
