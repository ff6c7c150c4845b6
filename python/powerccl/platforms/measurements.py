# SPDX-License-Identifier: Apache-2.0
"""From what powerccl-bench wrote (`--json-lines`, docs/reference/bench.md) to a platform profile."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from powerccl.files import decode_json, read_bytes
from powerccl.platforms.schema import OverheadSample, PlatformProfile, Point

# Clocks to profile as shares of the maximum: even above half, close together where bandwidth starts to fall.
CLOCK_SHARES = (1.0, 0.89, 0.775, 0.66, 0.565, 0.47, 0.38, 0.34, 0.302, 0.283, 0.245, 0.19)


class BenchHeader(msgspec.Struct):
    """First line of a `--json-lines` file, as far as it is needed here."""

    emulated: bool
    ranks: int
    gpu: str
    nccl_version: str | None = None
    cuda_version: str | None = None
    driver: str | None = None
    products: str | None = None
    clock_control: str = "none"
    clock_control_reason: str | None = None

    @property
    def versions(self) -> dict[str, str]:
        """Of NCCL, CUDA and the driver, as far as they are known."""
        versions = {"nccl": self.nccl_version, "cuda": self.cuda_version, "driver": self.driver}
        return {name: version for name, version in versions.items() if version}


class BenchPoint(msgspec.Struct):
    """A further line: one pattern and size at one clock, or one way, alone or beside computation."""

    pattern: str
    size_bytes: int
    time_us: float
    busbw_gbs: float
    clock_requested_mhz: int | None = None
    time_low_us: float | None = None
    time_high_us: float | None = None
    watts_per_gpu: float | None = None
    joules_per_gpu: float | None = None
    energy_uncertainty_pct: float | None = None
    sm_clock_mhz: float | None = None
    iterations: int | None = None
    way: str | None = None
    beside: str | None = None
    added_us: float | None = None
    added_joules_per_gpu: float | None = None
    slowed_pct: float | None = None
    wrong: int | None = None
    valid: bool = True  # false: emulated, and this machine was too slow for it


def read_bench_lines(path: Path) -> tuple[BenchHeader | None, list[BenchPoint]]:
    """Header and valid points of a `--json-lines` file, less a last line cut off; (None, []) when there is none yet."""
    try:
        lines = read_bytes(path).split(b"\n")[:-1]
    except FileNotFoundError:
        return None, []
    header: BenchHeader | None = None
    points: list[BenchPoint] = []
    for line in lines:
        try:
            kind = decode_json(line, dict[str, object]).get("type")
            if kind == "header":
                header = decode_json(line, BenchHeader)
            elif kind == "point":
                point = decode_json(line, BenchPoint)
                if point.valid:
                    points.append(point)
        except msgspec.MsgspecError:  # noqa: PERF203 - an interruption's torn line costs that line alone
            continue
    return header, points


def clocks_to_profile(supported_mhz: list[int]) -> list[int]:
    """Clocks to sweep, highest first: those supported nearest to CLOCK_SHARES of the maximum."""
    top = max(supported_mhz)
    chosen = {min(supported_mhz, key=lambda clock: abs(clock - top * share)) for share in CLOCK_SHARES}
    return sorted(chosen, reverse=True)


def profile_points(points: Iterable[BenchPoint], provenance: str) -> list[Point]:
    """Points of a sweep; the clock is the one asked for, else the one found. Sorted by pattern, size, falling clock."""
    best_points = [
        Point(
            pattern=point.pattern,
            size_bytes=point.size_bytes,
            clock_mhz=point.clock_requested_mhz or round(point.sm_clock_mhz or 0),
            time_us=round(point.time_us, 3),
            busbw_gbs=round(point.busbw_gbs, 4),
            provenance=provenance,
            time_low_us=_rounded(point.time_low_us, 3),
            time_high_us=_rounded(point.time_high_us, 3),
            watts_per_gpu=_rounded(point.watts_per_gpu, 2),
            joules_per_gpu=_rounded(point.joules_per_gpu, 6),
            energy_uncertainty_pct=_rounded(point.energy_uncertainty_pct, 2),
            sm_clock_mhz=_rounded(point.sm_clock_mhz, 1),
            iterations=point.iterations,
        )
        for point in points
        if point.time_us > 0 and point.busbw_gbs > 0 and (point.clock_requested_mhz or point.sm_clock_mhz)
    ]
    return sorted(best_points, key=lambda point: (point.pattern, point.size_bytes, -point.clock_mhz))


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def overhead_samples(
    plain: Iterable[BenchPoint], managed: Iterable[BenchPoint], provenance: str
) -> list[OverheadSample]:
    """Plain and managed times of each pattern and size that both have; the least, since disturbances only add to it."""

    def times(points: Iterable[BenchPoint]) -> dict[tuple[str, int], list[float]]:
        samples: dict[tuple[str, int], list[float]] = {}
        for point in points:
            least_us = min(point.time_us, point.time_low_us or point.time_us)
            samples.setdefault((point.pattern, point.size_bytes), []).append(least_us)
        return samples

    before, after = times(plain), times(managed)
    return [
        OverheadSample(
            pattern=pattern,
            size_bytes=size,
            plain_us=round(min(before[pattern, size]), 3),
            managed_us=round(min(after[pattern, size]), 3),
            provenance=provenance,
        )
        for pattern, size in sorted(before.keys() & after.keys())
    ]


def empty_profile(name: str, header: BenchHeader, clocks_mhz: list[int], clocks_set: bool) -> PlatformProfile:
    """A profile with what the header says and nothing measured yet."""
    return PlatformProfile(
        name=name,
        gpu=header.gpu,
        gpus=header.ranks,
        emulated=header.emulated,
        clock_max_mhz=max(clocks_mhz),
        clock_min_mhz=min(clocks_mhz),
        clocks_set=clocks_set,
        clocks_reason="" if clocks_set else header.clock_control_reason or "no consent: add --set-clocks",
        versions=header.versions,
    )
