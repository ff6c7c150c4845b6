# SPDX-License-Identifier: Apache-2.0
"""The typical iteration of each rank of a recorded run: what it computes and communicates, and what waits for what.

Marks tell where computation waited for which collective, kernels when each ran. The progress of computation is the time
that it would have taken with no wait and with no collective beside it. Each collective begins at some progress, and
computation waits for it at another. Times are in microseconds, medians over the iterations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.exposure import marked
from powerccl.analysis.step import HOST_US, QUEUED_US
from powerccl.analysis.stragglers import match
from powerccl.traces import tables
from powerccl.traces.folder import RunData
from powerccl.whatif.alignment import align, pause_us
from powerccl.whatif.calls import (
    NoProgramError,
    RankCalls,
    calls_of_rank,
    find_channels,
    find_stretch,
    members_of,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FEWEST = 5  # iterations: a median of fewer says little
MOST = 400  # iterations that are looked at, from the middle
# Standard deviation of computation, as a share: more is uneven work, such as that of experts. Less may be due to clocks
# of GPUs at their power limit, which the simulation moves by itself.
UNEVEN = 0.08
HOST_SHARE = 0.01  # of the iteration: a launch takes longer than HOST_US where the host is busy
NORMAL = 1.4826  # standard deviations in a median deviation, of normally distributed values


@dataclass(frozen=True)
class Collective:
    """One call of the iteration, of whatever pattern. `members`: ranks of the job, ascending.

    `transfer_us`: what it takes once all have come. `released_us`: progress of computation from which on it may begin;
    `needed_us`: progress at which computation waits for it, None where it never does. `graph`: which launch of a CUDA
    graph in the iteration it is part of, None: of none. `hosted`: it began as soon as the host called it.
    """

    pattern: str
    bytes: int
    members: tuple[int, ...]
    transfer_us: float
    released_us: float
    needed_us: float | None
    graph: int | None = None
    hosted: bool = False
    sends_to: int | None = None  # of a send-receive: ranks of the job
    receives_from: int | None = None


@dataclass(frozen=True)
class Program:
    """A rank's iteration. `work_us`: its computation; `uneven`: standard deviation of that, as a share."""

    rank: int
    work_us: float
    uneven: float
    collectives: list[Collective]


@dataclass(frozen=True)
class Recorded:
    """All ranks, and how long an iteration took. `edges_ns`: of the iterations looked at, on the first rank."""

    programs: list[Program]
    time_us: float
    edges_ns: Ints
    marked: bool = True  # marks told where computation waited


class Recording:
    """A run whose ranks' calls are aligned, once for all rates at which its programs are asked for."""

    def __init__(self, run: RunData) -> None:
        """Read and align it.

        Raises:
            NoProgramError: no kernels were recorded, or nothing repeats; the text says which.
        """
        calls, kernels, waits = tables.calls(run), tables.kernels(run), tables.waits(run)
        if not len(kernels):
            raise NoProgramError("no kernel of NCCL was timed")
        self._members = members_of(run)
        self._kernels = kernels.with_columns(waiting_ns=match(run, calls, kernels).waiting_ns)
        traces = sorted(run.ranks, key=lambda trace: trace.rank)
        ranks = [calls_of_rank(run, trace.rank, calls, self._kernels, waits, self._members) for trace in traces]
        if [each.rank for each in ranks] != list(range(len(ranks))):
            raise NoProgramError("traces of some ranks are missing")
        channels: dict[tuple[int, ...], int] = {}
        for each, trace in zip(ranks, traces, strict=True):
            find_stretch(each)
            find_channels(each, channels, trace.calls_before)
        align(ranks)
        pauses = [pause_us(each) for each in ranks]
        self._ranks = [(each, max(0.0, pause - min(pauses))) for each, pause in zip(ranks, pauses, strict=True)]
        self._shorts = _shortest(kernels)
        self._marked = len(waits) > 0

    def programs(self, overlap_rate: float) -> Recorded:
        """The typical iteration of each rank. Without marks all of its communication is taken to be exposed.

        `overlap_rate`: at what part of its speed a GPU computes while it communicates.

        Raises:
            NoProgramError: too few iterations were recorded as a whole.
        """
        found = [
            _program(each, self._kernels, self._marked, self._members, self._shorts, overlap_rate, idle_us)
            for each, idle_us in self._ranks
        ]
        edges = found[0][1]
        time_us = float(np.median(np.diff(edges, axis=1))) / 1e3
        return Recorded([program for program, _ in found], time_us, edges, self._marked)


