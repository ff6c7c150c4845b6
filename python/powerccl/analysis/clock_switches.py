# SPDX-License-Identifier: Apache-2.0
"""What asking for clocks did."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from powerccl.analysis.findings import Clocks
from powerccl.traces.folder import JournalSlot

NOT_NOW = -100  # kClockNotNow of native/runtime/clock_client.h: no lease at the moment, nothing was set
CLOCK_STEP_MHZ = 30  # a read-back this far above the clock set is still that clock: drivers round to their steps


def clock_switches(clocks: pl.DataFrame, journal: Sequence[JournalSlot]) -> Clocks:
    """Count and time the clock requests of traces.tables.clocks; times only of those really carried out."""
    resets = (pl.col("min_mhz") == 0) & (pl.col("max_mhz") == 0)
    without_lease = pl.col("result") == NOT_NOW
    tried = ~pl.col("dry") & ~without_lease
    real = clocks.filter(tried & (pl.col("end_ns") >= pl.col("begin_ns")) & (pl.col("begin_ns") > 0))
    call = real.select(us=(pl.col("end_ns") - pl.col("begin_ns")) / 1e3)["us"].mean()
    latency = real.filter(pl.col("asked_ns") > 0).select(us=(pl.col("end_ns") - pl.col("asked_ns")) / 1e3)["us"].mean()
    read = real.filter(~resets & (pl.col("read_back_mhz") > 0))
    return Clocks(
        requests=len(clocks),
        sets=len(clocks.filter(~resets)),
        resets=len(clocks.filter(resets)),
        failed=len(clocks.filter((pl.col("result") != 0) & ~without_lease)),
        without_lease=len(clocks.filter(without_lease)),
        dry=len(clocks.filter(pl.col("dry"))),
        coalesced=int(clocks["coalesced"].sum()),
        mean_call_us=call if isinstance(call, float) else None,
        mean_latency_us=latency if isinstance(latency, float) else None,
        off_target=len(read.filter(pl.col("read_back_mhz") > pl.col("max_mhz") + CLOCK_STEP_MHZ)),
        left_locked=sum(slot.locked for slot in journal),
        restored_by_agent=sum(slot.restored_by_agent for slot in journal),
    )
