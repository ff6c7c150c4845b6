# SPDX-License-Identifier: Apache-2.0
"""`powerccl runs`."""

from __future__ import annotations

from pathlib import Path

import click

from powerccl.commandline.options import json_option
from powerccl.commandline.runs import complete_run, runs_dir_option
from powerccl.commandline.since import parse_since, since_option
from powerccl.errors import PowercclError, UsageError

SORTS = ("name", "when", "time", "gpus", "energy", "iteration", "exposed", "exit")  # runs.selection.COLUMNS


@click.command("runs")
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...", shell_complete=complete_run)
@since_option
@click.option("--failed", is_flag=True, help="Only runs that failed: an exit code other than 0, no end, or broken.")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the newest N.  [default: 30 in the terminal]")
@click.option("--sort", type=click.Choice(SORTS), help="Sort by this column, most first.  [default: newest first]")
@runs_dir_option
@json_option("the rows in SI units")
@click.option("--csv", "csv_file", default="", metavar="FILE", help="Write the rows in SI units (-: stdout).")
def command(
    patterns: tuple[str, ...],
    since: str,
    failed: bool,
    last: int | None,
    sort: str | None,
    runs_dir: Path,
    json_file: str,
    csv_file: str,
) -> int:
    """List the recorded runs, the newest first.

    PATTERN is the beginning of a name or
    of a folder, or has wildcards, as in '*-spin'. Figures are those of summary.json. Runs without it, such as of
    `powerccl run -q`, show a dash, until `powerccl report` makes it.

    \b
    powerccl runs
    powerccl runs train --since 7d --sort energy
    powerccl runs --failed --json -
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from datetime import datetime

    from powerccl import clean
    from powerccl.commandline.output import write_out
    from powerccl.commandline.run_index import run_rows
    from powerccl.runs.selection import in_order, select

    if json_file == csv_file == "-":
        raise UsageError("--json and --csv cannot both go to stdout")
    since_s = parse_since(since, datetime.now()) if since else 0.0
    all_rows = run_rows(runs_dir)
    if not all_rows:
        raise PowercclError(f"{runs_dir}/ has no run folders", "record one: powerccl run -- COMMAND")
    rows = select(all_rows, patterns, since_s, failed)[:last]
    if sort:
        rows = in_order(rows, sort)
    if json_file:
        write_out(json_file, clean.to_json({"schema": 1, "runs_dir": str(runs_dir), "runs": rows}, indent=2))
    if csv_file:
        from powerccl.runs.report import as_csv

        write_out(csv_file, as_csv(rows))
    if "-" in (json_file, csv_file):
        return 0
    from powerccl.console import Console
    from powerccl.runs.report import MOST_SHOWN, print_runs

    console = Console()
    if not rows:
        console.print(f"none of {len(all_rows):,} runs in {runs_dir}/ fits")
        return 0
    print_runs(console, rows if last else rows[:MOST_SHOWN], len(rows), f"{runs_dir}/")
    return 0
