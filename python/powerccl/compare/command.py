# SPDX-License-Identifier: Apache-2.0
"""`powerccl compare`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from powerccl import clean
from powerccl.commandline.options import html_option, json_option, markdown_option
from powerccl.commandline.output import write_out
from powerccl.commandline.runs import complete_run, find_run, last_runs, runs_dir_option
from powerccl.commandline.tariffs import asked_tariff, tariff_options
from powerccl.errors import PowercclError, UsageError


@click.command("compare")
@click.argument("sides", nargs=-1, metavar="A B [C]...", shell_complete=complete_run)
@runs_dir_option
@click.option(
    "--energy",
    is_flag=True,
    help="For runs: estimate the energy of each operation by regression. Takes seconds per run.",
)
@tariff_options
@html_option()
@json_option("the findings")
@click.option(
    "--csv", "csv_file", default="", metavar="FILE", help="Write one line per figure and side to FILE (-: stdout)."
)
@click.option(
    "--fail-above",
    default="",
    metavar="PERCENT",
    help="Energy gate for CI: end with exit code 3 if B needs more energy a step than A by over PERCENT, beyond "
    "chance. What cannot be decided is an error (exit code 1).",
)
@markdown_option()
def command(
    sides: tuple[str, ...],
    runs_dir: Path,
    energy: bool,
    price: str,
    carbon: str,
    pue: float | None,
    html_file: str,
    json_file: str,
    csv_file: str,
    fail_above: str,
    markdown_file: str,
) -> int:
    """Compare runs or sweeps side by side.

    Use it for two networks, two policies or two NCCL settings. The first side is the baseline. A side is a run
    folder of `powerccl run`, or a file of `powerccl bench --json FILE` (also with --mpi). Runs of one name are
    repetitions of one side. Write A1,A2,A3 for other repetitions, and NAME=A to name a side. With repetitions,
    compare separates a difference from run-to-run variation.

    \b
    powerccl compare runs/*-spin runs/*-sleep
    powerccl compare roce=sweep-100g.json tcp=sweep-10g.json --html networks.html
    powerccl compare off=runs/o1,runs/o2,runs/o3 on=runs/p1,runs/p2,runs/p3
    powerccl compare --fail-above 2% main=m1,m2,m3 pr=p1,p2,p3
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    if len(sides) < 2:
        last = last_runs(runs_dir)[:2]
        named = f"the last two runs: powerccl compare {last[1]} {last[0]}" if len(last) == 2 else "powerccl compare A B"
        raise UsageError(
            f"compare needs two sides, {'one is' if sides else 'none is'} named",
            f"{named}; A1,A2 makes one side of two",
        )
    if fail_above and len(sides) != 2:
        raise click.UsageError("--fail-above judges two sides, A and B")
    outputs = {"--html": html_file, "--json": json_file, "--csv": csv_file, "--markdown": markdown_file}
    to_stdout = [option for option, file in outputs.items() if file == "-"]
    if len(to_stdout) > 1:
        raise click.UsageError(f"{' and '.join(to_stdout)} cannot both go to stdout")

    from powerccl.commandline.references import own_reference
    from powerccl.compare import report
    from powerccl.compare.gate import EXIT_CODE, FAILED, UNDECIDED, annotation, parse_limit
    from powerccl.compare.side_by_side import compare_sides
    from powerccl.console import Console

    def find(name: str) -> Path:
        return find_run(name, runs_dir, quiet=True, files=True)

    limit_pct = parse_limit(fail_above) if fail_above else None
    tariff = asked_tariff(price, carbon, pue)
    comparison = compare_sides(sides, find, energy, own_reference, tariff, limit_pct)
    if json_file:
        write_out(json_file, clean.to_json(comparison, indent=2))
    if csv_file:
        write_out(csv_file, report.as_csv(comparison))
    if markdown_file:
        write_out(markdown_file, report.markdown(comparison))
    if html_file:
        from powerccl.compare.page import compare_page

        write_out(html_file, compare_page(comparison).encode())
    report.print_compare(Console(stderr=bool(to_stdout)), comparison)
    gate = comparison.gate
    if gate and os.environ.get("GITHUB_ACTIONS") == "true":
        click.echo(annotation(gate, report.against(comparison)), err=True)
    if gate and gate.outcome == FAILED:
        return EXIT_CODE
    left_out = sum(len(side.left_out) for side in comparison.sides)
    if left_out:
        count = left_out + sum(len(side.members) for side in comparison.sides)
        raise PowercclError(
            f"{left_out} of {count} could not be read; the comparison is of the others",
            "repeat them, or leave them out",
        )
    if gate and gate.outcome == UNDECIDED:
        raise PowercclError(f"energy gate {gate.outcome}: {gate.why}", gate.hint)
    return 0