def stretched(run: Recorded, times: float) -> Recorded:
    """The same with computation that takes so many times as long; collectives stay as they are."""

    def longer(each: Collective) -> Collective:
        needed = None if each.needed_us is None else times * each.needed_us
        return replace(each, released_us=times * each.released_us, needed_us=needed)

    programs = [
        replace(of, work_us=times * of.work_us, collectives=[longer(each) for each in of.collectives])
        for of in run.programs
    ]
    return replace(run, programs=programs)


def _shortest(kernels: pl.DataFrame) -> dict[tuple[str, int], float]:
    rows = kernels.group_by("pattern", "bytes", maintain_order=True).agg(us=pl.col("duration_ns").quantile(0.05) / 1e3)
    return {(pattern, size): us for pattern, size, us in rows.select("pattern", "bytes", "us").iter_rows()}


class _Progress:
    """How far computation has come at any time: time, less what it waited and what collectives took from it."""

    def __init__(self, kernels: pl.DataFrame, waits: pl.DataFrame, overlap_rate: float) -> None:
        """`kernels` has a column `in_turn`: with computation, which waits for each of them."""
        inside = kernels.filter("in_turn").select("start_ns", "stop_ns").to_numpy()
        begins = np.concatenate([waits["stall_ns"].to_numpy(), inside[:, 0]])
        self._stalls = iv.union(begins, np.concatenate([waits["resume_ns"].to_numpy(), inside[:, 1]]))
        # Of exchanges nobody knows how long a rank waited in them.
        alone = (kernels["pattern"] == "send_receive").to_numpy()
        started, lasts = kernels["start_ns"].to_numpy(), kernels["duration_ns"].to_numpy()
        usual = kernels.select(pl.col("duration_ns").quantile(0.05).over("bytes"))["duration_ns"].to_numpy()
        waited = np.where(alone, np.maximum(lasts - usual, 0), np.maximum(kernels["waiting_ns"].to_numpy(), 0))
        moved = started + waited.astype(np.int64)
        self._beside = iv.minus(iv.union(moved, kernels["stop_ns"].to_numpy()), self._stalls)
        self._lost = 1 - overlap_rate

    def at(self, time_ns: Ints, origin_ns: int) -> Floats:
        """Microseconds of progress since the origin."""
        shape, flat = time_ns.shape, time_ns.ravel()
        lost = iv.covered_before(self._stalls, flat) + self._lost * iv.covered_before(self._beside, flat)
        return np.asarray(((flat - origin_ns) - lost).reshape(shape) / 1e3, dtype=np.float64)


