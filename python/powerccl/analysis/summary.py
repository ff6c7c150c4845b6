# SPDX-License-Identifier: Apache-2.0
"""A run folder's tables into its RunSummary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis import possible
from powerccl.analysis.attribution import EnergyFindings, attribute
from powerccl.analysis.brief import NO_SAMPLES
from powerccl.analysis.clock_switches import clock_switches
from powerccl.analysis.communication import CallCoverage, pattern_rows, phase_rows
from powerccl.analysis.energy import (
    Attribution,
    EnergyCurve,
    clip_to,
    energy_curves,
    gpu_samples,
    job_samples,
    missing_ns,
    split,
    window_of,
)
from powerccl.analysis.findings import Communication, Energy, Gpu, RunSummary, Shares
from powerccl.analysis.helper_ends import helper_notes, why_unsampled
from powerccl.analysis.iteration_energy import add_iteration
from powerccl.analysis.mpi import each_alone, summarise_mpi
from powerccl.analysis.operation_energy import LONG_IN_UPDATES, fill_joules_per_operation
from powerccl.analysis.policy import policy_outcome
from powerccl.analysis.report_findings import Parts, Reference
from powerccl.analysis.shares import Sets, of_job, whole, working
from powerccl.analysis.startup import add_startup
from powerccl.analysis.whole_run import WholeRun, whole_run
from powerccl.quantities import plural, said_once, seconds
from powerccl.traces import tables
from powerccl.traces.folder import RunData
from powerccl.traces.identity import count_expected, find_ranks, life_of, missing_ranks
from powerccl.traces.incarnations import restarts
from powerccl.traces.mpi_tables import mpi_notes
from powerccl.traces.power import PowerLog, floats
from powerccl.traces.rank import RankTrace
from powerccl.traces.run_files import hosts_of

# nvmlClocksEventReasons bits (NVML API reference); idle and settings of ours are no throttling.
THROTTLE_REASONS = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal limit (software)",
    0x40: "thermal limit (hardware)",
    0x80: "power brake",
}
ROUTINE_NOTE = "gpu clock offset_ns"  # the runtime's own estimate, kept for checking; ours comes from the kernels
# Attribution takes a tenth of a second of a core for each second of a run. Of a long job, a part is attributed.
LONG_NS, PART_NS = 240_000_000_000, 120_000_000_000


Log = TypeVar("Log", RankTrace, PowerLog)


@dataclass
class _Sampled:
    """One GPU's samples, communication and curve."""

    finding: Gpu
    window: iv.Intervals
    communication: iv.Intervals
    attribution: Attribution | None
    covered: iv.Intervals
    span_ns: tuple[int, int] | None = None  # what samples should cover
    index: int | None = None  # on its host
    last_ns: int | None = None  # of its samples


