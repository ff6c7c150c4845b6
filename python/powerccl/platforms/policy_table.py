# SPDX-License-Identifier: Apache-2.0
"""From a profile to what the runtime reads (docs/reference/policy-table.md), as the PCCL publication does it.

The minimum clock of a pattern and size is found by scanning the profiled clocks from the top down. The scan goes on for
as long as the bandwidth equals that at the maximum clock; entries equal to the maximum are not stored. Between two
profiled sizes the higher of their clocks holds. Above the largest its own clock holds, since the curves converge there.
"""

from __future__ import annotations

from collections import defaultdict

from powerccl.errors import PowercclError
from powerccl.patterns import PATTERNS, PUBLISHED_OVERHEAD_BYTES
from powerccl.platforms.schema import OverheadPoint, OverheadSample, PlatformProfile, Point
from powerccl.quantities import plural

MAX_LINES = 256  # of a policy table
VERSION_LINE = "powerccl-policy-table 1"


def minimum_clocks(profile: PlatformProfile) -> dict[str, dict[int, int]]:
    """Minimum clock (MHz) by pattern and size (bytes); the maximum clock where no lower one keeps the bandwidth."""
    by_size: dict[tuple[str, int], list[Point]] = defaultdict(list)
    for point in profile.points:
        by_size[point.pattern, point.size_bytes].append(point)
    clocks: dict[str, dict[int, int]] = {}
    for (pattern, size), points in sorted(by_size.items()):
        clocks.setdefault(pattern, {})[size] = _scan(points, profile.tolerance_pct / 100)
    return clocks


def _scan(points: list[Point], tolerance: float) -> int:
    """Lowest clock, from the top down, that keeps the top's bandwidth; one bad point between good ones is noise.

    Compared are the least times measured: what disturbs a measurement only ever adds to it.
    """
    points = sorted(points, key=lambda point: -point.clock_mhz)
    longest_us = _least_us(points[0]) / (1 - tolerance)
    lowest = points[0].clock_mhz
    missed = 0
    for point in points[1:]:
        if _least_us(point) <= longest_us:
            lowest, missed = point.clock_mhz, 0
        else:
            missed += 1
            if missed == 2:
                break
    return lowest


def _least_us(point: Point) -> float:
    return min(point.time_us, point.time_low_us or point.time_us)


def overhead_points(samples: list[OverheadSample], tolerance: float = 0.02) -> list[OverheadPoint]:
    """Smallest size per pattern from which on management costs less than `tolerance` of the bandwidth."""
    by_pattern: dict[str, list[OverheadSample]] = defaultdict(list)
    for sample in samples:
        by_pattern[sample.pattern].append(sample)
    points = []
    for pattern in (name for name in PATTERNS if name in by_pattern):
        smallest: int | None = None
        ordered = sorted(by_pattern[pattern], key=lambda sample: -sample.size_bytes)
        for sample in ordered:
            if sample.managed_us * (1 - tolerance) > sample.plain_us:
                break
            smallest = sample.size_bytes
        points.append(OverheadPoint(pattern=pattern, size_bytes=smallest, provenance=ordered[0].provenance))
    return points


def policy_table(profile: PlatformProfile, overhead: str = "measured") -> str:
    """The table's text. `overhead`: `measured` takes the profile's overhead points, `published` PCCL's.

    Raises:
        PowercclError: the profile was made where clocks could not be set, so no clock in it is known to be enough.
    """
    if not profile.clocks_set:
        raise PowercclError(
            f"platform profile '{profile.name}' has no minimum clocks, as none could be set ({profile.clocks_reason})",
            "profile again as root (`sudo powerccl profile`), or run with --policy observe",
        )
    lines = [
        f"platform {_word(profile.name)}",
        f"gpu {profile.gpu}",
        f"gpus {profile.gpus}",
        f"clock_max_mhz {profile.clock_max_mhz}",
    ]
    clocks = minimum_clocks(profile)
    points = _overhead(profile, overhead, list(clocks))
    for pattern in (name for name in PATTERNS if name in clocks):
        size = points.get(pattern)
        lines.append(f"overhead_bytes {pattern} {'never' if size is None else size}")
    for pattern in (name for name in PATTERNS if name in clocks):
        lines += [
            f"min_clock_mhz {pattern} {start} {'inf' if stop is None else stop} {clock}"
            for start, stop, clock in _ranges(clocks[pattern], profile.clock_max_mhz)
        ]
    return _finish(lines)


def events_only_table(profile: PlatformProfile, patterns: list[str]) -> str:
    """A table that manages everything at the maximum clock, to find what the events cost.

    The runtime manages nothing at `clock_max_mhz`, so the table puts that 1 MHz above the GPU's.
    """
    clock = profile.clock_max_mhz
    lines = [f"platform {_word(profile.name)}", f"gpu {profile.gpu}", f"gpus {profile.gpus}"]
    lines.append(f"clock_max_mhz {clock + 1}")
    lines += [f"overhead_bytes {pattern} 0" for pattern in patterns]
    lines += [f"min_clock_mhz {pattern} 0 inf {clock}" for pattern in patterns]
    return _finish(lines)


def _finish(lines: list[str]) -> str:
    if len(lines) + 2 > MAX_LINES:
        raise PowercclError(
            f"the policy table would have {plural(len(lines) + 2, 'line')}; at most {MAX_LINES} are allowed",
            "profile fewer sizes: `powerccl profile --sizes 1M,8M,64M`",
        )
    return "\n".join([VERSION_LINE, *lines, f"end {len(lines)}"]) + "\n"


def _word(name: str) -> str:
    return "-".join(name.split()) or "unnamed"


def _overhead(profile: PlatformProfile, which: str, patterns: list[str]) -> dict[str, int | None]:
    if which == "published":
        return {pattern: PUBLISHED_OVERHEAD_BYTES[pattern] for pattern in patterns}
    return {point.pattern: point.size_bytes for point in profile.overhead}


def _ranges(clocks: dict[int, int], clock_max_mhz: int) -> list[tuple[int, int | None, int]]:
    """(from, to, MHz) for from <= bytes < to; to None: without end. Ranges at the maximum are left out."""
    sizes = sorted(clocks)
    ranges: list[tuple[int, int | None, int]] = []
    for index, size in enumerate(sizes):
        above = sizes[index + 1] if index + 1 < len(sizes) else None
        clock = max(clocks[size], clocks[above] if above is not None else 0)
        if clock >= clock_max_mhz:
            continue
        if ranges and ranges[-1][1] == size and ranges[-1][2] == clock:
            ranges[-1] = (ranges[-1][0], above, clock)
        else:
            ranges.append((size, above, clock))
    return ranges
