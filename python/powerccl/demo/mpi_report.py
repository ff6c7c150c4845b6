# SPDX-License-Identifier: Apache-2.0
"""The demo's second part in the terminal: a real MPI job, without and with the library."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from powerccl.analysis.findings import MpiSummary
from powerccl.console import Console
from powerccl.estimate import Estimate
from powerccl.quantities import change, change_between, plural, seconds
from powerccl.reports.mpi import key, rank_lines
from powerccl.reports.table import Table
from powerccl.reports.terminal import heading, warning

UNSTEADY_WORDS = "the runs differ much, because this machine has other work: repeat the demo when it is idle"
UNSTEADY = 0.05  # of the run time, between the fastest and the slowest run of the same


@dataclass
class MpiDemo:
    """A stencil on `ranks` ranks, run `Estimate.n` times each way; `pictured` is one of the runs with the library."""

    ranks: int
    imbalance_pct: int
    figures: dict[str, Estimate]
    pictured: MpiSummary
    same_result: bool


def title(demo: MpiDemo) -> str:
    """What ran."""
    return f"stencil and all-reduce on {demo.ranks} MPI ranks, {demo.imbalance_pct} % imbalance"


def print_mpi_demo(console: Console, demo: MpiDemo) -> None:
    """Picture, then figures."""
    console.print()
    console.print(heading(title(demo)))
    console.print(Text(f"measured on this machine's processors, with {demo.pictured.library}", style="dim"))
    console.print()
    for line in rank_lines(demo.pictured, min(console.width, 120)):
        console.print(line, no_wrap=True, overflow="crop")
    console.print(key())
    console.print()
    console.print(figures_table(demo))
    console.print(Text(how(demo), style="dim"))
    for remark in remarks(demo):
        console.print(warning(remark))


def figures_table(demo: MpiDemo) -> Table:
    """What was measured, without and with the library, and the change."""
    figures = demo.figures
    slower, saved = figures["slowdown_pct"], figures["cpu_saved_pct"]
    less = Estimate(-saved.value, -saved.high, -saved.low, saved.n, saved.unit)
    of_ranks = f", {plural(demo.ranks, 'rank')}"
    table = Table(3)
    table.add_column("", no_wrap=True)
    for column in ("without", "with PowerCCL", "change, median of pairs"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in (
        ["run time", _one(figures, "without.run_s"), _one(figures, "with.run_s"), _spread(slower)],
        [f"CPU time{of_ranks}", _one(figures, "without.cpu_s"), _one(figures, "with.cpu_s"), _spread(less)],
        [f"waiting{of_ranks}", "", _one(figures, "with.wait_s"), ""],
        ["  waiting asleep", "", _one(figures, "with.sleep_s"), ""],
    ):
        table.add_row(*row, style="bold" if row[0].startswith("CPU") else "")
    return table


def how(demo: MpiDemo) -> str:
    """How the figures were taken."""
    same = "; all results are equal" if demo.same_result else ""
    return f"medians of {demo.figures['with.run_s'].n} runs each way, in turns; minimum and maximum in brackets{same}"


def remarks(demo: MpiDemo) -> list[str]:
    """Reasons to doubt the figures."""
    run = demo.figures["without.run_s"]
    texts = [] if demo.same_result else ["the results of the runs differ: please report this as a bug"]
    return [*texts, UNSTEADY_WORDS] if run.high - run.low > UNSTEADY * run.value else texts


def _one(figures: dict[str, Estimate], name: str) -> str:
    figure = figures.get(name)
    return seconds(figure.value if figure else None)


def _spread(figure: Estimate) -> str:
    return f"{change(figure.value)} ({change_between(figure.low, figure.high)})"
