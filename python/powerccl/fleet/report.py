# SPDX-License-Identifier: Apache-2.0
"""Answers as tables in the terminal, CSV and JSON."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Callable
from typing import Any

from rich.text import Text

from powerccl import clean
from powerccl.console import Console
from powerccl.fleet.ask import Answer
from powerccl.quantities import NOT_KNOWN, change, change_between, number, percent, plural
from powerccl.reports.table import Table
from powerccl.reports.terminal import heading, warning

MOST_ROWS, FEW_ROWS = 20, 5  # in the terminal, of one question and of several; files have all
NAMES = {
    "user_name": "user",
    "group_name": "group",
    "gpu_number": "GPU",
    "gpu_uuid": "UUID",
    "gpu_model": "model",
    "gpu_count": "GPUs",
    "gpu_hours": "GPU hours",
    "waited_gpu_hours": "GPU h waited",
    "kwh": "kWh",
    "waiting_kwh": "kWh",
    "waiting_kwh_a_day": "kWh a day",
    "at_most_kwh": "at most",
    "processor_kwh": "processors, kWh",
    "exposed_share_pct": "exposed",
    "last_share_pct": "came last",
    "late_ranks": "late in",
    "least_kwh": "kWh, least",
    "most_kwh": "most",
    "least_gpu_hours": "GPU hours, least",
    "most_gpu_hours": "most",
}
# Shown in other words, or beside a GPU's number not needed.
HIDDEN = ("runs_not_whole", "ranks_by_mean_power", "gpu_uuid")


def as_json(answers: list[Answer], about: dict[str, Any]) -> bytes:
    """One object: what was asked, and a list of rows for each question."""
    return clean.to_json({**about, **{each.question: each.dicts() for each in answers}}, indent=2)


def as_csv(answer: Answer) -> str:
    """The rows with a head; a value that is not known is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(clean.cell(name) for name in answer.columns)
    writer.writerows(["" if value is None else clean.cell(value) for value in row] for row in answer.rows)
    return text.getvalue()


def print_overview(console: Console, overview: dict[str, Any], modelled: int, failed: int, emulated: bool) -> None:
    """What the answers are of."""
    runs = overview["runs"]
    kind = "emulated or simulated run" if emulated else "run"
    if not runs:
        console.print(f"no {kind}s")
    else:
        days = f"{overview['first_day']} to {overview['last_day']}"
        console.print(Text.assemble((plural(runs, kind), "bold"), f"  {days}"))
        parts = [f"{number(overview['gpu_hours'])} GPU hours", f"{_kwh(overview, 'kwh')} kWh"]
        if overview["exposed_share_pct"] is not None:
            parts.append(f"exposed communication {percent(overview['exposed_share_pct'])} of the working time")
        if overview["processor_kwh"] is not None:
            parts.append(f"processors {number(overview['processor_kwh'])} kWh")
        console.print(" · ".join(parts))
    said = []
    if modelled and not emulated:
        said.append(f"{plural(modelled, 'emulated or simulated run')} not counted: --emulated asks for these")
    if overview["runs_without_summary"]:
        said.append(
            f"{plural(overview['runs_without_summary'], 'run')} without a summary: `powerccl index --analyse` makes it"
        )
    if overview["runs_not_whole"]:
        said.append(f"energy of {plural(overview['runs_not_whole'], 'run')} is not known, or in part")
    if failed:
        said.append(
            f"{plural(failed, 'run')} could not be read: --sql \"SELECT folder, error FROM runs WHERE error <> ''\""
        )
    for line in said:
        console.print(warning(line))


def print_answer(console: Console, answer: Answer, title: str, notes: list[str], most: int = MOST_ROWS) -> None:
    """One question's table, of at most `most` rows."""
    console.print()
    console.print(heading(title))
    if answer.rows:
        if latest := _latest(answer):
            console.print(Text(latest, style="bold"))
        console.print((_risen if answer.question == "regressions" else _table)(answer, most))
    for note in notes:
        console.print(Text(note, style="dim"))


