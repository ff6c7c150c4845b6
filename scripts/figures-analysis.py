#!/usr/bin/env python3
"""Measure what analysis makes of runs: a flat map name -> {value, unit, low, high, n}.

attribution: every scenario of bench/scenarios, recorded for --seconds under `observe` on eight emulated T4s whose
energy counters change every 100 ms; the energy attributed to each pattern and size class that holds at least 1 % of the
time, against what the emulated GPUs really drew. value is the worst of the kinds, low and high the least and the
greatest error. Everything is emulated. Logic: bench/analysis/.
"""

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.analysis import attribution, report_cost  # noqa: E402
from bench.figures import Figures, about, show, write  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

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
    table = Table(box=None, pad_edge=False, header_style="dim", title="emulated", title_style="bold magenta")
    table.add_column("scenario")
    for column in ("kind", "time", "J / op", "95 %", "truth", "error", "alone, W", "error"):
        table.add_column(column, justify="right", no_wrap=True)
    with tempfile.TemporaryDirectory(prefix="powerccl-") as scratch:
        folder = options.recordings or Path(scratch)
        for name in wanted:
            run, truth = attribution.record(name, folder, options.seconds)
            findings, own = attribution.judge(name, run, truth)
            judged += own
            if not own:
                table.add_row(name, findings.reason or "nothing to judge")
            for each in own:
                table.add_row(name, *cells(each))
            print(f"{name}: {len(own)} kinds, {findings.steps} steps", file=sys.stderr)
    Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(table)
    return attribution.figures(judged)


def cells(each: attribution.Judged) -> list[str]:
    """One row of the table."""
    kind = each.estimate
    row = [f"{kind.pattern.replace('_', '-')} {kind.size_class_bytes >> 10} KiB", f"{100 * each.truth.part:.0f} %"]
    if kind.joules_per_operation is None or kind.low is None or kind.high is None:
        return [*row, "not known", "", f"{each.true_joules:.4f}", "", "", ""]
    row += [
        f"{kind.joules_per_operation:.4f}",
        f"±{100 * (kind.high - kind.low) / 2 / kind.joules_per_operation:.1f} %",
    ]
    row += [f"{each.true_joules:.4f}", f"{each.error_pct:+.1f} %"]
    alone = each.exposed_error_pct
    return [*row, *([f"{kind.exposed_watts:.1f}", f"{alone:+.1f} %"] if alone is not None else ["", ""])]


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
    parser.add_argument("--keep", type=Path, metavar="FILE", help="also write them as bench/results keeps figures")
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
    write(options.keep, figures, **about(shlex.join(["scripts/figures-analysis.py", *sys.argv[1:]]), CONDITIONS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
