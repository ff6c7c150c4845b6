"""Clock policies on the built-in platforms and scenarios, simulated, beside what the best schedule could save.

figures-policies.py [--platforms LIST] [--out FILE] [--markdown FILE]. The bound is that of
bench/oracle, from bench/results/policies-emulated.json. POWERCCL_NATIVE names the built programs.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.robustness import jobs, machines  # noqa: E402
from bench.robustness.trials import BUDGET_PCT, MEASURED_S, WARM_UP_S, Trial, try_out  # noqa: E402

from powerccl.launch.native import find_native  # noqa: E402

POLICIES = ["per-call", "exposed", "fixed", "auto"]
BOUNDS = ROOT / "bench/results/policies-emulated.json"
CHANGED = ("h200x4",)  # platforms that compute more slowly beside collectives than when their bounds were found


def violation(trial: Trial, bound: float | None) -> float | None:
    """By how many points a policy that keeps the budget saves more than any schedule can; None: there is no bound."""
    if bound is None or trial.slowdown_pct > BUDGET_PCT:
        return None
    return max(trial.saved_pct - bound, 0.0)


def markdown(rows: list[tuple[str, str, list[Trial], float | None]], made: dict[str, str]) -> str:
    """The page."""
    lines = [
        "# Policies, simulated",
        "",
        "<!-- made by `make figures-policies`; do not edit -->",
        f"Simulated by `powerccl-sim`: {made['conditions']}. {made['date']}.",
        "",
        "Energy saved / slowdown. Bound: the most that a schedule can save which knows all of the job and costs 1 % of",
        "time ([0009](../decisions/0009-oracle.md)). Held: what the best clock saves that is held all the time. –: not",
        "known.",
    ]
    before = ""
    for platform, scenario, trials, bound in rows:
        if platform != before:
            lines += ["", f"## {platform}", "", f"| scenario | step ms | bound | held | {' | '.join(POLICIES)} |"]
            lines += ["|---|--:|--:|--:|" + "--:|" * len(POLICIES)]
            before = platform
        cells = [f"{each.saved_pct:.1f} % / {each.slowdown_pct:+.1f} %" for each in trials]
        most = f"{bound:.1f} %" if bound is not None else "–"
        held = f"{trials[0].held_pct:.1f} %"
        lines.append(f"| {scenario} | {trials[0].iteration_ms:.1f} | {most} | {held} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platforms", default=",".join(machines.BUILT_IN))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    program = Path(find_native().root) / "bin/powerccl-sim"
    known = json.loads(BOUNDS.read_text())["figures"]
    wanted = [(platform, job) for platform in options.platforms.split(",") for job in jobs.names_for(platform)]
    began = time.monotonic()

    def one(row: tuple[str, str]) -> list[Trial]:
        machine = machines.built_in(row[0], *machines.BUILT_IN[row[0]])
        try:
            return try_out(program, machine, jobs.built_in(row[1]), POLICIES)
        except Exception as error:  # of one row: the others are kept
            print(f"{row[0]}, {row[1]}: {error}"[:300], file=sys.stderr)
            return []

    figures: dict[str, dict[str, object]] = {}
    rows = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (platform, scenario), trials in zip(wanted, pool.map(one, wanted), strict=True):
            if not trials:
                continue
            name = f"policies.{platform}.{scenario}"
            bound = None if platform in CHANGED else known.get(f"{name}.oracle.energy_saved_pct", {}).get("high")
            rows.append((platform, scenario, trials, bound))
            for trial in trials:
                for key in ("saved_pct", "slowdown_pct"):
                    figures[f"{name}.{trial.policy}.{key}"] = {
                        "value": round(getattr(trial, key), 3),
                        "unit": "%",
                        "n": 1,
                    }
                over = violation(trial, bound)
                if over is not None:
                    figures[f"{name}.{trial.policy}.bound_violation_points"] = {
                        "value": round(over, 3),
                        "unit": "points",
                        "n": 1,
                    }
    conditions = f"{WARM_UP_S:g} s of warm-up and {MEASURED_S:g} s, against `observe`"
    made = {"command": "make figures-policies", "date": time.strftime("%Y-%m-%d"), "conditions": conditions}
    page = markdown(rows, made)
    print(page)
    worst = max((v["value"], k) for k, v in figures.items() if k.endswith("bound_violation_points"))
    print(f"worst beyond the bound: {worst[0]} points, {worst[1]}; {time.monotonic() - began:.0f} s")
    if options.markdown:
        options.markdown.write_text(page)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(made | {"figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
