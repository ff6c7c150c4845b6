# SPDX-License-Identifier: Apache-2.0
"""What a recorded job could have by carrying its collectives out otherwise, without a clock being changed.

By a table of ways (platforms/ways.py), for calls that went through NCCL's rings and trees. A call beside computation
costs a job less than one alone. How much of each a job has is not known here, so every figure is a range over the
surroundings that the table measured.
"""

from __future__ import annotations

import polars as pl

from powerccl.analysis.ways import Possible, WaysFindings
from powerccl.estimate import Estimate
from powerccl.platforms.ways import PLAIN, WAYS, Comparison, WaysTable, compare

LEAST_SHARE = 0.001  # of the job's time: what would save less at best is left out
ALIKE = 0.95  # of the best way's saving: a simpler one that has as much is taken


def possible(calls: pl.DataFrame, table: WaysTable, any_ranks: bool = False) -> WaysFindings:
    """What each pattern and size of a run could have. `calls`: as traces.tables.calls has them.

    `any_ranks`: the table is another machine's, and may be of another number of GPUs.
    """
    span_s = float((calls["stop_ns"] - calls["start_ns"].min()).max() or 0) / 1e9  # type: ignore[arg-type]
    findings = WaysFindings(table=table.name, provenance=table.provenance, span_s=span_s, calls=len(calls))
    silent = calls["symmetric"] | calls["copy_engine"]
    findings.other_ways = int(silent.sum())
    measured = {way: compare(table, way) for way in WAYS if way != PLAIN}
    groups = (
        calls.filter(~silent)
        .group_by("pattern", "size_class", "ranks", maintain_order=True)
        .agg(count=pl.len(), bytes=pl.col("bytes").mean(), gpus=pl.col("gpu").n_unique())
    )
    for pattern, _, ranks, count, size, gpus in groups.iter_rows():
        at = table.nearest_size(str(pattern), size)
        near = {
            way: each
            for way, all_of in measured.items()
            for each in all_of
            if each.pattern == pattern and each.size_bytes == at
        }
        if (ranks != table.gpus and not any_ranks) or not near:
            findings.unmeasured += count
            continue
        rows = [_row(each, size, count / gpus, gpus) for each in near.values() if each.never_slower]
        if rows:
            most = max(_worth(row) for row in rows)
            best = next(row for row in rows if _worth(row) >= ALIKE * most)
            if best.saved_s.high > LEAST_SHARE * span_s:
                findings.rows.append(best)
    findings.rows.sort(key=lambda row: -row.saved_s.high)
    return findings


def _worth(row: Possible) -> float:
    return (row.saved_joules or row.saved_s).value


def _row(each: Comparison, size: float, calls: float, gpus: int) -> Possible:
    scale = calls * size / each.size_bytes
    seconds = [each.alone_saved_us, *each.beside_saved_us.values()]
    joules = [*each.beside_saved_joules.values()]
    if each.alone_saved_joules is not None:
        joules.append(each.alone_saved_joules)
    return Possible(
        pattern=each.pattern,
        size_bytes=round(size),
        calls=round(calls),
        way=each.way,
        saved_s=Estimate.between(max(0.0, min(seconds)) * scale / 1e6, max(seconds) * scale / 1e6),
        saved_joules=Estimate.between(min(joules) * scale * gpus, max(joules) * scale * gpus) if joules else None,
        memory_bytes=2 * round(size),
    )
