# SPDX-License-Identifier: Apache-2.0
"""`powerccl compare`."""

from __future__ import annotations

from pathlib import Path

import click

from powerccl import clean
from powerccl.commandline.options import html_option, json_option, markdown_option
from powerccl.commandline.output import write_out
from powerccl.commandline.runs import last_runs, runs_dir_option
from powerccl.errors import PowercclError, UsageError


@click.command("compare")
@click.argument("sides", nargs=-1, metavar="A B [C]...")
@runs_dir_option
@click.option(
    "--energy",
    is_flag=True,
    help="For runs: estimate the energy of each operation by regression. Takes seconds per run.",
)
@html_option()
@json_option("the findings")
@click.option(
    "--csv", "csv_file", default="", metavar="FILE", help="Write one line per figure and side to FILE (-: stdout)."
)
@markdown_option()
def command(
    sides: tuple[str, ...],
    runs_dir: Path,
    energy: bool,
    html_file: str,
    json_file: str,
    csv_file: str,
    markdown_file: str,
) -> int:
    """Compare runs or sweeps side by side.

    Use it for two networks, two policies or two NCCL settings. The first side is the baseline. A side is a run
    folder of `powerccl run`, or a file of `powerccl bench --json FILE` (also with --mpi). A1,A2,A3 are repetitions
    of one side. With repetitions, compare separates a difference from run-to-run variation. NAME=A names a side.

    \b
    powerccl compare roce=sweep-100g.json tcp=sweep-10g.json --html networks.html
    powerccl compare runs/*-observe-1 runs/*-exposed-1
    powerccl compare off=runs/o1,runs/o2,runs/o3 on=runs/p1,runs/p2,runs/p3
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    if len(sides) < 2:
        last = last_runs(runs_dir)[:2]
        named = f"the last two runs: powerccl compare {last[1]} {last[0]}" if len(last) == 2 else "powerccl compare A B"
        raise UsageError(
            f"compare needs two sides, {'one is' if sides else 'none is'} named",
            f"{named}; A1,A2 makes one side of two",
        )
    outputs = {"--html": html_file, "--json": json_file, "--csv": csv_file, "--markdown": markdown_file}
    to_stdout = [option for option, file in outputs.items() if file == "-"]
    if len(to_stdout) > 1:
        raise click.UsageError(f"{' and '.join(to_stdout)} cannot both go to stdout")

    from powerccl.commandline.references import own_reference
    from powerccl.compare import report
    from powerccl.compare.side_by_side import compare_sides
    from powerccl.console import Console

    def find(name: str) -> Path:
        path = next((path for path in (Path(name), runs_dir / name) if path.exists()), None)
        if path is None:
            raise PowercclError(
                f"no run and no file {name}", f"name a folder, such as those in {runs_dir}/, or a file of --json"
            )
        return path

    comparison = compare_sides(sides, find, energy, own_reference)
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
    left_out = sum(len(side.left_out) for side in comparison.sides)
    if left_out:
        count = left_out + sum(len(side.members) for side in comparison.sides)
        raise PowercclError(
            f"{left_out} of {count} could not be read; the comparison is of the others",
            "repeat them, or leave them out",
        )
    return 0
