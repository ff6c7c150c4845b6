# SPDX-License-Identifier: Apache-2.0
"""What asking for clocks did."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

import numpy as np
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.findings import Clocks

NOT_NOW = -100  # kClockNotNow of native/job/clock/clock_client.h: no lease at the moment, nothing was set
CLOCK_STEP_MHZ = 30  # a read-back this far above the clock set is still that clock: drivers round to their steps


def wanted_low(clocks: pl.DataFrame) -> dict[str, iv.Intervals]:
    """When a low clock was wanted on each GPU, host time: from the request of one to that of the default clock.

    One that is not taken back counts for nothing: until when it lasted is not known.
    """
    spans: dict[str, list[tuple[int, int]]] = {}
    since: dict[str, int] = {}
    for gpu, asked_ns, highest in clocks.sort("asked_ns").select("gpu", "asked_ns", "max_mhz").iter_rows():
        if highest:
            since.setdefault(gpu, asked_ns)
        elif gpu in since:
            spans.setdefault(gpu, []).append((since.pop(gpu), asked_ns))
    return {gpu: iv.union(*np.array(stretches, dtype=np.int64).T) for gpu, stretches in spans.items()}


def clock_switches(clocks: pl.DataFrame, communicating: Mapping[str, iv.Intervals]) -> Clocks:
    """Count and time the clock requests of traces.tables.clocks; times only of those really carried out.

    `communicating`: when each GPU communicated.
    """
    low = wanted_low(clocks.filter(pl.col("asked_ns") > 0))
    both = [
        iv.covered_before(communicating.get(gpu, iv.EMPTY), spans[:, 1])
        - iv.covered_before(communicating.get(gpu, iv.EMPTY), spans[:, 0])
        for gpu, spans in low.items()
    ]
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
        low_s=fmean(iv.length_ns(spans) for spans in low.values()) / 1e9 if low else None,
        low_communicating_s=fmean(float(each.sum()) for each in both) / 1e9 if both else None,
        off_target=len(read.filter(pl.col("read_back_mhz") > pl.col("max_mhz") + CLOCK_STEP_MHZ)),
    )
