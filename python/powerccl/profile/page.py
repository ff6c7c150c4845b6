# SPDX-License-Identifier: Apache-2.0
"""A platform profile as a page: bandwidth and power over clock, one small chart a pattern, one line a size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from powerccl.patterns import PATTERNS, PUBLISHED_OVERHEAD_BYTES
from powerccl.platforms.policy_table import minimum_clocks
from powerccl.platforms.schema import PlatformProfile, Point
from powerccl.quantities import byte_size, hover, plural, seconds
from powerccl.reports.page import axis, layout, render, sequence


def profile_page(profile: PlatformProfile) -> str:
    """The page's HTML, self-contained."""
    figures: dict[str, Any] = {}
    measured = [pattern for pattern in PATTERNS if any(point.pattern == pattern for point in profile.points)]
    sizes = sorted({point.size_bytes for point in profile.points})
    groups = []
    for key, title, unit, value in (
        ("bandwidth", "Bus bandwidth against clock", "GB/s", lambda point: point.busbw_gbs),
        ("power", "Power against clock, mean per GPU", "W", lambda point: point.watts_per_gpu),
    ):
        charts = []
        for pattern in measured:
            figure = _curves(profile, pattern, sizes, unit, value)
            if figure["data"]:
                figures[f"{key}-{pattern}"] = figure
                charts.append({"id": f"{key}-{pattern}", "title": pattern.replace("_", "-")})
        groups.append({"title": title, "charts": charts})
    facts = [f"{plural(len(profile.points), 'point')} in {seconds(profile.seconds)}", profile.created_at]
    facts += [f"{key} {value}" for key, value in profile.versions.items()]
    return render(
        "profile.html",
        profile=profile,
        facts=" · ".join(fact for fact in facts if fact),
        figures=figures,
        groups=[group for group in groups if group["charts"]],
        sizes=[
            {"name": byte_size(size), "colour": colour}
            for size, colour in zip(sizes, sequence(len(sizes)), strict=True)
        ],
        clocks=_clock_rows(profile, sizes),
        overhead=[
            [
                point.pattern.replace("_", "-"),
                "never" if point.size_bytes is None else byte_size(point.size_bytes),
                byte_size(PUBLISHED_OVERHEAD_BYTES[point.pattern]),
            ]
            for point in profile.overhead
        ],
    )


def _curves(
    profile: PlatformProfile, pattern: str, sizes: list[int], unit: str, value: Callable[[Point], float | None]
) -> dict[str, Any]:
    data = []
    for size, colour in zip(sizes, sequence(len(sizes)), strict=True):
        points = [
            point
            for point in profile.points
            if point.pattern == pattern and point.size_bytes == size and value(point) is not None
        ]
        points.sort(key=lambda point: point.clock_mhz)
        if points:
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": byte_size(size),
                    "x": [point.clock_mhz for point in points],
                    "y": [value(point) for point in points],
                    "line": {"color": colour, "width": 2},
                    "marker": {"size": 5},
                    "hovertemplate": hover(unit),
                }
            )
    return {
        "data": data,
        "layout": layout(
            showlegend=False,
            margin={"l": 48, "r": 12, "t": 8, "b": 36},
            xaxis=axis("MHz", showgrid=False, nticks=6),
            yaxis=axis(unit, rangemode="tozero", nticks=5),
        ),
    }


def _clock_rows(profile: PlatformProfile, sizes: list[int]) -> list[dict[str, Any]]:
    if not profile.clocks_set:
        return []
    clocks = minimum_clocks(profile)
    return [
        {
            "pattern": pattern.replace("_", "-"),
            "cells": [
                {"clock": clocks[pattern].get(size), "low": clocks[pattern].get(size, 1 << 30) < profile.clock_max_mhz}
                for size in sizes
            ],
        }
        for pattern in PATTERNS
        if pattern in clocks
    ]
