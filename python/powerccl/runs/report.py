# SPDX-License-Identifier: Apache-2.0
"""A list of runs in the terminal and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import datetime

import msgspec
from rich.text import Text

from powerccl import clean
from powerccl.commandline.run_index import BROKEN, RECORDING, RunRow
from powerccl.console import Console
from powerccl.quantities import NOT_KNOWN, number, percent, plural, seconds
from powerccl.reports.table import DASH, Table
from powerccl.reports.terminal import heading, warning
from powerccl.traces.run_info import model_label

MOST_SHOWN = 30  # rows where --last does not say: about a screen
MOST_PROBLEMS = 3  # broken runs whose reason is shown; --json has all
HEADS = ("name", "when", "time", "GPUs", "kJ", "J/iter", "exposed", "exit", "folder")
LEAST_WIDTHS = {"GPUs": 88, "folder": 110}  # of terminals that have room for a column beside the others
BAD, GOOD, QUIET = "red", "green", "dim"


def print_runs(console: Console, rows: Sequence[RunRow], of: int, where: str) -> None:
    """One line a run. `of`: how many fit the filters, of which `rows` are the ones to be shown."""
    labels = {model_label(row.emulated) for row in rows}
    common = labels.pop() if len(labels) == 1 else ""
    count = f"{len(rows):,} of {of:,} runs" if of > len(rows) else plural(of, "run")
    console.print(heading(f"{count} in {where}", common))
    hidden = [head for head, least in LEAST_WIDTHS.items() if console.width < least]
    heads = [head for head in HEADS if head not in hidden]
    table = Table()
    for head in heads:
        left = head in ("name", "when", "folder")
        table.add_column(head, justify="left" if left else "right", no_wrap=not left)
    for row in rows:
        cells = _cells(row, bool(common), "GPUs" in hidden)
        table.add_row(*(cells[head] for head in heads))
    table.add_hidden(hidden)
    console.print(table)
    broken = [row for row in rows if row.state == BROKEN]
    for row in broken[:MOST_PROBLEMS]:
        console.print(warning(f"{clean.field(row.folder)}: {row.problem}"))
    if len(broken) > MOST_PROBLEMS:
        console.print(warning(f"{len(broken) - MOST_PROBLEMS:,} more broken runs: --json - has the reasons"))
    if of > len(rows):
        console.print(Text(f"… {of - len(rows):,} more: --last {of}", style=QUIET))


def when(row: RunRow, narrow: bool = False) -> str:
    """Date and time of the start, as the job's host had them; `narrow`: as `ls -l`, without the year or the time."""
    day, _, time = row.started_at[:16].partition("T")
    if not day:
        return NOT_KNOWN
    if not narrow:
        return f"{day} {time}"
    return f"{day[5:]} {time}" if day[:4] == f"{datetime.now():%Y}" else day


def _cells(row: RunRow, same_model: bool, narrow: bool) -> dict[str, str | Text]:
    """What the table shows of a run, by head. `same_model`: the heading says already what all runs were emulated on."""
    label = "" if same_model else model_label(row.emulated)
    energy = row.joules_at_least if row.joules is None else row.joules
    return {
        "name": Text.assemble(clean.field(row.name), (f"  {label}", "magenta") if label else ""),
        "when": when(row, narrow),
        "time": seconds(row.wall_s),
        "GPUs": NOT_KNOWN if row.gpus is None else str(row.gpus),
        "kJ": _least(row.joules is None, number(None if energy is None else energy / 1e3)),
        "J/iter": number(row.joules_per_iteration),
        "exposed": _least(row.exposed_at_least, percent(row.exposed_pct)),
        "exit": _end(row),
        "folder": Text(clean.field(row.folder)),
    }


def _least(part: bool, text: str) -> str:
    """A figure of which only a part was measured; `at least` would widen the column."""
    return f"≥ {text}" if part and text != NOT_KNOWN else text


def _end(row: RunRow) -> Text:
    """Exit code, signal, or why there is neither."""
    if row.state:
        return Text(row.state, style=GOOD if row.state == RECORDING else BAD)
    if row.signal:
        return Text(f"signal {row.signal}", style=BAD)
    return Text(DASH if row.exit_code is None else str(row.exit_code), style=BAD if row.exit_code else "")


def as_csv(rows: Sequence[RunRow]) -> str:
    """A line a run, in SI units; what is not known is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(RunRow.__struct_fields__)
    for row in rows:
        values = msgspec.structs.astuple(row)
        writer.writerow(["" if value is None else clean.cell(value) for value in values])
    return text.getvalue()
