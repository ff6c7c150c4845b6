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
    learned = [rank for rank in ranks if rank.calls] or ranks
    judged = [rank for rank in learned if rank.slowdown_pct is not None]
    worst = max(judged, key=lambda rank: rank.slowdown_pct or 0.0, default=learned[0])
    managed = max(learned, key=lambda rank: rank.managed)
    clocks = [rank.clock_mhz for rank in learned if rank.clock_mhz]
    return PolicyOutcome(
        policy=(run.info.policy if run.info else "") or run.ranks[0].policy,
        budget_pct=run.info.slowdown_pct if run.info else None,
        dry=bool(rows["dry"].all()),
        calls=managed.calls,
        iterations=managed.iterations,
        managed=managed.managed,
        iteration_s=fmean(rank.iteration_s for rank in learned),
        clock_mhz=round(fmean(clocks)) if clocks else 0,
        clock_least_mhz=min(clocks, default=0),
        clock_most_mhz=max(clocks, default=0),
        slowdown_pct=worst.slowdown_pct,
        slowdown_low_pct=worst.slowdown_low_pct,
        slowdown_high_pct=worst.slowdown_high_pct,
        ranks=ranks,
    )


def _of_rank(row: dict[str, Any]) -> RankPolicy:
    slowdowns = (row["slowdown_ppm"], row["low_ppm"], row["high_ppm"])
    # In a dry run all iterations ran alike: their differences are chance.
    slowdown, low, high = (None if ppm is None or row["dry"] else ppm / 1e4 for ppm in slowdowns)
    return RankPolicy(
        **{name: row[name] for name in ("rank", "gpu", "host", "calls", "iterations", "managed", "clock_mhz")},
        iteration_s=row["length_us"] / 1e6,
        slowdown_pct=slowdown,
        slowdown_low_pct=low,
        slowdown_high_pct=high,
    )
