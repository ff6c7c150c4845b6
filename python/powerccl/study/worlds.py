# SPDX-License-Identifier: Apache-2.0
"""Study E: one training job on more and more GPUs, and what its collectives come to at each size.

Of each world size: the time and bandwidth of every collective in an iteration. Beside them, those of a sweep of this
size on the same GPUs. Then communication's share of an iteration, throughput and energy.
"""

from __future__ import annotations

import contextlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from powerccl import patterns
from powerccl.analysis import intervals as iv
from powerccl.analysis import possible
from powerccl.analysis.communication import communication_intervals
from powerccl.analysis.energy import energy_curves
from powerccl.analysis.exposure import period
from powerccl.analysis.run_tables import RunTables, run_tables
from powerccl.analysis.shares import of_stretches
from powerccl.files import decode_json, read_bytes, read_json
from powerccl.quantities import plural
from powerccl.traces.folder import RunData, read_run

MIN_SHARE_PCT = 0.5  # of communication's time, below which a collective is not swept
MARKED, BY_JOB = "the job's own streams", "the replay's own events"


class Collective(msgspec.Struct, kw_only=True):
    """One collective of an iteration; times are means over iterations and GPUs.

    busbw_gbs is bytes x (n-1)/n / time (all-reduce: twice that), as study E estimates it. It includes waiting for late
    ranks. transfer_busbw_gbs is of the time since the last rank had begun. sweep_* are of powerccl-bench. None: not
    known.
    """

    pattern: str
    size_bytes: int
    per_iteration: float
    time_s: float
    waiting_s: float | None
    busbw_gbs: float | None
    transfer_busbw_gbs: float | None
    sweep_time_s: float | None = None  # of as many operations as an iteration has
    sweep_busbw_gbs: float | None = None


class SweepPoint(msgspec.Struct, kw_only=True):
    """One size of a sweep by powerccl-bench."""

    pattern: str
    size_bytes: int
    time_s: float
    busbw_gbs: float
    joules_per_gpu: float | None = None


class World(msgspec.Struct, kw_only=True):
    """One world size over one kind of link."""

    gpus: int
    links: str
    emulated: str = ""
    gpu: str = ""
    folder: str = ""
    iterations: int = 0
    iterations_from: str = ""  # the job's own file, or the trace
    iteration_s: float | None = None
    iteration_low_s: float | None = None  # quartiles
    iteration_high_s: float | None = None
    tokens_per_iteration: int | None = None
    tokens_per_s: float | None = None
    scaling_pct: float | None = None  # throughput a GPU, of that of the least world size with the same links
    communication_s: float | None = None  # an iteration, mean over GPUs
    communication_pct: float | None = None
    exposed_s: float | None = None
    exposed_pct: float | None = None
    exposed_from: str = ""
    joules_per_iteration: float | None = None  # all GPUs
    joules_per_token: float | None = None
    watts_per_gpu: float | None = None
    collectives: list[Collective] = []
    sweep: list[SweepPoint] = []  # of the collectives' sizes, and what was asked for beside
    notes: list[str] = []


class ScalingFindings(msgspec.Struct, kw_only=True):
    """The whole study."""

    schema: int = 1
    command: str
    started_at: str = ""
    host: str = ""
    worlds: list[World] = []
    failed: dict[str, str] = {}  # worlds that ran and failed, `<links>-<gpus>`: why, and where their output is
    notes: list[str] = []


class Steps(msgspec.Struct):
    """Measured iterations: [start, end) in host ns, shape (n, 2); what else the job said of them."""

    spans: list[tuple[int, int]]
    source: str
    tokens: int | None = None
    exposed_ms: list[float] = []


