# SPDX-License-Identifier: Apache-2.0
"""`powerccl compare --html`: curves of all sides laid over each other, size on a logarithmic axis, and the tables."""

from __future__ import annotations

from typing import Any

from powerccl.compare.member import BANDWIDTH, ENERGY, POWER, RUN, TIME
from powerccl.compare.report import BAD, GOOD, QUIET, grids
from powerccl.compare.side_by_side import SMALL_BYTES, Row, SideBySide
from powerccl.quantities import byte_size, hover
from powerccl.reports.page import axis, layout, render

# Of base.html, told apart in light and dark; from the fourth side on a colour comes again with another dash.
COLOURS = ("var:communication", "var:elsewhere", "var:badge")
DASHES = ("solid", "dash", "dot", "dashdot")
MOST_TICKS = 5
WIDE_RANGE = 50  # from here on small values would lie on the axis
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")


def compare_page(found: SideBySide) -> str:
    """The page's HTML, self-contained."""
    figures: dict[str, Any] = {}
    groups = []
    for number, (pattern, variant) in enumerate(
        dict.fromkeys((row.pattern, row.variant) for row in found.rows if row.pattern)
    ):
        rows = [row for row in found.rows if (row.pattern, row.variant) == (pattern, variant)]
        charts = []
        for key, (title, unit, factor, whats, wanted) in _CHARTS.items():
            chosen = [row for row in rows if row.what in whats and wanted(row)]
            if len({row.size_bytes for row in chosen}) < 2:
                continue
            name = f"{key}-{number}"
            figures[name] = _figure(found, chosen, unit, factor)
            charts.append({"id": name, "title": title})
        title = pattern.replace("_", "-") + (f", {variant}" if variant else "")
        if charts:
            groups.append({"title": title, "charts": charts})
    whole = [row for row in found.rows if not row.pattern]
    if found.kind == RUN and whole:
        figures["whole"] = _bars(found, whole)
    return render(
        "compare.html",
        found=found,
        modelled=found.modelled,
        figures=figures,
        groups=groups,
        whole="whole" in figures,
        sides=[
            {"side": side, "colour": f"var(--{COLOURS[index % len(COLOURS)][4:]})", "dash": DASHES[_lap(index)]}
            for index, side in enumerate(found.sides)
        ],
        grids=[
            {
                "title": grid.title,
                "columns": grid.columns,
                "rows": [[_cell(*each) for each in row] for row in grid.rows],
            }
            for grid in grids(found)
        ],
    )


def _lap(index: int) -> int:
    return index // len(COLOURS) % len(DASHES)


def _cell(text: str, style: str) -> dict[str, str]:
    return {"text": text, "kind": {GOOD: "good", BAD: "bad", QUIET: "quiet"}.get(style, "")}


def _all(_: Row) -> bool:
    return True


def _small(row: Row) -> bool:
    return row.size_bytes is not None and row.size_bytes <= SMALL_BYTES


_CHARTS: dict[str, tuple[str, str, float, tuple[str, ...], Any]] = {
    "time": ("Completion time", "µs", 1e6, (TIME,), _all),
    "bandwidth": ("Bus bandwidth", "GB/s", 1e-9, (BANDWIDTH, "bandwidth"), _all),
    "latency": ("Latency of small messages", "µs", 1e6, (TIME,), _small),
    "power": ("Power, all GPUs", "W", 1.0, (POWER,), _all),
    "energy": ("Energy of an operation", "J", 1.0, (ENERGY,), _all),
}


def _figure(found: SideBySide, rows: list[Row], unit: str, factor: float) -> dict[str, Any]:
    """One line a side, with its intervals as bars."""
    rows = sorted(rows, key=lambda row: row.size_bytes or 0)
    data: list[dict[str, Any]] = []
    for index, side in enumerate(found.sides):
        points = [(row.size_bytes or 0, row.cells[index]) for row in rows if row.cells[index].value is not None]
        values = [(each.value or 0.0) * factor for _, each in points]
        up, down = [], []
        for value, (_, each) in zip(values, points, strict=True):
            up.append(max((each.high or 0.0) * factor - value, 0.0) if each.high is not None else 0.0)
            down.append(max(value - (each.low or 0.0) * factor, 0.0) if each.low is not None else 0.0)
        colour = COLOURS[index % len(COLOURS)]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": side.name,
                # An exact zero has no place on a logarithmic axis: a barrier stands at half a byte.
                "x": [max(size, 0.5) for size, _ in points],
                "y": values,
                "line": {"color": colour, "width": 2, "dash": DASHES[_lap(index)]},
                "marker": {"size": 6, "symbol": SYMBOLS[index % len(SYMBOLS)]},
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": up,
                    "arrayminus": down,
                    "thickness": 1,
                    "width": 3,
                    "color": colour,
                },
                "hovertemplate": hover(unit),
            }
        )
    sizes = sorted({row.size_bytes or 0 for row in rows})
    shown = sizes[:: max(1, -(-len(sizes) // MOST_TICKS))]
    values = [value for line in data for value in line["y"] if value > 0]
    logarithmic = bool(values) and max(values) > WIDE_RANGE * min(values)
    ticks = {
        "tickmode": "array",
        "tickvals": [max(size, 0.5) for size in shown],
        "ticktext": [byte_size(size) for size in shown],
        "tickangle": 0,
    }
    vertical = axis(unit, type="log", dtick=1) if logarithmic else axis(unit, rangemode="tozero", nticks=6)
    return {
        "data": data,
        "layout": layout(
            showlegend=False,
            margin={"l": 60, "r": 14, "t": 8, "b": 40},
            xaxis=axis("", type="log", **ticks, showgrid=False),
            yaxis={**vertical, "fixedrange": False},
        ),
    }


def _bars(found: SideBySide, rows: list[Row]) -> dict[str, Any]:
    """Totals of runs, each against the baseline's."""
    chosen = [row for row in rows if row.cells[0].value and row.unit in ("s", "J", "W")]
    data = []
    for index, side in enumerate(found.sides[1:], 1):
        names, values, up, down = [], [], [], []
        for row in reversed(chosen):
            judged = row.changes[index - 1]
            if judged.pct is None:
                continue
            names.append(row.what)
            values.append(judged.pct)
            up.append(0.0 if judged.high_pct is None else max(judged.high_pct - judged.pct, 0.0))
            down.append(0.0 if judged.low_pct is None else max(judged.pct - judged.low_pct, 0.0))
        colour = COLOURS[index % len(COLOURS)]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": side.name,
                "y": names,
                "x": values,
                "marker": {"color": colour},
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": up,
                    "arrayminus": down,
                    "thickness": 1,
                    "width": 3,
                    "color": "var:quiet",
                },
                "hovertemplate": "%{x:+.2f} %",
            }
        )
    return {
        "data": data,
        "layout": layout(
            showlegend=False,
            hovermode="closest",
            margin={"l": 190, "r": 14, "t": 8, "b": 40},
            xaxis=axis(f"change against {found.sides[0].name}, %", zeroline=True),
            yaxis=axis("", showgrid=False),
        ),
    }
