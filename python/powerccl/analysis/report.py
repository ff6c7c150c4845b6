# SPDX-License-Identifier: Apache-2.0
"""`powerccl report`: everything that is found of one run, once; every output is made from these findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl import clean
from powerccl.analysis import intervals as iv
from powerccl.analysis import possible
from powerccl.analysis.attribution import EnergyFindings, attribute
from powerccl.analysis.breakdown import break_down
from powerccl.analysis.clock_effect import clock_effects
from powerccl.analysis.communication import KEY
from powerccl.analysis.cost import Cost
from powerccl.analysis.energy import EnergyCurve, energy_curves
from powerccl.analysis.exposure import ESTIMATED, NONE, Exposure, exposure
from powerccl.analysis.findings import RunSummary, Shares
from powerccl.analysis.iteration_energy import add_iteration
from powerccl.analysis.iterations import Cut
from powerccl.analysis.kineto import Profiled, read_kineto
from powerccl.analysis.link import alone_watts, link_rows
from powerccl.analysis.report_findings import (
    ClockEffect,
    CountRow,
    Iterations,
    LinkRow,
    NextStep,
    Peers,
    RankParts,
    Reference,
)
from powerccl.analysis.shares import of_job, working
from powerccl.analysis.startup import add_startup
from powerccl.analysis.stragglers import in_sequence, match
from powerccl.analysis.summary import summarise
from powerccl.analysis.ways import WaysFindings
from powerccl.analysis.whole_run import WholeRun, whole_run
from powerccl.patterns import pattern_name
from powerccl.quantities import microseconds, percent, seconds
from powerccl.traces import tables
from powerccl.traces.folder import KEPT_RECORDS, MOST_RECORDS, RunData, read_run

MARGIN_S = 1.0  # a window's samples of power begin and end so much outside of it


class ReportFindings(msgspec.Struct, kw_only=True):
    """One run. `window_s`: the part that all but `counts` is of, in seconds from the run's start; None: all of it."""

    schema: int = 1
    window_s: tuple[float, float] | None = None
    summary: RunSummary
    ranks: list[RankParts] = []
    iterations: list[Iterations] = []
    exposure_source: str = ""  # waits, estimated, none; profiler: where a rank's row is by_profiler
    exposure_why: str = ""
    peers: Peers
    link: list[LinkRow] = []
    platform: str = ""  # the profile that link is measured by
    platform_provenance: str = ""
    energy: EnergyFindings
    clock_effects: list[ClockEffect] = []
    counts: list[CountRow] = []
    cost: Cost | None = None  # None: neither a price nor a carbon intensity nor a PUE is given
    ways: WaysFindings | None = None  # None: there is no table of ways for the run's GPUs
    notes: list[str] = []
    next_steps: list[NextStep] = []  # what is worth most first; empty: nothing is worth an action


def plain(value: Any) -> Any:
    """A numpy number as Python's own, for msgspec: what sums leave behind must never cost a user the output."""
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} in findings")


def encode(findings: ReportFindings) -> bytes:
    """The findings as indented JSON; NaN becomes null."""
    return clean.to_json(findings, indent=2, enc_hook=plain)


@dataclass
class Report:
    """The findings, and the data that pictures are drawn from.

    `calls`, `kernels` and `waits` are those of RunTables; of a large run, those of a part (RunData.in_part). `working`:
    the working time of all ranks together, host ns from and to; None where nothing was communicated.
    `waiting_ns`: of each kernel, as stragglers.match has it. `cuts`: the iterations of each host and job.
    `communicating`: when each GPU communicated in all of the run.
    """

    findings: ReportFindings
    run: RunData
    calls: pl.DataFrame
    kernels: pl.DataFrame
    waits: pl.DataFrame
    working: tuple[int, int] | None
    waiting_ns: npt.NDArray[np.int64]
    cuts: dict[tuple[str, int], Cut]
    communicating: Mapping[str, iv.Intervals]


