# SPDX-License-Identifier: Apache-2.0
"""Findings for other programs: tables as CSV, gauges for Prometheus' textfile collector. SI units, stated in names.

A time that is a sum over ranks says so in its name (`time_all_ranks_s`). `time_s` is of one rank or GPU, or their mean.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from powerccl import clean
from powerccl.analysis.findings import MpiSummary
from powerccl.analysis.report import ReportFindings, plain
from powerccl.files import write_whole
from powerccl.quantities import exact
from powerccl.reports.labels import emulated_label, run_label


def write_csv(found: ReportFindings, folder: Path) -> list[Path]:
    """One file a table into `folder`, which is made; those without rows are left out. An empty cell: not known.

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
        **(_mpi_tables(found.summary.mpi) if found.summary.mpi else {}),
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


def _mpi_tables(mpi: MpiSummary) -> dict[str, list[dict[str, Any]]]:
    """Tables of the MPI part of a run."""
    domains = [name.rpartition(" ") for name in mpi.energy.domains]
    return {
        "mpi-ranks": [{"name": mpi.rank_name(row.rank), **_fields(row)} for row in mpi.by_rank],
        "mpi-calls": [_all_ranks(_fields(row)) for row in mpi.rows],
        "mpi-communicators": [_all_ranks(_fields(row)) for row in mpi.comms],
        "mpi-imbalance": _plain(mpi.imbalance),
        "cpu-energy": [
            {"host": host, "domain": domain, "joules_at_least": joules}
            for (host, _, domain), joules in zip(domains, mpi.energy.domains.values(), strict=True)
        ],
    }


def _all_ranks(row: dict[str, Any]) -> dict[str, Any]:
    """Times that are sums over ranks say so in their names."""
    return {f"{name.removesuffix('_s')}_all_ranks_s" if name in _SUMMED else name: each for name, each in row.items()}


_SUMMED = ("time_s", "wait_s", "transfer_s", "sleep_s")


def _fields(row: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(row, enc_hook=plain)
    return found


def _mpi_gauges(mpi: MpiSummary, gauge: Callable[..., None]) -> None:
    """Gauges of the MPI part of a run."""
    share = None if mpi.share_pct is None else mpi.share_pct / 100
    gauge("run_mpi_ratio", "Share of the run in MPI, mean of the threads that call it.", ({}, share))
    gauge("run_cpu_energy_joules", "Energy of the hosts' processors: packages and DRAM.", ({}, mpi.energy.joules))
    ranks = [({"rank": str(row.rank), "host": row.host}, row) for row in mpi.by_rank]
    for name, field, what in (
        ("mpi_seconds", "time_s", "In blocking MPI calls, summed over the rank's threads."),
        ("mpi_wait_seconds", "wait_s", "Of that, waiting."),
        ("mpi_sleep_seconds", "sleep_s", "Of that, asleep."),
        ("mpi_calls", "calls", "Blocking MPI calls."),
        ("mpi_threads", "threads", "Threads that called MPI at a time."),
        ("cpu_seconds", "cpu_s", "CPU time of the rank's process."),
    ):
        gauge(f"rank_{name}", what, *((labels, getattr(row, field)) for labels, row in ranks))
    cells = [({"function": row.function, "size_bytes": str(row.size_class_bytes)}, row) for row in mpi.rows]
    gauge("run_mpi_calls", "Blocking MPI calls, all ranks.", *((labels, float(row.calls)) for labels, row in cells))
    gauge("run_mpi_bytes", "Bytes of MPI calls, all ranks.", *((labels, float(row.bytes)) for labels, row in cells))
    gauge("run_mpi_seconds", "Time in MPI calls, all ranks.", *((labels, row.time_s) for labels, row in cells))
    gauge("run_mpi_wait_seconds", "Of that, waiting.", *((labels, row.wait_s) for labels, row in cells))


def _plain(rows: Iterable[Any]) -> list[dict[str, Any]]:
    return [_fields(row) for row in rows]


def _cell(value: object) -> object:
    return clean.cell(" ".join(map(str, value)) if isinstance(value, list) else value)


def prometheus_text(found: ReportFindings) -> bytes:
    """Gauges of a run that has ended, in the text format. What is not known is left out, not 0."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    summary = found.summary
    run = {"run": run_label(summary.folder), "name": summary.name, "emulated": emulated_label(summary.emulated)}
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
    ranks = summary.ranks or (summary.mpi.ranks if summary.mpi else 0)
    gauge("run_ranks", "Ranks that left a trace of NCCL, or of MPI where there is none.", ({}, float(ranks)))
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
    gpus = [
        ({"gpu": "" if gpu.index is None else str(gpu.index), "uuid": gpu.gpu, "host": gpu.host}, gpu.joules)
        for gpu in summary.gpus
    ]
    gauge("gpu_energy_joules", "Energy of one GPU.", *gpus)
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
    if summary.mpi:
        _mpi_gauges(summary.mpi, gauge)
    return generate_latest(registry)
