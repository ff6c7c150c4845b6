# SPDX-License-Identifier: Apache-2.0
"""HTML pages that need nothing from the network: template, style and plotly.js in one file."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from plotly.offline import get_plotlyjs

# Validated for colour-vision deficiencies on both surfaces; communication is always the first.
COMMUNICATION, ELSEWHERE = "#2a78d6", "#c77700"
# One hue from light to dark for an ordered quantity such as size.
SEQUENCE = (
    "#9ec9f5",
    "#79b1ec",
    "#5598e0",
    "#3a80cf",
    "#2a69b5",
    "#1f5499",
    "#16407c",
    "#0e2f60",
    "#082046",
    "#041530",
)


def render(template: str, **values: Any) -> str:
    """Render a template of reports/templates/ with plotly.js embedded."""
    environment = Environment(
        loader=PackageLoader("powerccl.reports"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(plotly_js=get_plotlyjs(), **values)


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis in the page's style; colours follow the light or dark scheme and are set in the page."""
    return {
        "title": {"text": title, "standoff": 8, "font": {"size": 12}},
        "zeroline": False,
        "ticks": "",
        "showline": False,
        "gridwidth": 1,
        "fixedrange": True,
        **more,
    }


def layout(**more: Any) -> dict[str, Any]:
    """A figure's layout in the page's style."""
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 12},
        "margin": {"l": 56, "r": 56, "t": 28, "b": 40},
        "hovermode": "x unified",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        **more,
    }
