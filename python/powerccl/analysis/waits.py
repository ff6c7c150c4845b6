# SPDX-License-Identifier: Apache-2.0
"""Waits and kernels on one clock.

Kernels and waits come to the host's clock on different ways. Waits use a reference that the marker renews every two
seconds. If the host was busy just then, all waits up to the next reference are late by up to a millisecond. A small
collective is as long as that. A wait for a kernel ends with it, so how late they are can be seen.
"""

from __future__ import annotations

import numpy as np
import polars as pl

REAL_NS = 30_000  # a shorter wait was none: the kernel was over first
MOST_NS = 3_000_000  # a wait that ends further from its kernel's end waited for something else
NEIGHBOURS = 9  # waits whose median says by how much: fewer than there are between two references


def aligned(waits: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """traces.tables.waits, moved to end where the kernels end that were waited for; both on the host's clock."""
    if not len(waits) or not len(kernels):
        return waits
    keys = ["rank", "comm", "call_id"]
    ends = kernels.select(*keys, "stop_ns").unique(keys, keep="none", maintain_order=True)
    joined = waits.with_row_index("_row").join(ends, on=keys, how="left").sort("rank", "stall_ns")
    off = pl.col("stop_ns") - pl.col("resume_ns")
    real = (pl.col("resume_ns") - pl.col("stall_ns") > REAL_NS) & (off.abs() < MOST_NS)
    joined = joined.with_columns(_off=pl.when(real).then(off))
    moved = np.zeros(len(joined), np.int64)
    first = 0
    for _, rows in joined.group_by("rank", maintain_order=True):
        last = first + len(rows)
        known = rows["_off"].drop_nulls()
        if len(known) >= NEIGHBOURS:
            usual = known.rolling_median(NEIGHBOURS, center=True, min_samples=1).to_numpy()
            at = np.flatnonzero(rows["_off"].is_not_null().to_numpy())
            near = np.clip(np.searchsorted(at, np.arange(len(rows))), 0, len(at) - 1)
            moved[first:last] = np.rint(usual[near])
        first = last
    shift = pl.Series(moved)
    return (
        joined.with_columns(stall_ns=pl.col("stall_ns") + shift, resume_ns=pl.col("resume_ns") + shift)
        .sort("_row")
        .drop("_row", "_off", "stop_ns")
    )
