# SPDX-License-Identifier: Apache-2.0
"""What was communicated, per pattern and size class, and how long it took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl import patterns
from powerccl.analysis import intervals as iv
from powerccl.analysis.findings import PatternRow, PhaseRow
from powerccl.traces import tables

KEY = ["pattern", "size_class"]


@dataclass(frozen=True)
class CallCoverage:
    """How many calls there were of each kind, and of how many the time is known.

    `kinds`: columns tag (null: none), pattern, size_class, bytes, captured, timed (a kernel record covers it), count.
    `ran`: kernels of calls that were not captured, by tag: tag, timed (how many), time_ns.
    """

    kinds: pl.DataFrame
    ran: pl.DataFrame

    @staticmethod
    def together(parts: list[CallCoverage]) -> CallCoverage:
        """Of several parts of a run."""
        kinds, ran = pl.concat(part.kinds for part in parts), pl.concat(part.ran for part in parts)
        same = ("tag", *KEY, "bytes", "captured", "timed")
        return CallCoverage(
            kinds.group_by(same, maintain_order=True).agg(pl.col("count").sum()),
            ran.group_by("tag", maintain_order=True).agg(pl.col("timed", "time_ns").sum()),
        )

    def count(self, *which: pl.Expr) -> int:
        """How many calls are as these expressions say."""
        return int(self.kinds.filter(*which)["count"].sum())

    @property
    def timed(self) -> int:
        """Calls that a kernel record covers."""
        return self.count(pl.col("timed"))

    def untimed(self, timed: pl.DataFrame) -> int:
        """Calls whose duration nothing tells, captured ones apart: none of their kind is in `timed` (time_kinds)."""
        rest = self.kinds.filter(~pl.col("timed"), ~pl.col("captured"))
        return int(rest.join(timed, on=KEY, how="anti")["count"].sum())

    def estimated(self, by: list[str], timed: pl.DataFrame) -> pl.DataFrame:
        """Time of calls that were neither timed nor captured, as the medians of their kinds: `by`, estimated_ns."""
        rest = self.kinds.filter(~pl.col("timed"), ~pl.col("captured")).join(timed.select(*KEY, "median_ns"), on=KEY)
        of_kinds = rest.with_columns(estimated_ns=pl.col("count") * pl.col("median_ns"))
        return of_kinds.group_by(by, maintain_order=True).agg(pl.col("estimated_ns").sum())


def communication_intervals(kernels: pl.DataFrame) -> dict[str, iv.Intervals]:
    """When each GPU was communicating: the union of its kernels, host time."""
    return {
        gpu: iv.union(rows["start_ns"].to_numpy(), rows["stop_ns"].to_numpy())
        for gpu, rows in tables.by_gpu(kernels, "start_ns", "stop_ns").items()
    }


def cover(calls: pl.DataFrame, kernels: pl.DataFrame, tags: pl.DataFrame) -> CallCoverage:
    """Say of calls which were timed; `tags`: traces.tables.tags of the same ranks."""
    columns = calls.select("rank", "call_id", *KEY, "bytes", "captured").with_columns(timed=ran(calls, kernels))
    live, of_calls = ~calls["captured"], kernels.select("rank", "call_id", "inside_ns")
    if not live.all() or len(calls) < len(kernels):
        named = calls.select("rank", "call_id").filter(live)
        of_calls = of_calls.join(named, on=["rank", "call_id"], how="semi", maintain_order="left")
    columns, of_calls = (_tagged(each, tags) for each in (columns, of_calls))
    return CallCoverage(
        columns.group_by("tag", *KEY, "bytes", "captured", "timed", maintain_order=True).agg(count=pl.len()),
        of_calls.group_by("tag", maintain_order=True).agg(timed=pl.len(), time_ns=pl.col("inside_ns").sum()),
    )


def _tagged(rows: pl.DataFrame, tags: pl.DataFrame) -> pl.DataFrame:
    if tags.is_empty():
        return rows.with_columns(tag=pl.lit(None, pl.UInt64))
    return rows.join(tags, on=["rank", "call_id"], how="left", maintain_order="left")


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


def phase_rows(coverage: CallCoverage, timed: pl.DataFrame, gpus: int) -> list[PhaseRow]:
    """One row a tag of the job's calls, the longest first; none without tags. Arguments as in pattern_rows."""
    live = coverage.kinds.filter(~pl.col("captured"))
    if live["tag"].null_count() == len(live):
        return []
    called = live.group_by("tag", maintain_order=True).agg(
        calls=pl.col("count").sum(), total_bytes=(pl.col("bytes") * pl.col("count")).sum()
    )
    for times in (coverage.ran, coverage.estimated(["tag"], timed)):
        called = called.join(times, on="tag", how="left", nulls_equal=True, maintain_order="left")
    rows = [
        PhaseRow(
            tag=row["tag"],
            calls=row["calls"],
            timed=row["timed"] or 0,
            total_bytes=row["total_bytes"],
            time_s=(row["time_ns"] or 0) / 1e9 / max(gpus, 1),
            estimated_s=(row["estimated_ns"] or 0) / 1e9 / max(gpus, 1),
        )
        for row in called.iter_rows(named=True)
    ]
    return sorted(rows, key=lambda row: -(row.time_s + row.estimated_s))


