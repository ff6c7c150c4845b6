# SPDX-License-Identifier: Apache-2.0
"""The one sentence of a report that matters most: the first rule that applies gives it."""

from __future__ import annotations

from collections.abc import Callable

from powerccl.analysis.report import ReportFindings
from powerccl.analysis.report_findings import RankParts
from powerccl.quantities import joules, percent, plural, seconds
from powerccl.reports.mpi import late_rank
from powerccl.reports.terminal import communicating_text

# Percent of the working time. What takes less is not worth a reader's first look: the interval of a saving on it would
# hold 0. At half, every job would have something to look at; at double, a straggler that costs a tenth goes unnamed.
WORTH_NAMING_PCT = 5.0
# Shorter start-ups are shown, and are no headline: a trial of a few seconds has little else. At half, start-up would be
# the headline of runs of two iterations; at double, it still is where it takes 25 of 33 s.
HEADLINE_STARTUP_S = 10.0


def headline(findings: ReportFindings) -> str:
    """What matters most for this job, in one sentence; empty where no rule applies."""
    rules: tuple[Callable[[ReportFindings], str], ...] = (
        _unrecorded,
        _nothing_known,
        _startup,
        _straggler,
        _waiting,
        _exposed,
        _communicating,
        _mpi,
    )
    return next((text for rule in rules if (text := rule(findings))), "")


def _unrecorded(findings: ReportFindings) -> str:
    return findings.summary.unrecorded


def _nothing_known(findings: ReportFindings) -> str:
    reason = findings.summary.shares.reason
    return f"The share of communication is not known: {reason}." if reason and findings.ranks else ""


def _startup(findings: ReportFindings) -> str:
    """Where starting up takes longer than the work, it is the largest thing to save."""
    shares, energy = findings.summary.shares, findings.summary.energy
    if (shares.startup_s or 0.0) < max(HEADLINE_STARTUP_S, shares.span_s or 0.0) or findings.summary.wall_s is None:
        return ""
    text = f"Start-up takes {seconds(shares.startup_s)} of {seconds(findings.summary.wall_s)}"
    if shares.startup_joules is not None and energy.joules is not None:
        text += f" and {joules(shares.startup_joules)} of {joules(energy.joules)}"
    longest = max(shares.startup_parts, key=lambda part: part.time_s, default=None)
    if longest is None or len(shares.startup_parts) < 2:
        return f"{text}, longer than the work."
    return f"{text}, longer than the work; {seconds(longest.time_s)} of it end with {longest.until}."


def _straggler(findings: ReportFindings) -> str:
    """A rank that the others of its host wait for."""
    steady = [row for row in findings.peers.ranks if row.steady]
    if not steady:
        return ""
    worst = max(steady, key=lambda row: row.cost_s or row.cost_at_most_s or 0.0)
    late = {row.rank for row in steady}
    waiting = _waiting_pct([row for row in findings.ranks if row.host == worst.host and row.rank not in late])
    if waiting is None or waiting < WORTH_NAMING_PCT:
        return ""
    return (
        f"The other ranks wait {percent(waiting)} of their working time for their peers:"
        f" rank {findings.summary.rank_name(worst.rank)} arrives last in {percent(worst.last_pct)} of the collectives."
    )


def _waiting(findings: ReportFindings) -> str:
    waiting = _waiting_pct(findings.ranks)
    if waiting is None or waiting < WORTH_NAMING_PCT or any(row.steady for row in findings.peers.ranks):
        return ""
    return f"Ranks wait {percent(waiting)} of the working time for their peers; no rank is a straggler."


def _waiting_pct(rows: list[RankParts]) -> float | None:
    """Percent of the working time of these ranks; exposed waiting, where that is known. None: not known."""
    waits = [row.waiting_s if row.exposed_s is None else row.exposed_waiting_s for row in rows]
    known = [each for each in waits if each is not None]
    span_s = sum(row.span_s for row in rows)
    return 100 * sum(known) / span_s if span_s > 0 and len(known) == len(rows) else None


def _exposed(findings: ReportFindings) -> str:
    exposed = findings.summary.shares.exposed_pct
    if exposed is None or exposed < WORTH_NAMING_PCT:
        return ""
    saving = "" if findings.clock_effects else ", and lower clocks can save energy there"
    return (
        f"Communication is exposed for {percent(exposed)} of the working time: the GPUs compute nothing then{saving}."
    )


def _communicating(findings: ReportFindings) -> str:
    """Little exposed, or not known how much is."""
    shares, counted = findings.summary.shares, findings.summary.communication
    if shares.communicating_pct is None:
        return ""
    text = f"Communication takes {communicating_text(shares)} of the working time"
    if shares.at_least:
        return f"{text}: only {counted.timed_calls:,} of {plural(counted.calls, 'call')} were timed."
    if shares.exposed_pct is not None and shares.communicating_pct >= WORTH_NAMING_PCT:
        text = (
            f"Communication takes {communicating_text(shares)} and exposed communication"
            f" {percent(shares.exposed_pct)} of the working time"
        )
    elif shares.communicating_pct >= WORTH_NAMING_PCT:
        return f"{text}; how much of it is exposed is not known."
    return f"{text}{_little(findings, 'it')}."


def _mpi(findings: ReportFindings) -> str:
    mpi = findings.summary.mpi
    if mpi is None or mpi.share_pct is None:
        return ""
    waiting_pct = mpi.share_pct * mpi.wait_s / mpi.time_s if mpi.time_s > 0 else 0.0
    if waiting_pct >= WORTH_NAMING_PCT:
        last = late_rank(mpi)
        late = f", and rank {mpi.rank_name(last.latest_rank)} arrives last in {last.function}" if last else ""
        return f"Ranks wait for their peers in MPI calls for {percent(waiting_pct)} of the run{late}."
    text = f"MPI calls take {percent(mpi.share_pct)} of the run"
    return f"{text}{_little(findings, 'them')}."


def _little(findings: ReportFindings, what: str) -> str:
    """Nothing is called little where a part was not recorded."""
    return "" if findings.summary.problems else f": there is little to save in {what}"
