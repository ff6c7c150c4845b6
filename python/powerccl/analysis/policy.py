# SPDX-License-Identifier: Apache-2.0
"""What a policy that learns came to: the ranks' BUDGET records into one finding."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from powerccl.analysis.findings import PolicyOutcome, RankPolicy
from powerccl.traces import tables
from powerccl.traces.folder import RunData


def policy_outcome(run: RunData) -> PolicyOutcome | None:
    """What the ranks with a BUDGET record tell; None: none has one, as under other policies or when killed."""
    rows = tables.budgets(run)
    if rows.is_empty():
        return None
    ranks = [_of_rank(row) for row in rows.iter_rows(named=True)]
    dry = bool(rows["dry"].all())
    found = [rank for rank in ranks if rank.calls] or ranks
    lead = max(found, key=_leads)
    worst = max((rank for rank in found if rank.slowdown_pct is not None), key=_slowdown, default=lead)
    managed = max(found, key=lambda rank: rank.managed)
    parts = {"windows": any(rank.windows for rank in found), "clock": any(rank.searched for rank in found)}
    return PolicyOutcome(
        policy=(run.info.policy if run.info else "") or run.ranks[0].policy,
        budget_pct=run.info.slowdown_pct if run.info else None,
        dry=dry,
        parts=[part for part, there in parts.items() if there],
        calls=lead.calls,
        iterations=managed.iterations,
        managed=managed.managed,
        windows_least=min(rank.windows for rank in found),
        windows_most=max(rank.windows for rank in found),
        iteration_s=fmean(rank.iteration_s for rank in found),
        covered_s=fmean(rank.covered_s for rank in found),
        too_short_s=fmean(rank.too_short_s for rank in found),
        clock_mhz=lead.clock_mhz,
        slowdown_pct=worst.slowdown_pct,
        slowdown_low_pct=worst.slowdown_low_pct,
        slowdown_high_pct=worst.slowdown_high_pct,
        marked=any(rank.marked for rank in found),
        paused=any(rank.paused for rank in found),
        ranks=ranks,
    )


def _of_rank(row: dict[str, Any]) -> RankPolicy:
    slowdowns = (row["slowdown_ppm"], row["low_ppm"], row["high_ppm"])
    # In a dry run all iterations ran alike: their differences are chance.
    slowdown, low, high = (None if ppm is None or row["dry"] else ppm / 1e4 for ppm in slowdowns)
    return RankPolicy(
        **{name: row[name] for name in ("rank", "gpu", "host", "calls", "iterations", "managed", "windows")},
        iteration_s=row["length_us"] / 1e6,
        covered_s=row["covered_us"] / 1e6,
        too_short_s=row["short_us"] / 1e6,
        clock_mhz=row["clock_mhz"],
        searched=row["searched"],
        slowdown_pct=slowdown,
        slowdown_low_pct=low,
        slowdown_high_pct=high,
        marked=row["marked"],
        paused=row["paused"],
    )


def _leads(rank: RankPolicy) -> tuple[bool, bool, int]:
    """Who says what holds on a host judges and searches; the others only follow."""
    return rank.slowdown_pct is not None or rank.paused, rank.searched, rank.managed


def _slowdown(rank: RankPolicy) -> float:
    return rank.slowdown_pct or 0.0
