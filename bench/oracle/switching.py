# SPDX-License-Identifier: Apache-2.0
"""What limits on clock calls add to the model: how much more of one task than of the next can run at low clocks.

For every threshold a GPU's time falls into runs below and above it. Two neighbours in an order that always holds
differ in their share below it by no more than the switches in them, and each run lasts as long as a switch at least.
"""

import numpy as np

from .model import Model
from .program import Task

THRESHOLDS = 14
FEW_THRESHOLDS = 7  # where more than four ranks differ: any choice of thresholds gives a bound


def chain_of(model: Model, c: int) -> list[Task]:
    """Tasks of a representative that always run one after another: its first stream's, and exposed ones of others."""
    tasks = model.program.tasks(model.leaders[c])
    chain = [t for t in tasks if t.stream == 0]
    for side in (t for t in tasks if t.stream != 0):
        before = [model.order.ends_before_begin(t, side) for t in chain]
        behind = [model.order.ends_before_begin(side, t) for t in chain]
        if all(a or b for a, b in zip(before, behind, strict=True)):
            chain.insert(sum(before), side)
    return chain


def thresholds(model: Model) -> list[int]:
    """Indices of clocks: below or at each, a GPU counts as low."""
    count = THRESHOLDS if len(model.leaders) <= 4 else FEW_THRESHOLDS
    return sorted({round(i * (model.count - 2) / (count - 1)) for i in range(count)})


def _progress(model: Model, task: Task) -> list[tuple[np.ndarray, np.ndarray]]:
    """Columns by clock, and the share of the task that a ms of them does."""
    if task.comm is None:
        segment = next(s for s in model.segments[model.classes[task.rank]] if s.task is task)
        found = [(segment.alone, model.rates / (task.work_ns * 1e-6))] if segment.alone is not None else []
        if segment.beside is not None:
            found.append((segment.beside, model.rates * model.p["overlap_compute_rate"] / (task.work_ns * 1e-6)))
        return found
    rates = np.max([np.maximum.accumulate(f.rates) for f in task.comm.flows if task.rank in f.ranks], axis=0)
    work = max(
        sum(f.total for f in task.comm.flows if task.rank == f.ranks[0]),
        sum(f.total for f in task.comm.flows if task.rank == f.ranks[-1]),
        task.comm.flows[0].total,
    )
    return [(columns, rates / work * 1e6) for columns, _ in model.links_of(task)]


def limit_switching(model: Model, repeats: bool) -> None:
    """Add the rows. repeats: the next iteration is like this one, so its first task follows this one's last."""
    p, lp = model.p, model.lp
    call_ms, dwell_ms = p["set_clock_call_us"] * 1e-3, p["clock_transition_us"] * 1e-3
    if not p["set_clock_serialised"]:
        dwell_ms = max(dwell_ms, call_ms)
    # Where iterations differ, a run may reach into the next one.
    slack = 0.0 if repeats else 1.0
    switches = [int(x) for x in lp.add(len(model.leaders))]
    if p["set_clock_serialised"] and call_ms > 0:
        counted = [(switch, n * call_ms) for switch, n in zip(switches, model.ranks_of, strict=True)]
        lp.row([*counted, (model.total, -1.0)], slack * call_ms * sum(model.ranks_of))
    for c, switch in enumerate(switches):
        if dwell_ms > 0:
            lp.row([(switch, dwell_ms), (model.total, -1.0)], slack * dwell_ms)
        chain = chain_of(model, c)
        if len(chain) < 2:
            continue
        progress = [_progress(model, task) for task in chain]
        clocked = _clocked(model, c)
        every = [columns for columns, _ in clocked]
        parked = [(s.parked, -2.0) for s in model.segments[c] if s.parked >= 0]
        for top in thresholds(model):
            low = lp.add(len(chain))
            for i, parts in enumerate(progress):
                lp.row([(low[i], 1.0)], 1.0)
                lp.row([(low[i], 1.0), *((cols[: top + 1], -share[: top + 1]) for cols, share in parts)], 0.0)
                lp.at_least([(low[i], 1.0), *((cols[top + 1 :], share[top + 1 :]) for cols, share in parts)], 1.0)
            steps = []
            for i, task in enumerate(chain if repeats else chain[:-1]):
                following = (i + 1) % len(chain)
                for lower, upper in _counted(task, chain[following], low[i], low[following]):
                    step = int(lp.add()[0])
                    lp.at_least([(step, 1.0), (lower, -1.0), (upper, 1.0)], 0.0)
                    steps.append((step, 1.0))
            if not steps:
                continue
            lp.row([*steps, (switch, -1.0)], 0.0)
            if dwell_ms > 0:
                # Each run, on either side of the threshold, has two switches and lasts as long as one takes at least.
                lasting = [(step, dwell_ms) for step, _ in steps]
                below = [(cols[: top + 1], -2.0) for cols in every]
                above = [(cols if computes else cols[top + 1 :], -2.0) for cols, computes in clocked]
                lp.row([*lasting, *below, *parked], slack * 2 * dwell_ms)
                lp.row([*lasting, *above, *parked], slack * 2 * dwell_ms)


def _counted(first: Task, second: Task, low: int, following: int) -> list[tuple[int, int]]:
    # (a, b): a switch for each part of a beyond b. The governor lowers computation for nothing, and lets go behind it,
    # so computation that is the lower of two needs no call.
    if first.comm is not None and second.comm is not None:
        return [(low, following), (following, low)]
    if first.comm is not None:
        return [(low, following)]
    return [(following, low)] if second.comm is not None else []


def _clocked(model: Model, c: int) -> list[tuple[np.ndarray, bool]]:
    """Columns of a representative's time by clock, and whether it computes then."""
    found = []
    for segment in model.segments[c]:
        computes = segment.task is not None and segment.task.comm is None
        found += [(columns, computes) for columns in (segment.alone, segment.beside) if columns is not None]
    return found
