"""What each part of the policy `auto` is worth, simulated: everything left out one at a time, and in some pairs.

figures-ablation.py [--random N] [--out FILE] [--markdown FILE] [--rows FILE]. On the built-in platforms with the
scenarios of bench/scenarios, and on N random `development` machines with random jobs. POWERCCL_NATIVE names the built
programs.
"""

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.robustness import jobs, machines  # noqa: E402
from bench.robustness.trials import BUDGET_PCT, MEASURED_S, WARM_UP_S, Trial, try_out  # noqa: E402

from powerccl.launch.native import find_native  # noqa: E402

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


def read_rows(path: Path | None) -> dict[tuple[str, str], list[Trial]]:
    """Trials by machine and job, as an earlier call left them."""
    found: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for line in path.read_text().splitlines() if path and path.exists() else ():
        trial = Trial(**json.loads(line))
        found[trial.machine, trial.job].append(trial)
    return found


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
    program = Path(find_native().root) / "bin/powerccl-sim"
    policies = [f"auto/{part}" if part else "auto" for part in PARTS]
    wanted = [
        ("built-in platforms and scenarios", machines.built_in(name, *base), jobs.built_in(scenario))
        for name, base in machines.BUILT_IN.items()
        for scenario in jobs.names_for(name)
    ]
    for number in range(options.random):
        drawn = machines.machine("development", number)
        wanted.append(("random machines and jobs", drawn, jobs.job("development", number, drawn.gpus)))
    began, kept = time.monotonic(), read_rows(options.rows)
    if options.kept:
        wanted = [each for each in wanted if len(kept[each[1].name, each[2].name]) == len(policies)]
    sets: dict[str, dict[str, list[Trial]]] = defaultdict(lambda: defaultdict(list))

    def one(each: tuple[str, machines.Machine, jobs.Job]) -> list[Trial] | str:
        known = kept[each[1].name, each[2].name]
        if len(known) == len(policies):
            return known
        try:
            return try_out(program, each[1], each[2], policies)
        except Exception as error:
            return f"{each[1].name}, {each[2].name}: {error}"

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for each, found in zip(wanted, pool.map(one, wanted), strict=True):
            if isinstance(found, str):
                print(found[:300], file=sys.stderr)
                continue
            for part, trial in zip(PARTS, found, strict=True):
                sets[each[0]][part].append(trial)
            if options.rows and found is not kept[each[1].name, each[2].name]:
                with options.rows.open("a") as rows:
                    rows.writelines(json.dumps(asdict(trial)) + "\n" for trial in found)
    conditions = f"{WARM_UP_S:g} s of warm-up and {MEASURED_S:g} s, against `observe`; " + ", ".join(
        f"{len(by_part[''])} {name}" for name, by_part in sets.items()
    )
    made = {"command": "make figures-ablation", "date": time.strftime("%Y-%m-%d"), "conditions": conditions}
    page = markdown(sets, made)
    print(page)
    print(f"{time.monotonic() - began:.0f} s")
    if options.markdown:
        options.markdown.write_text(page)
    if options.out:
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
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(made | {"figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
