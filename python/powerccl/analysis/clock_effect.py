# SPDX-License-Identifier: Apache-2.0
"""What lowered clocks did: how long they lasted, and what GPUs drew in them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.energy import EnergyCurve, clip_to
from powerccl.analysis.report_findings import ClockEffect
from powerccl.traces import tables
from powerccl.traces.folder import RunData
from powerccl.traces.power import floats

FEW_UPDATES = 3  # of the energy counter's steps: less time says nothing of power


def lowered(clocks: pl.DataFrame, stop_ns: int) -> iv.Intervals:
    """When a GPU's clock was set by us: from a set's return to the next reset's, `stop_ns` at the latest.

    `clocks` is traces.tables.clocks of one GPU; requests that failed or were only decided (dry) count for nothing.
    """
    real = clocks.filter(~pl.col("dry") & (pl.col("result") == 0) & (pl.col("end_ns") > 0)).sort("end_ns")
    spans: list[tuple[int, int]] = []
    since: int | None = None
    for end_ns, highest in real.select("end_ns", "max_mhz").iter_rows():
        if highest and since is None:
            since = end_ns
        elif not highest and since is not None:
            spans.append((since, end_ns))
            since = None
    if since is not None:
        spans.append((since, max(stop_ns, since)))
    return iv.union(*np.array(spans, dtype=np.int64).T) if spans else iv.EMPTY


def clock_effects(
    run: RunData, clocks: pl.DataFrame, communicating: Mapping[str, iv.Intervals], curves: dict[str, EnergyCurve]
) -> list[ClockEffect]:
    """One row a GPU whose clock was set; `communicating`: when each GPU communicated."""
    effects = []
    of_gpus = tables.by_gpu(clocks)
    for trace in {trace.gpu: trace for trace in reversed(run.ranks)}.values():
        busy = communicating.get(trace.gpu, iv.EMPTY)
        switches = of_gpus.get(trace.gpu)
        if switches is None or not len(busy):
            continue
        span = (int(busy[0, 0]), int(busy[-1, 1]))
        low = iv.clip(lowered(switches, span[1]), *span)
        if not len(low):
            continue
        length_s = iv.length_ns(low) / 1e9
        both = iv.covered_before(busy, low[:, 1]) - iv.covered_before(busy, low[:, 0])
        effect = ClockEffect(
            gpu=trace.gpu,
            rank=trace.rank,
            windows=len(low),
            lowered_s=length_s,
            lowered_pct=100e9 * length_s / (span[1] - span[0]),
            communication_pct=100 * float(both.sum()) / iv.length_ns(low),
        )
        for log in run.power:
            rows = log.of_gpu(trace.gpu)
            rows = None if rows is None else rows.filter(pl.col("time_ns").is_between(*span))
            if rows is not None and len(rows):
                time, mhz = rows["time_ns"].to_numpy(), floats(rows, "sm_clock_mhz")
                inside, known = iv.contains(low, time), np.isfinite(mhz) & (mhz > 0)
                effect.lowered_mhz = _mean(mhz[inside & known])
                effect.elsewhere_mhz = _mean(mhz[~inside & known])
        curve = curves.get(trace.gpu)
        if curve is not None:
            effect.lowered_watts = _watts(curve, iv.intersection(busy, low))
            effect.communication_watts = _watts(curve, iv.minus(busy, low))
        effects.append(effect)
    return sorted(effects, key=lambda effect: effect.rank)


def _watts(curve: EnergyCurve, intervals: iv.Intervals) -> float | None:
    """Mean power inside; None if single stretches are too short against the counter's steps."""
    inside = clip_to(curve, intervals, sharp=True)
    length = inside[:, 1] - inside[:, 0]
    long = inside[length >= curve.update_ns]
    if length.sum() < FEW_UPDATES * curve.update_ns or iv.length_ns(long) < 0.5 * length.sum():
        return None
    return curve.within(long) / (iv.length_ns(long) / 1e9)


def _mean(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float | None:
    return float(values.mean()) if len(values) else None
