# SPDX-License-Identifier: Apache-2.0
"""The typical iteration of each rank of a recorded run: what it computes and communicates, and what waits for what.

Marks tell where computation waited for which collective, kernels when each ran. The progress of computation is the time
that it would have taken with no wait and with no collective beside it. Each collective begins at some progress, and
computation waits for it at another. Times are in microseconds, medians over the iterations.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.exposure import BUSY_STREAM, marked
from powerccl.analysis.programs.alignment import align, pause_us
from powerccl.analysis.programs.calls import (
    HOST_US,
    NoProgramError,
    RankCalls,
    calls_of_rank,
    find_channels,
    find_stretch,
    members_of,
    waits_by_stream,
)
from powerccl.analysis.programs.program import Collective, Program, Recorded
from powerccl.analysis.programs.progress import MOST_LOST, Loss, Progress
from powerccl.analysis.stragglers import in_sequence, match
from powerccl.traces import records, tables
from powerccl.traces.folder import RunData

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FEWEST = 5  # iterations: a median of fewer says little
MOST = 400  # iterations that are looked at, from the middle
# Standard deviation of computation, as a share: more is uneven work, such as that of experts. Less may be due to clocks
# of GPUs at their power limit, which the simulation moves as well.
UNEVEN = 0.08
QUEUED_US = 30.0  # between two collectives of a communicator, where the second had only waited for the first
HOST_SHARE = 0.01  # of the iteration: a launch takes longer than HOST_US where the host is busy
NORMAL = 1.4826  # standard deviations in a median deviation, of normally distributed values


class Recording:
    """A run whose ranks' calls are aligned, once for all rates at which its programs are asked for."""

    def __init__(self, run: RunData) -> None:
        """Read and align it.

        Raises:
            NoProgramError: no kernels were recorded, or nothing repeats; the text says which.
        """
        calls, self._kernels, waits = program_tables(run)
        self._members = members_of(run)
        traces = sorted(run.ranks, key=lambda trace: trace.rank)
        ranks = []
        for trace in traces:
            names = {int(row["comm"]): int(row["comm_id"]) for row in trace.kinds[records.COMM]}
            ranks.append(calls_of_rank(trace.rank, trace.gpu, calls, self._kernels, waits, names, self._members))
        if [each.rank for each in ranks] != list(range(len(ranks))):
            raise NoProgramError("traces of some ranks are missing")
        channels: dict[tuple[int, ...], int] = {}
        for each, trace in zip(ranks, traces, strict=True):
            find_stretch(each)
            find_channels(each, channels, trace.calls_before)
        align(ranks)
        pauses = [pause_us(each) for each in ranks]
        self._ranks = [(each, max(0.0, pause - min(pauses))) for each, pause in zip(ranks, pauses, strict=True)]
        self._shorts = _shortest(self._kernels)
        self._marked = len(waits) > 0

    def programs(self, overlap_rate: float, waiting: bool = False) -> Recorded:
        """The typical iteration of each rank. Without marks all of its communication is taken to be exposed.

        `overlap_rate`: at what part of its speed a GPU computes while it communicates. `waiting`: as of Loss.

        Raises:
            NoProgramError: too few iterations were recorded as a whole.
        """
        loss = Loss(lambda kernels: np.full(len(kernels), 1 - overlap_rate), 1 - overlap_rate, waiting)
        made = [
            _program(each, self._kernels, self._marked, self._members, self._shorts, loss, idle_us)
            for each, idle_us in self._ranks
        ]
        return _recorded([program for program, _ in made], made[0][1], self._marked)


