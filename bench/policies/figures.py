# SPDX-License-Identifier: Apache-2.0
"""From runs to figures: what each policy saved and cost against `observe`. Pure arithmetic over records."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .platforms import Traits

Figure = dict[str, object]
ORACLES = ("oracle", "oracle_communication")
FEW = 5  # values: of fewer none is left out


@dataclass
class Record:
    """One run that worked. step_ms, joules: of measured iterations; joules are per GPU, null where too short to tell.

    case: a scenario, or `models.NAME`. joules_per_iteration: of the whole run, pauses between iterations included.
    predicted: energy saved in percent by policy, as `powerccl whatif` says from this run (observe alone).
    told_pct: slowdown the job itself came to, low, estimate, high; empty where it judged none.
    """

    platform: str
    case: str
    policy: str
    repeat: int
    step_ms: list[float]
    joules: list[float | None]
    joules_per_iteration: float
    core_share_pct: list[float] = field(default_factory=list)
    predicted: dict[str, float] = field(default_factory=dict)
    remark: str = ""
    told_pct: list[float] = field(default_factory=list)


@dataclass
class Spread:
    """A value between its bounds, from so many."""

    value: float
    low: float | None
    high: float | None
    n: int

    def figure(self, unit: str, digits: int = 3) -> Figure:
        """As figures are written."""
        low, high = (None if bound is None else round(bound, digits) for bound in (self.low, self.high))
        return {"value": round(self.value, digits), "unit": unit, "low": low, "high": high, "n": self.n}


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; of one value, that."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def centre(values: Sequence[float]) -> float:
    """Mean without the shortest and the longest twentieth: policies do two things by turns, hosts are busy at times.

    A median would be one of the two.
    """
    cut = max(1, len(values) // 20) if len(values) >= FEW else 0
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def ratios(before: Sequence[float], after: Sequence[float], traits: Traits) -> tuple[float, float, float]:
    """Quartiles and centre of after / before. Iterations that differ are compared with what they should equal.

    Draws depend on the iteration's number: where they vary, iterations meet those of their number. Sections are
    compared each with itself, and put together by the time they take.
    """
    if traits.varies:  # one of them may have been given fewer
        count = min(len(before), len(after))
        before, after = before[:count], after[:count]
    parts: list[tuple[float, tuple[float, float, float]]] = []
    for section in range(len(traits.begins)):
        mine = [v for i, v in enumerate(before) if traits.section(i, len(before)) == section]
        theirs = [i for i in range(len(after)) if traits.section(i, len(after)) == section]
        if not mine or not theirs:
            continue
        base = centre(mine)
        found = [after[i] / (before[i] if traits.varies else base) for i in theirs]
        low, _, high = quartiles(found)
        parts.append((base * len(mine), (low, centre(found), high)))
    total = sum(weight for weight, _ in parts)
    low, middle, high = (sum(weight * each[k] for weight, each in parts) / total for k in range(3))
    return low, middle, high


def slowdown(before: Record, after: Record, traits: Traits) -> Spread:
    """Of the step time, in percent; bounds are quartiles over iterations."""
    low, middle, high = (100 * (each - 1) for each in ratios(before.step_ms, after.step_ms, traits))
    return Spread(middle, low, high, len(after.step_ms))


def energy_saved(before: Record, after: Record, traits: Traits) -> Spread:
    """Of the whole run's energy an iteration, in percent; bounds are quartiles over iterations where those can tell."""
    value = 100 * (1 - after.joules_per_iteration / before.joules_per_iteration)
    mine = [j for j in before.joules if j is not None]
    theirs = [j for j in after.joules if j is not None]
    if len(mine) < len(before.joules) or len(theirs) < len(after.joules) or not mine or not theirs:
        return Spread(value, None, None, len(after.step_ms))
    low, _, high = (100 * (1 - each) for each in reversed(ratios(mine, theirs, traits)))
    return Spread(value, min(low, value), max(high, value), len(theirs))  # a mean may lie outside of quartiles


def together(runs: Sequence[Spread]) -> Spread:
    """One run as it is; of several their median, and the least and greatest of them."""
    if len(runs) == 1:
        return runs[0]
    values = [run.value for run in runs]
    return Spread(statistics.median(values), min(values), max(values), len(values))


def core_shares(records: Iterable[Record]) -> dict[str, Figure]:
    """Processor time of the clock thread of a rank over wall time: of all policies, of each, and the most of all."""
    by_policy: dict[str, list[float]] = {}
    for record in records:
        by_policy.setdefault(record.policy, []).extend(record.core_share_pct)
    by_policy = {policy: shares for policy, shares in by_policy.items() if shares}
    every = [share for shares in by_policy.values() for share in shares]
    if not every:
        return {}
    figures = {"policies.runtime.core_share_pct": _shares(every)}
    figures["policies.runtime.core_share_worst_pct"] = Spread(max(every), max(every), max(every), len(every)).figure(
        "%"
    )
    for policy, shares in by_policy.items():
        figures[f"policies.runtime.{policy}.core_share_pct"] = _shares(shares)
    return figures


