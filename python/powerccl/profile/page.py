# SPDX-License-Identifier: Apache-2.0
"""A platform profile as a page: bandwidth and power over clock, one small chart a pattern, one line a size."""

from __future__ import annotations

from collections.abc import Callable

from powerccl.patterns import PATTERNS
from powerccl.platforms.schema import PlatformProfile, Point
from powerccl.profile.report import facts, minimum_clocks_table, overhead_table, title, unset
from powerccl.quantities import byte_size
from powerccl.reports.page import sentences, sequence
from powerccl.reports.sections import Chart, Section, figure, line, page, titled

EVERY_SIZE = 1000  # columns of the table: a page scrolls where a terminal leaves out


def profile_page(profile: PlatformProfile) -> str:
    """The page's HTML, self-contained."""
    said = [] if profile.clocks_set else sentences(unset(profile))
    measured = " · ".join(fact for fact in (*facts(profile), profile.created_at) if fact)
    sections = [Section(title(profile), 1, "yes" if profile.emulated else "", [measured, *said])]
    if profile.clocks_set:
        scanned = (
            f"The lowest clock that keeps the bandwidth within {profile.tolerance_pct:g} % of its value at "
            f"{profile.clock_max_mhz} MHz, scanned from there down."
        )
        sections.append(titled(minimum_clocks_table(profile, EVERY_SIZE), notes=[scanned]))
    sections += _curves(profile, "bandwidth", "Bus bandwidth against clock", "GB/s", lambda point: point.busbw_gbs)
    sections += _curves(profile, "power", "Power against clock, mean per GPU", "W", lambda point: point.watts_per_gpu)
    if profile.overhead:
        sections.append(titled(overhead_table(profile), lines=["Where management starts to pay."]))
    calibrated = "Measured on an emulated server, whose model is calibrated on published figures."
    footer = calibrated if profile.emulated else ""
    return page(f"{profile.name}: platform profile", [*sections, Section("", notes=profile.notes)], footer)


def _curves(
    profile: PlatformProfile, name: str, title: str, unit: str, value: Callable[[Point], float | None]
) -> list[Section]:
    """A section of one chart a pattern; none where nothing was measured."""
    sizes = sorted({point.size_bytes for point in profile.points})
    colours = dict(zip(sizes, sequence(len(sizes)), strict=True))
    charts = []
    for pattern in PATTERNS:
        known: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes}
        for point in profile.points:
            if point.pattern == pattern and (measured := value(point)) is not None:
                known[point.size_bytes].append((point.clock_mhz, measured))
        data = [
            line(byte_size(size), sorted(points), unit, mode="lines+markers", line={"color": colours[size]})
            for size, points in known.items()
            if points
        ]
        if data:
            axes = {"title": "MHz", "showgrid": False, "nticks": 6}, {"title": unit, "rangemode": "tozero", "nticks": 5}
            charts.append(Chart(f"{name}-{pattern}", pattern.replace("_", "-"), figure(data, *axes, showlegend=False)))
    key = [(byte_size(size), colour) for size, colour in colours.items()]
    return [Section(title, key=key, charts=charts, height_px=230, least_px=320)] if charts else []
