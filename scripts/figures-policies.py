"""Clock policies on the built-in platforms and scenarios, simulated, beside what the best schedule could save.

figures-policies.py [--platforms LIST] [--policies LIST] [--out FILE] [--markdown FILE]. The bound is that of
bench/oracle, from bench/results/policies-emulated.json. POWERCCL_NATIVE names the built programs.
"""

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.robustness import jobs, machines  # noqa: E402
from bench.robustness.sweep import made_by, try_all, write_figures  # noqa: E402
from bench.robustness.trials import BUDGET_PCT, MEASURED_S, WARM_UP_S, Trial  # noqa: E402

POLICIES = ["per-call", "exposed", "fixed", "auto"]
BOUNDS = ROOT / "bench/results/policies-emulated.json"
CHANGED = ("h200x4",)  # platforms that compute more slowly beside collectives than when their bounds were found


def violation(trial: Trial, bound: float | None) -> float | None:
    """By how many points a policy that keeps the budget saves more than any schedule can; None: there is no bound."""
    if bound is None or trial.slowdown_pct > BUDGET_PCT:
        return None
    return max(trial.saved_pct - bound, 0.0)


def markdown(rows: list[tuple[str, str, list[Trial], float | None]], policies: list[str], made: dict[str, str]) -> str:
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
            lines += ["", f"## {platform}", "", f"| scenario | step ms | bound | held | {' | '.join(policies)} |"]
            lines += ["|---|--:|--:|--:|" + "--:|" * len(policies)]
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
    parser.add_argument("--policies", default=",".join(POLICIES), help="also elastic: auto without a profile")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    policies = options.policies.split(",")
    known = json.loads(BOUNDS.read_text())["figures"]
    names = [(platform, job) for platform in options.platforms.split(",") for job in jobs.names_for(platform)]
    wanted = [(machines.built_in(name, *machines.BUILT_IN[name]), jobs.built_in(job)) for name, job in names]
    began = time.monotonic()
    figures: dict[str, dict[str, object]] = {}
    rows = []
    for (platform, scenario), trials in zip(names, try_all(wanted, policies), strict=True):
        if not trials:
            continue
        name = f"policies.{platform}.{scenario}"
        bound = None if platform in CHANGED else known.get(f"{name}.oracle.energy_saved_pct", {}).get("high")
        rows.append((platform, scenario, trials, bound))
        for trial in trials:
            found = {"saved_pct": trial.saved_pct, "slowdown_pct": trial.slowdown_pct}
            over = violation(trial, bound)
            if over is not None:
                found["bound_violation_points"] = over
            for key, value in found.items():
                unit = "points" if key.endswith("points") else "%"
                figures[f"{name}.{trial.policy}.{key}"] = {"value": round(value, 3), "unit": unit, "n": 1}
    conditions = f"{WARM_UP_S:g} s of warm-up and {MEASURED_S:g} s, against `observe`"
    made = made_by("make figures-policies", conditions)
    page = markdown(rows, policies, made)
    print(page)
    beyond = [(v["value"], k) for k, v in figures.items() if k.endswith("bound_violation_points")]
    print(f"worst beyond the bound: {max(beyond) if beyond else 'not known'}; {time.monotonic() - began:.0f} s")
    if options.markdown:
        options.markdown.write_text(page)
    write_figures(options.out, made, figures)


if __name__ == "__main__":
    main()
