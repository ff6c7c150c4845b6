# SPDX-License-Identifier: Apache-2.0
"""The tables of `powerccl report --html`."""

from __future__ import annotations

from typing import Any

from powerccl.analysis.findings import MpiSummary
from powerccl.analysis.link import NO_PROFILE
from powerccl.analysis.report import ReportFindings
from powerccl.quantities import (
    at_least,
    byte_size,
    change,
    joules,
    mhz,
    microseconds,
    number,
    percent,
    plural,
    seconds,
    watts,
)
from powerccl.reports.job import on_host
from powerccl.reports.phases import COLUMNS, phase_cells
from powerccl.reports.report import cost_text, energy_parts, size_texts
from powerccl.reports.ways import POSSIBLE_COLUMNS, possible_cells

MOST = 64
UUID_SHOWN = 20  # characters: what is longer is shortened


def tables(findings: ReportFindings) -> dict[str, Any]:
    """Header and rows of each table, as text, by its name; those with nothing to say are left out."""
    made = {
        "link": _link(findings),
        "phases": _phases(findings),
        "energy": _energy(findings),
        "energy_totals": _energy_totals(findings),
        "stragglers": _stragglers(findings),
        "clocks": _clocks(findings),
        "gpus": _gpus(findings),
        "mpi": _mpi(findings.summary.mpi),
        "mpi_ranks": _mpi_ranks(findings.summary.mpi),
        "ways": _table(
            [*POSSIBLE_COLUMNS], [possible_cells(row) for row in findings.ways.rows] if findings.ways else []
        ),
    }
    return {name: table for name, table in made.items() if table["rows"]}


def _table(header: list[str], rows: list[list[str]]) -> dict[str, Any]:
    return {"header": header, "rows": rows[:MOST], "more": max(0, len(rows) - MOST)}


def _seconds(us: float | None) -> float | None:
    return None if us is None else us / 1e6


def _link(findings: ReportFindings) -> dict[str, Any]:
    size_text = size_texts(findings)
    header = ["kind", "size", "kernels", "GB/s", "GB/s without waiting"]
    if compared := any(row.profile_gbs is not None or row.reason != NO_PROFILE for row in findings.link):
        name = f"profile {findings.platform}" + (f" ({findings.platform_provenance})" if findings.platform else "")
        header += [f"GB/s of {name.strip()}", "change from the profile"]
    rows = []
    for row in findings.link:
        name, size = row.pattern.replace("_", "-"), size_text(row.pattern, row.size_class_bytes)
        rows.append([name, size, f"{row.operations:,}", number(row.busbw_gbs), number(row.transfer_gbs)])
        rows[-1] += [number(row.profile_gbs), row.reason or change(row.change_pct)] if compared else []
    return _table(header, rows)


def _energy(findings: ReportFindings) -> dict[str, Any]:
    size_text = size_texts(findings)
    rows = [
        [
            kind.pattern.replace("_", "-"),
            size_text(kind.pattern, kind.size_class_bytes),
            f"{kind.operations:,}",
            joules(kind.joules_per_operation if kind.resolved else None),
            joules.between(kind.low, kind.high),
            watts(kind.watts if kind.resolved else None),
            percent(None if kind.exposed_share is None else 100 * kind.exposed_share),
            joules(kind.joules if kind.resolved else None),
            kind.reason,
        ]
        for kind in sorted(findings.energy.kinds, key=lambda kind: -(kind.joules or 0.0))
    ]
    header = [
        "kind",
        "size",
        "kernels",
        "per operation and GPU",
        "95 % interval",
        "power",
        "share exposed",
        "sum, all GPUs",
        "",
    ]
    return _table(header, rows)


def _energy_totals(findings: ReportFindings) -> dict[str, Any]:
    energy = findings.energy
    rows = [[word, figure] for word, figure in energy_parts(energy)]
    if rows:
        rows.append(["whole run", joules(energy.joules_total)])
    return _table(["energy", "all GPUs"], rows if energy.kinds else [])


def _stragglers(findings: ReportFindings) -> dict[str, Any]:
    return _table(
        ["rank", "collectives", "last in", "behind the next (median)", "middle half", "cost"],
        [
            [
                findings.summary.rank_name(row.rank) + (" (straggler)" if row.steady else ""),
                f"{row.collectives:,}",
                f"{percent(row.last_pct)} of them",
                microseconds(row.behind_us),
                seconds.between(_seconds(row.behind_p25_us), _seconds(row.behind_p75_us)),
                cost_text(row),
            ]
            for row in findings.peers.ranks
        ],
    )


def _phases(findings: ReportFindings) -> dict[str, Any]:
    return _table(["phase", *COLUMNS], [phase_cells(row) for row in findings.summary.phases])


def _clocks(findings: ReportFindings) -> dict[str, Any]:
    return _table(
        [
            "rank",
            "clock lowered",
            "share of the time",
            "communicating meanwhile",
            "clock elsewhere",
            "lowered clock",
            "power",
            "power at the lowered clock",
        ],
        [
            [
                findings.summary.rank_name(row.rank),
                plural(row.windows, "time"),
                percent(row.lowered_pct),
                percent(row.communication_pct),
                mhz(row.elsewhere_mhz),
                mhz(row.lowered_mhz),
                watts(row.communication_watts),
                watts(row.lowered_watts),
            ]
            for row in findings.clock_effects
        ],
    )


def short_gpu(name: str) -> str:
    """A GPU's UUID without its middle: emulated ones differ in their last digits, real ones anywhere."""
    return f"{name[:12]}…{name[-4:]}" if name.startswith("GPU-") and len(name) > UUID_SHOWN else name


def _gpus(findings: ReportFindings) -> dict[str, Any]:
    hosts = len({gpu.host for gpu in findings.summary.gpus}) > 1
    name = findings.summary.rank_name
    return _table(
        [
            "GPU",
            "ranks",
            "communicating",
            "energy",
            "power",
            "clock in communication",
            "clock elsewhere",
            "throttled by",
        ],
        [
            [
                f"{gpu.host} {short_gpu(gpu.gpu)}" if hosts else short_gpu(gpu.gpu),
                ", ".join(on_host(name(rank), gpu.host) for rank in gpu.ranks),
                seconds(gpu.communication_s),
                at_least(gpu.joules, gpu.joules_at_least),
                watts(gpu.average_watts),
                mhz(gpu.communication_clock_mhz),
                mhz(gpu.other_clock_mhz),
                ", ".join(gpu.throttle_reasons) or "no",
            ]
            for gpu in findings.summary.gpus
        ],
    )


def _mpi(mpi: MpiSummary | None) -> dict[str, Any]:
    return _table(
        ["call", "size", "calls", "time per rank", "waiting", "waiting asleep", "transferring"],
        [
            [
                row.function,
                byte_size(row.bytes / row.calls) if row.bytes and row.calls else "",
                f"{row.calls:,}",
                seconds(row.time_per_rank_s),
                seconds(row.wait_per_rank_s),
                seconds(row.sleep_per_rank_s),
                seconds(row.transfer_per_rank_s),
            ]
            for row in (mpi.rows if mpi else [])
        ],
    )


def _mpi_ranks(mpi: MpiSummary | None) -> dict[str, Any]:
    return _table(
        ["rank", "outside MPI", "waiting", "waiting asleep", "transferring"],
        [
            [mpi.rank_name(row.rank), *map(seconds, (row.execution_s, row.wait_s, row.sleep_s, row.transfer_s))]
            for row in mpi.by_rank
        ]
        if mpi
        else [],
    )