def _shares(shares: Sequence[float]) -> Figure:
    low, middle, high = quartiles(shares)
    return Spread(middle, low, high, len(shares)).figure("%", 4)


def figures_of(
    records: Sequence[Record], traits: Mapping[str, Traits], oracles: Mapping[tuple[str, str], Mapping[str, object]]
) -> dict[str, Figure]:
    """All figures. oracles: what bench.oracle found, by platform and scenario."""
    figures: dict[str, Figure] = {}
    cases = dict.fromkeys((record.platform, record.case) for record in records)
    for platform, case in cases:
        runs: dict[str, dict[int, Record]] = {}
        for record in records:
            if (record.platform, record.case) == (platform, case):
                runs.setdefault(record.policy, {})[record.repeat] = record
        name = f"policies.{platform}.{case}"
        observed = runs.pop("observe", {})
        if observed:
            figures |= _case(name, observed, runs, traits.get(case, Traits()))
        for oracle in ORACLES:
            found = oracles.get((platform, case), {}).get(oracle)
            if found:
                figures[f"{name}.{oracle}.energy_saved_pct"] = _oracle(found)  # type: ignore[arg-type]
    return figures | core_shares(records)


def _case(
    name: str, observed: Mapping[int, Record], runs: Mapping[str, Mapping[int, Record]], traits: Traits
) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    steps = [Spread(*_middle(record.step_ms), len(record.step_ms)) for record in observed.values()]
    joules = [record.joules_per_iteration for record in observed.values()]
    figures[f"{name}.observe.step_ms"] = together(steps).figure("ms")
    figures[f"{name}.observe.joules_per_iteration"] = together([Spread(j, None, None, 1) for j in joules]).figure(
        "J", 4
    )
    errors: dict[str, Spread] = {}
    for policy, mine in runs.items():
        # A run is compared with its own turn's baseline; where that failed, with the first that worked.
        pairs = [(observed.get(repeat) or next(iter(observed.values())), mine[repeat]) for repeat in sorted(mine)]
        slower = together([slowdown(before, after, traits) for before, after in pairs])
        saved = [energy_saved(before, after, traits) for before, after in pairs]
        figures[f"{name}.{policy}.slowdown_pct"] = slower.figure("%")
        figures[f"{name}.{policy}.energy_saved_pct"] = together(saved).figure("%")
        if itself := [Spread(r.told_pct[1], r.told_pct[0], r.told_pct[2], 1) for _, r in pairs if r.told_pct]:
            figures[f"{name}.{policy}.told_slowdown_pct"] = together(itself).figure("%")
        predicted = [
            (before.predicted[policy], each.value)
            for (before, _), each in zip(pairs, saved, strict=True)
            if policy in before.predicted
        ]
        if predicted:
            told = [Spread(said, None, None, 1) for said, _ in predicted]
            figures[f"{name}.whatif.{policy}.energy_saved_pct"] = together(told).figure("%")
            errors[policy] = together([Spread(abs(said - is_so), None, None, 1) for said, is_so in predicted])
            figures[f"{name}.whatif.{policy}.error_points"] = errors[policy].figure("points")
    for policy in sorted({policy for record in observed.values() for policy in record.predicted} - set(runs)):
        said = [Spread(each.predicted[policy], None, None, 1) for each in observed.values() if policy in each.predicted]
        figures[f"{name}.whatif.{policy}.energy_saved_pct"] = together(said).figure("%")
    chief = [errors[policy] for policy in ("percall", "auto" if "auto" in errors else "phase") if policy in errors]
    if chief:
        figures[f"{name}.whatif.error_points"] = max(chief, key=lambda error: error.value).figure("points")
    return figures


def _middle(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = quartiles(values)
    return middle, low, high


def _oracle(found: Mapping[str, float | None]) -> Figure:
    """By the best schedule that was found, up to the bound that was proven; the bound where no schedule was sought."""
    bound = found["bound_saving_pct"]
    achieved = found.get("achievable_saving_pct")
    assert bound is not None
    value = bound if achieved is None else achieved
    return Spread(value, value, max(bound, value), 1).figure("%")


def value_of(figures: Mapping[str, Figure], name: str) -> float | None:
    """A figure's value, if it is there."""
    figure = figures.get(name)
    return float(figure["value"]) if figure else None  # type: ignore[arg-type]
