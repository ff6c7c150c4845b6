# SPDX-License-Identifier: Apache-2.0
"""What to do next with a recorded run, from what is known of it and the tables on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from powerccl.analysis.report import peers_of
from powerccl.analysis.report_findings import NextStep, Peers
from powerccl.commandline.references import near_table, own_table
from powerccl.estimate import Estimate
from powerccl.reports.next_steps import Evidence, next_steps
from powerccl.traces import tables
from powerccl.ways.possible import possible

if TYPE_CHECKING:
    from powerccl.analysis.findings import RunSummary
    from powerccl.analysis.ways import WaysFindings
    from powerccl.traces.folder import RunData


def advise(
    run: RunData,
    summary: RunSummary,
    peers: Peers | None = None,
    ways: WaysFindings | None = None,
    clocks_pct: Estimate | None = None,
    clocks_slower_pct: Estimate | None = None,
) -> list[NextStep]:
    """At most three actions. What is not given is found in the run's records, clocks excepted."""
    if not run.ranks:
        return next_steps(Evidence(summary))
    table, neighbour = own_table(run), False
    if table is None and (table := near_table(run)):
        neighbour = True
    if ways is None and table:
        ways = possible(tables.calls(run), table, any_ranks=neighbour)
    return next_steps(
        Evidence(
            summary,
            peers_of(run) if peers is None else peers,
            ways,
            table,
            neighbour,
            clocks_pct,
            clocks_slower_pct,
        )
    )
