# SPDX-License-Identifier: Apache-2.0
"""A run folder as rows of the tables. Whatever is wrong with a folder costs one row that says so."""

from __future__ import annotations

import contextlib
import datetime
import functools
import grp
import hashlib
import math
import os
import pwd
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from powerccl import clean
from powerccl.analysis.findings import SUMMARY_FILE, Clocks, Communication, Energy, RunSummary, read_summary
from powerccl.errors import one_line
from powerccl.files import MOST_INFO, read_bytes
from powerccl.fleet.schema import Collective, Gpu, Iteration, Rank, Rows, Run, Step
from powerccl.launch.folder import job_name
from powerccl.launch.launcher_words import launcher_kind, split_launcher
from powerccl.tariff import parse_time
from powerccl.traces.run_files import is_on_nodes
from powerccl.traces.run_info import RUN_FILE, RunInfo, parse_run_info

if TYPE_CHECKING:
    from powerccl.analysis.report_findings import Iterations, NextStep, Straggler

# A run without an end whose files did not change for so long was killed. A sampler writes every few seconds; at double,
# killed jobs are seen an hour later. At half, a job that a debugger holds would count as ended.
QUIET_S = 3600.0
# A next step's basis begins so where its gain was measured in the run, or computed from the run's own calls.
OWN = ("measured in this run", "predicted of this run", "by the table ")
GREATEST = 1 << 62  # of a whole number: sums of a few still fit 64 bits
GREATEST_SUM = 1e30  # of a figure: squares of a million of them are finite


@dataclass
class Analysed:
    """What the traces of a run say, beside its summary."""

    summary: RunSummary
    ranks: list[Straggler] = field(default_factory=list)
    iterations: list[Iterations] = field(default_factory=list)
    steps: list[NextStep] = field(default_factory=list)


# Of a folder and its summary, if it has one: a folder may have lost its traces since.
Analyse = Callable[[Path, "RunSummary | None"], Analysed]


def key_of(folder: str) -> int:
    """A run's number: 63 bits of a hash of its path. A million runs share one with a chance of one in ten million."""
    return int.from_bytes(hashlib.blake2b(os.fsencode(folder), digest_size=8).digest(), "big") >> 1


def stamp_of(folder: str) -> str:
    """Time and size of the files that a row is made from: while they stay, the row does."""
    return f"{_stamp(f'{folder}/{RUN_FILE}')} {_stamp(f'{folder}/{SUMMARY_FILE}')}"


def _stamp(path: str) -> str:
    try:
        about = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - a million of them
    except OSError:
        return "-"
    return f"{about.st_mtime_ns}:{about.st_size}"


def read_info(path: Path) -> tuple[RunInfo | None, str]:
    """run.json of a folder, or why there is none."""
    try:
        return parse_run_info(read_bytes(path / RUN_FILE, MOST_INFO)), ""
    except FileNotFoundError:
        return None, f"{RUN_FILE} is missing"
    except (OSError, ValueError) as why:
        return None, f"{RUN_FILE}: {getattr(why, 'strerror', None) or why}"


def read_folder(
    folder: str, stamp: str, now: datetime.datetime, analyse: Analyse | None, rows: Rows, copy: Path | None = None
) -> None:
    """Append a run's rows to the tables. `copy`: of a folder in an object store, which says nothing of its owner.

    Raises:
        OSError: the folder itself is gone.
    """
    path, summary, traced = copy or Path(folder), None, None
    info, error = read_info(path)
    if not error:
        try:
            summary = read_summary(path / SUMMARY_FILE)
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError) as why:
            error = f"{SUMMARY_FILE}: {getattr(why, 'strerror', None) or why}"
    wanted = analyse is not None and info is not None and has_ended(info, _newest_s(path, copy is not None))
    wanted = wanted and not is_on_nodes(path)
    if wanted and analyse is not None:
        try:
            traced = analyse(path, summary)
            summary, error = traced.summary, ""
        except Exception as why:  # a run that breaks the analysis must not break the index
            error = f"not analysed: {one_line(why)}"
    own: Rows = {table: [] for table in rows}
    place = folder, path.stat(), copy is None
    try:
        run = _run_row(place, info or RunInfo([]), summary, traced, stamp, now, clean.field(error)[:500], wanted)
        if summary:
            _details(run, summary, traced, own)
    except (ArithmeticError, TypeError, ValueError) as why:  # figures that no run has must not stop the index
        run = _run_row(place, RunInfo([]), None, None, stamp, now, f"not read: {one_line(why)}", wanted)
        own = {table: [] for table in rows}
    own["runs"].append(run)
    for table, of_run in own.items():
        rows[table] += of_run


