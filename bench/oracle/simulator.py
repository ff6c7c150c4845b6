# SPDX-License-Identifier: Apache-2.0
"""Iterations of a scenario in virtual time: the emulator's server and powerccl-bench's replay in one event loop."""

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from .gpu import Gpu, Tables
from .platform import Platform
from .program import Comm, Flow, Program, Task


@dataclass(frozen=True)
class Host:
    """What the emulator leaves to real processes."""

    enqueue_ns: int = 5_000
    wake_ns: int = 280_000  # from the end of what a host waits for to its next submission
    pause_ns: int = 300_000  # from one iteration's end to the first submission of the next
    skew_ns: int = 0  # a submission: eight processes on few cores come to their turn one after another


# Ranks that never wait for a processor, and ranks as they were when bench/results/scenarios-emulated.json was measured.
IDEAL = Host()
TWO_CORES = Host(skew_ns=55_000, pause_ns=500_000)


@dataclass(frozen=True)
class Call:
    """A clock call for one GPU: made `at_ns` after a task of its rank has begun, or as soon as the driver is free."""

    iteration: int
    at_ns: float
    gpu: int
    clock: int | None  # index of the highest clock allowed; None: unlocked
    task: int = -1  # its number; -1: the iteration's start


@dataclass
class Iteration:
    """Times since the run's start; spans[rank][number] of each task: begin, end."""

    start_ns: int = 0
    end_ns: int = 0
    joules: float = 0.0  # all GPUs, up to the next one's start
    joules_of: list[float] = field(default_factory=list)
    spans: list[list[tuple[int, int]]] = field(default_factory=list)


@dataclass(eq=False)
class _Work:
    gpus: tuple[int, ...]
    remaining: float
    rates: list[float]
    kernel: bool
    done: Callable[[], None]
    flow: Flow | None = None
    rate: float = 0.0
    since: int = 0
    version: int = 0


@dataclass(eq=False)
class _Stream:
    queue: deque = field(default_factory=deque)
    pushed: int = 0
    completed: int = 0
    running: bool = False
    waiters: list = field(default_factory=list)  # (count, callback)


