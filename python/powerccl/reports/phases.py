# SPDX-License-Identifier: Apache-2.0
"""Phases of a job: its calls by the tags that it has given them."""

from __future__ import annotations

from powerccl.analysis.findings import PhaseRow
from powerccl.quantities import byte_size, seconds
from powerccl.reports.table import Table

MAX_ROWS = 12
COLUMNS = ("calls", "bytes", "time / GPU", "timed")


def phase_cells(row: PhaseRow) -> list[str]:
    """Its name and what COLUMNS say of it."""
    time = seconds(row.time_s + row.estimated_s if row.timed or row.estimated_s else None)
    return [
        "no tag" if row.tag is None else f"tag {row.tag}",
        f"{row.calls:,}",
        byte_size(row.total_bytes),
        f"~{time}" if row.estimated_s > 0.01 * row.time_s else time,
        f"{row.timed:,}",
    ]


def phases_table(rows: list[PhaseRow]) -> Table:
    """For the terminal, the longest phases first."""
    table = Table()
    table.add_column("phase", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows[:MAX_ROWS]:
        table.add_row(*phase_cells(row))
    table.add_more(len(rows) - MAX_ROWS, " in summary.json")
    return table
