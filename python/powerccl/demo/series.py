# SPDX-License-Identifier: Apache-2.0
"""Clock and power of one GPU over a stretch of a run, with its communication: what a picture is drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.communication import communication_intervals
from powerccl.traces import tables
from powerccl.traces.folder import RunData
from powerccl.traces.power import floats


@dataclass(frozen=True)
class GpuSeries:
    """Samples (same length) and communication ([start, stop) rows), both in ms since the stretch's start."""

    gpu: str
    time_ms: npt.NDArray[np.float64]
    power_w: npt.NDArray[np.float64]
    clock_mhz: npt.NDArray[np.float64]
    communication_ms: npt.NDArray[np.float64]
    length_ms: float


def gpu_series(run: RunData, start_ns: int, stop_ns: int, gpu: str = "") -> GpuSeries | None:
    """Series of a GPU (by default of the lowest rank); None when it was not sampled."""
    gpu = gpu or (run.ranks[0].gpu if run.ranks else "")
    rows = None
    for log in run.power:
        samples = log.of_gpu(gpu)
        chosen = None if samples is None else samples.filter(pl.col("time_ns").is_between(start_ns, stop_ns))
        if chosen is not None and len(chosen):
            rows = chosen
    if rows is None:
        return None
    intervals = communication_intervals(tables.kernels(run)).get(gpu, iv.EMPTY)
    inside = iv.clip(intervals, start_ns, stop_ns)
    return GpuSeries(
        gpu=gpu,
        time_ms=(rows["time_ns"].to_numpy() - start_ns) / 1e6,
        power_w=floats(rows, "power_mw") / 1e3,
        clock_mhz=floats(rows, "sm_clock_mhz"),
        communication_ms=(inside - start_ns) / 1e6,
        length_ms=(stop_ns - start_ns) / 1e6,
    )
