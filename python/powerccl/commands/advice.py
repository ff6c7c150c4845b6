# SPDX-License-Identifier: Apache-2.0
"""What to do next with a recorded run, from what is known of it and the tables on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from powerccl.analysis.report import ReportFindings, Waiting, waiting_of
from powerccl.analysis.report_findings import NextStep
from powerccl.commandline.references import own_or_near_table
from powerccl.estimate import Estimate
from powerccl.launch.environment import DEFAULT_SLOWDOWN_PCT
from powerccl.launch.ways import LEAST
from powerccl.reports.next_steps import Evidence, next_steps
from powerccl.traces import tables
from powerccl.ways.possible import possible
from powerccl.whatif.predict import why_not

if TYPE_CHECKING:
    from powerccl.analysis.findings import RunSummary
    from powerccl.traces.folder import RunData


def advise(
    run: RunData,
    summary: RunSummary,
    findings: ReportFindings | None = None,
    clocks_pct: Estimate | None = None,
    clocks_slower_pct: Estimate | None = None,
    budget_pct: float = DEFAULT_SLOWDOWN_PCT,
) -> list[NextStep]:
    """At most three actions. What is not given is found in the run's records, clocks excepted."""
    if not run.ranks:
        return next_steps(Evidence(summary))
    table, neighbour = own_or_near_table(run)
    ways = findings.ways if findings else None
    if ways is None and table:
        ways = possible(tables.calls(run), table, any_ranks=neighbour)
    waiting = Waiting(findings.peers, findings.link, findings.ranks) if findings else waiting_of(run)
    return next_steps(
        Evidence(
            summary,
            waiting,
            ways,
            table,
            neighbour,
            clocks_pct,
            clocks_slower_pct,
            budget_pct,
            unpredictable=why_not(run) if clocks_pct is None else "",
            own_ways=run.info is not None and LEAST in run.info.environment,
        )
    )