def has_ended(info: RunInfo, newest_s: float) -> bool:
    """Whether a run has its end, or was killed some time ago.

    `newest_s`: when its files last changed, Unix time; 0: not known, so that it may still run.
    """
    if info.end_ns or info.simulated:
        return True
    return newest_s > 0 and datetime.datetime.now().timestamp() - newest_s > QUIET_S


def _newest_s(folder: Path, is_copy: bool) -> float:
    """When a file of a folder last changed, Unix time; a copy says it by its own time."""
    newest = folder.stat().st_mtime if is_copy else 0.0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                newest = max(newest, entry.stat(follow_symlinks=False).st_mtime)
    return newest


def _run_row(
    place: tuple[str, os.stat_result, bool],
    info: RunInfo,
    summary: RunSummary | None,
    traced: Analysed | None,
    stamp: str,
    now: datetime.datetime,
    error: str,
    analysed: bool,
) -> Run:
    folder, about, owned = place
    started = _started(info.started_at)
    # Until the year 9999, which is all that a date can hold.
    changed = datetime.datetime.fromtimestamp(min(max(about.st_mtime, 0), 253e9), datetime.timezone.utc)
    day = (started or changed).date()
    it = summary or RunSummary(energy=Energy(), communication=Communication(), clocks=Clocks())
    mpi, shares = it.mpi, it.shares
    names = sorted({gpu.name for gpu in it.gpus if gpu.name})
    whole = traced.iterations[0] if traced and len(traced.iterations) == 1 else None
    return Run(
        run=key_of(folder),
        folder=clean.field(folder),
        name=_text(info.name),
        program=_text(program_of(info.command)),
        user_name=user_name(about.st_uid) if owned else _text(info.user),
        group_name=group_name(about.st_gid) if owned else "",
        day=day,
        started_at=started,
        host=info.host,
        run_id=_text(info.run_id),
        wall_s=info.wall_ns / 1e9 or _number(it.wall_s),
        exit_code=info.exit_code,
        signal=info.signal,
        finished=bool(info.end_ns),
        policy=info.policy,
        clocks=info.clocks,
        platform=info.platform,
        library=_text(it.library),
        modelled=_text(info.modelled_by or it.emulated),
        ranks=_count(it.ranks or (mpi.ranks if mpi else 0)) if summary else None,
        nodes=len({gpu.host for gpu in it.gpus}) or (mpi.energy.hosts if mpi else 0) or None,
        gpus=len(it.gpus) if summary else None,
        gpu_name=_text(", ".join(names)),
        joules=_number(it.energy.joules),
        joules_at_least=_number(it.energy.joules_at_least),
        watts=_number(it.energy.average_watts),
        working_s=_number(shares.span_s),
        startup_s=_number(shares.startup_s),
        startup_joules=_number(shares.startup_joules),
        communicating_pct=_number(shares.communicating_pct),
        exposed_pct=_number(shares.exposed_pct),
        communication_s=_number(it.communication.time_s) if it.ranks else None,
        communication_joules=_number(it.communication.joules),
        recording_pct=_number(it.recording_pct),
        processor_joules=_number(mpi.energy.joules) if mpi else None,
        mpi_wait_s=_number(mpi.wait_s) if mpi else None,
        iteration_s=_number(whole.mean_s) if whole else None,
        iteration_joules=_number(whole.joules) if whole else None,
        summarised=summary is not None,
        analysed=analysed,
        removed=False,
        error=error,
        stamp=stamp,
        version=_text(info.versions.get("powerccl", "")),
        indexed_at=now,
    )


