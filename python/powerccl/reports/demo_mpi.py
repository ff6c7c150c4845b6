# SPDX-License-Identifier: Apache-2.0
"""The demo's second part in the terminal: a real MPI job, without and with the library."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from powerccl.analysis.findings import MpiSummary
from powerccl.analysis.savings import Figure
from powerccl.reports.mpi import key, rank_lines
from powerccl.reports.terminal import heading, warning
from powerccl.reports.text import change, seconds

UNSTEADY = 0.05  # of the run time, between the fastest and the slowest run of the same


@dataclass
class MpiDemo:
    """A stencil on `ranks` ranks, run `Figure.n` times each way; `pictured` is one of the runs with the library."""

    ranks: int
    imbalance_pct: int
    figures: dict[str, Figure]
    pictured: MpiSummary


def print_mpi_demo(console: Console, demo: MpiDemo) -> None:
    """Picture, then figures."""
    console.print()
    console.print(heading(f"stencil and all-reduce on {demo.ranks} MPI ranks, {demo.imbalance_pct} % imbalance"))
    console.print(Text(f"real, on this machine's processors: {demo.pictured.library}", style="dim"))
    console.print()
    for line in rank_lines(demo.pictured, min(console.width, 120)):
        console.print(line, no_wrap=True, overflow="crop")
    console.print(key())
    console.print()
    console.print(_table(demo))
    runs = demo.figures["with.run_s"].n
    console.print(
        Text(f"medians of {runs} runs each way, taken in turns; in brackets the least and the most", style="dim")
    )
    run = demo.figures["without.run_s"]
    if run.high - run.low > UNSTEADY * run.value:
        console.print(warning("the runs differ much: this machine has other work; take them again when it has none"))


def _table(demo: MpiDemo) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    table.add_column("", no_wrap=True)
    for column in ("without", "with PowerCCL", "change"):
        table.add_column(column, justify="right", no_wrap=True)
    found = demo.figures
    slower, saved = found["slowdown_pct"], found["cpu_saved_pct"]
    less = Figure(-saved.value, saved.unit, -saved.high, -saved.low, saved.n)
    table.add_row("run time", _one(found, "without.run_s"), _one(found, "with.run_s"), _spread(slower))
    name = f"CPU time, {demo.ranks} ranks"
    table.add_row(name, _one(found, "without.cpu_s"), _one(found, "with.cpu_s"), Text(_spread(less), style="bold"))
    table.add_row(f"waiting, {demo.ranks} ranks", "", _one(found, "with.wait_s"), "")
    table.add_row("  of it asleep", "", _one(found, "with.sleep_s"), "")
    return table


def _one(figures: dict[str, Figure], name: str) -> str:
    figure = figures.get(name)
    return seconds(figure.value if figure else None)


def _spread(figure: Figure) -> str:
    return f"{change(figure.value)} ({change(figure.low)} to {change(figure.high)})"
