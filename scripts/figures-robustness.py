"""A clock policy on random machines with random jobs, all simulated: how often it keeps its budget, and what it saves.

figures-robustness.py [--number N] [--kind development|reported] [--policy NAME] [--out FILE] [--rows FILE]. Machines
and jobs are drawn by number; what a constant is chosen on is `development`, what is reported is `reported`.
POWERCCL_NATIVE names the built programs.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.robustness.jobs import job  # noqa: E402
from bench.robustness.machines import machine  # noqa: E402
from bench.robustness.trials import BUDGET_PCT, HELD, MEASURED_S, WARM_UP_S, Trial, try_out  # noqa: E402

from powerccl.launch.native import find_native  # noqa: E402


def figures_of(trials: list[Trial], name: str) -> dict[str, dict[str, object]]:
    """Means, shares and extremes."""
    number = len(trials)
    slow = sorted(each.slowdown_pct for each in trials)
    within = [each for each in trials if each.slowdown_pct <= BUDGET_PCT]

    def figure(value: float, unit: str = "%", low: float | None = None, high: float | None = None) -> dict[str, object]:
        ends = {"low": None if low is None else round(low, 3), "high": None if high is None else round(high, 3)}
        return {"value": round(value, 3), **ends, "unit": unit, "n": number}

    saved = [each.saved_pct for each in trials]
    held = sum(each.held_pct for each in trials)
    return {
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
    parser.add_argument("--first", type=int, default=0, help="the number of the first; all earlier ones are in --rows")
    parser.add_argument("--kind", choices=("development", "reported"), default="reported")
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--name", default="today", help="of the figures")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=Path, help="write every trial to this file, a line of JSON each")
    options = parser.parse_args()
    program = Path(find_native().root) / "bin/powerccl-sim"
    began, trials, failed = time.monotonic(), [], 0
    if options.first:
        trials += [Trial(**json.loads(line)) for line in options.rows.read_text().splitlines()]

    def one(number: int) -> Trial | str:
        try:
            drawn = machine(options.kind, number)
            return try_out(program, drawn, job(options.kind, number, drawn.gpus), [options.policy])[0]
        except Exception as error:
            return f"{options.kind}-{number}: {error}"

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(one, range(options.first, options.number)):
            if isinstance(found, str):
                failed += 1
                print(found[:300], file=sys.stderr)
                continue
            trials.append(found)
            if options.rows:
                with options.rows.open("a") as rows:
                    rows.write(json.dumps(asdict(found)) + "\n")
    figures = figures_of(trials, options.name)
    for name, value in figures.items():
        print(name, json.dumps(value))
    print(f"{len(trials)} machines and jobs, {failed} failed, {time.monotonic() - began:.0f} s")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        conditions = (
            f"simulated: {len(trials)} {options.kind} machines with a job each, policy {options.policy}, "
            f"{WARM_UP_S:g} s of warm-up and {MEASURED_S:g} s; held: the best of {len(HELD)} clocks within the budget"
        )
        made = {"command": "make figures-robustness", "date": time.strftime("%Y-%m-%d"), "conditions": conditions}
        options.out.write_text(json.dumps(made | {"figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
