# SPDX-License-Identifier: Apache-2.0
"""`powerccl report --html`: the findings as one page that needs nothing else."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable
from typing import Any

import numpy as np

from powerccl.analysis.drawing import Drawing, draw
from powerccl.analysis.findings import MpiSummary
from powerccl.analysis.report import Report, ReportFindings
from powerccl.analysis.report_findings import Parts
from powerccl.quantities import (
    at_least,
    byte_size,
    exact,
    hover,
    joules,
    microseconds,
    percent,
    plural,
    seconds,
    watts,
    window,
)
from powerccl.reports import iterations_chart
from powerccl.reports.cost import cost_lines, small_print
from powerccl.reports.explanations import EXPLANATIONS
from powerccl.reports.headline import headline
from powerccl.reports.host_clocks import host_clock_lines
from powerccl.reports.job import clock_line, facts, of_gpus, whose
from powerccl.reports.next_steps import NOTHING, about
from powerccl.reports.page import axis, layout, render, sentences
from powerccl.reports.report import (
    MOST_HOSTS,
    iterations_line,
    iterations_lines,
    iterations_of,
    size_texts,
    straggler_line,
)
from powerccl.reports.report_tables import short_gpu, tables
from powerccl.reports.terminal import LEAST_STARTUP_S, communicating_text, exposed_text, startup_text
from powerccl.reports.time_bars import COLOURS, WORDS, bar_parts, used
from powerccl.reports.ways import possible_lines, what_to_write
from powerccl.traces.run_info import model_label

# One hue a pattern, of like lightness; more patterns than these are not met in one job.
PATTERN_COLOURS = ("#2a78d6", "#c77700", "#2e9e5b", "#a04fb0", "#c8372d", "#6b7683", "#12908e", "#b8860b", "#d0568c")
MOST_RANKS = 64


def report_page(made: Report) -> str:
    """The page's HTML, self-contained, under 6 MB."""
    findings = made.findings
    drawing = draw(made)
    figures: dict[str, Any] = {}
    _put(figures, "ranks", _ranks(findings))
    for index, iterations in enumerate(findings.iterations[:MOST_HOSTS]):
        if iterations.rows:
            _put(figures, f"iterations-{index}", iterations_chart.times(iterations.rows))
            _put(figures, f"iteration-energy-{index}", iterations_chart.energies(iterations.rows))
    _put(figures, "counts", _histogram(findings, "calls"))
    _put(figures, "times", _histogram(findings, "time_all_ranks_s"))
    _put(figures, "energy", _energy(findings))
    _put(figures, "stragglers", _stragglers(findings))
    summary = findings.summary
    return render(
        "report.html",
        found=findings,
        figures=figures,
        title=summary.name or "run",
        badge=model_label(summary.emulated),
        command=shlex.join(summary.command)[:400],
        whose=" · ".join(whose(summary, always=True)),
        facts=_facts(findings),
        headline=headline(findings),
        steps=[{"text": step.text, "about": about(step), "command": step.command} for step in findings.next_steps],
        nothing=NOTHING,
        explanations=EXPLANATIONS,
        tiles=_tiles(findings),
        startup=startup_text(summary.shares),
        cost=sentences(*cost_lines(findings.cost), *small_print(findings.cost)) if findings.cost else [],
        window=None if not findings.window_s else window(findings.window_s),
        legend=_legend(findings),
        iterations=[
            {
                "host": iterations_of(findings, each),
                "words": "".join(sentences(iterations_line(each))),
                "grouped": each.rows[0].count if each.rows else 1,
                "clipped": iterations_chart.clipped_text(each.rows),
            }
            for each in findings.iterations[:MOST_HOSTS]
        ],
        more_iterations=iterations_lines(findings, findings.iterations[MOST_HOSTS:]),
        closest=microseconds(2 * findings.peers.uncertainty_us) if findings.peers.uncertainty_us else "",
        straggler=[
            *(sentences(*straggler_line(findings.peers, summary.rank_name).splitlines()) if summary.ranks else []),
            *sentences(*host_clock_lines(findings.peers.hosts)),
        ],
        tables=tables(findings),
        ways=findings.ways,
        ways_lines=[*possible_lines(findings.ways), *what_to_write(findings.ways)] if findings.ways else [],
        clocks="".join(sentences(clock_line(summary.clocks))),
        remarks=[*summary.notes, *findings.notes],
        problems=[*summary.energy_missing, *summary.problems],
        drawing=_timeline(drawing, summary.rank_name),
    )


def _put(figures: dict[str, Any], name: str, figure: dict[str, Any] | None) -> None:
    if figure is not None:
        figures[name] = figure


def _facts(findings: ReportFindings) -> str:
    summary = findings.summary
    parts = facts(summary)
    names = sorted({gpu.name for gpu in summary.gpus if gpu.name})
    if names:
        parts.insert(1, f"{len(summary.gpus)} × {', '.join(names)}")
    return " · ".join(parts)


