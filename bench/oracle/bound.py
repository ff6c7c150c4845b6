# SPDX-License-Identifier: Apache-2.0
"""A lower bound on the energy of a scenario under every clock schedule that keeps a budget of time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .model import MS, Model
from .order import classes_of
from .platform import Platform
from .program import Program, Task
from .simulator import Host
from .switching import limit_switching

PRICES = 7  # of time, tried where iterations differ
FIRST_PRICE = 0.8  # of the mean power
COMPUTE_TOLERANCE = 1.002  # what counts as no longer than without a schedule: clocks have steps


@dataclass
class Case:
    """An iteration, how often it occurs, and what it takes without any schedule."""

    program: Program
    weight: float
    total_ms: float  # from start to start
    joules: float  # all GPUs
    compute_ms: list[float]  # by rank: in which it computes
    repeats: bool = True  # the next iteration is like this one


# By rank, of each task's number: its ms, and the index of its clock, on average.
Plan = list[dict[int, tuple[float, float]]]
Side = tuple[list[float], list[Plan], float]  # of a solution: times, plans, ms beyond what is allowed


@dataclass
class Bound:
    """joules: mean over the cases, all GPUs. times_ms: of each case where the bound is reached; plans: how."""

    joules: float
    times_ms: list[float] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)


def idle_floor_w(platform: Platform, above_k: float) -> float:
    """The least a GPU draws with a context at so much above the leakage's reference."""
    p = platform
    return float(np.min(p["static_w"] + p["tree_w"] * p.fv2 + p["leakage_w_per_kv"] * p.volts * above_k))


def coolest_c(platform: Platform, case: Case, rank: int, budget: float) -> float:
    """A temperature that the GPU never falls below in steady state, from its own work alone.

    Mean power gives the mean temperature; within an iteration heat may be put in at the worst moment.
    """
    p = platform
    rates, temperature = p.compute_rates(), p["ambient_c"]
    longest_ms = case.total_ms * (1 + budget) * (1.0 if case.repeats else 1.1)
    lag_ms = p["thermal_tau_ms"]
    worst = longest_ms / lag_ms / math.expm1(longest_ms / lag_ms)
    for _ in range(20):
        above = temperature - p["leakage_reference_c"]
        floor_w = idle_floor_w(p, above)
        power = p["static_w"] + (p["tree_w"] + p["compute_w"]) * p.fv2 + p["leakage_w_per_kv"] * p.volts * above
        extra_mj = 0.0
        for task in case.program.tasks(rank):
            if task.comm is None:
                extra_mj += float(np.min((power - floor_w) / rates)) * task.work_ns * MS
            else:
                shortest_ms = max(f.total / f.rates.max() for f in task.comm.flows if rank in f.ranks) * MS
                extra_mj += float(p.communication_w(task.comm.bytes[rank]).min()) * shortest_ms
        temperature = p["ambient_c"] + p["thermal_k_per_w"] * (floor_w + extra_mj / longest_ms * worst)
    return temperature


def least_energy(
    platform: Platform,
    cases: Sequence[Case],
    host: Host,
    budget: float,
    communication_only: bool = False,
    planning: bool = False,
) -> Bound:
    """communication_only: no rank may compute for longer than without any schedule. planning: see Model; no bound."""
    allowed_ms = (1 + budget) * mean([c.total_ms for c in cases], cases)
    floors = [_floors(platform, case, host, budget) for case in cases]
    bound = _solve(platform, cases, host, allowed_ms, floors, (communication_only, planning))
    for _ in range(3):
        if any(len(set(classes_of(c.program, host.skew_ns > 0))) > 1 for c in cases) or len(cases) > 1:
            break  # the bound is on all GPUs together, and says little of one
        raised = _raised(platform, bound, cases[0], budget)
        if raised <= floors[0][0] + 0.05:
            break
        floors = [[raised]]
        bound = _solve(platform, cases, host, allowed_ms, floors, (communication_only, planning))
    return bound


def mean(values: Sequence[float], cases: Sequence[Case]) -> float:
    """Over the cases, by their weights."""
    return sum(v * c.weight for v, c in zip(values, cases, strict=True)) / sum(c.weight for c in cases)


def _floors(platform: Platform, case: Case, host: Host, budget: float) -> list[float]:
    classes = classes_of(case.program, host.skew_ns > 0)
    return [coolest_c(platform, case, classes.index(c), budget) for c in range(max(classes) + 1)]


def _raised(platform: Platform, bound: Bound, case: Case, budget: float) -> float:
    """The coolest temperature where all GPUs are alike, from the bound itself."""
    p = platform
    longest_ms = case.total_ms * (1 + budget)
    mean_w = bound.joules * 1e3 / p.gpus / longest_ms
    worst = longest_ms / p["thermal_tau_ms"] / math.expm1(longest_ms / p["thermal_tau_ms"])
    floor_w = idle_floor_w(p, p["ambient_c"] - p["leakage_reference_c"])
    return p["ambient_c"] + p["thermal_k_per_w"] * (floor_w + (mean_w - floor_w) * worst)


