# SPDX-License-Identifier: Apache-2.0
"""The picture of boards against published points: power by SM clock, a panel for each board, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#1a5fb4", "#c64600", "#26802c", "#8b3fa8")  # apart for most colour-blind readers, on white
COLUMNS, WIDTH, HEIGHT = 5, 220, 190  # panels in a row; pixels of a panel
LEFT, RIGHT, TOP, BELOW = 38, 8, 24, 62  # pixels around the axes of a panel
MOST = len(COLOURS)  # loads in a panel


@dataclass(frozen=True)
class Load:
    """Points of one load, as (MHz, W), and the model's line through its clocks."""

    name: str
    points: Sequence[tuple[float, float]]
    line: Sequence[tuple[float, float]]


def draw(panels: dict[str, list[Load]]) -> str:
    """All panels; each has axes of its own, from zero."""
    rows = -(-len(panels) // COLUMNS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * WIDTH} {rows * HEIGHT}" '
        'font-family="sans-serif" font-size="9" fill="#333">',
        "<title>Power by SM clock: published points, and each board's model as lines</title>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for index, (board, loads) in enumerate(panels.items()):
        left, top = index % COLUMNS * WIDTH, index // COLUMNS * HEIGHT
        parts += [f'<g transform="translate({left},{top})">', *_panel(board, loads), "</g>"]
    return "\n".join([*parts, "</svg>\n"])


def _panel(board: str, loads: list[Load]) -> list[str]:
    most_mhz = max(mhz for load in loads for mhz, _ in load.points) * 1.05
    most_w = max(watts for load in loads for _, watts in [*load.points, *load.line]) * 1.05
    right, bottom = WIDTH - RIGHT, HEIGHT - BELOW

    def x(mhz: float) -> float:
        return round(LEFT + mhz / most_mhz * (right - LEFT), 1)

    def y(watts: float) -> float:
        return round(bottom - watts / most_w * (bottom - TOP), 1)

    parts = [f'<text x="{LEFT}" y="{TOP - 9}" font-size="11" font-weight="bold">{escape(board)}</text>']
    for watts in _ticks(most_w):
        parts.append(f'<path d="M{LEFT} {y(watts)}H{right}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 4}" y="{y(watts) + 3}" text-anchor="end">{watts:g} W</text>')
    for mhz in _ticks(most_mhz):
        unit = " MHz" if mhz == 0 else ""
        parts.append(f'<text x="{x(mhz)}" y="{bottom + 11}" text-anchor="middle">{mhz:g}{unit}</text>')
    for place, (load, colour) in enumerate(zip(loads, COLOURS, strict=False)):
        line = " ".join(f"{x(mhz)},{y(watts)}" for mhz, watts in load.line)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.2"/>')
        parts += [f'<circle cx="{x(mhz)}" cy="{y(watts)}" r="1.8" fill="{colour}"/>' for mhz, watts in load.points]
        parts.append(f'<text x="{LEFT}" y="{bottom + 23 + 10 * place}" fill="{colour}">{escape(load.name)}</text>')
    return parts


def _ticks(most: float) -> list[float]:
    """Three to five round numbers from zero."""
    step = next(step for step in (50, 100, 200, 250, 500, 1000) if most / step < 5)
    return [float(step * each) for each in range(int(most / step) + 1)]
