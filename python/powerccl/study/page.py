# SPDX-License-Identifier: Apache-2.0
"""`powerccl study scaling --html`: an iteration of each world size, bandwidth in the job and alone, and the tables."""

from __future__ import annotations

from typing import Any

from powerccl.quantities import hover, plural
from powerccl.reports.page import axis, layout, render, sequence
from powerccl.study.findings import MIN_SHARE_PCT, ScalingFindings, World
from powerccl.study.report import (
    MIB,
    PUBLISHED,
    PUBLISHED_ALL_REDUCE,
    beside_published,
    emulated_names,
    grids,
    remarks,
)

COLOURS = ("var:communication", "var:elsewhere", "var:badge")
WIDE_RANGE = 10  # from here on small values would lie on the axis
TICKS: dict[str, Any] = {"tickvals": [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500]}


def scaling_page(findings: ScalingFindings) -> str:
    """The page's HTML, self-contained."""
    worlds = [world for world in findings.worlds if world.iteration_s]
    figures: dict[str, Any] = {}
    if worlds:
        figures["iteration"] = _iteration(worlds)
        figures["throughput"] = _throughput(worlds)
    if any(each.busbw_gbs for world in worlds for each in _shown(world)):
        figures["bandwidth"] = _bandwidth(worlds)
    if any(point.pattern == "all_reduce" for world in worlds for point in world.sweep):
        figures["allreduce"] = _all_reduce(worlds)
    return render(
        "scaling.html",
        found=findings,
        emulated=emulated_names(findings),
        figures=figures,
        grids=grids(findings),
        remarks=remarks(findings),
        published=PUBLISHED if beside_published(findings) else "",
    )


def _shown(world: World) -> list[Any]:
    total = sum(each.time_s for each in world.collectives)
    return [each for each in world.collectives if each.time_s > total * MIN_SHARE_PCT / 100]


def _label(world: World, worlds: list[World]) -> str:
    several = len({each.links for each in worlds}) > 1
    return plural(world.gpus, "GPU") + (f"<br>{world.links}" if several else "")


def _layout(**more: Any) -> dict[str, Any]:
    return layout(margin={"l": 52, "r": 12, "t": 28, "b": 48}, **more)


def _bars(name: str, x: list[str], y: list[float | None], colour: str, unit: str) -> dict[str, Any]:
    return {"type": "bar", "name": name, "x": x, "y": y, "marker": {"color": colour}, "hovertemplate": hover(unit)}


def _iteration(worlds: list[World]) -> dict[str, Any]:
    """Milliseconds: exposed communication and the rest; communication whose exposure is not known, apart."""
    labels = [_label(world, worlds) for world in worlds]
    known = [world.exposed_s for world in worlds]
    exposed = [None if each is None else each * 1e3 for each in known]
    unknown = [
        (world.communication_s or 0) * 1e3 if world.exposed_s is None and world.communication_s else None
        for world in worlds
    ]
    rest = [
        (world.iteration_s or 0) * 1e3 - (each or 0) - (other or 0)
        for world, each, other in zip(worlds, exposed, unknown, strict=True)
    ]
    data = [
        _bars("computation and the rest", labels, list(rest), "var:elsewhere", "ms"),
        _bars("exposed communication", labels, exposed, "var:communication", "ms"),
    ]
    if any(unknown):
        data.append(_bars("communication, exposed or not", labels, unknown, "var:communication/0.45", "ms"))
    return {"data": data, "layout": _layout(barmode="stack", xaxis=axis("", type="category"), yaxis=axis("ms"))}


def _throughput(worlds: list[World]) -> dict[str, Any]:
    """Throughput a GPU against the least world of the same links."""
    labels = [_label(world, worlds) for world in worlds]
    data = [_bars("", labels, [world.scaling_pct for world in worlds], "var:badge", "%")]
    return {
        "data": data,
        "layout": _layout(showlegend=False, xaxis=axis("", type="category"), yaxis=axis("%", rangemode="tozero")),
    }


def _bandwidth(worlds: list[World]) -> dict[str, Any]:
    """Each collective in the job and alone: dots, since links may lie two orders of magnitude apart."""
    data: list[dict[str, Any]] = []
    patterns = dict.fromkeys(each.pattern for world in worlds for each in _shown(world))
    for index, pattern in enumerate(patterns):
        rows = [(world, each) for world in worlds for each in _shown(world) if each.pattern == pattern]
        name = pattern.replace("_", "-")
        for words, symbol, values in (
            (name, "circle", [each.busbw_gbs for _, each in rows]),
            (f"{name} alone", "circle-open", [each.sweep_busbw_gbs for _, each in rows]),
        ):
            marker = {"color": COLOURS[index % len(COLOURS)], "size": 10, "symbol": symbol, "opacity": 0.8}
            if symbol == "circle-open":
                marker["line"] = {"width": 2}
            labels = [_label(world, worlds) for world, _ in rows]
            shown = {"mode": "markers", "marker": marker, "hovertemplate": hover("GB/s")}
            data.append({"type": "scatter", "name": words, "x": labels, "y": values, **shown})
    known = [value for series in data for value in series["y"] if value]
    wide = max(known) > WIDE_RANGE * min(known)
    vertical = axis("GB/s", type="log", **TICKS) if wide else axis("GB/s", rangemode="tozero")
    return {"data": data, "layout": _layout(xaxis=axis("", type="category"), yaxis=vertical)}


def _all_reduce(worlds: list[World]) -> dict[str, Any]:
    """Bus bandwidth by size, published curves dashed."""
    data: list[dict[str, Any]] = []
    swept = [world for world in worlds if any(point.pattern == "all_reduce" for point in world.sweep)]

    def line(name: str, points: list[tuple[float, float]], colour: str, dash: str) -> None:
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if dash == "solid" else "lines",
                "name": name,
                "x": [size / MIB for size, _ in points],
                "y": [each for _, each in points],
                "line": {"color": colour, "width": 2, "dash": dash},
                "hovertemplate": hover("GB/s"),
            }
        )

    for world, colour in zip(swept, sequence(len(swept) + 2)[2:], strict=True):
        points = sorted((p.size_bytes, p.busbw_gbs) for p in world.sweep if p.pattern == "all_reduce")
        line(
            _label(world, worlds).replace("<br>", ", "), [(float(size), each) for size, each in points], colour, "solid"
        )
    line("published, 4 GPUs", [(row[0] * MIB, row[4]) for row in PUBLISHED_ALL_REDUCE], "var:elsewhere", "dash")
    line("published, 8 GPUs, 2 nodes", [(row[0] * MIB, row[2]) for row in PUBLISHED_ALL_REDUCE], "var:elsewhere", "dot")
    return {
        "data": data,
        "layout": _layout(xaxis=axis("MiB", rangemode="tozero"), yaxis=axis("GB/s", type="log", **TICKS)),
    }
