"""What each part of the policy `auto` is worth, simulated: everything left out one at a time, and in some pairs.

figures-ablation.py [--random N] [--out FILE] [--markdown FILE] [--rows FILE]. On the built-in platforms with the
scenarios of bench/scenarios, and on N random `development` machines with random jobs. POWERCCL_NATIVE names the built
programs.
"""

import argparse
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.robustness import jobs, machines  # noqa: E402
from bench.robustness.sweep import made_by, try_all, write_figures  # noqa: E402
from bench.robustness.trials import BUDGET_PCT, MEASURED_S, WARM_UP_S, Trial  # noqa: E402

# What is left out: a part, as powerccl-sim names it, and what it does.
PARTS = {
    "": "everything is there",
    "windows": "lowers the clock while communication is exposed",
    "search": "searches one clock for the whole job",
    "slack": "lowers it more where a rank or a stage has slack",
    "expert-load": "lowers it more where a rank has few tokens",
    "joint": "ranks of a host agree, which slack, expert load and turns need",
    "turns": "ranks ask a driver that queues in turns",
    "marks": "knows where computation waits from marks in streams",
    "windows,marks": "leaves one clock for each rank",
    "slack,expert-load": "leaves one clock for the job, and windows",
    "windows,slack,expert-load,turns,marks": "leaves one clock for the job",
}


def summary(trials: list[Trial]) -> dict[str, float]:
    """Means and extremes over one set of machines and jobs."""
    return {
        "saved_pct": fmean(each.saved_pct for each in trials),
        "slowdown_pct": fmean(each.slowdown_pct for each in trials),
        "worst_pct": max(each.slowdown_pct for each in trials),
        "within_budget_pct": 100 * fmean(each.slowdown_pct <= BUDGET_PCT for each in trials),
    }


def best_tenth(trials: list[Trial], whole: list[Trial]) -> float:
    """What the part is worth in the tenth of machines and jobs in which it is worth most: points of energy."""
    worth = sorted(
        (with_it.saved_pct - each.saved_pct for each, with_it in zip(trials, whole, strict=True)), reverse=True
    )
    return fmean(worth[: max(1, len(worth) // 10)])


def markdown(sets: dict[str, dict[str, list[Trial]]], made: dict[str, str]) -> str:
    """The page."""
    lines = [
        "# What each part of `auto` is worth",
        "",
        "<!-- made by `make figures-ablation`; do not edit -->",
        f"Simulated by `powerccl-sim`: {made['conditions']}. {made['date']}.",
        "",
        "Each row leaves something out. Mean: what it is worth on average, in points of energy saved. Best tenth: the",
        "same where it is worth most. A part below 0.3 points on average and below 1 point in its best tenth does not",
        "pay.",
        "",
    ]
    for name, by_part in sets.items():
        whole = by_part[""]
        lines += [
            f"## {name}",
            "",
            "| without | what it does | saved | mean | best tenth | slower | worst | within budget |",
            "|---|---|--:|--:|--:|--:|--:|--:|",
        ]
        for part, trials in by_part.items():
            told = summary(trials)
            worth = f"{summary(whole)['saved_pct'] - told['saved_pct']:+.2f} | {best_tenth(trials, whole):+.2f}"
            lines.append(
                f"| {part.replace(',', ', ') or 'nothing'} | {PARTS[part]} | {told['saved_pct']:.2f} % | "
                f"{worth if part else '– | –'} | {told['slowdown_pct']:.2f} % | {told['worst_pct']:.1f} % | "
                f"{told['within_budget_pct']:.0f} % |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", type=int, default=60)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument(
        "--rows", type=Path, help="write every trial to this file, a line of JSON each, and go on from it"
    )
    parser.add_argument("--kept", action="store_true", help="simulate nothing: of what is in --rows")
    options = parser.parse_args()
    policies = [f"auto/{part}" if part else "auto" for part in PARTS]
    wanted = [
        ("built-in platforms and scenarios", machines.built_in(name, *base), jobs.built_in(scenario))
        for name, base in machines.BUILT_IN.items()
        for scenario in jobs.names_for(name)
    ]
    for number in range(options.random):
        drawn = machines.machine("development", number)
        wanted.append(("random machines and jobs", drawn, jobs.job("development", number, drawn.gpus)))
    began = time.monotonic()
    sets: dict[str, dict[str, list[Trial]]] = defaultdict(lambda: defaultdict(list))
    found = try_all([each[1:] for each in wanted], policies, options.rows, options.kept)
    for (name, _, _), trials in zip(wanted, found, strict=True):
        for part, trial in zip(PARTS if trials else (), trials, strict=True):
            sets[name][part].append(trial)
    conditions = f"{WARM_UP_S:g} s of warm-up and {MEASURED_S:g} s, against `observe`; " + ", ".join(
        f"{len(by_part[''])} {name}" for name, by_part in sets.items()
    )
    made = made_by("make figures-ablation", conditions)
    page = markdown(sets, made)
    print(page)
    print(f"{time.monotonic() - began:.0f} s")
    if options.markdown:
        options.markdown.write_text(page)
    figures = {
        f"ablation.{'random' if 'random' in name else 'built_in'}.{part.replace(',', '+') or 'nothing'}.{key}": {
            "value": round(value, 3),
            "unit": "%",
            "n": len(trials),
        }
        for name, by_part in sets.items()
        for part, trials in by_part.items()
        for key, value in summary(trials).items()
    }
    write_figures(options.out, made, figures)


if __name__ == "__main__":
    main()
