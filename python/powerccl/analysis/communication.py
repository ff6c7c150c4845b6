# SPDX-License-Identifier: Apache-2.0
"""What was communicated, per pattern and size class, and how long it took."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from powerccl import patterns
from powerccl.analysis import intervals as iv
from powerccl.analysis.findings import PatternRow, PhaseRow
from powerccl.traces import tables

KEY = ["pattern", "size_class"]


@dataclass
class CallCoverage:
    """Calls with what is known of their time.

    `calls` has the columns of traces.tables.calls, plus two. `timed`: a kernel record covers it. `estimate_ns`: median
    of its kind, null if there is none; only for calls that are neither timed nor captured.
    """

    calls: pl.DataFrame

    @property
    def timed(self) -> int:
        """Calls that a kernel record covers."""
        return int(self.calls["timed"].sum())

    @property
    def untimed(self) -> int:
        """Calls whose duration nothing tells, captured ones apart."""
        rest = self.calls.filter(~pl.col("timed") & ~pl.col("captured"))
        return int(rest["estimate_ns"].null_count())


def communication_intervals(kernels: pl.DataFrame) -> dict[str, iv.Intervals]:
    """When each GPU was communicating: the union of its kernels, host time."""
    return {
        gpu: iv.union(rows["start_ns"].to_numpy(), rows["stop_ns"].to_numpy())
        for gpu, rows in tables.by_gpu(kernels, "start_ns", "stop_ns").items()
    }


def cover(calls: pl.DataFrame, kernels: pl.DataFrame) -> CallCoverage:
    """Say of each call whether it was timed, and estimate those that were not."""
    needed = ("rank", "comm", "ranks", "call_id", "bytes", *KEY, "group", "captured")
    joined = calls.select(needed).with_columns(timed=ran(calls, kernels))
    medians = kernels.group_by(KEY, maintain_order=True).agg(median_ns=pl.col("duration_ns").median())
    joined = joined.join(medians, on=KEY, how="left")
    estimate = pl.when(~pl.col("timed") & ~pl.col("captured")).then(pl.col("median_ns"))
    return CallCoverage(joined.with_columns(estimate_ns=estimate).drop("median_ns"))


def ran(calls: pl.DataFrame, kernels: pl.DataFrame) -> pl.Series:
    """Which calls ran as one of these kernels. A group's kernel names the first of its calls."""
    if not len(kernels):
        return pl.repeat(False, len(calls), dtype=pl.Boolean, eager=True)
    # Sorted numbers take a tenth of a join's memory.
    called, named = (
        (rows["call_id"].to_numpy().astype(np.int64) << 20) + rows["rank"].to_numpy() % (1 << 20)
        for rows in (calls, kernels)
    )
    named = iv.distinct(named)
    is_named = pl.Series(named[np.minimum(np.searchsorted(named, called), len(named) - 1)] == called)
    if not calls["group"].max():  # most jobs have no groups, and windows over a million calls take a second
        return is_named
    grouped = pl.when(pl.col("group") > 0).then(pl.col("found").any().over("rank", "comm", "group"))
    return calls.select("rank", "comm", "group", found=is_named).select(grouped.otherwise("found")).to_series()


def phase_rows(coverage: CallCoverage, kernels: pl.DataFrame, tags: pl.DataFrame, gpus: int) -> list[PhaseRow]:
    """One row a tag of traces.tables.tags, the longest first; none without tags. Other arguments as in pattern_rows."""
    if tags.is_empty():
        return []
    named = ["rank", "call_id"]
    calls = coverage.calls.filter(~pl.col("captured")).join(tags, on=named, how="left", maintain_order="left")
    called = calls.group_by("tag", maintain_order=True).agg(
        calls=pl.len(), total_bytes=pl.col("bytes").sum(), estimated_ns=pl.col("estimate_ns").sum()
    )
    ran = kernels.join(tags, on=named, how="left", maintain_order="left")
    ran = ran.join(calls.select(named), on=named, how="semi", maintain_order="left")
    times = ran.group_by("tag", maintain_order=True).agg(timed=pl.len(), time_ns=pl.col("inside_ns").sum())
    joined = called.join(times, on="tag", how="left", nulls_equal=True, maintain_order="left")
    rows = [
        PhaseRow(
            tag=row["tag"],
            calls=row["calls"],
            timed=row["timed"] or 0,
            total_bytes=row["total_bytes"],
            time_s=(row["time_ns"] or 0) / 1e9 / max(gpus, 1),
            estimated_s=(row["estimated_ns"] or 0) / 1e9 / max(gpus, 1),
        )
        for row in joined.iter_rows(named=True)
    ]
    return sorted(rows, key=lambda row: -(row.time_s + row.estimated_s))


