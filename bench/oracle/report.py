# SPDX-License-Identifier: Apache-2.0
"""The oracle of one scenario on one platform, as a map for JSON and as a line of a table."""

from dataclasses import dataclass

from .baseline import cases_of, measure, stretches_of
from .bound import Bound, Case, least_energy, mean
from .platform import Platform
from .scenario import Scenario
from .schedule import Schedule, Search
from .simulator import IDEAL

NAMES = {False: "oracle", True: "oracle_communication"}
HEAD = f"{'scenario':<12}{'step ms':>9}{'J/iter':>9}  {'oracle %':>18}  {'communication %':>18}"


@dataclass
class Saved:
    """Percent of the energy without a schedule: at most (bound), and by a schedule that was simulated."""

    bound_pct: float
    achieved_pct: float | None
    used_pct: float | None  # of time, by that schedule
    schedule: list[str]

    def text(self) -> str:
        """Both figures, the schedule's first."""
        achieved = "-" if self.achieved_pct is None else f"{self.achieved_pct:.1f}"
        return f"{achieved} to {self.bound_pct:.1f}"


def oracle(
    platform: Platform, scenario: Scenario, budget: float = 0.01, schedules: bool = True, in_each: bool = False
) -> dict:
    """Baseline, bounds and schedules; energies are per GPU and iteration, savings in percent of the baseline's.

    `in_each`: the budget holds in each section of a scenario, as for who does not know what comes; else in all of it.
    """
    stretches = stretches_of(platform, scenario)
    measured = [measure(platform, stretch, IDEAL) for stretch in stretches]
    cases = cases_of(stretches, measured)
    joules = mean([c.joules for c in cases], cases)
    total_ms = mean([c.total_ms for c in cases], cases)
    step_ms = mean([ms for m in measured for ms in m.step_ms], cases)
    found: dict = {
        "baseline": {
            "step_ms": round(step_ms, 3),
            "iteration_ms": round(total_ms, 3),
            "joules_per_iteration": round(joules / platform.gpus, 4),
        }
    }
    saved: dict[bool, Saved] = {}
    for communication_only in (True, False):
        if in_each:
            bound = _least_in_each(platform, cases, [len(s.programs) for s in stretches], budget, communication_only)
        else:
            bound = least_energy(platform, cases, IDEAL, budget, communication_only)
        mine = Saved(max(0.0, 100 * (1 - bound.joules / joules)), None, None, [])
        if schedules:
            parts: list[Schedule] = []
            first = 0
            for stretch, before in zip(stretches, measured, strict=True):
                last = first + len(stretch.programs)
                own = budget
                if len(stretches) > 1 and not in_each:  # each keeps to its part of the time that the bound has
                    own = sum(bound.times_ms[first:last]) / sum(before.total_ms) - 1
                try:
                    aim = least_energy(platform, cases[first:last], IDEAL, own, communication_only, planning=True)
                except RuntimeError:
                    aim = Bound(bound.joules, [], bound.plans[first:last])
                search = Search(platform, stretch, before, IDEAL, own)
                parts.append(search.best(aim.plans, communication_only))
                first = last
            shares = [s.weight for s in stretches]
            spent = sum(p.joules * w for p, w in zip(parts, shares, strict=True))
            took_ms = sum(p.total_ms * w for p, w in zip(parts, shares, strict=True))
            mine.achieved_pct = 100 * (1 - spent / joules)
            mine.used_pct = 100 * (took_ms / total_ms - 1)
            mine.schedule = [p.name for p in parts]
            wider = saved.get(True)
            if wider is not None and (wider.achieved_pct or 0.0) > mine.achieved_pct:  # it is one of these, too
                mine.achieved_pct, mine.used_pct, mine.schedule = wider.achieved_pct, wider.used_pct, wider.schedule
        saved[communication_only] = mine
    for communication_only, mine in saved.items():
        found[NAMES[communication_only]] = {
            "bound_saving_pct": round(mine.bound_pct, 2),
            "achievable_saving_pct": None if mine.achieved_pct is None else round(mine.achieved_pct, 2),
            "budget_used_pct": None if mine.used_pct is None else round(mine.used_pct, 2),
            "schedule": mine.schedule,
        }
    found["text"] = (
        f"{scenario.name:<12}{step_ms:>9.2f}{joules / platform.gpus:>9.3f}"
        f"  {saved[False].text():>18}  {saved[True].text():>18}"
    )
    return found


def _least_in_each(
    platform: Platform, cases: list[Case], counts: list[int], budget: float, communication_only: bool
) -> Bound:
    """The bounds of sections of so many cases, each within its own budget, as one."""
    parts: list[Bound] = []
    joules: list[float] = []
    first = 0
    for count in counts:
        mine = cases[first : first + count]
        parts.append(least_energy(platform, mine, IDEAL, budget, communication_only))
        joules += [parts[-1].joules] * count
        first += count
    return Bound(
        mean(joules, cases), [ms for part in parts for ms in part.times_ms], [p for part in parts for p in part.plans]
    )
