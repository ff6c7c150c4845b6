# SPDX-License-Identifier: Apache-2.0
"""Energy before a GPU's first kernel of communication and behind its last, and the part of it without any work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from powerccl.analysis import intervals as iv
from powerccl.analysis.energy import clip_to, gpu_curve, gpu_samples, missing_ns, span_at
from powerccl.traces.folder import RunData
from powerccl.traces.power import floats

IDLE_UTILIZATION_PCT = 5
FEWEST = 4


@dataclass(frozen=True)
class Outside:
    """Over all GPUs: `joules` of the time outside, `idle_*` of its stretches without work (None: there were none).

    `missing_s`: of all the time, for which energy is not known.
    """

    joules: float = 0.0
    idle_joules: float | None = None
    idle_watts: float | None = None
    idle_low: float | None = None
    idle_high: float | None = None
    missing_s: float = 0.0


def outside(
    run: RunData, gpus: list[str], known: Mapping[str, tuple[int, int]], window: tuple[int, int] | None
) -> Outside:
    """Of these GPUs, as far as the run (or the window) and the samples go; `known`: first to last kernel."""
    info = run.info
    run_span = (info and info.span) or (0, 1 << 62)
    whole = window or run_span
    joules, idle_joules, idle_s, missing = 0.0, 0.0, 0.0, 0
    watts: list[float] = []
    for gpu in gpus:
        sampled = gpu_samples(run, gpu)
        if sampled is None or gpu not in known:
            continue
        log, rows = sampled
        time = rows["time_ns"].to_numpy()
        curve = gpu_curve(log, rows, span_at(run, log))
        if curve is None:
            continue
        first, last = known[gpu]
        # Without an end in run.json, or on another host's clock, a run is as long as it communicated.
        run_ns = window or (run_span if info and info.host == log.host else (0, 1 << 62))
        missing += missing_ns(curve, *(run_ns if run_ns[1] < 1 << 62 else known[gpu]))
        begin, end = max(whole[0], int(curve.time_ns[0])), min(whole[1], int(curve.time_ns[-1]))
        ends = iv.union([begin, max(last, begin)], [max(min(first, end), begin), end])
        joules += curve.within(ends)
        used = np.nan_to_num(floats(rows, "utilization_pct"), nan=100.0)
        both_idle = (used[:-1] <= IDLE_UTILIZATION_PCT) & (used[1:] <= IDLE_UTILIZATION_PCT)
        # A reading is of the time before it: what is idle by this one and the next was idle between.
        idle = iv.union(time[:-1][both_idle], time[1:][both_idle])
        inside = clip_to(curve, iv.intersection(ends, idle), sharp=True)
        if len(inside):
            each = curve.within(inside)
            idle_joules += each
            idle_s += iv.length_ns(inside) / 1e9
            watts += [
                curve.within(part[None, :]) / ((part[1] - part[0]) / 1e9) for part in inside if part[1] - part[0] > 5e7
            ]
    if idle_s <= 0:
        return Outside(joules, missing_s=missing / 1e9)
    mean = idle_joules / idle_s
    if len(watts) < FEWEST:
        return Outside(joules, idle_joules, mean, missing_s=missing / 1e9)
    half = 1.96 * float(np.std(watts)) / np.sqrt(len(watts))
    return Outside(joules, idle_joules, mean, mean - half, mean + half, missing / 1e9)
