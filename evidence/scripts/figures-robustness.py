"""A clock policy on random machines with random jobs, all simulated: how often it keeps its budget, and what it saves.

figures-robustness.py [--number N] [--kind development|reported] [--policy NAME] [--out FILE] [--rows FILE]. Machines
and jobs are drawn by number; what a constant is chosen on is `development`, what is reported is `reported`.
--minutes M simulates whole jobs of M minutes, learning included, beside the best constant clock of each rank.
POWERCCL_NATIVE names the built programs.
"""

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from evidence.robustness.jobs import job
from evidence.robustness.machines import cluster, machine
from evidence.robustness.sweep import try_all
from evidence.robustness.trials import BUDGET_PCT, Length, Trial
from support.figures import Figure, Figures, about, show, write


def figures_of(trials: list[Trial], name: str) -> Figures:
    """Means, shares and extremes."""
    number = len(trials)
    slow = sorted(each.slowdown_pct for each in trials)
    within = [each for each in trials if each.slowdown_pct <= BUDGET_PCT]

    def figure(value: float, unit: str = "%", low: float | None = None, high: float | None = None) -> Figure:
        ends = {"low": None if low is None else round(low, 3), "high": None if high is None else round(high, 3)}
        return {"value": round(value, 3), **ends, "unit": unit, "n": number}

    saved = [each.saved_pct for each in trials]
    held = sum(each.held_pct for each in trials)
    each = [trial.each_pct for trial in trials if trial.each_pct is not None]
    share = {f"robustness.{name}.oracle_share_pct": figure(100 * sum(saved) / sum(each))} if each else {}
    return share | {
        f"robustness.{name}.within_budget_pct": figure(100 * len(within) / number),
        f"robustness.{name}.slowdown_pct": figure(sum(slow) / number, low=slow[0], high=slow[-1]),
        f"robustness.{name}.slowdown_p99_pct": figure(slow[min(number - 1, int(0.99 * number))]),
        f"robustness.{name}.slowdown_p999_pct": figure(slow[min(number - 1, int(0.999 * number))]),
        f"robustness.{name}.saved_pct": figure(sum(saved) / number, low=min(saved), high=max(saved)),
        f"robustness.{name}.held_pct": figure(held / number),
        f"robustness.{name}.held_share_pct": figure(100 * sum(saved) / held),
        f"robustness.{name}.wasted_pct": figure(100 * sum(each < -0.5 for each in saved) / number),
    }


def main() -> None:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--kind", choices=("development", "reported"), default="reported")
    parser.add_argument("--policy", default="auto", help="auto/PART leaves out a part: slack, marks")
    parser.add_argument("--name", default="auto", help="of the figures")
    parser.add_argument("--minutes", type=float, default=0, help="of whole jobs")
    parser.add_argument("--hosts", action="store_true", help="two to eight of each, with a network between them")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=Path, help="write every trial to this file, and go on from it")
    options = parser.parse_args()
    began, wanted = time.monotonic(), []
    for number in range(options.number):
        drawn = (cluster if options.hosts else machine)(options.kind, number)
        wanted.append((drawn, job(options.kind, number, drawn.gpus)))
    length = Length(60 * options.minutes, 0.0, each=True) if options.minutes else Length()
    found = try_all(wanted, [options.policy], options.rows, length=length)
    trials = [trial for each in found for trial in each]
    figures = figures_of(trials, options.name)
    show(figures)
    failed = options.number - len(trials)
    print(f"{len(trials)} machines and jobs, {failed} failed, {time.monotonic() - began:.0f} s")
    conditions = (
        f"simulated: {len(trials)} {options.kind} machines with a job each, policy {options.policy}, "
        f"{length.warm_up_s:g} s of warm-up and {length.seconds:g} s; held: the best constant clock of all "
        "ranks within the budget; oracle: the best constant clock of each rank"
    )
    write(options.out, figures, **about("make figures-robustness", conditions))


if __name__ == "__main__":
    main()
