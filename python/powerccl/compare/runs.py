# SPDX-License-Identifier: Apache-2.0
"""A run folder as a member of a comparison."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from msgspec.structs import replace

from powerccl.analysis.cost import ITERATIONS, MANY_ITERATIONS, cost_of, counted_cpu, kwh_of
from powerccl.analysis.energy import energy_curves
from powerccl.analysis.findings import PatternRow, RunSummary
from powerccl.analysis.iteration_energy import curves_of, joules_between
from powerccl.analysis.report_findings import Reference
from powerccl.analysis.shares import working
from powerccl.analysis.summary import summarise
from powerccl.analysis.whole_run import WholeRun, whole_run
from powerccl.compare.member import (
    BANDWIDTH,
    CO2E,
    COST,
    ENERGY,
    FORMS,
    NO_TARIFF,
    OPERATIONS,
    RUN,
    TIME,
    Key,
    Member,
    ReferenceOf,
    nothing_known,
)
from powerccl.compare.significance import Value, mean_of, median_of
from powerccl.errors import PowercclError
from powerccl.patterns import bus_factor
from powerccl.quantities import exact, plural
from powerccl.tariff import Tariff
from powerccl.traces.folder import RunData, read_run

# Of the environment that a run records: what says where, not how.
_PLACES = ("LD_LIBRARY_PATH", "POWERCCL_EMULATOR_SOCKET", "POWERCCL_LEASE_SOCKET", "MASTER_ADDR", "MASTER_PORT", "RANK")
_SI = {"MHz": ("Hz", 1e6)}
MOST_WARNINGS = 4
TIME_OF_ONE, OF_ONE = "time of an iteration", "energy of an iteration"


def read_run_member(
    folder: Path, energy: bool = False, reference_of: ReferenceOf = nothing_known, tariff: Tariff = NO_TARIFF
) -> Member:
    """Figures of a run: its totals, and of each pattern and size class the median kernel.

    With `energy` that of an operation is found by regression, with its interval: that takes seconds.
    `reference_of`: what the run's platform profile says. `tariff`: what its energy costs and emits.

    Raises:
        PowercclError: nothing in the folder can be compared.
    """
    run = read_run(folder)
    if not (run.info or run.ranks or run.mpi or run.power):
        raise PowercclError(f"{folder} is not a run folder", FORMS)
    reference = reference_of(run)
    built = whole_run(run)
    summary = summarise(run, reference=reference, built=built)
    gpus = frozenset(gpu.gpu for gpu in summary.gpus)
    failed = bool(summary.exit_code) or not summary.finished
    member = Member(folder, RUN, emulated=summary.emulated, failed=failed, gpus=gpus)
    for what, unit, number in run_figures(summary):
        if number is not None:
            si, factor = _SI.get(unit, (unit, 1.0))
            member.values[Key(what, si)] = Value(value=number * factor, of="runs")
        if what == "wall time":
            _iteration(member, run, built)
    _costs(member, run, summary, tariff)
    _patterns(member, built.part.kernels, summary)
    for row in summary.patterns:
        name = f"{row.pattern.replace('_', '-')} calls"
        member.work[name] = member.work.get(name, 0) + row.calls + row.captured_calls
    if energy:
        _energies(member, run, reference, built)
    _facts(member, run, summary)
    _warnings(member, run, summary)
    if not member.values:
        raise PowercclError(f"{folder} holds nothing that can be compared", "; ".join(run.problems) or FORMS)
    return member


def run_figures(summary: RunSummary) -> list[tuple[str, str, float | None]]:
    """What runs are compared by: a figure's name, its unit and its value, None where it is not known."""
    energy, communication, mpi = summary.energy, summary.communication, summary.mpi
    return [
        ("wall time", "s", summary.wall_s),
        ("energy", "J", energy.joules),
        # Of a part of the time, or of the GPUs, it is no mean of the run.
        ("average power", "W", energy.average_watts if energy.joules is not None else None),
        ("communication time", "s", communication.time_s if summary.ranks else None),
        ("communication energy", "J", communication.joules),
        ("communication power", "W", communication.average_watts),
        ("power elsewhere", "W", communication.other_average_watts),
        ("clock in communication", "MHz", communication.clock_mhz),
        ("clock elsewhere", "MHz", communication.other_clock_mhz),
        ("time in MPI, per rank", "s", mpi.time_per_rank_s if mpi else None),
        ("waiting in MPI, per rank", "s", mpi.wait_per_rank_s if mpi else None),
        ("CPU time of the ranks", "s", mpi.cpu_s if mpi else None),
        ("energy of the CPUs", "J", mpi.energy.joules if mpi else None),
    ]