def _mpi_tiles(mpi: MpiSummary) -> list[dict[str, str]]:
    """Of ranks that communicate through MPI."""
    each = {
        "in MPI": mpi.time_per_rank_s,
        "waiting in MPI": mpi.wait_per_rank_s,
        "waiting asleep": mpi.sleep_per_rank_s,
    }
    tiles = [{"label": label, "value": seconds(value), "beside": "per rank"} for label, value in each.items()]
    tiles[0]["beside"] = f"per rank, {percent(mpi.share_pct)} of the run"
    if mpi.threads_per_rank > 1:
        threads = f"sum over {exact(round(mpi.threads_per_rank, 1), 'threads')}"
        tiles[0]["beside"] = f"per rank, {threads}, {percent(mpi.share_pct)} of their time"
    return [*tiles, {"label": "CPU time used", "value": seconds(mpi.cpu_s), "beside": "all ranks"}]


def _tiles(findings: ReportFindings) -> list[dict[str, str]]:
    summary = findings.summary
    if not of_gpus(summary):
        whole = {"label": "time", "value": seconds(summary.wall_s), "beside": "the whole run"}
        return [whole, *(_mpi_tiles(summary.mpi) if summary.mpi else [])]
    energy, communication, shares = summary.energy, summary.communication, summary.shares
    calls = communication.calls + communication.captured_calls
    tiles = [
        {
            "label": "time",
            "value": seconds(summary.wall_s),
            "beside": "the window" if findings.window_s else "the whole run",
        },
        {
            "label": "energy",
            "value": at_least(energy.joules, energy.joules_at_least),
            "beside": f"{plural(len(summary.gpus), 'GPU')}, {watts(energy.average_watts)} per GPU on average",
        },
        {
            "label": "communicating",
            "value": communicating_text(shares),
            "beside": shares.reason
            if shares.communicating_pct is None
            else f"of the working time ({seconds(shares.span_s)} per rank); {plural(calls, 'call')}"
            + ("" if communication.timed_calls >= communication.calls else f", {communication.timed_calls:,} timed"),
        },
    ]
    if shares.exposed_pct is not None:
        tiles.append(
            {
                "label": "exposed communication",
                "value": exposed_text(shares),
                "beside": "of the working time: the GPU computes nothing then",
            }
        )
    if shares.startup_s is not None and shares.startup_s >= LEAST_STARTUP_S:
        drawn = "" if shares.startup_joules is None else f"{joules(shares.startup_joules)}; "
        beside = f"{drawn}in no share; before {shares.startup_until}"
        tiles.append({"label": "start-up", "value": seconds(shares.startup_s), "beside": beside})
    if shares.uncovered_pct is not None:
        beside = "of the ranks' working time: records are missing"
        tiles.append({"label": "not covered", "value": percent(shares.uncovered_pct), "beside": beside})
    if len(findings.iterations) == 1 and findings.iterations[0].found:
        one = findings.iterations[0]
        beside = (
            "median"
            if one.joules is None
            else f"median; {joules(one.joules, 1.96 * (one.joules_error or 0.0))} per iteration"
        )
        tiles.append({"label": plural(one.found, "iteration"), "value": seconds(one.median_s), "beside": beside})
    return tiles


def _shown(findings: ReportFindings) -> list[tuple[str, Parts]]:
    """Each rank's name and parts."""
    name = findings.summary.rank_name
    return [] if findings.summary.shares.reason else [(name(row.rank), row) for row in findings.ranks[:MOST_RANKS]]


def _legend(findings: ReportFindings) -> list[dict[str, str]]:
    return [
        {"word": WORDS[name], "colour": COLOURS[name].replace("var:", "var(--") + ")"}
        for name in used([parts for _, parts in _shown(findings)])
    ]


def _ranks(findings: ReportFindings) -> dict[str, Any] | None:
    rows = _shown(findings)
    if not rows:
        return None
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": WORDS[name],
            "y": [f"rank {rank}" for rank, _ in rows],
            "x": [round(1e3 * bar_parts(parts).get(name, 0.0), 4) for _, parts in rows],
            "marker": {"color": COLOURS[name]},
            "hovertemplate": hover("ms", "x"),
        }
        for name in used([parts for _, parts in rows])
    ]
    return {
        "data": data,
        "layout": layout(
            barmode="stack",
            bargap=0.25,
            showlegend=False,
            hovermode="y unified",
            height=max(140, 60 + 26 * len(rows)),
            margin={"l": 64, "r": 16, "t": 8, "b": 40},
            xaxis=axis("ms"),
            yaxis=axis(autorange="reversed", showgrid=False, automargin=True),
        ),
    }