def bus_factors(kernels: pl.DataFrame) -> pl.DataFrame:
    """Bus over algorithm bandwidth of each pattern and number of ranks: columns pattern, ranks, factor."""
    pairs = kernels.select("pattern", "ranks").unique(maintain_order=True)
    factors = [patterns.bus_factor(pattern, ranks) for pattern, ranks in pairs.iter_rows()]
    return pairs.with_columns(factor=pl.Series(factors, dtype=pl.Float64).fill_nan(None))


def long_ns() -> pl.Expr:
    """A kernel's length; null where clock ticks give it none, and so no bandwidth."""
    return pl.when(pl.col("duration_ns") > 0).then(pl.col("duration_ns"))


def bus_bandwidth() -> pl.Expr:
    """GB/s of the median operation: what it moved (column `moved`) over how long it took, as a reader divides them."""
    median_ns = pl.col("duration_ns").median()  # 0 where clock ticks give most of them no length
    return pl.when(median_ns > 0).then(pl.col("moved").median() / median_ns)


def pattern_rows(coverage: CallCoverage, kernels: pl.DataFrame, gpus: int) -> list[PatternRow]:
    """One row a pattern and size class, the longest first.

    `kernels` are those of RunTables; `gpus` divides times into means per GPU.
    """
    called = coverage.calls.group_by(KEY, maintain_order=True).agg(
        calls=(~pl.col("captured")).sum(),
        captured_calls=pl.col("captured").sum(),
        call_bytes=pl.col("bytes").sum(),
        call_median=pl.col("bytes").median(),
        estimated_ns=pl.col("estimate_ns").sum(),
    )
    ran = (
        kernels.join(bus_factors(kernels), on=["pattern", "ranks"])
        .with_columns(moved=pl.col("bytes") * pl.col("factor"))
        .group_by(KEY, maintain_order=True)
        .agg(
            timed=pl.len(),
            time_ns=pl.col("inside_ns").sum(),
            median_ns=pl.col("duration_ns").median(),
            busbw=bus_bandwidth(),
            kernel_bytes=pl.col("bytes").sum(),
            kernel_median=pl.col("bytes").median(),
        )
    )
    rows: list[PatternRow] = []
    for row in called.join(ran, on=KEY, how="full", coalesce=True).sort(KEY).iter_rows(named=True):
        replayed = bool(row["captured_calls"]) or not row["calls"]
        rows.append(
            PatternRow(
                pattern=row["pattern"],
                size_class_bytes=int(row["size_class"]),
                calls=int(row["calls"] or 0),
                captured_calls=int(row["captured_calls"] or 0),
                timed=int(row["timed"] or 0),
                # Of what was timed, so that size, time and bandwidth of a row are of the same operations.
                median_bytes=int(row["kernel_median"] or row["call_median"] or 0),
                total_bytes=int((row["kernel_bytes"] if replayed else row["call_bytes"]) or 0),
                time_s=(row["time_ns"] or 0) / 1e9 / max(gpus, 1),
                estimated_s=(row["estimated_ns"] or 0) / 1e9 / max(gpus, 1),
                median_us=None if row["median_ns"] is None else row["median_ns"] / 1e3,
                busbw_gbs=row["busbw"],
                joules_per_operation=None,
            )
        )
    rows.sort(key=lambda row: -(row.time_s + row.estimated_s))
    return rows