class Simulator:
    """Runs programs one after another, a barrier between them."""

    def __init__(
        self, platform: Platform, programs: Sequence[Program], calls: Sequence[Call] = (), host: Host | None = None
    ) -> None:
        self.p = platform
        self.host = host or IDEAL
        self.programs = programs
        self.now = 0
        self.heap: list = []
        self.sequence = 0
        tables = Tables(platform)
        self.gpus = [Gpu(tables) for _ in range(platform.gpus)]
        self.work_of: list[dict[_Work, None]] = [{} for _ in self.gpus]
        self.load = [[0, 0, 0] for _ in self.gpus]  # collectives, sends, receives
        self.dirty_gpus: set[int] = set()
        self.dirty_works: dict[_Work, None] = {}
        self.launch_ns = round(platform["kernel_launch_us"] * 1e3)
        self.call_ns = platform["set_clock_call_us"] * 1e3
        self.transition_ns = platform["clock_transition_us"] * 1e3
        self.overlap = platform["overlap_compute_rate"]
        self.compute_rates = platform.compute_rates().tolist()
        self.calls_of: dict[tuple[int, int, int], list[Call]] = {}
        for call in sorted(calls, key=lambda c: c.at_ns):
            self.calls_of.setdefault((call.iteration, call.gpu, call.task), []).append(call)
        self.busy_until = [0.0] * (1 if platform["set_clock_serialised"] else len(self.gpus))
        self.transition = [0] * len(self.gpus)
        self.iterations: list[Iteration] = []
        self.energies: list[float] = []  # of each GPU when the iteration began

    def warm(self, gpus: Sequence[Gpu]) -> None:
        """Take over governors and temperatures, as of a run that has lasted."""
        tables = self.gpus[0].t
        self.gpus = [Gpu(tables, warm) for warm in gpus]

    def run(self) -> list[Iteration]:
        """All programs; each iteration's energy reaches to the start of the next."""
        self._at(0, lambda: self._begin_iteration(0))
        period = max(1, round(self.p["governor_period_ms"] * 1e6))
        self._at(period, lambda: self._tick(period))
        self.over = False
        while self.heap and not self.over:
            self.now = self.heap[0][0]
            while self.heap and self.heap[0][0] == self.now:
                heapq.heappop(self.heap)[2]()
            self._flush()
        return self.iterations

    # ---- time

    def _at(self, when: int, action: Callable[[], None]) -> None:
        self.sequence += 1
        heapq.heappush(self.heap, (max(when, self.now), self.sequence, action))

    def _touch(self, gpu: int) -> Gpu:
        self.gpus[gpu].settle(self.now)
        self.dirty_gpus.add(gpu)
        return self.gpus[gpu]

    def _flush(self) -> None:
        # Within one moment only the last state counts, so rates are taken once.
        works = self.dirty_works
        for gpu in self.dirty_gpus:
            self.gpus[gpu].update()
            works.update(self.work_of[gpu])
        self.dirty_gpus = set()
        self.dirty_works = {}
        for work in works:
            self._rerate(work)

    def _rerate(self, work: _Work) -> None:
        if work.version < 0:
            return
        if len(work.gpus) == 1:
            gpu = self.gpus[work.gpus[0]]
            rate = work.rates[gpu.clock] / max(1, gpu.kernels)
            if gpu.comms:
                rate *= self.overlap
        else:
            slowest = min(self.gpus[gpu].clock for gpu in work.gpus)
            assert work.flow is not None  # all that several GPUs work on
            rate = work.rates[slowest] / self._share(work.flow)
        if rate == work.rate:
            return
        work.remaining = max(0.0, work.remaining - work.rate * (self.now - work.since))
        work.since = self.now
        work.rate = rate
        work.version += 1
        version = work.version
        self._at(self.now + math.ceil(work.remaining / rate), lambda: self._complete(work, version))

    def _add_work(self, work: _Work) -> None:
        work.since = self.now
        self.dirty_works[work] = None
        for gpu in work.gpus:
            self.work_of[gpu][work] = None

    def _complete(self, work: _Work, version: int) -> None:
        if work.version != version:
            return
        work.version = -1
        for gpu in work.gpus:
            del self.work_of[gpu][work]
        work.done()

    def _tick(self, period: int) -> None:
        for gpu in range(len(self.gpus)):
            self._touch(gpu).tick()
        self._at(self.now + period, lambda: self._tick(period))

    # ---- links

    def _share(self, flow: Flow) -> int:
        load = self.load
        if flow.collective:
            return max(1, *(load[g][0] + (1 if load[g][1] or load[g][2] else 0) for g in flow.ranks))
        source, target = load[flow.ranks[0]], load[flow.ranks[1]]
        return max(1, max(source[1], target[2]) + max(source[0], target[0]))

    def _load_changed(self, flow: Flow, by: int) -> None:
        if flow.collective:
            for gpu in flow.ranks:
                self.load[gpu][0] += by
        else:
            self.load[flow.ranks[0]][1] += by
            self.load[flow.ranks[1]][2] += by
        for gpu in flow.ranks:
            self.dirty_works.update(self.work_of[gpu])

    # ---- streams

    def _begin_iteration(self, number: int) -> None:
        for gpu in range(len(self.gpus)):
            self._touch(gpu)
        energies = [gpu.energy for gpu in self.gpus]
        if self.iterations:
            last = self.iterations[-1]
            last.joules_of = [(e - b) * 1e-9 for e, b in zip(energies, self.energies, strict=True)]
            last.joules = sum(last.joules_of)
        self.energies = energies
        if number == len(self.programs):
            self.iterations.append(Iteration(self.now, self.now))
            self.over = True
            return
        program = self.programs[number]
        self.program, self.number = program, number
        self.streams = [[_Stream() for _ in range(program.streams)] for _ in self.gpus]
        self.arrived: dict[int, set[int]] = {}
        self.open_flows: dict[Task, int] = {}
        spans = [[(0, 0)] * len(program.tasks(rank)) for rank in range(program.ranks)]
        self.iterations.append(Iteration(self.now, self.now, spans=spans))
        self.hosts_open = program.ranks
        for gpu in range(len(self.gpus)):
            self._follow(gpu, -1)
        for rank in range(program.ranks):
            skew_ns = self.host.skew_ns * len(program.items[rank]) * rank // max(1, program.ranks - 1)
            self._at(self.now + skew_ns, partial(self._begin_host, rank))

    def _begin_host(self, rank: int) -> None:
        self._host(rank, 0, self.now)

    def _host(self, rank: int, item: int, at: int) -> None:
        items = self.program.items[rank]
        streams = self.streams[rank]
        while item < len(items):
            what = items[item]
            item += 1
            if isinstance(what, Task):
                at += self.host.enqueue_ns
                stream = streams[what.stream]
                stream.pushed += 1
                stream.queue.append((at + self.launch_ns, what))
                self._step(rank, what.stream)
            elif what[0] == "wait":
                streams[what[1]].queue.append((at, (what[2], streams[what[2]].pushed)))
                self._step(rank, what[1])
            else:
                stream, upto = streams[what[1]], streams[what[1]].pushed
                self._when(stream, upto, self._resume(rank, item))
                return
        self._end_of_host(rank)

    def _resume(self, rank: int, item: int) -> Callable[[], None]:
        return lambda: self._at(self.now + self.host.wake_ns, lambda: self._host(rank, item, self.now))

    def _end_of_host(self, rank: int) -> None:
        for stream in self.streams[rank]:
            if stream.completed < stream.pushed:
                return self._when(stream, stream.pushed, lambda: self._end_of_host(rank))
        self.hosts_open -= 1
        if self.hosts_open == 0:
            number = self.number + 1
            self.iterations[-1].end_ns = self.now
            self._at(self.now + self.host.pause_ns, lambda: self._begin_iteration(number))

    @staticmethod
    def _when(stream: _Stream, upto: int, action: Callable[[], None]) -> None:
        if stream.completed >= upto:
            action()
        else:
            stream.waiters.append((upto, action))

    def _step(self, rank: int, index: int) -> None:
        stream = self.streams[rank][index]
        while stream.queue and not stream.running:
            ready, what = stream.queue[0]
            stream.running = True
            if isinstance(what, Task):
                stream.queue.popleft()
                if ready > self.now:
                    self._at(ready, partial(self._start, what))
                else:
                    self._start(what)
                return
            stream.queue.popleft()
            awaited = self.streams[rank][what[0]]
            if awaited.completed >= what[1]:
                stream.running = False
                continue

            def go_on() -> None:
                stream.running = False
                self._step(rank, index)

            return self._when(awaited, what[1], go_on)

    def _finish(self, task: Task) -> None:
        begin = self.iterations[-1].spans[task.rank][task.number][0]
        self.iterations[-1].spans[task.rank][task.number] = (begin, self.now)
        stream = self.streams[task.rank][task.stream]
        stream.completed += 1
        stream.running = False
        due = [action for upto, action in stream.waiters if upto <= stream.completed]
        stream.waiters = [each for each in stream.waiters if each[0] > stream.completed]
        self._step(task.rank, task.stream)
        for action in due:
            action()

    def _follow(self, gpu: int, task: int) -> None:
        for call in self.calls_of.get((self.number, gpu, task), ()):
            self._at(self.now + round(call.at_ns), partial(self._make_call, call))

    def _start(self, task: Task) -> None:
        self._follow(task.rank, task.number)
        self.iterations[-1].spans[task.rank][task.number] = (self.now, self.now)
        gpu = self._touch(task.rank)
        if task.comm is None:
            gpu.kernels += 1
            self._add_work(_Work((task.rank,), task.work_ns, self.compute_rates, True, lambda: self._computed(task)))
            return
        comm = task.comm
        gpu.comms.append(comm.bytes[task.rank])
        arrived = self.arrived.setdefault(id(comm), set())
        arrived.add(task.rank)
        mine = [flow for flow in comm.flows if task.rank in flow.ranks]
        self.open_flows[task] = len(mine)
        for flow in mine:
            if arrived.issuperset(flow.ranks):
                self._start_flow(comm, flow)
        if not mine:
            self._communicated(task)

    def _computed(self, task: Task) -> None:
        self._touch(task.rank).kernels -= 1
        self._finish(task)

    def _start_flow(self, comm: Comm, flow: Flow) -> None:
        self._load_changed(flow, +1)
        open_parts = [2 if flow.least_ns else 1]

        def part_done() -> None:
            open_parts[0] -= 1
            if open_parts[0]:
                return
            for rank in flow.ranks:
                task = comm.tasks[rank]
                self.open_flows[task] -= 1
                if self.open_flows[task] == 0:
                    self._communicated(task)

        def work_done() -> None:
            self._load_changed(flow, -1)
            part_done()

        if not flow.listed:
            flow.listed = flow.rates.tolist()
        self._add_work(_Work(flow.ranks, flow.total, flow.listed, False, work_done, flow))
        if flow.least_ns:
            self._at(self.now + int(flow.least_ns), part_done)

    def _communicated(self, task: Task) -> None:
        assert task.comm is not None
        self._touch(task.rank).comms.remove(task.comm.bytes[task.rank])
        self._finish(task)

    # ---- clocks

    def _make_call(self, call: Call) -> None:
        lane = 0 if len(self.busy_until) == 1 else call.gpu
        returns = max(self.now, self.busy_until[lane]) + self.call_ns
        self.busy_until[lane] = returns

        def returned() -> None:
            # What it was on its way to before is never reached.
            self.transition[call.gpu] += 1
            mark = self.transition[call.gpu]

            def arrive() -> None:
                if self.transition[call.gpu] == mark:
                    self._touch(call.gpu).lock(call.clock)

            self._at(round(self.now + self.transition_ns), arrive)

        self._at(round(returns), returned)
