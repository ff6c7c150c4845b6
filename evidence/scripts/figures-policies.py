"""Clock policies on the built-in platforms and scenarios, simulated, beside the best constant clock of each rank.

figures-policies.py [--platforms LIST] [--policies LIST] [--out FILE] [--markdown FILE] [--rows FILE].
POWERCCL_NATIVE names the built programs.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from evidence.robustness import jobs, machines
from evidence.robustness.sweep import try_all
from evidence.robustness.trials import Length, Trial
from support.figures import Figures, about, bare, write

POLICIES = ["auto", "per-call"]
LENGTH = Length(each=True)
PAGE = """# Policies, simulated

<!-- made by `make figures-policies`; do not edit -->

This page has what [clock policies](../concepts/policies.md) save of each scenario on each built-in platform. It is for
people who want to check them. Simulated by `powerccl-sim`: {conditions}. {date}.

Cells have energy saved / slowdown, each against `observe`. `auto` uses no platform profile. `per-call` uses one, and
its slowdown has no limit. Oracle: energy saved by the best constant clock of each rank that keeps the budget of 1 %,
known beforehand. Policies with several clocks in an iteration can save more.
"""


def pair(trial: Trial) -> str:
    """Energy saved and slowdown."""
    return f"{trial.saved_pct:.1f} % / {trial.slowdown_pct:+.1f} %"


def oracle(trials: list[Trial]) -> float:
    """What the best constant clock of each rank saves."""
    return trials[0].each_pct or 0.0


def markdown(rows: dict[tuple[str, str], list[Trial]], policies: list[str], made: dict[str, str]) -> str:
    """The page: all platforms beside each other, then a table of each platform."""
    lines = [PAGE.format(**made)]

    def table(title: str, first: list[str]) -> None:
        heading = [*first, *policies, "oracle"]
        lines.extend([f"## {title}", "", f"| {' | '.join(heading)} |", "|---" + "|--:" * (len(heading) - 1) + "|"])

    by_platform: dict[str, list[list[Trial]]] = {}
    for (platform, _), trials in rows.items():
        by_platform.setdefault(platform, []).append(trials)
    table("Means", ["platform", "scenarios"])
    for platform, found in by_platform.items():
        each_policy = zip(*found, strict=True)
        means = [
            f"{fmean(each.saved_pct for each in of_one):.1f} % / {fmean(each.slowdown_pct for each in of_one):+.1f} %"
            for of_one in each_policy
        ]
        lines.append(f"| {platform} | {len(found)} | {' | '.join(means)} | {fmean(map(oracle, found)):.1f} % |")
    before = ""
    for (platform, scenario), trials in rows.items():
        if platform != before:
            lines.append("")
            table(platform, ["scenario", "iteration ms"])
            before = platform
        cells = [scenario, f"{trials[0].iteration_ms:.1f}", *map(pair, trials), f"{oracle(trials):.1f} %"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def figures_of(rows: dict[tuple[str, str], list[Trial]]) -> Figures:
    """The figures of each row, and what its oracle saves."""
    found: dict[str, float] = {}
    for (platform, scenario), trials in rows.items():
        name = f"policies.{platform}.{scenario}"
        found[f"{name}.oracle.saved_pct"] = oracle(trials)
        for trial in trials:
            found[f"{name}.{trial.policy}.saved_pct"] = trial.saved_pct
            found[f"{name}.{trial.policy}.slowdown_pct"] = trial.slowdown_pct
    return {name: bare(round(value, 3), "%") for name, value in found.items()}


def main() -> None:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platforms", default=",".join(machines.BUILT_IN))
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--rows", type=Path, help="write every trial to this file, and go on from it")
    options = parser.parse_args()
    policies = options.policies.split(",")
    names = [(platform, job) for platform in options.platforms.split(",") for job in jobs.names_for(platform)]
    wanted = [(machines.built_in(name, *machines.BUILT_IN[name]), jobs.built_in(job)) for name, job in names]
    began = time.monotonic()
    found = zip(names, try_all(wanted, policies, options.rows, LENGTH), strict=True)
    rows = {name: trials for name, trials in found if trials}
    conditions = f"{LENGTH.warm_up_s:g} s of warm-up and {LENGTH.seconds:g} s, against `observe`"
    made = about("make figures-policies", conditions)
    page = markdown(rows, policies, made)
    print(page)
    print(f"{len(rows)} of {len(names)} rows, {time.monotonic() - began:.0f} s")
    if options.markdown:
        options.markdown.write_text(page)
    write(options.out, figures_of(rows), **made)


if __name__ == "__main__":
    main()