def _program(
    each: RankCalls,
    kernels: pl.DataFrame,
    has_marks: bool,
    members: dict[int, tuple[int, ...]],
    shorts: dict[tuple[str, int], float],
    overlap_rate: float,
    idle_us: float,
) -> tuple[Program, Ints]:
    """`idle_us`: of each iteration's beginning, it does not compute."""
    mine = kernels.filter(pl.col("rank") == each.rank).join(
        each.rows.select("call_id", "captured").unique(maintain_order=True), on="call_id", how="inner"
    )
    mine = mine.with_columns(in_turn=pl.col("captured") | (not has_marks))
    progress = _Progress(mine, each.waits, overlap_rate)
    number = min((each.last - each.first) // each.length, MOST)
    if number < FEWEST:
        raise NoProgramError(f"fewer than {FEWEST} iterations of rank {each.rank} were recorded")
    index = each.first + np.arange(number)[:, None] * each.length + np.arange(each.length)
    columns = {
        name: each.rows[name].cast(pl.Float64).to_numpy()
        for name in ("called_ns", "start_ns", "stop_ns", "waiting_ns", "needed_ns")
    }
    # An iteration begins as the collective before it ends; where that was not timed, with its own first one.
    begins = columns["stop_ns"][index[:, 0] - 1] if each.first > 0 else columns["start_ns"][index[:, 0]]
    begins = np.where(np.isnan(begins), columns["start_ns"][index[:, 0]], begins)
    edges = np.stack([begins[:-1], begins[1:]], axis=1)
    index = index[:-1]
    whole = ~np.isnan(edges).any(axis=1)
    for gpu, spans in marked(each.waits).items():  # marks pause; what waited is not known then
        inside = np.nan_to_num(edges).astype(np.int64)
        whole &= iv.contains(spans, inside[:, 0]) & iv.contains(spans, inside[:, 1] - 1) | (gpu != each.gpu)
    if int(whole.sum()) < FEWEST:
        raise NoProgramError(f"fewer than {FEWEST} iterations of rank {each.rank} were recorded as a whole")
    index, bounds = index[whole], edges[whole].astype(np.int64)
    origin = int(bounds[0, 0])
    begin, end = progress.at(bounds[:, 0], origin), progress.at(bounds[:, 1], origin)
    begin = begin + idle_us
    work = end - begin

    def since_begin(name: str) -> Floats:
        times = columns[name][index]
        known = progress.at(np.nan_to_num(times, nan=origin).astype(np.int64), origin) - begin[:, None]
        return np.where(np.isnan(times), np.nan, known)

    start, needs = since_begin("start_ns"), since_begin("needed_ns")
    lasts = (columns["stop_ns"] - columns["start_ns"])[index] / 1e3
    waiting = columns["waiting_ns"][index] / 1e3
    launched = (columns["start_ns"] - columns["called_ns"])[index] / 1e3
    behind = _behind(each, columns)[index]
    usual = float(np.median(work))
    length_us = float(np.median(np.diff(edges[whole], axis=1))) / 1e3
    found: list[Collective] = []
    captured, opens = each.rows["captured"].to_numpy(), each.rows["opens"].to_numpy()
    graph = -1
    for place in range(each.length):
        row = int(index[0, place])
        pattern, size = str(each.rows["pattern"][row]), int(np.median(each.rows["bytes"].to_numpy()[index[:, place]]))
        known = ~np.isnan(needs[:, place])
        needed = float(np.median(needs[known, place])) if 2 * int(known.sum()) > len(index) else None
        graph += bool(captured[row] and opens[row])
        # Where its kernel was never timed it is taken to begin when computation waits for it.
        before = found[-1].released_us if found else 0.0
        released = _released(start[:, place], behind[:, place], before if needed is None else needed)
        found.append(
            Collective(
                pattern=pattern,
                bytes=size,
                members=tuple(sorted(members[int(np.uint64(each.comm[row]))])),
                transfer_us=_transfer(lasts[:, place], waiting[:, place], shorts.get((pattern, size), 0.0)),
                released_us=max(released, before, 0.0),  # the host makes its calls one after the other
                needed_us=needed,
                graph=graph if captured[row] else None,
                hosted=not captured[row] and _usual(launched[:, place]) < max(HOST_US, HOST_SHARE * length_us),
                sends_to=_end(each.rows["sends_to"][row]),
                receives_from=_end(each.rows["receives_from"][row]),
            )
        )
    mad = float(np.median(np.abs(work - usual))) * NORMAL / max(usual, 1.0)
    return Program(each.rank, usual, mad if mad > UNEVEN else 0.0, found), bounds


def _usual(values: Floats) -> float:
    """The median of what is known; nothing is: infinite."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else math.inf


def _end(rank: int) -> int | None:
    return rank if rank >= 0 else None


def _behind(each: RankCalls, columns: dict[str, Floats]) -> Floats:
    """Microseconds from the end of the collective before it in the same communicator."""
    found = np.full(len(each.rows), np.inf)
    for comm in np.unique(each.comm):
        at = np.flatnonzero(each.comm == comm)
        found[at[1:]] = (columns["start_ns"][at[1:]] - columns["stop_ns"][at[:-1]]) / 1e3
    return found


def _transfer(lasts: Floats, waiting: Floats, shortest: float) -> float:
    """What it takes once all have come: known where the ranks it waits for are; else as short as any of its kind."""
    known = ~np.isnan(lasts) & (waiting >= 0)
    return float(np.median(lasts[known] - waiting[known])) if known.any() else shortest


def _released(start: Floats, behind: Floats, otherwise: float) -> float:
    """One that begins as the one before it ends may have been released long before: as early as in any iteration."""
    known = start[~np.isnan(start)]
    if not len(known):
        return otherwise
    queued = float(np.median(np.nan_to_num(behind, nan=np.inf, posinf=1e18))) < QUEUED_US
    return float(np.quantile(known, 0.1) if queued else np.median(known))