def _details(run: Run, summary: RunSummary, traced: Analysed | None, rows: Rows) -> None:
    """Append what is below a run: its GPUs, ranks, iterations, collectives and next steps."""
    head = (run.run, run.day, run.modelled)
    indices = {(gpu.host, gpu.gpu): gpu.index for gpu in summary.gpus}
    rows["gpus"] += [
        Gpu(
            *head,
            host=_text(gpu.host),
            gpu=_text(gpu.gpu),
            gpu_index=_count(gpu.index),
            gpu_name=_text(gpu.name),
            ranks=len(gpu.ranks),
            joules=_number(gpu.joules),
            joules_at_least=_number(gpu.joules_at_least),
            watts=_number(gpu.average_watts),
            communication_s=_number(gpu.communication_s),
            communication_joules=_number(gpu.communication_joules),
            communication_watts=_number(gpu.communication_watts),
            other_watts=_number(gpu.other_watts),
            communication_clock_mhz=_number(gpu.communication_clock_mhz),
            other_clock_mhz=_number(gpu.other_clock_mhz),
            throttle_reasons=_text(", ".join(gpu.throttle_reasons)),
        )
        for gpu in summary.gpus
    ]
    rows["collectives"] += [
        Collective(
            *head,
            pattern=_text(row.pattern),
            size_class_bytes=_count(row.size_class_bytes) or 0,
            calls=_count(row.calls + row.captured_calls) or 0,
            timed=_count(row.timed) or 0,
            total_bytes=_count(row.total_bytes) or 0,
            time_s=_number(row.time_s) if row.timed else None,
            median_us=_number(row.median_us),
            busbw_gbs=_number(row.busbw_gbs),
            joules=_number(row.joules_per_operation * row.timed) if row.joules_per_operation is not None else None,
        )
        for row in summary.patterns
    ]
    if traced is None:
        return
    for late in traced.ranks:
        watts, watts_from = _peer_watts(summary, late)
        waited_s = _number(late.waited_s)
        if waited_s == 0:
            watts = 0.0
        rows["ranks"].append(
            Rank(
                *head,
                rank=late.rank,
                host=_text(late.host),
                gpu=_text(late.gpu),
                gpu_index=_count(indices.get((late.host, late.gpu))),
                collectives=late.collectives,
                last=late.last,
                steady=late.steady,
                behind_us=_number(late.behind_us),
                cost_s=_number(late.cost_s),
                waited_s=waited_s,
                waited_joules=None if waited_s is None or watts is None else _number(waited_s * watts),
                waited_at_most=late.cost_s is None,
                watts_from=watts_from,
            )
        )
    rows["iterations"] += [
        Iteration(
            *head,
            host=_text(each.host),
            ranks=len(each.ranks),
            iterations=each.found,
            operations=each.operations,
            median_s=_number(each.median_s),
            p5_s=_number(each.p5_s),
            p95_s=_number(each.p95_s),
            mean_s=_number(each.mean_s),
            mean_error_s=_number(each.mean_error_s),
            joules=_number(each.joules),
            joules_error=_number(each.joules_error),
        )
        for each in traced.iterations
        if each.found
    ]
    rows["steps"] += [
        Step(
            *head,
            rule=step.rule,
            of_what=step.of,
            own=step.basis.startswith(OWN),
            gain_pct=_number(step.gain_pct.value) if step.gain_pct else None,
            low_pct=_number(step.gain_pct.low) if step.gain_pct else None,
            high_pct=_number(step.gain_pct.high) if step.gain_pct else None,
            basis=_text(step.basis),
            text=_text(step.text),
            command=_text(step.command),
        )
        for step in traced.steps
    ]


def _peer_watts(summary: RunSummary, late: Straggler) -> tuple[float | None, str]:
    """Mean power of the job's other GPUs while they wait, and what it is from.

    They wait in kernels of communication. Where these were too short for the samples, it is the mean of the whole run.
    """
    peers = [gpu for gpu in summary.gpus if gpu.gpu != late.gpu]
    for figures, source in (
        ([gpu.communication_watts for gpu in peers], "communication"),
        ([gpu.average_watts for gpu in peers], "run"),
    ):
        known = [watts for watts in figures if watts is not None]
        if known and len(known) == len(figures):
            return sum(known) / len(known), source
    return None, ""


def program_of(command: list[str]) -> str:
    """The program that a command runs, without looking at files: a script's name, or the word behind a launcher."""
    if not command:
        return ""
    words = split_launcher(command, None).program if launcher_kind(command) else []
    return job_name(words or command)


@functools.cache
def user_name(number: int) -> str:
    """A user's name, or the number where the system has none."""
    try:
        return clean.field(pwd.getpwuid(number).pw_name)
    except (KeyError, OSError):
        return str(number)


@functools.cache
def group_name(number: int) -> str:
    """A group's name, or the number where the system has none."""
    try:
        return clean.field(grp.getgrgid(number).gr_name)
    except (KeyError, OSError):
        return str(number)


def _started(text: str) -> datetime.datetime | None:
    """When a run began, UTC without a zone."""
    started_s = parse_time(text)
    if started_s is None:
        return None
    return datetime.datetime.fromtimestamp(started_s, datetime.timezone.utc).replace(tzinfo=None)


def _text(text: str) -> str:
    """Text of others, fit to be kept and shown; a command of megabytes does not fit a column."""
    return clean.field(text[:1000])


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and abs(value) < GREATEST_SUM else None


def _count(value: int | None) -> int | None:
    return value if value is not None and abs(value) < GREATEST else None