def report(
    folder: Path,
    reference: Reference | None = None,
    kineto: Sequence[tuple[Path, int | None]] = (),
    window_s: tuple[float, float] | None = None,
    most_records: int = MOST_RECORDS,
    kept_records: int = KEPT_RECORDS,
) -> Report:
    """Everything that is to be found of a run folder, in whatever state it is.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    run = read_run(folder, most_records, window_s, kept_records)
    if run.window:
        _keep_samples(run)
    built = whole_run(run, run.window, operations=reference is not None)
    energy = attribute(run, run.window, reference, built)
    curves = energy_curves(run)
    summary = summarise(
        run, run.window, energy, shares=Shares(), built=built, curves=curves
    )  # shares: of the breakdown, below
    kernels = built.kernels
    notes: list[str] = []
    profiled = _profiled(run, kineto, built.part.kernels, notes)
    matched = built.matched
    exposed = _exposure(built, curves, reference)
    work = working(run, kernels, built.ends, built.cuts)
    breakdown = break_down(run, built, matched, exposed, curves, profiled, work)
    summary.shares = of_job(breakdown.ranks, work, summary.communication)
    add_startup(summary.shares, run, work, curves)
    add_iteration(summary, run, work, curves)
    findings = ReportFindings(
        window_s=_seconds(run),
        summary=summary,
        ranks=breakdown.ranks,
        iterations=breakdown.iterations,
        exposure_source=exposed.source,
        exposure_why=exposed.why,
        peers=matched.peers,
        link=link_rows(built.of_kinds(waiting_ns=matched.waiting_ns), reference, matched.peers.uncertainty_us or 0.0),
        platform=reference.name if reference else "",
        platform_provenance=reference.provenance if reference else "",
        energy=energy,
        clock_effects=clock_effects(run, tables.clocks(run), built.communicating, curves),
        counts=_counts(run, built),
        notes=notes,
    )
    _reconcile(findings)
    findings.notes += possible.check(findings)
    spans = list(work.spans.values())
    together = (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None
    part = built.part
    waiting_ns = matched.waiting_ns
    if run.in_part:
        waiting_ns = match(
            run, in_sequence(run, run.ranks, part.all_calls, part.all_kernels, part.inside), part.kernels
        ).waiting_ns
    shown = (part.calls, part.kernels, part.waits)
    return Report(findings, run, *shown, together, waiting_ns, work.cuts, built.communicating)


@dataclass(frozen=True)
class Waiting:
    """Who waits for whom, and what the links do meanwhile: a part of ReportFindings."""

    peers: Peers = field(default_factory=Peers)
    link: list[LinkRow] = field(default_factory=list)
    ranks: list[RankParts] = field(default_factory=list)


def waiting_of(run: RunData) -> Waiting:
    """As `report` has it, without all else."""
    built = whole_run(run, run.window)
    matched = built.matched
    exposed = built.marks or Exposure({}, NONE, "")
    breakdown = break_down(
        run, built, matched, exposed, energy_curves(run), {}, working(run, built.kernels, built.ends, built.cuts)
    )
    link = link_rows(built.of_kinds(waiting_ns=matched.waiting_ns), None, matched.peers.uncertainty_us or 0.0)
    return Waiting(matched.peers, link, breakdown.ranks)


def _reconcile(findings: ReportFindings) -> None:
    """One figure for one thing, and parts that add up to the run's own total.

    The regression dates the steps again, so that its sums differ from the run's. What communication and idling leave is
    computation, as far as the regression explains it.
    """
    energy, total = findings.energy, findings.summary.energy.joules
    _same_operations(findings)
    communication, idle = findings.summary.communication, energy.joules_idle or 0.0
    whole = not (energy.joules_total is None or energy.reason or findings.summary.energy.reason)
    if total is None or communication.joules is None or not whole:
        _without_parts(energy)
        return
    half = communication.uncertainty_joules or 0.0
    energy.joules_total, energy.joules_communication = total, communication.joules
    energy.joules_communication_low = max(communication.joules - half, 0.0)
    energy.joules_communication_high = min(communication.joules + half, total)
    rest = total - communication.joules - idle
    if rest < 0:
        _without_parts(energy)
        energy.joules_total = total
        energy.parts_reason = "communication and idling together came to more than the whole run"
        return
    energy.joules_computation = min(energy.joules_computation or 0.0, rest)
    energy.joules_unexplained = rest - energy.joules_computation
    sums = [kind.joules for kind in energy.kinds if kind.joules is not None]
    if sum(sums) > energy.joules_communication_high:
        for kind in energy.kinds:  # kinds come from another method, and must not exceed their sum
            kind.joules = None


def _without_parts(energy: EnergyFindings) -> None:
    energy.joules_total = energy.joules_communication = energy.joules_computation = None
    energy.joules_communication_low = energy.joules_communication_high = None
    energy.joules_idle = energy.joules_unexplained = None


def _same_operations(findings: ReportFindings) -> None:
    """Energy of an operation is one figure: that of the summary's pattern, which long stretches tell best."""
    rows = {(row.pattern, row.size_class_bytes): row for row in findings.summary.patterns}
    for kind in findings.energy.kinds:
        row = rows.get((kind.pattern, kind.size_class_bytes))
        if row is None or row.joules_per_operation == kind.joules_per_operation:
            continue
        if row.joules_per_operation is None:
            row.joules_per_operation, row.joules_low, row.joules_high = kind.joules_per_operation, kind.low, kind.high
            continue
        value = row.joules_per_operation
        if kind.low is None or kind.high is None or not kind.low <= value <= kind.high:
            kind.low = kind.high = None
        row.joules_low, row.joules_high = kind.low, kind.high
        time_s = kind.time_s * max(len(findings.summary.gpus), 1) / max(kind.operations, 1)
        kind.watts = value / time_s if time_s > 0 else None
        if not kind.resolved:
            kind.resolved, kind.reason = True, ""
        kind.joules, kind.joules_per_operation = value * kind.operations, value