@dataclass(frozen=True)
class Alike:
    """Kernels of one pattern and size class.

    `kinds` has columns `ranks`, `bytes`, `moved` (bytes that cross a link; NaN: not known) and `count` (of kernels).
    Of each kernel: `kind` (a row of `kinds`), its times, and what else was asked for.
    """

    pattern: str
    size_class: int
    kinds: pl.DataFrame
    kind: npt.NDArray[np.int64]
    duration_ns: npt.NDArray[np.int64]
    inside_ns: npt.NDArray[np.int64]
    more: dict[str, npt.NDArray[np.int64]]

    def median(self, column: str) -> float | None:
        """Of a column of `kinds`, over the kernels."""
        known = self.kinds.filter(pl.col(column).is_not_nan() if column == "moved" else True, pl.col("count") > 0)
        values, count = known.sort(column).select(column, pl.col("count").cum_sum()).to_numpy().T
        if not len(values):
            return None
        # The mean of the two in the middle.
        return float(values[np.searchsorted(count, [count[-1] / 2, count[-1] / 2 + 0.5])].mean())

    @property
    def busbw(self) -> float | None:
        """GB/s of the median operation: what it moved over how long it took, as a reader divides them."""
        moved, median_ns = self.median("moved"), float(np.median(self.duration_ns))
        return moved / median_ns if moved is not None and median_ns > 0 else None


def moved(kinds: pl.DataFrame) -> pl.Series:
    """Bytes that one operation of each kind (pattern, ranks, bytes) moves over a link; NaN: not known."""
    pairs = kinds.select("pattern", "ranks").unique(maintain_order=True)
    factors = {(pattern, ranks): patterns.bus_factor(pattern, ranks) for pattern, ranks in pairs.iter_rows()}
    return pl.Series(
        [
            size * factors[pattern, ranks]
            for pattern, ranks, size in kinds.select("pattern", "ranks", "bytes").iter_rows()
        ],
        dtype=pl.Float64,
    )


def time_kinds(of_kinds: Iterable[Alike]) -> pl.DataFrame:
    """What the kernels of each pattern and size class took: a row each, from WholeRun.of_kinds."""
    rows = [
        {
            "pattern": alike.pattern,
            "size_class": alike.size_class,
            "timed": len(alike.kind),
            "time_ns": int(alike.inside_ns.sum()),
            "median_ns": float(np.median(alike.duration_ns)),
            "busbw": alike.busbw,
            "kernel_bytes": int(alike.kinds.select((pl.col("bytes") * pl.col("count")).sum()).item()),
            "kernel_median": alike.median("bytes"),
        }
        for alike in of_kinds
    ]
    columns: tables.Schema = {
        "pattern": tables.PATTERN,
        **dict.fromkeys(("size_class", "timed", "time_ns"), pl.Int64),
        **dict.fromkeys(("median_ns", "busbw"), pl.Float64),
        "kernel_bytes": pl.Int64,
        "kernel_median": pl.Float64,
    }
    return pl.DataFrame(rows, schema=columns)


def pattern_rows(coverage: CallCoverage, timed: pl.DataFrame, gpus: int) -> list[PatternRow]:
    """One row a pattern and size class, the longest first.

    `timed`: as time_kinds has it; `gpus` divides times into means per GPU.
    """
    count = pl.col("count")
    called = (
        coverage.kinds.sort("bytes")
        .group_by(KEY, maintain_order=True)
        .agg(
            calls=count.filter(~pl.col("captured")).sum(),
            captured_calls=count.filter(pl.col("captured")).sum(),
            call_bytes=(pl.col("bytes") * count).sum(),
            # Sizes are in order: the mean of the two in the middle.
            call_median=(
                pl.col("bytes").filter(count.cum_sum() * 2 >= count.sum()).first()
                + pl.col("bytes").filter(count.cum_sum() * 2 > count.sum()).first()
            )
            / 2,
        )
        .join(coverage.estimated(KEY, timed), on=KEY, how="left")
    )
    rows: list[PatternRow] = []
    for row in called.join(timed, on=KEY, how="full", coalesce=True).sort(KEY).iter_rows(named=True):
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