def _iteration(member: Member, run: RunData, built: WholeRun) -> None:
    """Time and energy of an iteration, where communication repeats itself. Ranks keep step: the first rank's counts.

    The energy is that of all GPUs, which needs one host: the clocks of hosts differ.
    """
    if len({trace.job for trace in run.ranks}) != 1:
        return  # jobs beside each other have no iteration in common
    first = run.ranks[0]
    cuts = working(run, built.kernels, built.ends, built.cuts).cuts.get((first.host, first.job))
    if cuts is None:
        return
    member.facts[OPERATIONS] = str(cuts.operations) if len(cuts.edges) else cuts.reason
    lengths = np.diff(cuts.edges, axis=1)[:, 0] / 1e9
    if not len(lengths):
        return
    low, middle, high = (float(each) for each in np.quantile(lengths, (0.25, 0.5, 0.75)))
    member.values[Key("iteration, median", "s")] = median_of(middle, low, high, len(lengths), "iterations")
    place = ("", -1, plural(cuts.operations, "operation"))  # iterations of other lengths are other work: no row
    if time := mean_of(lengths.tolist(), "iterations"):
        member.values[Key(TIME_OF_ONE, "s", *place)] = time
    if len({trace.host for trace in run.ranks}) == 1:
        of_each = joules_between(cuts.edges, curves_of(run.ranks, energy_curves(run)))
        if energy := mean_of(of_each[np.isfinite(of_each)].tolist(), "iterations"):
            member.values[Key(OF_ONE, "J", *place)] = energy


def _costs(member: Member, run: RunData, summary: RunSummary, tariff: Tariff) -> None:
    """Cost and emissions of the run and of its iterations; at least so much is no figure to compare."""
    cost = cost_of(run, summary, tariff)
    if cost is None:
        return
    member.covers = cost.covers
    member.warnings += cost.notes
    carbon_kg = None if cost.carbon_g_per_kwh is None else cost.carbon_g_per_kwh / 1e3
    of_iteration = {key.what: (key, each) for key, each in member.values.items() if key.what in (TIME_OF_ONE, OF_ONE)}
    whole = cost.rows[0]
    for what, unit, amount, rate in (
        (COST, cost.currency, whole.cost, cost.price_per_kwh),
        (CO2E, "kg", whole.co2e_kg, carbon_kg),
    ):
        if amount is not None:
            member.values[Key(what, unit)] = Value(value=amount, of="runs")
        if rate is not None and len(of_iteration) == 2:
            key, joules = of_iteration[OF_ONE]
            cpu_joules = (counted_cpu(run, summary).average_watts or 0.0) * of_iteration[TIME_OF_ONE][1].value
            many = partial(_times, rate * kwh_of(MANY_ITERATIONS, tariff), cpu_joules)
            value = replace(joules, value=many(joules.value), low=many(joules.low), high=many(joules.high))
            member.values[key._replace(what=f"{what} of {ITERATIONS}", unit=unit)] = value


def _times(factor: float, more: float, joules: float | None) -> float | None:
    """An end of an interval, if it is known."""
    return None if joules is None else factor * (joules + more)


def _patterns(member: Member, kernels: pl.DataFrame, summary: RunSummary) -> None:
    spread = {
        (str(pattern), int(size)): (float(low), float(middle), float(high), int(count), int(ranks), float(of_bytes))
        for pattern, size, low, middle, high, count, ranks, of_bytes in kernels.group_by(
            "pattern", "size_class", maintain_order=True
        )
        .agg(
            pl.col("duration_ns").quantile(0.25, "linear").alias("low"),
            pl.col("duration_ns").median().alias("middle"),
            pl.col("duration_ns").quantile(0.75, "linear").alias("high"),
            pl.len().alias("count"),
            pl.col("ranks").max().alias("ranks"),
            pl.col("bytes").median().alias("bytes"),
        )
        .iter_rows()
    }
    for row in summary.patterns:
        durations = spread.get((row.pattern, row.size_class_bytes))
        if durations and durations[1] > 0:
            _kernels(member, row, durations, max(summary.ranks, 1))
        if row.joules_per_operation is not None:  # of stretches that outlast the samples; no interval is known
            place = (row.pattern, row.size_class_bytes)
            member.values[Key(ENERGY, "J", *place)] = Value(value=row.joules_per_operation, of="runs")