def _exposure(built: WholeRun, curves: dict[str, EnergyCurve], reference: Reference | None) -> Exposure:
    """Exposed communication, as far as records show it; NONE and the reason if they do not."""
    if built.marks:
        return built.marks
    watts = alone_watts(built.totals, reference)
    if len(built.kernels) and watts is None:
        why = "not known: the job's streams have no marks, and no platform profile has the power of communication"
        return Exposure({}, NONE, why)
    estimated = exposure(built.kernels, curves, watts)
    if estimated.source == ESTIMATED and estimated.uncertainty_pct >= 100:
        return Exposure({}, NONE, "not known: " + estimated.why.partition(": all communication")[0])
    return estimated


def _keep_samples(run: RunData) -> None:
    """Of a run that is read in part, only the samples about that part: the rest would only be carried along."""
    if run.window is None or run.census is None:
        return
    margin = int(MARGIN_S * 1e9)
    for log in run.power:
        log.samples = log.samples.filter(pl.col("time_ns").is_between(run.window[0] - margin, run.window[1] + margin))


def _seconds(run: RunData) -> tuple[float, float] | None:
    if run.window is None:
        return None
    origin = run.info.start_ns if run.info else 0
    return ((run.window[0] - origin) / 1e9, (run.window[1] - origin) / 1e9)


def _profiled(
    run: RunData, kineto: Sequence[tuple[Path, int | None]], kernels: pl.DataFrame, notes: list[str]
) -> dict[int, Profiled]:
    profiles: dict[int, Profiled] = {}
    numbers = {trace.rank: trace.number for trace in run.ranks}
    names = {trace.rank: trace.rank_name for trace in run.ranks}
    for path, rank in kineto:
        try:
            profile = read_kineto(path, rank, kernels, numbers)
        except (ValueError, OSError) as error:
            notes.append(f"profiler trace not used: {error}")
            continue
        profiles[profile.rank] = profile
        name, length_s = names[profile.rank] or profile.rank, (profile.stop_ns - profile.start_ns) / 1e9
        notes.append(
            f"{path.name}: rank {name}, {seconds(length_s)};"
            f" {percent(profile.matched_pct)} of its NCCL kernels found in the trace,"
            f" {microseconds(profile.off_us)} apart"
        )
    return profiles


def _counts(run: RunData, built: WholeRun) -> list[CountRow]:
    """The histogram: of the whole run where a pass over it counted everything, else of what was read."""
    if run.census is not None:
        census = run.census
        cells = np.argwhere((census.calls > 0) | (census.kernels > 0))
        return [
            CountRow(
                pattern=pattern_name(row),
                size_class_bytes=1 << (bits - 1) if bits else 0,
                calls=int(census.calls[row, bits]),
                kernels=int(census.kernels[row, bits]),
                bytes=int(max(census.call_bytes[row, bits], census.kernel_bytes[row, bits])),
                time_all_ranks_s=float(census.duration_ns[row, bits]) / 1e9,
            )
            for row, bits in cells.tolist()
        ]
    called = built.coverage.kinds.group_by(KEY, maintain_order=True).agg(
        calls=pl.col("count").sum(), call_bytes=(pl.col("bytes") * pl.col("count")).sum()
    )
    ran = built.totals.group_by(KEY, maintain_order=True).agg(
        kernels=pl.col("count").sum(),
        kernel_bytes=(pl.col("bytes") * pl.col("count")).sum(),
        time_ns=pl.col("time_ns").sum(),
    )
    joined = called.join(ran, on=KEY, how="full", coalesce=True).sort(KEY)
    return [
        CountRow(
            pattern=row["pattern"],
            size_class_bytes=int(row["size_class"]),
            calls=int(row["calls"] or 0),
            kernels=int(row["kernels"] or 0),
            bytes=int(max(row["call_bytes"] or 0, row["kernel_bytes"] or 0)),
            time_all_ranks_s=float(row["time_ns"] or 0) / 1e9,
        )
        for row in joined.iter_rows(named=True)
    ]
