# SPDX-License-Identifier: Apache-2.0
"""What must come before what in an iteration, and which ranks are alike."""

from dataclasses import dataclass

from .program import Comm, Program, Task
from .simulator import Host


@dataclass(frozen=True)
class Before:
    """A task begins no earlier than `delay_ns` after another's end, or after the iteration's start (None)."""

    task: Task | None
    delay_ns: float


def predecessors(program: Program, rank: int, host: Host, launch_ns: float) -> dict[Task, list[Before]]:
    """By task of the rank: the one ahead in its stream, those its stream waits for, and what its host waited for."""
    last: list[Task | None] = [None] * program.streams
    pending: list[list[Before]] = [[] for _ in range(program.streams)]
    submitted = Before(None, float(host.skew_ns * len(program.items[rank]) * rank // max(1, program.ranks - 1)))
    found: dict[Task, list[Before]] = {}
    for item in program.items[rank]:
        if isinstance(item, Task):
            submitted = Before(submitted.task, submitted.delay_ns + host.enqueue_ns)
            before = [Before(submitted.task, submitted.delay_ns + launch_ns), *pending[item.stream]]
            ahead = last[item.stream]
            if ahead is not None:
                before.append(Before(ahead, 0.0))
            found[item] = before
            pending[item.stream] = []
            last[item.stream] = item
        elif item[0] == "wait":
            awaited = last[item[2]]
            if awaited is not None:
                pending[item[1]].append(Before(awaited, 0.0))
        else:
            awaited = last[item[1]]
            if awaited is not None:
                submitted = Before(awaited, float(host.wake_ns))
    return found


class Order:
    """Reachability: whether a task's end always comes before another's begin."""

    def __init__(self, program: Program, before: dict[Task, list[Before]]) -> None:
        # Nodes: begin and end of each task. No member of a communication ends before all have begun.
        self.number: dict[Task, int] = {}
        for rank in range(program.ranks):
            for task in program.tasks(rank):
                self.number[task] = len(self.number)
        into: list[list[int]] = [[] for _ in range(2 * len(self.number))]
        for task, n in self.number.items():
            into[2 * n] += [2 * self.number[b.task] + 1 for b in before[task] if b.task is not None]
            into[2 * n + 1].append(2 * n)
            if task.comm is not None:
                into[2 * n + 1] += [2 * self.number[other] for other in task.comm.tasks.values() if other is not task]
        self.reached = [0] * len(into)
        done = [False] * len(into)
        for root in range(len(into)):
            stack = [root]
            while stack:
                node = stack[-1]
                open_nodes = [n for n in into[node] if not done[n]]
                if open_nodes:
                    stack += open_nodes
                    continue
                stack.pop()
                if not done[node]:
                    mask = 1 << node
                    for n in into[node]:
                        mask |= self.reached[n]
                    self.reached[node] = mask
                    done[node] = True

    def _before(self, first: int, second: int) -> bool:
        return bool(self.reached[second] >> first & 1)

    def ends_before_begin(self, first: Task, second: Task) -> bool:
        """`first` is always over when `second` begins."""
        return self._before(2 * self.number[first] + 1, 2 * self.number[second])

    def over_by_end(self, first: Task, second: Task) -> bool:
        """`first` is always over when `second` is."""
        return self._before(2 * self.number[first] + 1, 2 * self.number[second] + 1)

    def begins_no_later(self, first: Task, second: Task) -> bool:
        """`first` has always begun when `second` begins."""
        return self._before(2 * self.number[first], 2 * self.number[second])


def classes_of(program: Program, skewed: bool) -> list[int]:
    """The least equitable partition of the ranks (colour refinement): a number for each rank.

    An optimum of the linear program may be averaged over such classes, so one rank of each stands for all.
    """
    if skewed:
        return list(range(program.ranks))
    colors: list[int] = [0] * program.ranks
    while True:
        signs = []
        for rank in range(program.ranks):
            sign: list = [colors[rank]]
            for task in program.tasks(rank):
                if task.comm is None:
                    sign.append((task.index, task.work_ns))
                else:
                    sign.append((task.index, comm_sign(task.comm, rank, colors)))
            signs.append(tuple(sign))
        names = {sign: n for n, sign in enumerate(dict.fromkeys(signs))}
        refined = [names[sign] for sign in signs]
        if len(names) == len(set(colors)):
            return refined
        colors = refined


def comm_sign(comm: Comm, rank: int, colors: list[int]) -> tuple:
    """What a communication looks like from a rank, up to the colors of the others."""
    flows = []
    for flow in comm.flows:
        members = [colors[r] for r in flow.ranks]
        if flow.collective:
            flows.append((flow.total, tuple(sorted(members)), -1))
        else:
            flows.append((flow.total, tuple(members), flow.ranks.index(rank) if rank in flow.ranks else -1))
    return (comm.bytes[rank], tuple(sorted(flows)))
