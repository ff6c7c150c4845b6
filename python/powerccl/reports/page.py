# SPDX-License-Identifier: Apache-2.0
"""HTML pages that need nothing from the network: template, style and plotly.js in one file."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from plotly.offline import get_plotlyjs

from powerccl import clean

SEQUENCE_STEPS = 10  # --s0 to --s9 in base.html: one hue, from near the background to far from it


def sequence(count: int) -> list[str]:
    """Colours for an ordered quantity such as size, as the page's scripts resolve them."""
    return [f"var:s{round(i * (SEQUENCE_STEPS - 1) / max(count - 1, 1))}" for i in range(count)]


def render(template: str, **values: Any) -> str:
    """Render a template of reports/templates/ with plotly.js embedded."""
    environment = Environment(
        loader=PackageLoader("powerccl.reports"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean.lines(value) if type(value) is str else value,  # Markup is of filters here
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
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        **more,
    }


def sentences(*lines: str) -> list[str]:
    """Lines of the terminal as sentences of a page; empty lines are left out."""
    return [f"{line[0].upper()}{line[1:]}." for line in lines if line]
