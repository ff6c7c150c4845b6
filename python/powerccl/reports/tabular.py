# SPDX-License-Identifier: Apache-2.0
"""Findings for other programs: tables as CSV. SI units, stated in names.

A time that is a sum over ranks says so in its name (`time_all_ranks_s`). `time_s` is of one rank or GPU, or their mean.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from powerccl import clean
from powerccl.analysis.cost import Cost
from powerccl.analysis.findings import MpiSummary
from powerccl.analysis.report import ReportFindings, plain
from powerccl.analysis.ways import Possible
from powerccl.files import write_whole


def write_csv(findings: ReportFindings, folder: Path) -> list[Path]:
    """One file a table into `folder`, which is made; those without rows are left out. An empty cell: not known.

    Raises:
        OSError: the folder or a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    per_iteration = [
        {"rank": row.rank, "host": row.host, **_fields(row.per_iteration)}
        for row in findings.ranks
        if row.per_iteration
    ]
    iterations = [{"host": each.host, **_fields(row)} for each in findings.iterations for row in each.rows]
    summaries = [{k: v for k, v in _fields(each).items() if k != "rows"} for each in findings.iterations]
    tables: dict[str, list[dict[str, Any]]] = {
        "ranks": [{k: v for k, v in _fields(row).items() if k != "per_iteration"} for row in findings.ranks],
        "ranks-per-iteration": per_iteration,
        "iterations": iterations,
        "iterations-summary": summaries,
        "patterns": _plain(findings.summary.patterns),
        "counts": _plain(findings.counts),
        "energy": _plain(findings.energy.kinds),
        "bandwidth": _plain(findings.link),
        "stragglers": _plain(findings.peers.ranks),
        "host-clocks": _plain(findings.peers.hosts),
        "clocks": _plain(findings.clock_effects),
        "gpus": _plain(findings.summary.gpus),
        "cost": _cost(findings.cost) if findings.cost else [],
        "ways": [_flat(row) for row in findings.ways.rows] if findings.ways else [],
        **(_mpi_tables(findings.summary.mpi) if findings.summary.mpi else {}),
    }
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


def _cost(cost: Cost) -> list[dict[str, Any]]:
    """The rows, each with its currency and the means that made it."""
    rates = {"price_per_kwh": cost.price_per_kwh, "carbon_g_per_kwh": cost.carbon_g_per_kwh, "pue": cost.pue}
    return [{**_fields(row), "currency": cost.currency, **rates} for row in cost.rows]


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
    fields: dict[str, Any] = msgspec.to_builtins(row, enc_hook=plain)
    return fields


def _flat(row: Possible) -> dict[str, Any]:
    """Estimates in columns of their own."""
    flat = _fields(row)
    for name in ("saved_s", "saved_joules"):
        whole = flat.pop(name) or {}
        flat |= {f"{part}_{name}".removeprefix("value_"): whole.get(part) for part in ("value", "low", "high")}
    return flat


def _plain(rows: Iterable[Any]) -> list[dict[str, Any]]:
    return [_fields(row) for row in rows]


def _cell(value: object) -> object:
    return clean.cell(" ".join(map(str, value)) if isinstance(value, list) else value)