def program_tables(run: RunData) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Calls, kernels and waits of a run as program_of_a_rank takes them.

    Raises:
        NoProgramError: no kernel was timed.
    """
    calls, kernels = tables.calls(run), tables.kernels(run)
    if not len(kernels):
        raise NoProgramError("no kernel of NCCL was timed")
    matched = match(run, in_sequence(run, run.ranks, calls, kernels), kernels)
    return calls, kernels.with_columns(waiting_ns=matched.waiting_ns), tables.waits(run)


def program_of_a_rank(
    calls: pl.DataFrame, kernels: pl.DataFrame, waits: pl.DataFrame, loss_us: Callable[[str, float], float]
) -> Recorded:
    """The iteration of the rank whose collectives take least: on others they wait for it.

    Tables are those of traces.tables; `kernels` also has waiting_ns of stragglers.match. `loss_us`: what computation
    loses to one call, by its pattern and bytes; one that waits for the host has nothing beside it.

    Raises:
        NoProgramError: nothing repeats, or no marks tell where computation waited.
    """

    def share(of: pl.DataFrame) -> Floats:
        lost = np.array([loss_us(pattern, size) for pattern, size in of.select("pattern", "bytes").iter_rows()])
        moving = of.select((pl.col("duration_ns") - pl.col("waiting_ns").clip(0)) / 1e3).to_series().to_numpy()
        hosted = of.select(pl.col("start_ns") - pl.col("called_ns") < HOST_US * 1e3).to_series().to_numpy()
        share = np.divide(lost, moving, out=np.zeros(len(of)), where=(moving > 0) & ~hosted)
        return np.asarray(np.minimum(share, MOST_LOST), dtype=np.float64)

    if not len(waits):
        raise NoProgramError("no marks tell where computation waited for communication")
    typical: list[Recorded] = []
    why = "no kernel was timed"
    shorts, loss = _shortest(kernels), Loss(share, MOST_LOST)
    for (rank, gpu), own in kernels.with_columns(sends_to=-1, receives_from=-1).group_by(
        "rank", "gpu", maintain_order=True
    ):
        comms = own.select("comm", "ranks").unique(maintain_order=True)
        members = {int(comm): tuple(range(ranks)) for comm, ranks in comms.iter_rows()}
        streams = waits_by_stream(waits.filter(pl.col("rank") == rank))
        try:
            if len(streams) > 1 and len(streams[1]) > BUSY_STREAM * len(streams[0]):
                raise NoProgramError("several streams compute")
            of_rank = calls.filter(pl.col("rank") == rank, pl.col("comm").is_in(list(members)))
            each = calls_of_rank(int(rank), str(gpu), of_rank, own, waits, {comm: comm for comm in members}, members)
            find_stretch(each)
            align([each])
            program, edges = _program(each, own, True, members, shorts, loss, 0.0, usual_only=True)
        except NoProgramError as error:
            why = str(error)
            continue
        typical.append(_recorded([program], edges, True))
    if not typical:
        raise NoProgramError(why)
    return min(typical, key=lambda of: sum(each.transfer_us + each.waited_us for each in of.programs[0].collectives))


def _recorded(programs: list[Program], edges_ns: Ints, marked: bool) -> Recorded:
    return Recorded(programs, float(np.median(np.diff(edges_ns, axis=1))) / 1e3, edges_ns, marked)


def _shortest(kernels: pl.DataFrame) -> dict[tuple[str, int], float]:
    rows = kernels.group_by("pattern", "bytes", maintain_order=True).agg(us=pl.col("duration_ns").quantile(0.05) / 1e3)
    return {(pattern, size): us for pattern, size, us in rows.select("pattern", "bytes", "us").iter_rows()}


def _program(
    each: RankCalls,
    kernels: pl.DataFrame,
    has_marks: bool,
    members: dict[int, tuple[int, ...]],
    shorts: dict[tuple[str, int], float],
    loss: Loss,
    idle_us: float,
    usual_only: bool = False,
) -> tuple[Program, Ints]:
    """`idle_us`: of each iteration's beginning, it does not compute. `usual_only`: of the most usual iterations."""
    timed = kernels.filter(pl.col("rank") == each.rank).join(
        each.rows.select("call_id", "captured", "called_ns").unique(maintain_order=True), on="call_id", how="inner"
    )
    timed = timed.with_columns(in_turn=pl.col("captured") | (not has_marks))
    progress = Progress(timed, each.waits, loss)
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
    if usual_only:
        kept = _usual_iterations(bounds, progress)
        index, bounds = index[kept], bounds[kept]
    origin = int(bounds[0, 0])
    begin, end = progress.at(bounds[:, 0]) + idle_us, progress.at(bounds[:, 1])
    work = end - begin

    def since_begin(name: str) -> Floats:
        times = columns[name][index]
        known = progress.at(np.nan_to_num(times, nan=origin).astype(np.int64)) - begin[:, None]
        return np.where(np.isnan(times), np.nan, known)

    start, needs = since_begin("start_ns"), since_begin("needed_ns")
    lasts = (columns["stop_ns"] - columns["start_ns"])[index] / 1e3
    waiting = columns["waiting_ns"][index] / 1e3
    launched = (columns["start_ns"] - columns["called_ns"])[index] / 1e3
    behind = _behind(each, columns)[index]
    usual = float(np.median(work))
    launch_us = max(HOST_US, HOST_SHARE * float(np.median(np.diff(bounds, axis=1))) / 1e3)
    collectives: list[Collective] = []
    captured, opens = each.rows["captured"].to_numpy(), each.rows["opens"].to_numpy()
    graph = -1
    for place in range(each.length):
        row = int(index[0, place])
        pattern, size = str(each.rows["pattern"][row]), int(np.median(each.rows["bytes"].to_numpy()[index[:, place]]))
        known = ~np.isnan(needs[:, place])
        needed = float(np.median(needs[known, place])) if 2 * int(known.sum()) > len(index) else None
        graph += bool(captured[row] and opens[row])
        # Where its kernel was never timed it is taken to begin when computation waits for it.
        before = collectives[-1].released_us if collectives else 0.0
        released = _released(start[:, place], behind[:, place], before if needed is None else needed)
        transfer_us = _transfer(lasts[:, place], waiting[:, place], shorts.get((pattern, size), 0.0))
        collectives.append(
            Collective(
                pattern=pattern,
                bytes=size,
                members=tuple(sorted(members[int(np.uint64(each.comm[row]))])),
                transfer_us=transfer_us,
                released_us=max(released, before, 0.0),  # the host makes its calls one after the other
                needed_us=needed,
                graph=graph if captured[row] else None,
                hosted=not captured[row] and _usual(launched[:, place], math.inf) < launch_us,
                sends_to=_end(each.rows["sends_to"][row]),
                receives_from=_end(each.rows["receives_from"][row]),
                waited_us=max(_usual(lasts[:, place], transfer_us) - transfer_us, 0.0),
                comm=int(each.comm[row]),
            )
        )
    mad = float(np.median(np.abs(work - usual))) * NORMAL / max(usual, 1.0)
    exposed_us = float(np.median(progress.stalled(bounds[:, 1]) - progress.stalled(bounds[:, 0])))
    return Program(each.rank, usual, mad if mad > UNEVEN else 0.0, collectives, exposed_us), bounds


def _usual_iterations(bounds: Ints, progress: Progress) -> Ints:
    """The half whose time is nearest the median and, of these, the half that waited about as long as is usual.

    The parts of an iteration then belong together. Medians of each part over all would make up none that there was.
    """
    kept = np.arange(len(bounds))
    for lengths in (np.diff(bounds, axis=1)[:, 0], np.diff(progress.stalled(bounds), axis=1)[:, 0]):
        away = np.abs(lengths[kept] - np.median(lengths[kept]))
        kept = kept[np.sort(np.argsort(away, kind="stable")[: max(FEWEST, len(kept) // 2)])]
    return kept


def _usual(values: Floats, otherwise: float) -> float:
    """The median of what is known, if anything is."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else otherwise


def _end(rank: int) -> int | None:
    return rank if rank >= 0 else None


def _behind(each: RankCalls, columns: dict[str, Floats]) -> Floats:
    """Microseconds from the end of the collective before it in the same communicator."""
    gaps_us = np.full(len(each.rows), np.inf)
    for comm in np.unique(each.comm):
        at = np.flatnonzero(each.comm == comm)
        gaps_us[at[1:]] = (columns["start_ns"][at[1:]] - columns["stop_ns"][at[:-1]]) / 1e3
    return gaps_us


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