def _model(
    platform: Platform, case: Case, host: Host, floors: list[float], communication_only: bool, planning: bool
) -> Model:
    model = Model(platform, case.program, host, floors, planning)
    limit_switching(model, case.repeats)
    if communication_only:
        for c, segments in enumerate(model.segments):
            ranks = [r for r in range(case.program.ranks) if model.classes[r] == c]
            longest_ms = sum(case.compute_ms[r] for r in ranks) / len(ranks)
            busy = [s for s in segments if s.task is not None and s.task.comm is None]
            columns = [x for s in busy for x in (s.alone, s.beside) if x is not None]
            if columns:
                model.lp.row([(x, 1.0) for x in columns], longest_ms * COMPUTE_TOLERANCE)
    return model


def _solve(
    platform: Platform,
    cases: Sequence[Case],
    host: Host,
    allowed_ms: float,
    floors: list[list[float]],
    kind: tuple[bool, bool],
) -> Bound:
    models = [_model(platform, c, host, f, *kind) for c, f in zip(cases, floors, strict=True)]
    if len(models) == 1:
        model = models[0]
        model.lp.row([(model.total, 1.0)], allowed_ms)
        energy, point = model.lp.solve(model.padded(model.cost))
        return Bound(energy * 1e-3, [float(point[model.total])], [plan_of(model, point)])
    # Iterations share nothing but the budget: a price of time parts them, and any price gives a bound.
    best = -math.inf
    sides: dict[bool, Side] = {}  # times and plans of the last solution that took too long, and of one that did not
    mean_w = sum(c.joules for c in cases) / sum(c.total_ms for c in cases) * 1e3
    cheap, dear = (0.0, math.inf), (math.inf, -math.inf)  # price and ms beyond what is allowed, on either side
    price = 0.0
    for _ in range(PRICES):
        energies, points = [], []
        for model in models:
            costs = model.padded(model.cost)
            costs[model.total] += price
            _, point = model.lp.solve(costs)
            energies.append(float(costs @ point))
            points.append(point)
        times_ms = [float(x[m.total]) for m, x in zip(models, points, strict=True)]
        best = max(best, (mean(energies, cases) - price * allowed_ms) * 1e-3)
        beyond_ms = mean(times_ms, cases) - allowed_ms
        plans = [plan_of(m, x) for m, x in zip(models, points, strict=True)]
        sides[beyond_ms > 0] = (times_ms, plans, beyond_ms)
        if beyond_ms > 0:
            cheap = (price, beyond_ms)
        else:
            dear = (price, beyond_ms)
        # Any other price between the two could better the bound by this much at most.
        if (beyond_ms <= 0 and price == 0) or (dear[0] - cheap[0]) * abs(beyond_ms) < 1e-3 * best * 1e3:
            break
        if math.isinf(dear[0]):
            price = max(2 * price, FIRST_PRICE * mean_w)
        else:
            # Time falls about as the inverse of the price: meet in between on that scale, not too near either end.
            share = min(max(cheap[1] / (cheap[1] - dear[1]), 0.15), 0.85) if not math.isinf(cheap[1]) else 0.5
            price = cheap[0] + share * (dear[0] - cheap[0])
    return Bound(best, *_between(sides))


def _between(sides: dict[bool, Side]) -> tuple[list[float], list[Plan]]:
    """The mixture of two solutions that takes the allowed time: it is one as well."""
    if len(sides) < 2:
        times_ms, only, _ = next(iter(sides.values()))
        return times_ms, only
    (slow_ms, slow, beyond), (quick_ms, quick, below) = sides[True], sides[False]
    share = -below / (beyond - below)

    def mixed(a: float, b: float) -> float:
        return share * a + (1 - share) * b

    plans: list[Plan] = []
    for first, second in zip(slow, quick, strict=True):
        ranks: Plan = []
        for one, other in zip(first, second, strict=True):
            mix = {}
            for number, (ms, index) in one.items():
                other_ms, other_index = other[number]
                both = mixed(ms, other_ms)
                mix[number] = (both, mixed(ms * index, other_ms * other_index) / both if both else 0.0)
            ranks.append(mix)
        plans.append(ranks)
    return [mixed(a, b) for a, b in zip(slow_ms, quick_ms, strict=True)], plans


def plan_of(model: Model, point: np.ndarray) -> Plan:
    """What a solution does with each task."""
    by_class = []
    for c, leader in enumerate(model.leaders):
        plan = {}
        for task in model.program.tasks(leader):
            columns = _time_columns(model, c, task)
            times = sum(point[x] for x in columns)
            total = float(np.sum(times))
            index = float(np.sum(times * np.arange(model.count)) / total) if total > 1e-9 else 0.0
            plan[task.number] = (total, index)
        by_class.append(plan)
    return [by_class[model.classes[rank]] for rank in range(model.program.ranks)]


def _time_columns(model: Model, c: int, task: Task) -> list[np.ndarray]:
    if task.comm is not None:
        return [columns for columns, _ in model.links_of(task)]
    segment = next(s for s in model.segments[c] if s.task is task)
    return [x for x in (segment.alone, segment.beside) if x is not None]
