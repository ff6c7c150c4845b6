# SPDX-License-Identifier: Apache-2.0
"""`powerccl study scaling --html`: an iteration of each world size, bandwidth in the job and alone, and the tables."""

from __future__ import annotations

from typing import Any

from powerccl.quantities import plural
from powerccl.reports.page import sequence
from powerccl.reports.sections import Chart, Section, bars, figure, line, page
from powerccl.study import report as scaling
from powerccl.study.worlds import ScalingFindings, World

COLOURS = ("var:communication", "var:elsewhere", "var:badge")
WIDE_RANGE = 10  # from here on small values would be on the axis
LOGARITHMIC = {"title": "GB/s", "type": "log", "tickvals": [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500]}
CATEGORIES = {"type": "category"}


def scaling_page(findings: ScalingFindings) -> str:
    """The page's HTML, self-contained."""
    emulated = scaling.emulated_names(findings)
    worlds = [world for world in findings.worlds if world.iteration_s]
    charts = []
    if worlds:
        charts += [
            Chart("iteration", "An iteration", _iteration(worlds)),
            Chart("throughput", "Throughput a GPU, of the first world's", _throughput(worlds)),
        ]
    if any(each.busbw_gbs for world in worlds for each in scaling.collectives_shown(world)):
        charts.append(Chart("bandwidth", "Bus bandwidth of the iteration's collectives", _bandwidth(worlds)))
    if any(point.pattern == "all_reduce" for world in worlds for point in world.sweep):
        charts.append(Chart("allreduce", "All-reduce alone, by size", _all_reduce(worlds)))
    where = [f"{findings.host}, {findings.started_at[:10]}"] if findings.host else []
    sections = [Section("How it scales", 1, emulated, [findings.command, *where], charts=charts)]
    sections += [Section(each.title, table=each.table(), notes=[each.note]) for each in scaling.grids(findings)]
    notes = [*scaling.remarks(findings), scaling.PUBLISHED * scaling.beside_published(findings)]
    footer = "Emulated: all figures come from a model, none from hardware." if emulated else ""
    return page(f"How it scales: {findings.command}", [*sections, Section("", notes=notes)], footer)


def _label(world: World, worlds: list[World]) -> str:
    several = len({each.links for each in worlds}) > 1
    return plural(world.gpus, "GPU") + (f"<br>{world.links}" if several else "")


def _iteration(worlds: list[World]) -> dict[str, Any]:
    """Milliseconds: exposed communication and the rest; communication whose exposure is not known, apart."""
    labels = [_label(world, worlds) for world in worlds]
    exposed, unknown, rest = [], [], []
    for world in worlds:
        whole_ms, communication_ms = (world.iteration_s or 0) * 1e3, (world.communication_s or 0) * 1e3
        exposed.append(None if world.exposed_s is None else world.exposed_s * 1e3)
        unknown.append(communication_ms or None if world.exposed_s is None else None)
        rest.append(whole_ms - (exposed[-1] or 0) - (unknown[-1] or 0))
    data = [
        bars("computation and the rest", labels, rest, "ms", "var:elsewhere"),
        bars("exposed communication", labels, exposed, "ms", "var:communication"),
    ]
    if any(unknown):
        data.append(bars("communication, exposed or not", labels, unknown, "ms", "var:communication/0.45"))
    return figure(data, CATEGORIES, {"title": "ms"}, barmode="stack")


def _throughput(worlds: list[World]) -> dict[str, Any]:
    """Throughput a GPU against the least world of the same links."""
    labels = [_label(world, worlds) for world in worlds]
    data = [bars("", labels, [world.scaling_pct for world in worlds], "%", "var:badge")]
    return figure(data, CATEGORIES, {"title": "%", "rangemode": "tozero"}, showlegend=False)


def _bandwidth(worlds: list[World]) -> dict[str, Any]:
    """Each collective in the job and alone: dots, since links may differ by two orders of magnitude."""
    series: dict[tuple[str, str], list[tuple[str, float | None]]] = {}
    for world in worlds:
        for each in scaling.collectives_shown(world):
            label, name = _label(world, worlds), each.pattern.replace("_", "-")
            series.setdefault((name, "circle"), []).append((label, each.busbw_gbs))
            series.setdefault((f"{name} alone", "circle-open"), []).append((label, each.sweep_busbw_gbs))
    data = []
    for index, ((name, symbol), points) in enumerate(series.items()):
        marker = {"color": COLOURS[index // 2 % len(COLOURS)], "size": 10, "symbol": symbol, "opacity": 0.8}
        marker["line"] = {"width": 2 if symbol == "circle-open" else 0}
        data.append(line(name, points, "GB/s", mode="markers", marker=marker))
    known = [value for points in series.values() for _, value in points if value]
    wide = max(known) > WIDE_RANGE * min(known)
    return figure(data, CATEGORIES, LOGARITHMIC if wide else {"title": "GB/s", "rangemode": "tozero"})


def _all_reduce(worlds: list[World]) -> dict[str, Any]:
    """Bus bandwidth by size, published curves dashed."""
    swept = [world for world in worlds if any(point.pattern == "all_reduce" for point in world.sweep)]
    data = []
    for world, colour in zip(swept, sequence(len(swept) + 2)[2:], strict=True):
        points = sorted((p.size_bytes / scaling.MIB, p.busbw_gbs) for p in world.sweep if p.pattern == "all_reduce")
        name = _label(world, worlds).replace("<br>", ", ")
        data.append(line(name, points, "GB/s", mode="lines+markers", line={"color": colour}))
    for name, column, dash in (("published, 4 GPUs", 4, "dash"), ("published, 8 GPUs, 2 nodes", 2, "dot")):
        published = [(row[0], row[column]) for row in scaling.PUBLISHED_ALL_REDUCE]
        data.append(line(name, published, "GB/s", line={"color": "var:elsewhere", "dash": dash}))
    return figure(data, {"title": "MiB", "rangemode": "tozero"}, LOGARITHMIC)
