# SPDX-License-Identifier: Apache-2.0
"""`powerccl compare --html`: curves of all sides laid over each other, size on a logarithmic axis, and the tables."""

from __future__ import annotations

from typing import Any

from powerccl.compare.member import BANDWIDTH, ENERGY, POWER, RUN, TIME
from powerccl.compare.report import Grid, against, grids, what_sides_are
from powerccl.compare.side_by_side import SMALL_BYTES, Row, SideBySide
from powerccl.compare.significance import Cell
from powerccl.quantities import byte_size
from powerccl.reports.sections import Chart, Section, bars, figure, line, page

# Of base.html, distinct in light and dark. From the seventh side on, colours repeat.
COLOURS = tuple(f"var:{name}" for name in ("communication", "elsewhere", "badge", "waiting", "beside", "stalled"))
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")
MOST_TICKS = 5
WIDE_RANGE = 50  # beyond this ratio small values would touch the axis
CURVES = "Bars in the curves are 95 % intervals, or the range of the repetitions in one run."
# By name: title, unit, factor to it, what is shown and up to which size; 0: all.
_CHARTS: dict[str, tuple[str, str, float, tuple[str, ...], int]] = {
    "time": ("Completion time", "µs", 1e6, (TIME,), 0),
    "bandwidth": ("Bus bandwidth", "GB/s", 1e-9, (BANDWIDTH, "bandwidth"), 0),
    "latency": ("Latency of small messages", "µs", 1e6, (TIME,), SMALL_BYTES),
    "power": ("Power, all GPUs", "W", 1.0, (POWER,), 0),
    "energy": ("Energy of an operation", "J", 1.0, (ENERGY,), 0),
}


def compare_page(comparison: SideBySide) -> str:
    """The page's HTML, self-contained."""
    key = [(text, COLOURS[index % len(COLOURS)]) for index, text in enumerate(what_sides_are(comparison))]
    sections = [Section(against(comparison), 1, comparison.modelled, key=key)]
    sections += [Section("Energy gate", lines=[comparison.gate.sentence])] if comparison.gate else []
    for title, texts in (("Before you compare", comparison.caveats), ("What differs between them", comparison.differs)):
        sections += [Section(title, lines=texts)] if texts else []
    tables = grids(comparison)
    first = "In short" if comparison.headline else "Figures"
    sections += [_table(grid, first) for grid in tables[:1] if not grid.title]
    whole = [row for row in comparison.rows if not row.pattern]
    if comparison.kind == RUN and whole:
        charts = [Chart("whole", "Against the baseline", _bars(comparison, whole))]
        sections.append(Section("Change of the whole run", charts=charts, height_px=340))
    places = dict.fromkeys((row.pattern, row.variant) for row in comparison.rows if row.pattern)
    for number, (pattern, variant) in enumerate(places):
        rows = [row for row in comparison.rows if (row.pattern, row.variant) == (pattern, variant)]
        title = pattern.replace("_", "-") + (f", {variant}" if variant else "")
        if charts := _curves(comparison, number, rows):
            sections.append(Section(title, charts=charts, height_px=270))
    sections += [_table(grid, f"{grid.title}, every size") for grid in tables if grid.title]
    sections.append(Section("", notes=[*comparison.notes, CURVES]))
    model = f"{comparison.modelled.capitalize()}: all figures come from a model, none from hardware."
    return page(against(comparison), sections, model if comparison.modelled else "")


def _table(grid: Grid, title: str) -> Section:
    return Section(title, table=grid.table())


def _curves(comparison: SideBySide, number: int, rows: list[Row]) -> list[Chart]:
    charts = []
    for name, (title, unit, factor, whats, most_bytes) in _CHARTS.items():
        chosen = [row for row in rows if row.what in whats and (row.size_bytes or 0) <= (most_bytes or 1 << 62)]
        if len({row.size_bytes for row in chosen}) > 1:
            charts.append(Chart(f"{name}-{number}", title, _curve(comparison, chosen, unit, factor)))
    return charts


def _curve(comparison: SideBySide, rows: list[Row], unit: str, factor: float) -> dict[str, Any]:
    """One line a side, with its intervals as bars."""
    rows = sorted(rows, key=lambda row: row.size_bytes or 0)
    data = []
    for index, side in enumerate(comparison.sides):
        # A logarithmic axis has no zero: a barrier is drawn at half a byte.
        cells = [
            (max(row.size_bytes or 0, 0.5), row.cells[index]) for row in rows if row.cells[index].value is not None
        ]
        points = [(size, (each.value or 0.0) * factor) for size, each in cells]
        colour, symbol = COLOURS[index % len(COLOURS)], SYMBOLS[index % len(SYMBOLS)]
        more = {"mode": "lines+markers", "line": {"color": colour}, "marker": {"size": 6, "symbol": symbol}}
        ends = _error_bars([each for _, each in cells], factor, colour)
        data.append(line(side.name, points, unit, **more, error_y=ends))
    sizes = sorted({row.size_bytes or 0 for row in rows})
    shown = sizes[:: max(1, -(-len(sizes) // MOST_TICKS))]
    ticks = {"tickvals": [max(size, 0.5) for size in shown], "ticktext": [byte_size(size) for size in shown]}
    values = [value for each in data for value in each["y"] if value > 0]
    logarithmic = bool(values) and max(values) > WIDE_RANGE * min(values)
    scale = {"type": "log", "dtick": 1} if logarithmic else {"rangemode": "tozero", "nticks": 6}
    horizontal = {"type": "log", "tickmode": "array", **ticks, "tickangle": 0, "showgrid": False}
    return figure(data, horizontal, {"title": unit, **scale, "fixedrange": False}, showlegend=False)


def _error_bars(cells: list[Cell], factor: float, colour: str) -> dict[str, Any]:
    up = [max(((each.high if each.high is not None else each.value) or 0) - (each.value or 0), 0) for each in cells]
    down = [max((each.value or 0) - ((each.low if each.low is not None else each.value) or 0), 0) for each in cells]
    ends = {"array": [factor * each for each in up], "arrayminus": [factor * each for each in down]}
    return {"type": "data", "symmetric": False, **ends, "thickness": 1, "width": 3, "color": colour}


def _bars(comparison: SideBySide, rows: list[Row]) -> dict[str, Any]:
    """Totals of runs, each against the baseline's."""
    chosen = [row for row in rows if row.cells[0].value and row.unit in ("s", "J", "W")]
    data = []
    for index, side in enumerate(comparison.sides[1:], 1):
        judged = [(row.what, row.changes[index - 1]) for row in reversed(chosen)]
        known = [(name, Cell(value=of.pct, low=of.low_pct, high=of.high_pct)) for name, of in judged]
        known = [(name, of) for name, of in known if of.value is not None]
        ends = _error_bars([of for _, of in known], 1.0, "var:quiet")
        values, names = [of.value for _, of in known], [name for name, _ in known]
        colour = COLOURS[index % len(COLOURS)]
        data.append(bars(side.name, values, names, "%", colour, orientation="h", error_x=ends))
    horizontal = {"title": f"change against {comparison.sides[0].name}, %", "zeroline": True}
    more = {"showlegend": False, "hovermode": "closest", "margin": {"l": 190, "r": 14, "t": 8, "b": 40}}
    return figure(data, horizontal, {"showgrid": False}, **more)
