# SPDX-License-Identifier: Apache-2.0
"""Area charts in the terminal, in eighths of a block, with communication marked below and by colour."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from rich.text import Text

from powerccl.demo.series import GpuSeries
from powerccl.quantities import exact, seconds
from powerccl.reports.terminal import COMMUNICATION, ELSEWHERE

EIGHTHS = " ▁▂▃▄▅▆▇█"
LABEL = 9


def _columns(series: GpuSeries, values: npt.NDArray[np.float64], width: int) -> npt.NDArray[np.float64]:
    """The value in the middle of each column: the sample before it holds."""
    middles = (np.arange(width) + 0.5) * series.length_ms / width
    index = np.clip(np.searchsorted(series.time_ms, middles, side="right") - 1, 0, len(values) - 1)
    return values[index]


def _communicating(series: GpuSeries, width: int) -> list[bool]:
    middles = (np.arange(width) + 0.5) * series.length_ms / width
    spans = series.communication_ms
    return [bool(np.any((spans[:, 0] <= middle) & (middle < spans[:, 1]))) for middle in middles]


def area(
    series: GpuSeries, values: npt.NDArray[np.float64], top: float, unit: str, width: int, rows: int
) -> list[Text]:
    """One chart from 0 to `top`: `rows` lines of `width` columns behind an axis label."""
    busy = _communicating(series, width)
    filled = np.nan_to_num(_columns(series, values, width)) / top * rows * 8
    lines = []
    for row in range(rows):
        label = exact(top, unit) if row == 0 else "0" if row == rows - 1 else ""
        line = Text.assemble((f"{label:>{LABEL}} ", "dim"))
        for column in range(width):
            level = int(np.clip(round(filled[column] - (rows - 1 - row) * 8), 0, 8))
            line.append(EIGHTHS[level], style=COMMUNICATION if busy[column] else ELSEWHERE)
        lines.append(line)
    return lines


def time_axis(series: GpuSeries, width: int) -> list[Text]:
    """The strip that marks communication, and the times of the edges."""
    busy = _communicating(series, width)
    strip = Text(" " * (LABEL + 1))
    for mark in busy:
        strip.append("━" if mark else "╌", style=COMMUNICATION if mark else ELSEWHERE)
    right = seconds(series.length_ms / 1e3)
    note = "━ communication  ╌ computation"
    middle = max(1, width - 1 - len(right) - len(note))
    left = middle // 2
    return [strip, Text(" " * (LABEL + 1) + "0" + " " * left + note + " " * (middle - left) + right, style="dim")]


def power_and_clock(series: GpuSeries, power_top: float, clock_top: float, width: int, rows: int = 5) -> list[Text]:
    """Clock above power above the time axis, `width` columns in all."""
    inner = max(20, width - LABEL - 1)
    return [
        *area(series, series.clock_mhz, clock_top, "MHz", inner, rows),
        *area(series, series.power_w, power_top, "W", inner, rows),
        *time_axis(series, inner),
    ]
