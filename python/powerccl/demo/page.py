# SPDX-License-Identifier: Apache-2.0
"""`powerccl demo --html`: the same as in the terminal, as a page."""

from __future__ import annotations

from typing import Any

from powerccl.demo.mpi_report import MpiDemo, figures_table, how, remarks, title
from powerccl.demo.report import WORDS, DemoResult, absolute, against_published, pictured, tops
from powerccl.demo.series import GpuSeries
from powerccl.quantities import plural, seconds
from powerccl.reports import mpi as of_mpi
from powerccl.reports.page import axis, sentences
from powerccl.reports.sections import Chart, Section, bars, figure, line, page, titled

CLOCK, POWER = "var:communication", "var:elsewhere"
KEY = [("communication", f"{CLOCK}/0.22"), ("SM clock", CLOCK), ("board power", POWER)]
COLOURS = ("var:elsewhere/0.35", "var:communication", "var:waiting", "#2e9e5b")  # of a rank's parts, in their order
WIDE_PX = 1000  # one chart a line
FOOTER = (
    "All figures of the training step come from an emulated server, except those marked published. Its model is "
    "calibrated on the PCCL publication (8 x Tesla T4). Intervals are 95 % over iterations."
)


def demo_page(results: list[DemoResult], mpi: MpiDemo | None = None) -> str:
    """The page's HTML, self-contained; `mpi` is the second part, if there was one."""
    sections = [section for index, result in enumerate(results) for section in _training(index, result)]
    return page("PowerCCL demo, emulated", [*sections, *([_mpi(mpi)] if mpi else [])], FOOTER)


def _training(index: int, result: DemoResult) -> list[Section]:
    least, most = sorted(len(training.iterations) for _, training in result.runs())
    count = plural(most, "iteration") if least == most else f"{least} to {plural(most, 'iteration')}"
    what = "A training step replayed on eight Tesla T4: forward, backward, then the gradients' all-reduces."
    drawn = {policy: series for policy, training in result.runs() if (series := pictured(training)) is not None}
    charts = [
        Chart(f"picture-{index}-{policy}", policy, _picture(series, list(drawn.values())), WORDS[policy])
        for policy, series in drawn.items()
    ]
    name = f"{result.model}: what power-aware collectives save"
    return [
        Section(name, 1, result.platform, [f"{what} {count} per policy."]),
        titled(against_published(result)),
        Section("Clock and power of one GPU over three iterations", key=KEY, charts=charts, least_px=WIDE_PX),
        titled(absolute(result)),
    ]


def _mpi(demo: MpiDemo) -> Section:
    ranks = demo.pictured.by_rank
    names = [f"rank {rank.rank}, {seconds(rank.wait_s)} waiting" for rank in ranks]
    parts = zip(*(of_mpi.parts(rank.execution_s or 0.0, rank) for rank in ranks), strict=True)
    data = [
        bars(of_mpi.WORDS[part[0][0]], [time_s * 1e3 for _, time_s in part], names, "ms", colour, orientation="h")
        for part, colour in zip(parts, COLOURS, strict=True)
    ]
    drawn = figure(data, {"title": "ms"}, {"autorange": "reversed", "automargin": True}, barmode="stack")
    return Section(
        title(demo),
        1,
        lines=[f"Measured on this machine's processors, with {demo.pictured.library}."],
        charts=[Chart("mpi", "One run with PowerCCL", drawn, "A rank that waits for another one sleeps.")],
        height_px=140 + 30 * len(ranks),
        least_px=WIDE_PX,
        table=figures_table(demo),
        notes=sentences(how(demo), *remarks(demo)),
    )


def _picture(series: GpuSeries, every: list[GpuSeries]) -> dict[str, Any]:
    """One run; the axes hold all of them."""
    power_top, clock_top = tops([*every])
    shape = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "fillcolor": f"{CLOCK}/0.13", "layer": "below"}
    communication = series.communication_ms.tolist()
    time_ms, power_w = series.time_ms.round(2).tolist(), series.power_w.round(2).tolist()
    clock = zip(time_ms, series.clock_mhz.tolist(), strict=True)
    return figure(
        [
            line("power", zip(time_ms, power_w, strict=True), "W", yaxis="y2", line={"color": POWER}),
            line("SM clock", clock, "MHz", line={"color": CLOCK, "shape": "hv"}),
        ],
        {"title": "ms", "range": [0, max(each.length_ms for each in every)], "showgrid": False, "anchor": "y2"},
        {"title": "clock, MHz", "range": [0, clock_top * 1.06], "nticks": 5, "domain": [0.55, 1]},
        yaxis2=axis("power, W", range=[0, power_top * 1.06], nticks=5, domain=[0, 0.45]),
        shapes=[{**shape, "x0": start, "x1": stop, "line": {"width": 0}} for start, stop in communication],
        showlegend=False,
    )
