#!/usr/bin/env python3
"""Measure what analysis makes of runs: a flat map name -> {value, unit, low, high, n}.

attribution: every scenario of bench/scenarios, recorded for --seconds under `observe` on eight emulated T4s whose
energy counters change every 100 ms; the energy attributed to each pattern and size class that holds at least 1 % of the
time, against what the emulated GPUs really drew. value is the worst of the kinds, low and high the least and the
greatest error. Everything is emulated. Logic: evidence/analysis/.
"""

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from evidence.analysis import attribution, report_cost
from support.figures import Figures, about, show, write

CONDITIONS = (
    f"emulated {attribution.PLATFORM}, policy observe, samples every {attribution.INTERVAL_MS} ms; energy of a kind: "
    "all that a GPU drew while it ran, computation beside it included; truth: the emulator's own integration of power "
    "by what ran; kinds that hold at least 1 % of the time"
)


def attribution_step(options: argparse.Namespace) -> Figures:
    """Energy of each kind against the truth."""
    names = sorted(path.stem for path in attribution.SCENARIOS.glob("*.scn"))
    wanted = names if options.scenarios == "all" else options.scenarios.split(",")
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        print(f"error: unknown scenario '{unknown[0]}'\nhint: known: {', '.join(names)}", file=sys.stderr)
        raise SystemExit(2)
    judged: list[attribution.Judged] = []
    with tempfile.TemporaryDirectory(prefix="powerccl-") as scratch:
        folder = options.recordings or Path(scratch)
        for name in wanted:
            run, truth = attribution.record(name, folder, options.seconds)
            findings, own = attribution.judge(name, run, truth)
            judged += own
            print(f"{name}: {len(own)} kinds, {findings.steps} steps {'' if own else findings.reason}", flush=True)
            for each in own:
                print(f"  {line(each)}")
    return attribution.figures(judged)


def line(each: attribution.Judged) -> str:
    """A kind: its estimate with its interval, and by how much it is off."""
    kind = each.estimate
    name = f"{kind.pattern} {kind.size_class_bytes >> 10} KiB, {100 * each.truth.part:.0f} % of the time"
    if kind.joules_per_operation is None or kind.low is None or kind.high is None:
        return f"{name}: not known; in truth {each.true_joules:.4f} J an operation"
    told = f"{name}: {kind.joules_per_operation:.4f} ({kind.low:.4f} to {kind.high:.4f}) J an operation"
    told += f", {each.error_pct:+.1f} %"
    alone = each.exposed_error_pct
    return told if alone is None else f"{told}; alone {kind.exposed_watts:.1f} W, {alone:+.1f} %"


def report_step(_: argparse.Namespace) -> Figures:
    """What reporting a run of a million collectives, and one of a day, takes."""
    found = report_cost.figures()
    show(found)
    return found


# Another step: a function of the options, and its name here.
STEPS: dict[str, Callable[[argparse.Namespace], Figures]] = {"attribution": attribution_step, "report": report_step}


def main() -> int:
    """Exit code 0, 2 for wrong use."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"{', '.join(STEPS)}; all of them without")
    parser.add_argument("--scenarios", default="all", metavar="LIST", help="of bench/scenarios")
    parser.add_argument("--seconds", type=float, default=90, metavar="S", help="that each scenario runs (90)")
    parser.add_argument(
        "--recordings", type=Path, metavar="DIR", help="keep runs there, and take what is there already"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build/figures/analysis.json")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="also write them as evidence/results keeps figures")
    options = parser.parse_args()
    unknown = [step for step in options.steps if step not in STEPS]
    if unknown:
        print(f"error: unknown step '{unknown[0]}'\nhint: known: {', '.join(STEPS)}", file=sys.stderr)
        return 2
    figures: Figures = json.loads(options.out.read_text()) if options.out.exists() else {}
    for step in options.steps or STEPS:
        for name in [name for name in figures if name.startswith(f"analysis.{step}.")]:
            del figures[name]
        figures.update(STEPS[step](options))
        write(options.out, figures)
    write(
        options.keep, figures, **about(shlex.join(["evidence/scripts/figures-analysis.py", *sys.argv[1:]]), CONDITIONS)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
