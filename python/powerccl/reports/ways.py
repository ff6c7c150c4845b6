# SPDX-License-Identifier: Apache-2.0
"""What a job could have without a clock being changed, in the terminal and as lines and rows of the page."""

from __future__ import annotations

from powerccl.analysis.ways import Possible, WaysFindings, WaysForecast
from powerccl.console import Console
from powerccl.platforms.ways import what_to_write_for
from powerccl.quantities import NOT_KNOWN, byte_size, change_between, joules, percent, plural, seconds
from powerccl.reports.table import Table
from powerccl.reports.terminal import heading

POSSIBLE_COLUMNS = ("collective", "size", "way", "calls", "time saved", "energy saved")


def print_possible(console: Console, findings: WaysFindings) -> None:
    """What a recorded job could have without a clock being changed, and how."""
    console.print()
    console.print(heading("what could be had without changing a clock"))
    console.print(f"by the table '{findings.table}': {findings.provenance}", style="dim")
    for line in possible_lines(findings):
        console.print(line)
    if not findings.rows:
        return
    grid = Table()
    for index, name in enumerate(POSSIBLE_COLUMNS):
        grid.add_column(name, justify="left" if index < 3 else "right", no_wrap=True)
    for row in findings.rows:
        grid.add_row(*possible_cells(row))
    console.print(grid)
    for line in what_to_write(findings):
        console.print(line)


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


def possible_lines(findings: WaysFindings) -> list[str]:
    """What it comes to, in sentences."""
    lines = []
    if findings.rows and findings.span_s > 0:
        least, most = (100 * saved / findings.span_s for saved in (findings.saved_s.low, findings.saved_s.high))
        memory = byte_size(max(row.memory_bytes for row in findings.rows))
        lines.append(
            f"{percent(least)} to {percent(most)} of each GPU's time, depending on what the GPU computes while a "
            f"collective runs. It takes {memory} of memory for each GPU, if two buffers of the largest size are enough."
        )
        if findings.predicted:
            lines.append(_predicted(findings.predicted))
    elif findings.calls > findings.other_ways + findings.unmeasured:
        lines.append("Nothing: for this job's collectives NCCL's rings and trees are as good as any other way.")
    if findings.other_ways:
        lines.append(f"{plural(findings.other_ways, 'call')} went another way than rings and trees already.")
    if findings.unmeasured:
        lines.append(
            f"{plural(findings.unmeasured, 'call')} of a pattern, size or number of ranks that the table lacks."
        )
    return lines


def _predicted(forecast: WaysForecast) -> str:
    time = change_between(-forecast.time_saved_pct[1], -forecast.time_saved_pct[0])
    energy = forecast.energy_saved_pct
    joules_too = f" and its energy by {change_between(-energy[1], -energy[0])}" if energy else ""
    return (
        f"Followed through a typical iteration, the best ways together change its time by {time}{joules_too}: "
        "powerccl whatif --ways says more."
    )


def what_to_write(findings: WaysFindings) -> list[str]:
    """For each pattern and way of the rows, the lines or options that bring it about."""
    advice = what_to_write_for(dict.fromkeys((row.pattern, row.way) for row in findings.rows))
    return [f"{pattern.replace('_', '-')}, {way}: {text}" for (pattern, way), text in advice]