def summarise(
    run: RunData,
    window: tuple[int, int] | None = None,
    energy: EnergyFindings | None = None,
    reference: Reference | None = None,
    shares: Shares | None = None,
    built: WholeRun | None = None,
    curves: dict[str, EnergyCurve] | None = None,
) -> RunSummary:
    """Findings of a run as far as its folder tells; `window` (host times in ns, from and to) takes a part of it.

    `shares`: where they are known already; else exposed communication is as marks in the job's streams tell it.

    `energy`: what `attribute` found of the same; without it, `reference` is for attribution. Of a run longer than four
    minutes, two minutes of its middle are attributed. `built`: the tables of the same window, if they exist already.
    """
    built = built or whole_run(run, window)
    communicating, coverage = built.communicating, built.coverage
    curves = energy_curves(run) if curves is None else curves
    traces, logs = _by_host([*run.ranks, *run.mpi]), _by_host(run.power)
    spans = {host: _span(traces.get(host, []), logs.get(host, [])) for host in [*traces, *logs]}
    gpus = [_sample(run, gpu, communicating, curves, window, spans) for gpu in _gpus(run)]
    ranks = find_ranks([life_of(trace) for trace in run.ranks])
    patterns = pattern_rows(coverage, built.timed, max(len(ranks), 1))
    part = _middle(built.part.kernels) if energy is None and window is None else None
    energy = energy or attribute(run, part or window, reference, built)
    resolved = [
        (gpu.finding.ranks, gpu.attribution.curve) for gpu in gpus if gpu.attribution and gpu.attribution.resolved
    ]
    fill_joules_per_operation(patterns, built, resolved, energy)
    wall_s = (window[1] - window[0]) / 1e9 if window else _wall_s(run)
    info = run.info
    said = dict.fromkeys([*tables.notes(run)["text"].to_list(), *mpi_notes(run)])
    said.update(dict.fromkeys(filter(None, [each_alone(run), _rescaled(run), *helper_notes(run), *_of_node(run)])))
    if energy.part and energy.kinds:
        said[f"the energy of collectives is that of {energy.part}"] = None
    notes = [text for text in said if not text.startswith(ROUTINE_NOTE)]
    first = run.ranks[0] if run.ranks else None
    summary = RunSummary(
        emulated=run.modelled_by,
        folder=str(run.folder),
        name=info.name if info else run.folder.name,
        command=info.command if info else [],
        exit_code=info.exit_code if info else None,
        policy=(info.policy if info else "") or (first.policy if first else ""),
        clocks_mode=(first.clock_client if first else "") or (info.clocks if info else ""),
        clock_mhz=info.clock_mhz if info else 0,
        platform=info.platform if info else "",
        library=first.library if first else "",
        user=info.user if info else "",
        labels=info.labels if info else {},
        hosts=sorted({trace.host for trace in run.ranks + run.mpi} or {log.host for log in run.power}),
        ranks=len(ranks),
        rank_names={trace.rank: trace.rank_name for trace in run.ranks if trace.rank_name},
        restarts=restarts(run.ranks + run.mpi),
        wall_s=wall_s,
        finished=bool(info and info.end_ns),
        recording_pct=_recording_pct(run),
        energy=_energy(run, gpus, [*_not_counted(run), missing_ranks(len(ranks), count_expected(ranks))]),
        communication=_with_regression(_communication(gpus), communicating, energy),
        clocks=clock_switches(tables.clocks(run), communicating),
        policy_outcome=policy_outcome(run),
        patterns=patterns,
        phases=phase_rows(coverage, built.timed, max(len(ranks), 1)),
        gpus=[gpu.finding for gpu in gpus],
        mpi=summarise_mpi(run, wall_s),
        unrecorded=run.unrecorded,
        notes=notes,
        problems=[*run.problems, *filter(None, [run.late])],
    )
    _share_out(summary.communication, summary.gpus)
    _count(summary.communication, coverage, built.timed, summary.gpus)
    _mark_incomplete(summary.communication, run)
    summary.communication.estimated_s = sum(row.estimated_s for row in patterns)
    if summary.communication.untimed_captured_calls:
        summary.notes.append(
            f"{plural(summary.communication.untimed_captured_calls, 'call')} in CUDA graphs not timed:"
            " POWERCCL_KERNEL_EVENTS=all times them, and can slow the graphs"
        )
    if shares is None:
        _add_shares(summary, run, built, curves)
    else:
        summary.shares = shares
    if summary.unrecorded:
        summary.shares.reason = "nothing was recorded"
    summary.notes += possible.check(summary)
    return summary


def _add_shares(summary: RunSummary, run: RunData, built: WholeRun, curves: dict[str, EnergyCurve]) -> None:
    kernels = built.kernels
    work = working(run, kernels, built.ends, built.cuts, built.window)
    rows: list[Parts] = []
    spans = dict(work.spans)
    of_ranks = tables.by_rank(kernels, "start_ns", "stop_ns")
    for trace in run.ranks:
        rank_kernels = of_ranks.get(trace.rank)
        if trace.rank not in spans or rank_kernels is None:
            continue
        span = spans.pop(trace.rank)
        busy = iv.clip(iv.union(rank_kernels["start_ns"].to_numpy(), rank_kernels["stop_ns"].to_numpy()), *span)
        exposed = built.marks.exposed.get(trace.gpu) if built.marks else None
        rows.append(whole(Sets(busy, None, exposed, None, span)))
    summary.shares = of_job(rows, work, summary.communication)
    add_startup(summary.shares, run, work, curves)
    add_iteration(summary, run, work, curves)