def _energies(member: Member, run: RunData, reference: Reference | None, built: WholeRun) -> None:
    from powerccl.analysis.attribution import attribute

    for kind in attribute(run, reference=reference, built=built).kinds:
        if kind.resolved and kind.joules_per_operation and kind.low is not None and kind.high is not None:
            member.values[Key(ENERGY, "J", kind.pattern, kind.size_class_bytes)] = Value(
                value=kind.joules_per_operation,
                low=kind.low,
                high=kind.high,
                n=kind.operations,
                kind="interval",
                of="operations",
            )


def _kernels(
    member: Member, row: PatternRow, durations: tuple[float, float, float, int, int, float], of_ranks: int
) -> None:
    """Kernels of one kind. Those of one operation on all ranks are one observation."""
    low, middle, high, count, ranks, size = durations
    value = median_of(middle / 1e9, low / 1e9, high / 1e9, max(count // of_ranks, 1), "operations")
    place = (row.pattern, row.size_class_bytes)
    member.values[Key(TIME, "s", *place)] = value
    moved = size * bus_factor(row.pattern, ranks)
    if moved > 0 and value.value > 0:  # not where one rank sends nothing, or a clock's ticks give no time
        ends = (value.high, value.low)
        limits = [moved / end if end and end > 0 else None for end in ends]
        member.values[Key(BANDWIDTH, "B/s", *place)] = Value(
            value=moved / value.value, low=limits[0], high=limits[1], n=value.n, kind=value.kind, of=value.of
        )


def _facts(member: Member, run: RunData, summary: RunSummary) -> None:
    info = run.info
    names = {text for log in run.power for key, text in log.about.items() if key[:3] == "gpu" and key[-5:] == "_name"}
    facts = {
        "command": shlex.join(summary.command),
        "policy": summary.policy,
        "clocks": summary.clocks_mode,
        "fixed clock": exact(summary.clock_mhz, "MHz") if summary.clock_mhz else "",
        "platform": summary.platform,
        "library": summary.library,
        "MPI": summary.mpi.library if summary.mpi else "",
        "waits in MPI": summary.mpi.wait_mode if summary.mpi else "",
        "GPU": ", ".join(sorted(names)),
        "GPUs": str(len(summary.gpus)),
        "ranks": str(summary.ranks),
        "restarts": str(summary.restarts) if summary.restarts else "",
        "MPI ranks": str(summary.mpi.ranks) if summary.mpi else "",
        "host": info.host if info else "",
        "driver": ", ".join(sorted({log.about.get("driver", "") for log in run.power})),
    }
    if info:
        facts["slowdown allowed"] = "" if info.slowdown_pct is None else exact(info.slowdown_pct, "%")
        facts.update({f"version of {name}": str(text) for name, text in info.versions.items()})
        facts.update({name: str(text) for name, text in info.environment.items() if name not in _PLACES})
    member.facts |= {name: text for name, text in facts.items() if text}


def _warnings(member: Member, run: RunData, summary: RunSummary) -> None:
    if not summary.finished:
        member.warnings.append("did not end, or its launcher was killed: its wall time is as far as its record goes")
    elif summary.exit_code:
        member.warnings.append(f"ended with exit code {summary.exit_code}")
    throttled = sorted({reason for gpu in summary.gpus for reason in gpu.throttle_reasons})
    if throttled:
        member.warnings.append(f"was throttled: {', '.join(throttled)}")
    member.warnings += summary.energy_missing[:MOST_WARNINGS]
    member.warnings += [*filter(None, [run.late]), *run.problems[:MOST_WARNINGS]]
    if len(run.problems) > MOST_WARNINGS:
        member.warnings.append(f"{len(run.problems) - MOST_WARNINGS} more problems: `powerccl report` lists them")