def read_steps(path: Path) -> Steps | None:
    """Iterations from a job's own file: examples/train_gpt.py's or `powerccl-bench scenario --json`.

    Both name each iteration's start_ns and end_ns on CLOCK_MONOTONIC, and which are warm-up. None: no such file.
    """
    try:
        document = read_json(path, dict[str, Any])
        rows = [row for row in document.get("iterations") or document.get("results") or [] if not row.get("warmup")]
        spans = [(int(row["start_ns"]), int(row["end_ns"])) for row in rows]
        exposed = [row.get("exposed_ms") for row in rows]
        known = [float(each) for each in exposed if each is not None]
        tokens = document.get("tokens_per_iteration")
        tokens = None if tokens is None else int(tokens)
    except (OSError, msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None
    if not spans or not all(0 <= begin <= end < 1 << 62 for begin, end in spans):
        return None
    return Steps(spans, "the job's file", tokens, known if len(known) == len(exposed) else [])


def steps_of_trace(kernels: pl.DataFrame) -> Steps | None:
    """Iterations as the sequence of collectives repeats itself on the first rank, from its second repetition on."""
    if not len(kernels):
        return None
    rows = kernels.filter(pl.col("rank") == pl.col("rank").min()).sort("start_ns")
    labels = [f"{pattern} {size}" for pattern, size in rows.select("pattern", "bytes").iter_rows()]
    start = rows["start_ns"].to_numpy()
    length = period(labels, start)
    marks = start[::length][1:].tolist() if length else []
    return Steps(list(pairwise(marks)), "the trace") if len(marks) > 2 else None


def examine(world: World, folder: Path, job_file: Path, tokens_per_gpu: int | None = None) -> World:
    """Fill in what the run folder and the job's file tell. What they do not is left None, with a note."""
    run = read_run(folder)
    world.notes += [*run.problems, *filter(None, [run.late])]
    if not world.emulated and (any(rank.emulated for rank in run.ranks) or any(log.emulated for log in run.power)):
        world.emulated = "yes"  # an emulated machine that another process has started
    world.gpu = next((log.about["gpu0_name"] for log in run.power if "gpu0_name" in log.about), "")
    built = run_tables(run)
    kernels = built.kernels
    steps = read_steps(job_file) or steps_of_trace(kernels)
    if steps is None:
        world.notes.append("no iterations: the job wrote no {json}, and its collectives do not repeat")
        return world
    spans = np.array(steps.spans, dtype=np.int64).reshape(-1, 2)
    lengths_s = (spans[:, 1] - spans[:, 0]) / 1e9
    world.iterations, world.iterations_from = len(spans), steps.source
    world.iteration_low_s, world.iteration_s, world.iteration_high_s = np.percentile(lengths_s, [25, 50, 75]).tolist()
    world.tokens_per_iteration = steps.tokens or (tokens_per_gpu * world.gpus if tokens_per_gpu else None)
    if world.tokens_per_iteration:
        world.tokens_per_s = world.tokens_per_iteration / float(np.median(lengths_s))
    inside = iv.union(spans[:, 0], spans[:, 1])
    _communication(world, built, inside, steps)
    _energy(world, run, inside)
    world.notes += possible.check(world)
    return world


def _communication(world: World, built: RunTables, spans: iv.Intervals, steps: Steps) -> None:
    kernels = built.kernels
    ran = kernels.filter(pl.Series(iv.contains(spans, kernels["start_ns"].to_numpy())))
    calls = built.calls.filter(~pl.col("captured"))
    made = calls.filter(pl.Series(iv.contains(spans, calls["start_ns"].to_numpy())))
    count, length_s = len(steps.spans), iv.length_ns(spans) / 1e9
    if not len(ran):
        if len(made) and world.gpus > 1:
            world.notes.append(f"none of {len(made):,} calls was timed; POWERCCL_KERNEL_EVENTS=all times all of them")
        elif world.gpus > 1:
            world.notes.append("no collective was recorded: does the job communicate through NCCL?")
        else:
            world.communication_s = world.communication_pct = world.exposed_s = world.exposed_pct = 0.0
        return
    busy = communication_intervals(ran)
    world.collectives = _collectives(ran, made, count, len(busy))
    marked = built.marks.exposed if built.marks else None
    shares = of_stretches(
        [(each, None if marked is None else marked.get(gpu)) for gpu, each in sorted(busy.items())], spans
    )
    world.communication_pct, world.exposed_pct = shares.communicating_pct, shares.exposed_pct
    world.exposed_from = MARKED if marked is not None else ""
    if marked is None and steps.exposed_ms:
        world.exposed_pct = 100 * float(np.mean(steps.exposed_ms)) / 1e3 * count / length_s
        world.exposed_from = BY_JOB
    elif marked is None:
        world.notes.append(
            "exposed communication is not known, because the job's streams have no marks; at most all of it is exposed"
        )
    iteration_s = length_s / count
    world.communication_s = None if world.communication_pct is None else world.communication_pct / 100 * iteration_s
    world.exposed_s = None if world.exposed_pct is None else world.exposed_pct / 100 * iteration_s


def _collectives(kernels: pl.DataFrame, calls: pl.DataFrame, iterations: int, gpus: int) -> list[Collective]:
    """One row a pattern and size. Times of the n-th operation of a kind are put side by side over the ranks."""
    made = {
        (str(pattern), int(size)): int(number)
        for pattern, size, number in calls.group_by("pattern", "bytes", maintain_order=True).len().iter_rows()
    }
    collectives = []
    for (pattern, size), rows in kernels.group_by("pattern", "bytes", maintain_order=True):
        pattern, size = str(pattern), int(str(size))
        timed = len(rows) / gpus / iterations
        per_iteration = max(timed, made.get((pattern, size), 0) / gpus / iterations)
        mean_s = float(rows["duration_ns"].to_numpy().mean()) / 1e9
        transfer_s = _transfer_s(rows)
        bytes_moved = size * patterns.bus_factor(pattern, int(rows["ranks"].to_numpy().max()))
        collectives.append(
            Collective(
                pattern=pattern,
                size_bytes=size,
                per_iteration=per_iteration,
                time_s=mean_s * per_iteration,
                waiting_s=None if transfer_s is None else max(0.0, mean_s - transfer_s) * per_iteration,
                busbw_gbs=bytes_moved / mean_s / 1e9 if mean_s > 0 and bytes_moved > 0 else None,
                transfer_busbw_gbs=bytes_moved / transfer_s / 1e9 if transfer_s and bytes_moved > 0 else None,
            )
        )
    return sorted(collectives, key=lambda each: -each.time_s)


def _transfer_s(rows: pl.DataFrame) -> float | None:
    """Mean over operations of the shortest kernel among the ranks: the last to come waits for no other.

    None where ranks did not run equally many, so that it cannot be said which belong together.
    """
    parts = [each["duration_ns"].to_numpy() for _, each in rows.sort("start_ns").group_by("rank", maintain_order=True)]
    ranks = int(rows["ranks"].to_numpy().max())
    if len(parts) != ranks or len({len(part) for part in parts}) != 1:
        return None
    return float(np.min(np.stack(parts), axis=0).mean()) / 1e9


def _energy(world: World, run: RunData, spans: iv.Intervals) -> None:
    curves = list(energy_curves(run).values())
    if not curves:
        world.notes.append("no energy: no power was sampled")
        return
    if len(curves) != world.gpus:
        reason = f"that of {plural(len(curves), 'GPU')} is known, and the job has {world.gpus}"
        world.notes.append(f"no energy: {reason}")
        return
    if not all(curve.covers(spans).all() for curve in curves):
        world.notes.append("no energy: samples do not cover the measured iterations")
        return
    total = sum(curve.within(spans) for curve in curves)
    world.joules_per_iteration = total / world.iterations
    world.watts_per_gpu = total / (iv.length_ns(spans) / 1e9) / world.gpus
    if world.tokens_per_iteration:
        world.joules_per_token = world.joules_per_iteration / world.tokens_per_iteration


def to_sweep(world: World) -> list[tuple[str, int]]:
    """(pattern, bytes) of the collectives that matter."""
    total = sum(each.time_s for each in world.collectives)
    return [
        (each.pattern, each.size_bytes)
        for each in world.collectives
        if each.time_s > total * MIN_SHARE_PCT / 100 and each.pattern in patterns.PATTERNS
    ]


def read_sweep(path: Path) -> list[SweepPoint]:
    """Points among the replies of `powerccl-bench serve`; what cannot be read is none."""
    try:
        text = read_bytes(path)
    except OSError:
        return []
    lines: list[dict[str, Any]] = []
    for line in text.splitlines():
        with contextlib.suppress(msgspec.DecodeError):  # a last line that was cut off
            lines.append(decode_json(line, dict[str, Any]))
    emulated = any(line.get("emulated") for line in lines)
    points = []
    for row in lines:
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            # On the emulator the host's own clock also counts what this machine's few cores lose.
            time_us = float((emulated and row.get("device_time_us")) or row.get("time_us") or 0)
            if row.get("type") != "point" or not time_us > 0:
                continue
            size, pattern, joules = int(row["size_bytes"]), str(row["pattern"]), row.get("joules_per_gpu")
            moved = size * patterns.bus_factor(pattern, int(row["ranks"]))
            points.append(
                SweepPoint(
                    pattern=pattern,
                    size_bytes=size,
                    time_s=time_us / 1e6,
                    busbw_gbs=moved / time_us / 1e3,
                    joules_per_gpu=None if joules is None else float(joules),
                )
            )
    return points


def beside_sweep(world: World) -> None:
    """Set the sweep's time and bandwidth beside each collective that was swept."""
    points = {(point.pattern, point.size_bytes): point for point in world.sweep}
    for each in world.collectives:
        point = points.get((each.pattern, each.size_bytes))
        if point:
            each.sweep_time_s = point.time_s * each.per_iteration
            each.sweep_busbw_gbs = point.busbw_gbs


def scale(worlds: list[World]) -> None:
    """Set throughput a GPU against the least world's with the same links; iterations, where no tokens are known."""
    for links in {world.links for world in worlds}:
        same = sorted((each for each in worlds if each.links == links and each.iteration_s), key=lambda each: each.gpus)
        for each in same:
            each.scaling_pct = 100 * _rate_per_gpu(each, same[0])


def _rate_per_gpu(world: World, first: World) -> float:
    if world.tokens_per_s and first.tokens_per_s:
        return (world.tokens_per_s / world.gpus) / (first.tokens_per_s / first.gpus)
    return (first.iteration_s or 0.0) / (world.iteration_s or 1.0)  # data parallel: each GPU has the same to do
