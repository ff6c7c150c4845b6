# SPDX-License-Identifier: Apache-2.0
"""A page of sections with text, charts and tables of the terminal: of compare, demo, profile and study scaling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich.text import Text

from powerccl.quantities import NOT_KNOWN, hover
from powerccl.reports.page import axis, layout, render
from powerccl.reports.table import DASH, Table
from powerccl.traces.run_info import model_label

CLASSES = {
    "dim": "quiet",
    "bold": "strong",
    "bright_cyan": "low",
    "green": "good",
    "red": "bad",
}  # of the terminal's styles


class Chart(NamedTuple):
    """A chart of plotly; `words` are beside its title."""

    id: str
    title: str
    figure: dict[str, Any]
    words: str = ""


@dataclass
class Section:
    """A part of a page, shown in the order of its members. `key`: names and colours, as figures write colours.

    `height_px` is of a chart, and `least_px` its least width. `modelled_by` is as runs have it, empty for hardware.
    """

    title: str
    level: int = 2
    modelled_by: str = ""
    lines: Sequence[str] = ()
    key: Sequence[tuple[str, str]] = ()
    charts: Sequence[Chart] = ()
    height_px: int = 320
    least_px: int = 460
    table: Table | None = None
    notes: Sequence[str] = ()

    def rows(self) -> Iterable[tuple[str, list[tuple[str, str, str]]]]:
        """Each row's class, and head, text and class of its cells; the first row is of heads."""
        columns = self.table.columns if self.table else []
        heads = [str(column.header) for column in columns]
        sides = ["left" if index and column.justify == "left" else "" for index, column in enumerate(columns)]
        yield "head", list(zip(heads, heads, sides, strict=True))
        for index, row in enumerate(self.table.rows if self.table else []):
            cells = [_cell(list(column.cells)[index], str(column.style)) for column in columns]
            shown = [
                (head, text, f"{kind} {side}".strip())
                for head, (text, kind), side in zip(heads, cells, sides, strict=True)
            ]
            yield CLASSES.get(str(row.style), ""), shown


def _cell(cell: Any, style: str) -> tuple[str, str]:
    """Text and class; a page has room for what the terminal shows as a dash."""
    if isinstance(cell, Text):
        return cell.plain, CLASSES.get(str(cell.style), "")
    return NOT_KNOWN if cell == DASH else str(cell), CLASSES.get(style, "")


def titled(table: Table, **more: Any) -> Section:
    """A section of a table, whose title is the head of the first column."""
    title, table.columns[0].header = str(table.columns[0].header), ""
    return Section(title[:1].upper() + title[1:], table=table, **more)


def page(title: str, sections: Sequence[Section], footer: str) -> str:
    """The page's HTML, self-contained."""
    figures = {chart.id: chart.figure for section in sections for chart in section.charts}
    words = {"title": title, "footer": footer, "css": _css, "label": model_label}
    return render("sections.html", sections=sections, figures=figures, **words)


def _css(colour: str) -> str:
    """A figure's colour, such as `var:communication/0.2`, as CSS has it."""
    name, _, share = colour.removeprefix("var:").partition("/")
    return f"color-mix(in srgb, var(--{name}) {round(100 * float(share or 1))}%, transparent)"


def figure(data: list[dict[str, Any]], x: dict[str, Any], y: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A figure of these lines or bars and axes; its legend is above it."""
    margin = {"l": 56, "r": 12, "t": 28 if more.get("showlegend", True) else 8, "b": 44}
    return {"data": data, "layout": layout(**{"margin": margin, "xaxis": axis(**x), "yaxis": axis(**y), **more})}


def line(name: str, points: Iterable[tuple[Any, Any]], unit: str, **more: Any) -> dict[str, Any]:
    """A line through points, two pixels wide; `more` is plotly's."""
    pairs = list(points)
    more["line"] = {"width": 2, **more.get("line", {})}
    place = {"x": [x for x, _ in pairs], "y": [y for _, y in pairs], "hovertemplate": hover(unit)}
    return {"type": "scatter", "mode": "lines", "name": name, **place, **more}


def bars(name: str, x: Sequence[Any], y: Sequence[Any], unit: str, colour: str, **more: Any) -> dict[str, Any]:
    """Bars over the categories `x`."""
    style = {"marker": {"color": colour}, "hovertemplate": hover(unit, "y" if "orientation" not in more else "x")}
    return {"type": "bar", "name": name, "x": x, "y": y, **style, **more}
