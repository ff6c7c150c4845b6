# SPDX-License-Identifier: Apache-2.0
"""The charts of iterations in a report's page: their time in parts, and their energy.

One iteration that compiles or loads would flatten all others. The axis therefore ends above the regular ones, and each
longer bar is clipped there and marked with its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from powerccl.analysis.report_findings import IterationParts
from powerccl.quantities import hover, joules, plural, seconds
from powerccl.reports.page import axis, layout
from powerccl.reports.time_bars import COLOURS, WORDS, bar_parts, used

# Times the median: what is longer may be clipped. At half, ordinary variation would be clipped; at double, the regular
# iterations would have a sixth of the height.
CLIP_FACTOR = 3.0
# Of the bars. More of them are no exceptions: the axis then shows all. Half or double matter little.
MOST_CLIPPED = 0.1
MOST_MARKS = 8  # that fit beside each other
ROOM = 1.2  # of the tallest whole bar: the axis' end, with room for the marks


class Axis:
    """Where the vertical axis ends, in the unit of `values`.

    `top` None: the chart chooses. `clipped`: the indices of values beyond it.
    """

    def __init__(self, values: Sequence[float]) -> None:
        heights = np.asarray(values, dtype=float)
        beyond = np.flatnonzero(heights > CLIP_FACTOR * np.median(heights)) if len(heights) else np.empty(0, int)
        few = 0 < len(beyond) <= max(1, min(MOST_CLIPPED * len(heights), MOST_MARKS))
        self.clipped: list[int] = [int(at) for at in beyond] if few and len(heights) > 2 else []
        self.top = float(np.delete(heights, self.clipped).max()) * ROOM if self.clipped else None


def _marks(limits: Axis, rows: Sequence[IterationParts], texts: Sequence[str]) -> list[dict[str, Any]]:
    """A mark on each bar that is clipped, which grows away from the chart's nearer edge."""
    last = rows[-1].first + rows[-1].count
    return [
        {
            "x": _middle(rows[at]),
            "y": limits.top,
            "text": f"↑ {texts[at]}",
            "showarrow": False,
            "xanchor": "left" if _middle(rows[at]) < last / 2 else "right",
            "yanchor": "top",
            "bgcolor": "var:card",
            "font": {"size": 11},
        }
        for at in limits.clipped
    ]


def _middle(row: IterationParts) -> float:
    return row.first + row.count / 2 - 0.5


def _vertical(title: str, limits: Axis, **more: Any) -> dict[str, Any]:
    return axis(title, **(more | {"range": [0, limits.top]} if limits.top else more))


def clipped_text(rows: Sequence[IterationParts]) -> str:
    """How many iterations are longer than the chart's axis; empty where none is."""
    clipped = _time_axis(rows).clipped
    if not clipped:
        return ""
    verb = "reaches" if len(clipped) == 1 else "reach"
    return f"{plural(len(clipped), 'iteration')} {verb} beyond the axis: the bar is clipped and marked with its time"


def _time_axis(rows: Sequence[IterationParts]) -> Axis:
    """In ms."""
    return Axis([1e3 * sum(bar_parts(row).values()) for row in rows])


def times(rows: Sequence[IterationParts]) -> dict[str, Any]:
    """The parts of each iteration's time, stacked; ms."""
    limits = _time_axis(rows)
    data = [
        {
            "type": "bar",
            "name": WORDS[name],
            "x": [_middle(row) for row in rows],
            "width": [row.count for row in rows],
            "y": [round(1e3 * bar_parts(row).get(name, 0.0), 4) for row in rows],
            "marker": {"color": COLOURS[name], "line": {"width": 0}},
            "hovertemplate": hover("ms"),
        }
        for name in used(rows)
    ]
    return {
        "data": data,
        "layout": layout(
            barmode="stack",
            bargap=0,
            showlegend=False,
            margin={"l": 56, "r": 16, "t": 8, "b": 40},
            annotations=_marks(limits, rows, [seconds(sum(bar_parts(row).values())) for row in rows]),
            xaxis=axis("iteration", showgrid=False, fixedrange=False),
            yaxis=_vertical("ms", limits, rangemode="tozero"),
        ),
    }


def energies(rows: Sequence[IterationParts]) -> dict[str, Any] | None:
    """The energy of each iteration, all GPUs of the host; None where none of them is known."""
    known = [row for row in rows if row.joules is not None]
    if not known:
        return None
    values = [row.joules or 0.0 for row in known]
    limits = Axis(values)
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "x": [_middle(row) for row in known],
                "y": [round(value, 4) for value in values],
                "line": {"color": "var:elsewhere", "width": 1.5},
                "hovertemplate": hover("J") + "<extra></extra>",
            }
        ],
        "layout": layout(
            showlegend=False,
            margin={"l": 56, "r": 16, "t": 8, "b": 40},
            annotations=_marks(limits, known, [joules(value) for value in values]),
            xaxis=axis("iteration", showgrid=False, fixedrange=False),
            yaxis=_vertical("J, all GPUs", limits, nticks=4),
        ),
    }
