"""A clock policy on random machines with random jobs, all simulated: how often it keeps its budget, and what it saves.

figures-robustness.py [--number N] [--kind development|reported] [--policy NAME] [--jobs N] [--out FILE] [--rows FILE].
Machines and jobs are drawn by number, a quarter of them of each kind of GPU; what a constant is chosen on is
`development`, what is reported is `reported`. Figures are by kind of GPU: a mean over several would be of none.
--minutes M --name auto_Mmin simulates whole jobs of M minutes, learning included, beside the best constant clock of
each rank.
POWERCCL_NATIVE names the built programs.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from evidence.robustness.jobs import job
from evidence.robustness.machines import cluster, machine
from evidence.robustness.sweep import try_all
from evidence.robustness.trials import BUDGET_PCT, Length, Trial
from support.figures import Figure, Figures, about, bare, show, write

FASTER_PCT = 1.0  # a clock that is lowered makes no job faster: more than this is a fault of the model


def percentile(values: list[float], percent: float) -> float:
    """The value that so many percent of them do not exceed."""
    return sorted(values)[min(len(values) - 1, int(percent / 100 * len(values)))]


def figures_of_board(trials: list[Trial], name: str) -> Figures:
    """Means, shares and spreads of the machines with one kind of GPU."""
    number = len(trials)
    slow, saved = [each.slowdown_pct for each in trials], [each.saved_pct for each in trials]

    def figure(value: float, of: list[float] | None = None) -> Figure:
        ends = {"low": percentile(of, 5), "high": percentile(of, 95)} if of else {"low": None, "high": None}
        rounded = {key: None if end is None else round(end, 3) for key, end in ends.items()}
        return {"value": round(value, 3), **rounded, "unit": "%", "n": number}

    held = sum(each.held_pct for each in trials)
    each = [trial.each_pct for trial in trials if trial.each_pct is not None]
    board, _, kind = name.partition(".")
    oracle = f"robustness.{board}.oracle_share_{kind.removeprefix('auto_')}_pct"  # auto_10min: oracle_share_10min_pct
    share = {oracle: figure(100 * sum(saved) / sum(each))} if each and sum(each) else {}
    share |= {f"robustness.{name}.held_share_pct": figure(100 * sum(saved) / held)} if held else {}
    return share | {
        f"robustness.{name}.saved_pct": figure(sum(saved) / number, saved),
        f"robustness.{name}.median": figure(median(saved), saved),
        f"robustness.{name}.within_budget_pct": figure(100 * sum(each <= BUDGET_PCT for each in slow) / number),
        f"robustness.{name}.slowdown_pct": figure(sum(slow) / number, slow),
        f"robustness.{name}.worst_slowdown_pct": figure(max(slow)),
        f"robustness.{name}.held_pct": figure(held / number),
        f"robustness.{name}.wasted_pct": figure(100 * sum(each < -0.5 for each in saved) / number),
    }


def figures_of(trials: list[Trial], name: str) -> Figures:
    """Figures of each kind of GPU, and what holds for all machines."""
    found: Figures = {"robustness.machines": bare(len(trials), "1", len(trials))}
    fastest = min(each.slowdown_pct for each in trials)
    faster = sum(each.slowdown_pct < -FASTER_PCT for each in trials)
    found["robustness.faster_rows"] = bare(faster, "1", len(trials))
    found["robustness.fastest_pct"] = bare(round(fastest, 3), "%", len(trials))
    for board in sorted({each.board for each in trials}):
        found |= figures_of_board([each for each in trials if each.board == board], f"{board}.{name}")
    return found


def main() -> None:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=280, help="a quarter of them for each kind of GPU")
    parser.add_argument("--kind", choices=("development", "reported"), default="reported")
    parser.add_argument("--policy", default="auto", help="auto/PART leaves out a part: slack, marks")
    parser.add_argument("--name", default="auto", help="of the figures")
    parser.add_argument("--minutes", type=float, default=0, help="of whole jobs")
    parser.add_argument("--hosts", action="store_true", help="two to eight of each, with a network between them")
    parser.add_argument("--jobs", type=int, help="simulations at once; default: one for each core")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=Path, help="write every trial to this file, and go on from it")
    options = parser.parse_args()
    began, wanted = time.monotonic(), []
    for number in range(options.number):
        drawn = (cluster if options.hosts else machine)(options.kind, number)
        wanted.append((drawn, job(options.kind, number, drawn.gpus)))
    length = Length(60 * options.minutes, 0.0, each=True) if options.minutes else Length()
    found = try_all(wanted, [options.policy], options.rows, length, options.jobs)
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
