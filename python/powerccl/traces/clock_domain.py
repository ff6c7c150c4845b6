# SPDX-License-Identifier: Apache-2.0
"""GPU globaltimer onto the host's CLOCK_MONOTONIC.

A rank learns of a kernel's start and stop some time after they happened: `seen = gpu + offset + delay`. The delay is
positive and mostly a few tens of microseconds. So the map is the line below every (gpu, seen - gpu) pair that is
closest to them. It is an edge of their lower convex hull, the one above the mean of the GPU times. Its slope is the
clocks' drift.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from powerccl.traces import records

MAX_DRIFT_PPM = 500.0  # crystals keep 100 ppm; more than this is noise read as a slope
MIN_SPAN_NS = 2_000_000_000  # shorter traces cannot tell drift from delay


@dataclass(frozen=True)
class ClockMap:
    """host_ns = gpu_ns + offset_ns + drift * (gpu_ns - origin_ns); drift is dimensionless.

    `spread_ns` is the median delay above the line: how far the map may be off. `pairs` is how many times it rests on;
    0: nothing to map.
    """

    origin_ns: int = 0
    offset_ns: int = 0
    drift: float = 0.0
    spread_ns: float = 0.0
    pairs: int = 0

    def to_host(self, gpu_ns: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Host times (ns, int64) of GPU times (ns)."""
        since = gpu_ns.astype(np.int64) - self.origin_ns
        mapped: npt.NDArray[np.int64] = since + (self.origin_ns + self.offset_ns)
        if self.drift:
            mapped = mapped + np.rint(since * self.drift).astype(np.int64)
        return mapped

    def to_gpu(self, host_ns: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """GPU times (ns) of host times (ns)."""
        since = (host_ns.astype(np.int64) - (self.origin_ns + self.offset_ns)) / (1.0 + self.drift)
        return np.maximum(np.rint(since).astype(np.int64) + self.origin_ns, 0).astype(np.uint64)


def map_kernels(kernels: npt.NDArray[np.void]) -> ClockMap:
    """Fit the map, and bring all KERNEL records to the GPU's clock, in place.

    Kernels that were timed with CUDA events (HOST_TIMES) have host times already, which say nothing of the map.
    """
    on_host = (kernels["flags"] & records.FLAG_HOST_TIMES) != 0
    clock_map = fit_clock_map(kernels[~on_host] if on_host.any() else kernels)
    to_gpu_times(kernels, clock_map)
    return clock_map


def to_gpu_times(kernels: npt.NDArray[np.void], clock_map: ClockMap) -> None:
    """Bring KERNEL records with host times to the GPU's clock, in place."""
    on_host = (kernels["flags"] & records.FLAG_HOST_TIMES) != 0
    if clock_map.pairs and on_host.any():
        for name in ("gpu_start_ns", "gpu_stop_ns"):
            kernels[name][on_host] = clock_map.to_gpu(kernels[name][on_host])


def fit_clock_map(kernels: npt.NDArray[np.void]) -> ClockMap:
    """Fit the map from KERNEL records (records.LAYOUTS[KERNEL]); records without a seen time are left out."""
    gpu = np.concatenate([kernels["gpu_start_ns"], kernels["gpu_stop_ns"]]).astype(np.int64)
    seen = np.concatenate([kernels["seen_start_ns"], kernels["seen_stop_ns"]]).astype(np.int64)
    usable = seen > 0
    gpu, seen = gpu[usable], seen[usable]
    if not len(gpu):
        return ClockMap()
    origin = int(gpu.min())
    base = int((seen - gpu).min())
    x = (gpu - origin).astype(np.float64)
    y = (seen - gpu - base).astype(np.float64)  # >= 0, small: floats keep nanoseconds here
    level, drift = 0.0, 0.0
    if x.max() >= MIN_SPAN_NS:
        level, drift = _lower_line(*_lowest_per_bin(x, y))
        if abs(drift) * 1e6 > MAX_DRIFT_PPM:
            level, drift = 0.0, 0.0
    spread = float(np.median(y - (level + drift * x)))
    return ClockMap(origin, base + round(level), drift, spread, len(gpu))


def _lowest_per_bin(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], bins: int = 1024
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The lowest point of each stretch of x, in order: what the hull can rest on, few enough to walk in Python."""
    index = np.minimum((x / (x.max() + 1.0) * bins).astype(np.int64), bins - 1)
    order = np.lexsort((y, index))
    first = np.unique(index[order], return_index=True)[1]
    lowest = order[first]
    return x[lowest], y[lowest]


def _lower_line(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Level and slope of the lower hull's edge over mean(x): of all lines below the points, the closest in sum."""
    hull: list[tuple[float, float]] = []
    for point in zip(x.tolist(), y.tolist(), strict=True):
        while len(hull) >= 2:
            (x1, y1), (x2, y2) = hull[-2], hull[-1]
            if (x2 - x1) * (point[1] - y1) > (y2 - y1) * (point[0] - x1):
                break
            hull.pop()
        hull.append(point)
    mean = float(x.mean())
    for (x1, y1), (x2, y2) in pairwise(hull):
        if x1 <= mean <= x2 and x2 > x1:
            slope = (y2 - y1) / (x2 - x1)
            return y1 - slope * x1, slope
    return 0.0, 0.0