def _recording_pct(run: RunData) -> float | None:
    """What our own code took of the ranks' threads. A record of a version that did not count it says nothing."""
    own = [(trace.own_ns, trace.last_ns() - trace.start_ns) for trace in run.ranks if trace.own_ns]
    own_ns, all_ns = (sum(column) for column in zip(*own, strict=True)) if own else (0, 0)
    return 100 * own_ns / all_ns if 0 < own_ns < all_ns else None  # more than all: a damaged header


def _of_node(run: RunData) -> list[str]:
    """What to say where the GPUs that were sampled are not the job's alone, by host if there are several."""
    if run.ranks:
        return []
    notes = [(log.host, log.visible.note) for log in run.power if log.gpus]
    return [f"{host}: {note}" if len(notes) > 1 else note for host, note in notes if note]


def _rescaled(run: RunData) -> str:
    """What to say where an elastic job went on with another number of ranks."""
    sizes = max((trace.sizes for trace in run.ranks), key=len, default=[])
    changes = [size for index, size in enumerate(sizes) if not index or size != sizes[index - 1]]
    return f"the job was restarted with another number of ranks: {', then '.join(map(str, changes))}" * (
        len(changes) > 1
    )


def _wall_s(run: RunData) -> float | None:
    info = run.info
    if info and info.wall_ns:
        return info.wall_ns / 1e9
    here = [rank for rank in [*run.ranks, *run.mpi] if not info or not info.host or rank.host == info.host]
    starts = [rank.start_ns for rank in here] + ([info.start_ns] if info and info.start_ns else [])
    ends = [rank.last_ns() for rank in here]
    sampled = [log.samples for log in run.power if len(log.samples) and (not info or log.host == info.host)]
    for samples in sampled:  # the agent starts before the job and ends behind it
        time = samples["time_ns"].to_numpy()
        ends.append(int(time.max()))
        if not (info and info.start_ns):
            starts.append(int(time.min()))
    return (max(ends) - min(starts)) / 1e9 if starts and ends and max(ends) > min(starts) else None


def _gpus(run: RunData) -> list[Gpu]:
    """The job's GPUs: those its ranks name, or those that it could see when no rank left a trace."""
    gpus: dict[str, Gpu] = {}
    for rank in run.ranks:
        gpu = gpus.setdefault(rank.gpu, Gpu(gpu=rank.gpu, host=rank.host, ranks=[]))
        gpu.ranks.append(rank.rank)
        if rank.clock_map.pairs:
            gpu.clock_map_spread_us = max(gpu.clock_map_spread_us or 0.0, rank.clock_map.spread_ns / 1e3)
    if not run.ranks:
        for log, rows in job_samples(run):
            uuid = str(rows["uuid"][0])
            gpus[uuid] = Gpu(gpu=uuid, host=log.host, ranks=[])
    return list(gpus.values())


