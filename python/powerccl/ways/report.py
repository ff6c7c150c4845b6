# SPDX-License-Identifier: Apache-2.0
"""How NCCL's ways of carrying collectives out compare on one machine, and what a job could have by them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from powerccl.console import Console
from powerccl.platforms.ways import (
    COPY_ENGINE,
    PLAIN,
    WAYS,
    Comparison,
    WaysTable,
    compare,
    never_slower_from,
    what_to_write_for,
    why_never,
)
from powerccl.quantities import (
    NOT_KNOWN,
    byte_size,
    change,
    change_between,
    joules,
    microseconds,
    percent,
    plural,
    seconds,
)
from powerccl.reports.report_page import OtherWays
from powerccl.reports.table import Table
from powerccl.reports.terminal import heading
from powerccl.ways.findings import Possible, WaysFindings
from powerccl.ways.forecast import WaysForecast


def print_table(console: Console, table: WaysTable) -> None:
    """Every way against plain; and what `powerccl run --ways` would make of it."""
    found = [each for way in WAYS if way != PLAIN for each in compare(table, way)]
    found.sort(key=lambda each: (each.pattern, each.size_bytes, WAYS.index(each.way)))
    besides = sorted({beside for each in found for beside in each.beside_saved_us})
    grid = Table()
    for name in ("pattern", "size", "way"):
        grid.add_column(name, no_wrap=True)
    for name in ("time", "energy", *besides):
        grid.add_column(name, justify="right", no_wrap=True)
    for each in found:
        grid.add_row(*_row(each, besides))
    emulated = ", emulated" if table.emulated else ""
    console.print()
    console.print(
        f"{table.gpus} x {table.gpu}{emulated} · NCCL {table.versions.get('nccl', 'not known')} · against plain:"
    )
    console.print(grid)
    if besides:
        console.print(f"{', '.join(besides)}: time that a call costs while the GPU computes that, against plain")
    console.print("*: slower than plain, by itself or beside computation")
    least = never_slower_from(table, "all_gather", COPY_ENGINE)
    if least is None:
        console.print(f"`powerccl run --ways` would change nothing: {why_never(table, 'all_gather', COPY_ENGINE)}.")
    else:
        console.print(
            f"`powerccl run --ways` would use copy engines for FSDP2's all-gathers from {byte_size(least)} on."
        )


def _row(each: Comparison, besides: list[str]) -> Iterator[str]:
    yield each.pattern
    yield byte_size(each.size_bytes)
    yield each.way if each.never_slower else f"{each.way}*"
    yield change(-each.time_saved_pct)
    yield NOT_KNOWN if each.energy_saved_pct is None else change(-each.energy_saved_pct)
    for beside in besides:
        saved_us = each.beside_saved_us.get(beside)
        sign = "+" if saved_us is not None and saved_us < 0 else "-"
        yield NOT_KNOWN if saved_us is None else f"{sign}{microseconds(abs(saved_us))}"


POSSIBLE_COLUMNS = ("collective", "size", "way", "calls", "time saved", "energy saved")


def print_possible(console: Console, found: WaysFindings) -> None:
    """What a recorded job could have without a clock being changed, and how."""
    console.print()
    console.print(heading("what could be had without changing a clock"))
    console.print(f"by the table '{found.table}': {found.provenance}", style="dim")
    for line in possible_lines(found):
        console.print(line)
    if not found.rows:
        return
    grid = Table()
    for index, name in enumerate(POSSIBLE_COLUMNS):
        grid.add_column(name, justify="left" if index < 3 else "right", no_wrap=True)
    for row in found.rows:
        grid.add_row(*possible_cells(row))
    console.print(grid)
    for way, text in what_to_write(found):
        console.print(f"{way}: {text}")


LEAST_HINT_PCT = 1.0  # of the time, at best: less is for who asks for the report


def hint(found: WaysFindings) -> str:
    """One line for who has not asked; empty: there is too little to be had."""
    most_pct = 100 * found.saved_s.high / found.span_s if found.span_s > 0 else 0.0
    if most_pct < LEAST_HINT_PCT:
        return ""
    copied = any(row.pattern == "all_gather" and row.way == COPY_ENGINE for row in found.rows)
    how = "with FSDP2: run --ways auto; else see" if copied else "see"
    return f"up to {percent(most_pct)} of the time could be saved without changing a clock ({how} powerccl report)"


def possible_cells(row: Possible) -> list[str]:
    """A row as text."""
    return [
        row.pattern.replace("_", "-"),
        byte_size(row.size_bytes),
        row.way,
        f"{row.calls:,}",
        seconds.between(row.saved_s.low, row.saved_s.high),
        NOT_KNOWN if row.saved_joules is None else joules.between(row.saved_joules.low, row.saved_joules.high),
    ]


def on_page(found: WaysFindings) -> OtherWays:
    """The section of an HTML page."""
    lines = [*possible_lines(found), *(f"{way}: {text}" for way, text in what_to_write(found))]
    return OtherWays(f"'{found.table}', {found.provenance}", lines, possible_table(found))


def possible_table(found: WaysFindings) -> dict[str, dict[str, Any]]:
    """The rows for an HTML page, as report_tables.tables has them."""
    if not found.rows:
        return {}
    return {"ways": {"header": POSSIBLE_COLUMNS, "rows": [possible_cells(row) for row in found.rows], "more": 0}}


def possible_lines(found: WaysFindings) -> list[str]:
    """What it comes to, in sentences."""
    lines = []
    if found.rows and found.span_s > 0:
        least, most = (100 * saved / found.span_s for saved in (found.saved_s.low, found.saved_s.high))
        memory = byte_size(max(row.memory_bytes for row in found.rows))
        lines.append(
            f"{percent(least)} to {percent(most)} of each GPU's time, depending on what the GPU computes while a "
            f"collective runs. It takes {memory} of memory for each GPU, if two buffers of the largest size are enough."
        )
        if found.predicted:
            lines.append(_predicted(found.predicted))
    elif found.calls > found.other_ways + found.unmeasured:
        lines.append("Nothing: for this job's collectives NCCL's rings and trees are as good as any other way.")
    if found.other_ways:
        lines.append(f"{plural(found.other_ways, 'call')} went another way than rings and trees already.")
    if found.unmeasured:
        lines.append(f"{plural(found.unmeasured, 'call')} of a pattern, size or number of ranks that the table lacks.")
    return lines


def _predicted(forecast: WaysForecast) -> str:
    time = change_between(-forecast.time_saved_pct[1], -forecast.time_saved_pct[0])
    energy = forecast.energy_saved_pct
    joules_too = f" and its energy by {change_between(-energy[1], -energy[0])}" if energy else ""
    return (
        f"Followed through a typical iteration, the best ways together change its time by {time}{joules_too}: "
        "powerccl whatif --ways says more."
    )


def what_to_write(found: WaysFindings) -> list[tuple[str, str]]:
    """For each pattern and way of the rows, the lines or options that bring it about."""
    advice = what_to_write_for(dict.fromkeys((row.pattern, row.way) for row in found.rows))
    return [(f"{pattern.replace('_', '-')}, {way}", text) for (pattern, way), text in advice]
