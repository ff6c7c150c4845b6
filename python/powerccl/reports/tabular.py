# SPDX-License-Identifier: Apache-2.0
"""Findings for other programs: tables as CSV, gauges for Prometheus' textfile collector. SI units, stated in names."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from powerccl import clean
from powerccl.analysis.report import ReportFindings, plain
from powerccl.files import write_whole
from powerccl.quantities import exact
from powerccl.reports.labels import run_label


def write_csv(found: ReportFindings, folder: Path) -> list[Path]:
    """One file a table into `folder`, which is made; those with nothing to say are left out. Empty: not known.

    Raises:
        OSError: the folder or a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    per_iteration = [
        {"rank": row.rank, "host": row.host, **_fields(row.per_iteration)} for row in found.ranks if row.per_iteration
    ]
    iterations = [{"host": each.host, **_fields(row)} for each in found.iterations for row in each.rows]
    summaries = [{k: v for k, v in _fields(each).items() if k != "rows"} for each in found.iterations]
    tables: dict[str, list[dict[str, Any]]] = {
        "ranks": [{k: v for k, v in _fields(row).items() if k != "per_iteration"} for row in found.ranks],
        "ranks-per-iteration": per_iteration,
        "iterations": iterations,
        "iterations-summary": summaries,
        "patterns": _plain(found.summary.patterns),
        "counts": _plain(found.counts),
        "energy": _plain(found.energy.kinds),
        "bandwidth": _plain(found.link),
        "stragglers": _plain(found.peers.ranks),
        "clocks": _plain(found.clock_effects),
        "gpus": _plain(found.summary.gpus),
    }
    if found.savings:
        tables["against-baseline"] = _plain(found.savings.comparison.differences)
    written = []
    for name, rows in tables.items():
        if not rows:
            continue
        path = folder / f"{name}.csv"
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
        write_whole(path, text.getvalue())
        written.append(path)
    return written


def _fields(row: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(row, enc_hook=plain)
    return found


def _plain(rows: Iterable[Any]) -> list[dict[str, Any]]:
    return [_fields(row) for row in rows]


def _cell(value: object) -> object:
    return clean.cell(" ".join(map(str, value)) if isinstance(value, list) else value)


def prometheus_text(found: ReportFindings) -> bytes:
    """Gauges of a run that has ended, in the text format. What is not known is left out, not 0."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    summary = found.summary
    run = {"run": run_label(summary.folder), "name": summary.name, "emulated": summary.emulated or "no"}
    if found.window_s:
        run["window_seconds"] = ":".join(map(exact, found.window_s))

    def gauge(name: str, what: str, *rows: tuple[dict[str, str], float | None]) -> None:
        known = [(labels, value) for labels, value in rows if value is not None]
        if known:
            made = Gauge(f"powerccl_{name}", what, sorted({*run, *known[0][0]}), registry=registry)
            for labels, value in known:
                made.labels(**{key: clean.field(text) for key, text in {**run, **labels}.items()}).set(value)

    gauge("run_seconds", "Length of the run.", ({}, summary.wall_s))
    gauge("run_exit_code", "Exit code of the job.", ({}, summary.exit_code))
    gauge("run_ranks", "Ranks that left a trace.", ({}, float(summary.ranks)))
    gauge("run_restarts", "Times that all ranks were started again.", ({}, float(summary.restarts)))
    gauge("run_energy_joules", "Energy of the job's GPUs.", ({}, summary.energy.joules))
    shares = summary.shares
    gauge(
        "run_startup_seconds", "From the run's start to its first iteration or communication.", ({}, shares.startup_s)
    )
    for name, pct, what in (
        ("communication", shares.communicating_pct, "Communication's share of the working time, over all ranks."),
        ("exposed", shares.exposed_pct, "Exposed communication's share of the working time, over all ranks."),
    ):
        gauge(f"run_{name}_ratio", what, ({}, None if pct is None else pct / 100))
    gauge(
        "gpu_energy_joules", "Energy of one GPU.", *(({"gpu": g.gpu, "host": g.host}, g.joules) for g in summary.gpus)
    )
    for name, field, what in (
        ("communication", "communication_s", "In kernels of communication."),
        ("exposed", "exposed_s", "In communication beside which nothing computed."),
        ("peer_wait", "waiting_s", "In kernels of communication, before the last peer had come."),
    ):
        rows = [({"rank": str(row.rank), "host": row.host}, getattr(row, field)) for row in found.ranks]
        gauge(f"rank_{name}_seconds", what, *rows)
    late = [({"rank": str(row.rank), "host": row.host}, row.last_pct / 100) for row in found.peers.ranks]
    gauge("rank_last_ratio", "Share of collectives to which the rank came last.", *late)
    several = len({each.host for each in found.iterations}) < len(found.iterations)  # jobs on a host
    hosts = [
        ({"host": each.host, **({"rank": str(min(each.ranks, default=0))} if several else {})}, each)
        for each in found.iterations
    ]
    gauge("iteration_seconds", "An iteration, median.", *((labels, each.median_s) for labels, each in hosts))
    what = "An iteration, mean, all GPUs of the host."
    gauge("iteration_energy_joules", what, *((labels, each.joules) for labels, each in hosts))
    cells = [
        ({"pattern": row.pattern, "size_bytes": str(row.size_class_bytes)}, row)
        for row in sorted(found.counts, key=lambda row: (row.pattern, row.size_class_bytes))
    ]
    gauge("collective_calls", "Calls, all ranks.", *((labels, float(row.calls)) for labels, row in cells))
    gauge("collective_bytes", "Bytes of calls, all ranks.", *((labels, float(row.bytes)) for labels, row in cells))
    gauge(
        "collective_seconds",
        "Time of timed kernels, all ranks.",
        *((labels, row.time_all_ranks_s) for labels, row in cells),
    )
    kinds = [
        ({"pattern": kind.pattern, "size_bytes": str(kind.size_class_bytes)}, kind)
        for kind in found.energy.kinds
        if kind.resolved
    ]
    gauge(
        "collective_operation_energy_joules",
        "Energy of one operation on one GPU.",
        *((labels, kind.joules_per_operation) for labels, kind in kinds),
    )
    return generate_latest(registry)