def _sample(
    run: RunData,
    gpu: Gpu,
    communicating: Mapping[str, iv.Intervals],
    curves: dict[str, EnergyCurve],
    part: tuple[int, int] | None,
    spans: Mapping[str, tuple[int, int] | None],
) -> _Sampled:
    intervals = communicating.get(gpu.gpu, iv.EMPTY)
    log_and_rows = gpu_samples(run, gpu.gpu)
    info = run.info
    window = (0, 1 << 62)
    if part:
        window = part
    elif info and info.span and (log_and_rows[0].host if log_and_rows else gpu.host) == info.host:
        window = info.span
    intervals = iv.clip(intervals, *window)
    gpu.communication_s = iv.length_ns(intervals) / 1e9
    whole = np.array([window], dtype=np.int64)
    span = window if window[1] < 1 << 62 else spans.get(gpu.host)
    if span:
        gpu.missing_s = (span[1] - span[0]) / 1e9
    if log_and_rows is None:
        return _Sampled(gpu, whole, intervals, None, iv.EMPTY, span)
    log, rows = log_and_rows
    gpu.index = int(rows["gpu"][0])
    gpu.name = log.about.get(f"gpu{gpu.index}_name", "")
    time = rows["time_ns"].to_numpy()
    sampled = (span, gpu.index, int(time[-1]))
    curve = curves.get(gpu.gpu)
    busy = iv.contains(intervals, time)
    inside = iv.contains(whole, time)
    clock = floats(rows, "sm_clock_mhz")
    gpu.communication_clock_mhz = _mean(clock[busy])
    gpu.other_clock_mhz = _mean(clock[~busy & inside])
    gpu.throttle_reasons = _throttles(log.of(rows).reasons)
    if curve is None:
        return _Sampled(gpu, whole, intervals, None, iv.EMPTY, *sampled)
    attribution = split(curve, intervals)
    covered = window_of(curve, *window)
    communication = clip_to(curve, intervals)
    joules, busy_joules = attribution.curve.within(covered), attribution.curve.within(communication)
    covered_s, busy_s = iv.length_ns(covered) / 1e9, iv.length_ns(communication) / 1e9
    gpu.missing_s = missing_ns(curve, *span) / 1e9 if span else None
    part_of = False  # whether it communicated while it was not sampled
    if gpu.missing_s:
        gpu.joules_at_least = joules if covered_s else None
        unsampled = iv.minus(intervals, covered)
        part_of = iv.length_ns(unsampled) > curve.slack_ns or bool(iv.touches(unsampled, curve.unknown).any())
    else:
        gpu.joules = joules
    gpu.average_watts = joules / covered_s if covered_s else None
    if busy_s:
        gpu.communication_joules = None if part_of else busy_joules
        gpu.communication_joules_at_least = busy_joules if part_of else None
        if attribution.resolved:
            gpu.communication_watts = busy_joules / busy_s
            if covered_s > busy_s:
                gpu.other_watts = (joules - busy_joules) / (covered_s - busy_s)
    return _Sampled(gpu, whole, communication, attribution, covered, *sampled)


def _span(here: list[RankTrace], logs: list[PowerLog]) -> tuple[int, int] | None:
    """From when until when something was recorded on a host, where run.json does not say how long the run was."""
    starts, ends = [trace.start_ns for trace in here], [trace.last_ns() for trace in here]
    for log in logs:
        if len(log.samples):
            time = log.samples["time_ns"].to_numpy()
            starts.append(int(time.min()))
            ends.append(int(time.max()))
    return (min(starts), max(ends)) if starts and max(ends) > min(starts) else None


def _by_host(logs: Sequence[Log]) -> dict[str, list[Log]]:
    hosts: dict[str, list[Log]] = {}
    for log in logs:
        hosts.setdefault(log.host, []).append(log)
    return hosts


def _throttles(masks: Iterable[str | None]) -> list[str]:
    seen = 0
    for mask in masks:
        digits = (mask or "").strip().lower().removeprefix("0x")
        if digits and set(digits) <= set("0123456789abcdef"):
            seen |= int(digits, 16)
    return [text for bit, text in THROTTLE_REASONS.items() if seen & bit]


def _mean(values: Iterable[float | None]) -> float | None:
    known = np.asarray(values if isinstance(values, np.ndarray) else list(values), dtype=np.float64)  # None: no number
    known = known[np.isfinite(known)]
    return float(known.mean()) if len(known) else None