def _latest(answer: Answer) -> str:
    """Such as `GPU 3 of node17 is late: its peers use 41.0 kWh a day to wait for it`."""
    row = answer.dicts()[0]
    if not row.get("late_ranks") or "gpu_number" not in row or not row["waiting_kwh_a_day"]:
        return ""
    number_of = row["gpu_uuid"] if row["gpu_number"] is None else row["gpu_number"]
    day = _kwh(row, "waiting_kwh_a_day")
    return f"GPU {number_of} of {row['node']} is late: its peers use {day} kWh a day to wait for it."


def _risen(answer: Answer, most: int) -> Table:
    """What `regressions` judged."""
    table = Table()
    for head in ("name", "GPUs", "model", "figure", "runs, old", "new", "change", "95 % interval"):
        table.add_column(head, justify="left" if head in ("name", "model", "figure") else "right")
    for row in answer.dicts()[:most]:
        counts = f"{row['old_runs']:,}", f"{row['new_runs']:,}"
        interval = change_between(row["low_pct"], row["high_pct"])
        place = row["name"], str(row["gpu_count"] or ""), row["gpu_model"], row["figure"]
        table.add_row(*place, *counts, change(row["change_pct"]), interval)
    table.add_more(len(answer.rows) - most, " with --json or --csv")
    return table


def _table(answer: Answer, most: int) -> Table:
    rows = answer.dicts()
    known = [name for name in answer.columns if any(row[name] is not None for row in rows)]
    hidden = {name for name in HIDDEN if name != "gpu_uuid" or "gpu_number" in known}
    if all(row.get("at_most_kwh") == row.get("waiting_kwh") for row in rows):
        hidden.add("at_most_kwh")
    shown = [name for name in known if name not in hidden]
    table = Table()
    for name in shown:
        words = isinstance(next(row[name] for row in rows if row[name] is not None), (str, datetime.date))
        head = name if answer.question == "sql" else NAMES.get(name, name.replace("_", " "))
        table.add_column(head, justify="left" if words else "right", no_wrap=not words)
    for row in rows[:most]:
        table.add_row(*(_cell(row, name) for name in shown))
    table.add_more(len(rows) - most, " with --json or --csv")
    return table


def _cell(row: dict[str, Any], name: str) -> str:
    value = row[name]
    if value is None:
        return NOT_KNOWN
    if name in ("kwh", "waiting_kwh", "waiting_kwh_a_day"):
        return _kwh(row, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return percent(value) if name.endswith("pct") else number(value)


def _kwh(row: dict[str, Any], name: str) -> str:
    """`≥ 41.0`, where samples of some runs are missing."""
    text = number(row[name])
    return f"≥ {text}" if row.get("runs_not_whole") and text != NOT_KNOWN else text


Judge = Callable[[dict[str, Any], dict[str, Any], str], "dict[str, Any] | None"]
FIGURES = {
    "iteration": "iteration, time",
    "iteration_energy": "iteration, energy",
    "wall": "wall time",
    "energy": "energy",
}


def regressions(answer: Answer, judge: Judge) -> Answer:
    """The two periods of each name beside each other, what rose most and is no chance first."""
    of: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in answer.dicts():
        of.setdefault((row["name"], row["gpu_count"], row["gpu_model"]), {})[row["period"]] = row
    columns = ["name", "gpu_count", "gpu_model", "figure", "old_runs", "new_runs"]
    columns += ["change_pct", "low_pct", "high_pct", "verdict"]
    rows = []
    for place, periods in of.items():
        if len(periods) < 2:
            continue
        for figure, words in FIGURES.items():
            judged = judge(periods["old"], periods["new"], figure)
            if judged:
                counts = periods["old"][f"{figure}_n"], periods["new"][f"{figure}_n"]
                rows.append((*place, words, *counts, *judged.values()))
    rows.sort(key=lambda row: -(row[7] if row[7] > 0 else min(row[8], 0.0) - 1e9))
    return Answer(answer.question, columns, rows)