def _histogram(findings: ReportFindings, what: str) -> dict[str, Any] | None:
    cells = [cell for cell in findings.counts if getattr(cell, what) > 0]
    if not cells:
        return None
    sizes = sorted({cell.size_class_bytes for cell in cells})
    patterns = list(dict.fromkeys(cell.pattern for cell in cells))
    logs = np.log10([getattr(cell, what) for cell in cells])
    # A bar on a scale of powers of ten has no natural foot: a third of a decade below the least.
    decades = [float(logs.min()) - 0.33, float(logs.max()) + 0.1]
    data = []
    for index, pattern in enumerate(patterns):
        values = {cell.size_class_bytes: getattr(cell, what) for cell in cells if cell.pattern == pattern}
        data.append(
            {
                "type": "bar",
                "name": pattern.replace("_", "-"),
                "x": [byte_size(size) for size in sizes],
                "y": [values.get(size) for size in sizes],
                "marker": {"color": PATTERN_COLOURS[index % len(PATTERN_COLOURS)]},
                "hovertemplate": "%{y:,} calls" if what == "calls" else hover("s"),
            }
        )
    return {
        "data": data,
        "layout": layout(
            barmode="group",
            bargap=0.4,
            showlegend=len(data) > 1,
            margin={"l": 56, "r": 16, "t": 28, "b": 44},
            xaxis=axis("size, from", type="category", showgrid=False),
            yaxis=axis("calls, all ranks" if what == "calls" else "s, all ranks", type="log", dtick=1, range=decades),
        ),
    }


def _energy(findings: ReportFindings) -> dict[str, Any] | None:
    kinds = [kind for kind in findings.energy.kinds if kind.resolved and kind.joules_per_operation is not None]
    if not kinds:
        return None
    size_text = size_texts(findings)
    kinds.sort(key=lambda kind: kind.joules_per_operation or 0.0)
    value = [kind.joules_per_operation or 0.0 for kind in kinds]
    over = [max(0.0, (kind.high or mid) - mid) for kind, mid in zip(kinds, value, strict=True)]
    under = [max(0.0, mid - (kind.low or mid)) for kind, mid in zip(kinds, value, strict=True)]
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "markers",
                "x": value,
                "y": [
                    f"{kind.pattern.replace('_', '-')} {size_text(kind.pattern, kind.size_class_bytes)}"
                    for kind in kinds
                ],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": over,
                    "arrayminus": under,
                    "color": "var:communication",
                    "thickness": 2,
                    "width": 5,
                },
                "marker": {"color": "var:communication", "size": 9},
                "hovertemplate": hover("J", "x") + "<extra></extra>",
            }
        ],
        "layout": layout(
            showlegend=False,
            hovermode="closest",
            height=90 + 30 * len(kinds),
            margin={"l": 150, "r": 16, "t": 8, "b": 40},
            xaxis=axis("J per operation and GPU", rangemode="tozero"),
            yaxis=axis(automargin=True, type="category"),
        ),
    }


def _stragglers(findings: ReportFindings) -> dict[str, Any] | None:
    rows = sorted(findings.peers.ranks, key=lambda row: row.rank)[:MOST_RANKS]
    if not rows:
        return None
    return {
        "data": [
            {
                "type": "bar",
                "x": [findings.summary.rank_name(row.rank) for row in rows],
                "y": [round(row.last_pct, 2) for row in rows],
                "marker": {"color": ["var:waiting" if row.steady else "var:beside" for row in rows]},
                "hovertemplate": "last in %{y:.1f} % of the collectives<extra></extra>",
            }
        ],
        "layout": layout(
            showlegend=False,
            margin={"l": 56, "r": 16, "t": 8, "b": 40},
            xaxis=axis("rank", type="category", showgrid=False),
            yaxis=axis("last in, % of collectives", range=[0, 100]),
        ),
    }


def _timeline(drawing: Drawing, name: Callable[[int], str]) -> dict[str, Any] | None:
    if not drawing.lanes:
        return None
    notes = []
    if drawing.closed_us:
        notes.append(f"Gaps in communication under {microseconds(drawing.closed_us)} are not drawn")
    if drawing.thinned:
        notes.append("Power and clock are thinned: each stretch keeps its extremes")
    if drawing.left_out:
        notes.append(f"{plural(drawing.left_out, 'more GPU')} of the run not drawn")
    if drawing.closed_us or drawing.thinned:
        notes.append("powerccl report --window FROM:TO draws a part in full")
    return {
        "lanes": [
            {
                "id": f"gpu-{index}",
                "title": f"rank {name(lane.rank)}",
                "gpu": short_gpu(lane.gpu),
                "samples": len(lane.time),
                "spans": len(lane.start),
            }
            for index, lane in enumerate(drawing.lanes)
        ],
        "steady": drawing.steady,
        "unit_s": drawing.unit_us / 1e6,
        "length": drawing.length,
        "offset_s": drawing.offset_s,
        "words": base64.b64encode(drawing.words).decode(),
        "halves": base64.b64encode(drawing.halves).decode(),
        "power_top": max((int(lane.power.max()) for lane in drawing.lanes if len(lane.power)), default=0) / 10,
        "clock_top": max((int(lane.clock.max()) for lane in drawing.lanes if len(lane.clock)), default=0),
        "note": ". ".join(notes),
    }
