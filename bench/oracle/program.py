# SPDX-License-Identifier: Apache-2.0
"""What every rank does in one iteration: tasks in streams, and the flows of bytes that ranks meet in."""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from .platform import Platform
from .scenario import ELEMENT_BYTES, Operation, Scenario, compute_ms, piece_bytes


@dataclass(eq=False)
class Task:
    """A rank's computation (work_ns at the reference clock) or its part in a communication."""

    rank: int
    index: int  # of the statement in the iteration
    stream: int
    work_ns: float = 0.0
    comm: "Comm | None" = None
    number: int = -1  # among the rank's tasks


@dataclass(eq=False)
class Flow:
    """Bytes on their way between `ranks`, `total` of work at `rates` a ns by the lowest clock among them."""

    ranks: tuple[int, ...]
    total: float
    rates: np.ndarray
    least_ns: float
    collective: bool  # else a transfer from ranks[0] to ranks[1], which shares by direction
    listed: list[float] = field(default_factory=list)  # the rates again, once somebody looks them up one by one


@dataclass(eq=False)
class Comm:
    """One communication of an iteration: each rank's task is resident from its arrival to the end of its flows."""

    key: tuple
    tasks: dict[int, Task] = field(default_factory=dict)
    bytes: dict[int, float] = field(default_factory=dict)  # of each rank, what its power goes by
    flows: list[Flow] = field(default_factory=list)
    shape: tuple = ()  # alike for communications that are alike


@dataclass(eq=False)
class Program:
    """Items of each rank in the order its host enqueues them: a Task, ("wait", stream, awaited), ("sync", stream)."""

    ranks: int
    streams: int
    items: list[list]
    comms: list[Comm]

    def tasks(self, rank: int) -> list[Task]:
        """The rank's tasks in the order of their launch."""
        return [item for item in self.items[rank] if isinstance(item, Task)]


class Builder:
    """Makes programs of a scenario on a platform; keeps tables that iterations share."""

    def __init__(self, platform: Platform, scenario: Scenario) -> None:
        self.platform = platform
        self.scenario = scenario
        self._rates: dict[tuple, np.ndarray] = {}

    def collective_rates(self, pattern: str, size: float, ranks: int) -> np.ndarray:
        """Shares of the operation a ns, by clock."""
        key = (pattern, size, ranks)
        if key not in self._rates:
            self._rates[key] = 1 / self.platform.collective_ns(pattern, size, ranks)
        return self._rates[key]

    def transfer_rates(self, pattern: str, size: float) -> np.ndarray:
        """Bytes a ns, by clock."""
        key = (pattern, size)
        if key not in self._rates:
            self._rates[key] = self.platform.bandwidths_gbs(pattern, size)
        return self._rates[key]

    def program(self, operations: list[Operation], iteration: int) -> Program:
        """The program of one iteration."""
        self.iteration = iteration
        self.ranks = self.platform.gpus
        self.comms: dict[tuple, Comm] = {}
        self.sent: dict[tuple, int] = defaultdict(int)
        program = Program(self.ranks, len(self.scenario.streams), [[] for _ in range(self.ranks)], [])
        for rank in range(self.ranks):
            self._rank_items(program.items[rank], rank, operations)
            for number, task in enumerate(program.tasks(rank)):
                task.number = number
        for comm in self.comms.values():
            self._make_flows(comm)
        program.comms = list(self.comms.values())
        return program

    def _rank_items(self, items: list, rank: int, operations: list[Operation]) -> None:
        last_stream: dict[int, int] = {}
        for index, op in enumerate(operations):
            if op.act == "compute":
                work_ns = compute_ms(self.scenario, op, self.iteration, rank) * 1e6
                if work_ns > 0:
                    items.append(Task(rank, index, op.stream, work_ns))
            elif op.act == "wait":
                items.append(("wait", op.stream, op.awaited))
            elif op.act == "sync":
                items.append(("sync", op.stream))
            else:
                comm = self._comm_of(op, index, rank)
                if comm is None:
                    continue
                # A communicator's operations run in the order of their launch, whatever streams they are in.
                before = last_stream.get(op.group, op.stream)
                if before != op.stream:
                    items.append(("wait", op.stream, before))
                last_stream[op.group] = op.stream
                task = Task(rank, index, op.stream, comm=comm)
                comm.tasks[rank] = task
                items.append(task)

    def _comm_of(self, op: Operation, index: int, rank: int) -> Comm | None:
        members = self.scenario.groups[op.group].members(rank, self.ranks)
        if op.act == "collective":
            if len(members) == 1:
                return None
            if op.pattern in ("scatter", "gather", "send_receive"):
                raise NotImplementedError(f"{op.pattern} in a scenario is not modelled")
            key: tuple[object, ...] = ("collective", index, members[0])
            return self.comms.setdefault(key, Comm(key, shape=(op, tuple(members))))
        place = members.index(rank) + op.towards
        if not 0 <= place < len(members):
            return None
        ends = (rank, members[place]) if op.act == "send" else (members[place], rank)
        # The n-th send between two ranks meets their n-th receive.
        number = self.sent[op.act, op.group, ends]
        self.sent[op.act, op.group, ends] += 1
        key = ("transfer", op.group, ends, number)
        return self.comms.setdefault(key, Comm(key, shape=(op.bytes, ends)))

    def _make_flows(self, comm: Comm) -> None:
        if comm.key[0] == "transfer":
            size, (source, target) = comm.shape
            least_ns = self.platform.base_latency_ns("send_receive")
            rates = self.transfer_rates("send_receive", size)
            comm.flows = [Flow((source, target), float(size), rates, least_ns, False)]
            comm.bytes = {source: float(size), target: float(size)}
            return
        op, members = comm.shape
        if op.pattern == "all_to_all":
            return self._make_exchange(comm, op, list(members))
        size = op.bytes // ELEMENT_BYTES * ELEMENT_BYTES
        if op.pattern in ("all_gather", "reduce_scatter"):
            size = int(op.bytes // ELEMENT_BYTES // len(members) // 8 * 8) * ELEMENT_BYTES * len(members)
        rates = self.collective_rates(op.pattern, float(size), len(members))
        comm.flows = [Flow(members, 1.0, rates, 0.0, True)]
        comm.bytes = dict.fromkeys(members, float(size))

    def _make_exchange(self, comm: Comm, op: Operation, members: list[int]) -> None:
        pieces = [piece_bytes(self.scenario, op, self.iteration, members, to) for to in range(len(members))]
        sent = float(sum(pieces))
        least_ns = self.platform.base_latency_ns("all_to_all")
        for i, rank in enumerate(members):
            received = float(pieces[i] * len(members))
            comm.bytes[rank] = max(sent, received)
        for source in members:
            rates = self.transfer_rates("all_to_all", comm.bytes[source])
            for i, target in enumerate(members):
                if target != source and pieces[i] > 0:
                    comm.flows.append(Flow((source, target), float(pieces[i]), rates, least_ns, False))
