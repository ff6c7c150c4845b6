# SPDX-License-Identifier: Apache-2.0
"""`powerccl demo --html`: the same as in the terminal, as a page."""

from __future__ import annotations

from typing import Any

from powerccl.demo.mpi_report import COLUMNS, MpiDemo, how, remarks, rows, title
from powerccl.demo.report import MEANING, PUBLISHED, DemoResult, pictured, tops
from powerccl.demo.series import GpuSeries
from powerccl.quantities import change, hover, mhz, percent, plural, quantity, seconds, watts
from powerccl.reports.mpi import parts
from powerccl.reports.page import axis, layout, render, sentences

WORDS = {
    "observe": "records only: the clock stays at its maximum while the GPU waits for the network",
    "per-call": "PCCL as published: the clock falls to the lowest that keeps the bandwidth, call by call",
}


def demo_page(results: list[DemoResult], mpi: MpiDemo | None = None) -> str:
    """The page's HTML, self-contained; `mpi` is the second part, if there was one."""
    figures: dict[str, Any] = {}
    shown = []
    for index, result in enumerate(results):
        drawn = [(policy, pictured(training)) for policy, training in result.runs()]
        power_top, clock_top = tops([series for _, series in drawn])
        length_ms = max((series.length_ms for _, series in drawn if series is not None), default=1.0)
        pictures = []
        for policy, series in drawn:
            if series is None:
                continue
            name = f"picture-{index}-{policy}"
            figures[name] = _picture(series, power_top, clock_top, length_ms)
            pictures.append({"id": name, "policy": policy, "words": WORDS.get(policy, "")})
        shown.append(
            {
                "title": f"{result.model}: what power-aware collectives save",
                "platform": result.platform,
                "policy": result.policy,
                "subtitle": (
                    "A training step replayed on eight Tesla T4: forward, backward, then the gradients' all-reduces. "
                    f"{_measured(result)} per policy."
                ),
                "tiles": _tiles(result),
                "pictures": pictures,
                "rows": _rows(result),
            }
        )
    return render("demo.html", results=shown, figures=figures, mpi=_mpi(mpi) if mpi else None)


def _measured(result: DemoResult) -> str:
    """How many iterations of each run were measured: one without samples is left out."""
    least, most = sorted(len(training.iterations) for _, training in result.runs())
    return plural(most, "iteration") if least == most else f"{least} to {plural(most, 'iteration')}"


def _mpi(demo: MpiDemo) -> dict[str, Any]:
    longest_s = max((rank.span_s or 0.0 for rank in demo.pictured.by_rank), default=0.0) or 1.0
    bars = [
        {
            "rank": rank.rank,
            "parts": [
                (style, round(part / longest_s * 100, 2)) for style, part in parts(rank.execution_s or 0.0, rank)
            ],
            "wait": seconds(rank.wait_s),
        }
        for rank in demo.pictured.by_rank
    ]
    return {
        "title": title(demo),
        "library": demo.pictured.library,
        "bars": bars,
        "columns": COLUMNS,
        "rows": rows(demo),
        "notes": sentences(how(demo), *remarks(demo)),
    }


def _tiles(result: DemoResult) -> list[dict[str, str]]:
    tiles = []
    for name, label in MEANING.items():
        figure = result.figures[f"{result.policy}.{name}"]
        tiles.append(
            {
                "label": label,
                "value": change(figure.value).removeprefix("+"),
                "spread": f"±{percent((figure.high - figure.low) / 2)}",
                "published": PUBLISHED[name],
            }
        )
    return tiles


def _rows(result: DemoResult) -> list[list[str]]:
    wanted = (
        ("time", "step_ms", "ms", "~600 ms" if result.model == "microllama" else ""),
        ("energy, all GPUs", "joules_per_step", "J", ""),
        ("energy in communication, all GPUs", "comm_joules_per_step", "J", ""),
        ("power while communicating, per GPU", "comm_watts", "W", "45 W → 32 to 33 W"),
    )
    rows = []
    for label, name, unit, published in wanted:
        cells = [result.figures.get(f"{policy}.{name}") for policy, _ in result.runs()]
        rows.append([label, *[quantity(cell.value if cell else None, unit) for cell in cells], published])
    communication = [training.summary.communication for _, training in result.runs()]
    clocks = [mhz(found.clock_mhz) for found in communication]
    rows.append(["clock while communicating", *clocks, "1590 MHz → 500 MHz"])
    elsewhere = [watts(found.other_average_watts) for found in communication]
    rows.append(["power while computing, per GPU", *elsewhere, "60–100 W → 60–80 W"])
    return rows


def _tick(top: float) -> float:
    """A round distance of ticks, three to five of them."""
    return next(step for step in (10, 20, 25, 50, 100, 200, 250, 400, 500, 1000, 2000, 5000) if top / step <= 4.5)


def _picture(series: GpuSeries, power_top: float, clock_top: float, length_ms: float) -> dict[str, Any]:
    shading = [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": float(start),
            "x1": float(stop),
            "y0": 0,
            "y1": 1,
            "fillcolor": "var:communication/0.13",
            "line": {"width": 0},
            "layer": "below",
        }
        for start, stop in series.communication_ms
    ]
    time_ms = [round(float(value), 2) for value in series.time_ms]
    data = [
        {
            "type": "scatter",
            "name": "power",
            "x": time_ms,
            "y": [round(float(value), 2) for value in series.power_w],
            "yaxis": "y2",
            "mode": "lines",
            "line": {"color": "var:elsewhere", "width": 2, "shape": "linear"},
            "hovertemplate": hover("W") + "<extra></extra>",
        },
        {
            "type": "scatter",
            "name": "SM clock",
            "x": time_ms,
            "y": [float(value) for value in series.clock_mhz],
            "mode": "lines",
            "line": {"color": "var:communication", "width": 2, "shape": "hv"},
            "hovertemplate": hover("MHz") + "<extra></extra>",
        },
    ]
    return {
        "data": data,
        "layout": layout(
            shapes=shading,
            showlegend=False,
            margin={"l": 64, "r": 16, "t": 10, "b": 40},
            xaxis=axis("ms", range=[0, length_ms], showgrid=False, anchor="y2"),
            yaxis=axis("clock, MHz", range=[0, clock_top * 1.06], dtick=_tick(clock_top), domain=[0.55, 1]),
            yaxis2=axis("power, W", range=[0, power_top * 1.06], dtick=_tick(power_top), domain=[0, 0.45]),
        ),
    }