def _missing(run: RunData, gpu: _Sampled, hosts: int) -> str:
    """Of which GPU samples are missing, how long, and why if that is known; empty: of none."""
    name = f"GPU {gpu.finding.gpu}" if gpu.index is None else f"GPU {gpu.index}"
    name = f"{gpu.finding.host} {name}" if hosts > 1 else name
    if gpu.attribution is None:
        return f"{name}: no power samples{why_unsampled(run, gpu.finding.host)}"
    if not gpu.finding.missing_s or gpu.span_ns is None:
        return ""
    of_s = (gpu.span_ns[1] - gpu.span_ns[0]) / 1e9
    text = f"{name}: no power samples for {seconds(gpu.finding.missing_s)} of {seconds(of_s)}"
    tail_s = (gpu.span_ns[1] - (gpu.last_ns or 0)) / 1e9
    # Samples before the run have no place in it.
    if of_s > tail_s > 0.9 * gpu.finding.missing_s:
        text += f", none after {seconds(of_s - tail_s)}"
    return text + why_unsampled(run, gpu.finding.host, iv.minus(np.array([gpu.span_ns]), gpu.covered))


def _not_counted(run: RunData) -> list[str]:
    """What to say of hosts whose GPUs are not counted: no rank left a trace there, or their files are not here."""
    if not run.ranks:
        return []  # then all that the job could see are counted
    boots = {trace.boot_id for trace in run.ranks if trace.boot_id}
    hosts = {trace.host for trace in run.ranks}
    return [
        *(
            f"{log.host}: {plural(len(log.gpus), 'GPU')} sampled, and no rank there left a trace: not counted"
            for log in run.power
            if log.gpus and log.host not in hosts and log.boot_id not in boots
        ),
        *([f"{hosts_of(run.elsewhere)}: the GPUs are not known here: not counted"] if run.elsewhere else []),
    ]


def _energy(run: RunData, gpus: list[_Sampled], lost: list[str]) -> Energy:
    """Of all GPUs; `lost`: what to say of ranks without a trace, whose GPUs are not known."""
    known = [gpu for gpu in gpus if gpu.attribution is not None and len(gpu.covered)]
    if not known:
        if not gpus and any(log.gpus for log in run.power):
            return Energy(reason="the job could see no GPU")
        why = next(filter(None, (why_unsampled(run, gpu.finding.host) for gpu in gpus)), "")
        return Energy(reason=f"{NO_SAMPLES}{why}")
    sources = {gpu.attribution.curve.source for gpu in known if gpu.attribution}
    reason = "" if len(known) == len(gpus) else f"only {len(known)} of {plural(len(gpus), 'GPU')} were sampled"
    hosts = len({gpu.finding.host for gpu in gpus})
    missing = said_once(text for text in (*(_missing(run, gpu, hosts) for gpu in gpus), *lost) if text)
    total = sum((gpu.finding.joules or 0.0) + (gpu.finding.joules_at_least or 0.0) for gpu in known)
    return Energy(
        joules=None if missing else total,
        joules_at_least=total if missing else None,
        missing=missing,
        average_watts=_mean(gpu.finding.average_watts for gpu in known),
        covered_s=_mean(iv.length_ns(gpu.covered) / 1e9 for gpu in known),
        source="+".join(sorted(sources)),
        sample_ms=_mean(gpu.attribution.curve.read_ns / 1e6 for gpu in known if gpu.attribution),
        update_ms=_mean(gpu.attribution.curve.update_ns / 1e6 for gpu in known if gpu.attribution),
        reason=reason,
    )


def _communication(gpus: list[_Sampled]) -> Communication:
    findings = [gpu.finding for gpu in gpus]
    with_energy = [gpu for gpu in gpus if len(gpu.communication) and gpu.attribution is not None]
    joules = sum(f.communication_joules or f.communication_joules_at_least or 0.0 for f in findings)
    # A GPU that communicated and was not sampled, or not all the time.
    part_of = any(f.communication_s and f.communication_joules is None for f in findings)
    time_s = _mean(finding.communication_s for finding in findings) or 0.0
    return Communication(
        time_s=time_s,
        joules=joules if with_energy and not part_of else None,
        joules_at_least=joules if with_energy and part_of else None,
        uncertainty_joules=(
            sum(gpu.attribution.uncertainty_joules for gpu in with_energy if gpu.attribution) if with_energy else None
        ),
        resolved=bool(with_energy) and all(gpu.attribution and gpu.attribution.resolved for gpu in with_energy),
        average_watts=_mean(finding.communication_watts for finding in findings),
        other_average_watts=_mean(finding.other_watts for finding in findings),
        clock_mhz=_mean(finding.communication_clock_mhz for finding in findings),
        other_clock_mhz=_mean(finding.other_clock_mhz for finding in findings),
    )


def _count(communication: Communication, coverage: CallCoverage, timed: pl.DataFrame, gpus: list[Gpu]) -> None:
    """Count calls. A captured one is made once and runs at each replay of its graph.

    Where calls were made and none was timed, no time is known to be communication, or to be anything else.
    """
    captured = pl.col("captured")
    communication.calls = coverage.count(~captured)
    communication.captured_calls = coverage.count(captured)
    communication.timed_calls = coverage.timed
    communication.untimed_calls = coverage.untimed(timed)
    communication.untimed_captured_calls = coverage.count(captured, ~pl.col("timed"))
    if len(coverage.kinds) and not coverage.timed and not communication.time_s:
        communication.time_s = communication.other_average_watts = communication.other_clock_mhz = None
        for gpu in gpus:
            gpu.communication_s = gpu.other_watts = gpu.other_clock_mhz = None


def _mark_incomplete(communication: Communication, run: RunData) -> None:
    """Where records of a rank are missing, what communication took is at least what was recorded of it."""
    communication.incomplete = any(trace.incomplete for trace in run.ranks)
    if communication.incomplete:
        if communication.joules is not None:
            communication.joules_at_least = communication.joules
        communication.joules = communication.other_average_watts = communication.other_clock_mhz = None


def _with_regression(
    communication: Communication,
    communicating: Mapping[str, iv.Intervals],
    findings: EnergyFindings,
) -> Communication:
    """Energy of communication by the regression, where most of it comes in stretches no longer than a few updates."""
    low, high = findings.joules_communication_low, findings.joules_communication_high
    lengths = np.concatenate([spans[:, 1] - spans[:, 0] for spans in communicating.values()] or [np.zeros(0, np.int64)])
    short = lengths < LONG_IN_UPDATES * 1e6 * (findings.update_ms or 0.0)
    partial = bool(findings.reason) or communication.joules_at_least is not None
    if low is None or high is None or partial or lengths[short].sum() < 0.5 * lengths.sum():
        return communication
    communication.joules = findings.joules_communication
    communication.uncertainty_joules = (high - low) / 2
    communication.resolved = True
    time_s = float(lengths.sum()) / 1e9
    joules = communication.joules
    communication.average_watts = joules / time_s if joules is not None and time_s > 0 else None
    communication.other_average_watts = findings.computation_watts
    return communication


def _share_out(communication: Communication, gpus: list[Gpu]) -> None:
    """Give GPUs their parts of the regression's energy: it is of all of them, and theirs were split otherwise."""
    parts = [gpu.communication_joules for gpu in gpus if gpu.communication_joules is not None]
    if communication.joules is None or not sum(parts) or not communication.resolved:
        return
    scale = communication.joules / sum(parts)
    for gpu in gpus:
        if gpu.communication_joules is None:
            continue
        gpu.communication_joules *= scale
        if gpu.joules is not None and gpu.communication_joules > gpu.joules:
            gpu.communication_joules = gpu.communication_watts = gpu.other_watts = None
        elif gpu.communication_watts is not None:
            gpu.communication_watts *= scale


def _middle(kernels: pl.DataFrame) -> tuple[int, int] | None:
    """The part of a long run whose energy is attributed; None: all of it."""
    if not len(kernels):
        return None
    first, last = int(kernels["start_ns"].min() or 0), int(kernels["stop_ns"].max() or 0)  # type: ignore[arg-type]
    middle = (first + last) // 2
    return (middle - PART_NS // 2, middle + PART_NS // 2) if last - first > LONG_NS else None
