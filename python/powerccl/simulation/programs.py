# SPDX-License-Identifier: Apache-2.0
"""The typical iteration of each rank of a recorded run: what it computes and communicates, and what waits for what.

Marks tell where computation waited for which collective, kernels when each ran. The progress of computation is the time
that it would have taken with no wait and with no collective beside it. Each collective begins at some progress, and
computation waits for it at another. Times are in microseconds, medians over the iterations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.exposure import marked
from powerccl.analysis.iterations import SAMPLE, rhythm
from powerccl.analysis.stragglers import match
from powerccl.traces import records, tables
from powerccl.traces.folder import RunData

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FEWEST = 5  # iterations: a median of fewer says little
SKIPPED = 2  # iterations of the beginning: kernels are compiled, memory is allocated
MOST = 400  # iterations that are looked at, from the middle
# Standard deviation of computation, as a share: more is uneven work, such as that of experts. Less may be due to clocks
# of GPUs at their power limit, which the simulation moves by itself.
UNEVEN = 0.08
QUEUED_US = 30.0  # between two collectives of a communicator, where the second had only waited for the first


class NoProgramError(ValueError):
    """Why nothing can be simulated of a run."""


@dataclass(frozen=True)
class Collective:
    """One call of the iteration. `members`: ranks of the job, ascending.

    `transfer_us`: what it takes once all have come. `released_us`: progress of computation from which on it may begin;
    `needed_us`: progress at which computation waits for it, None where it never does. `graph`: which launch of a CUDA
    graph in the iteration it is part of, None: of none.
    """

    pattern: str
    bytes: int
    members: tuple[int, ...]
    transfer_us: float
    released_us: float
    needed_us: float | None
    graph: int | None = None


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


@dataclass
class _Rank:
    """Calls of one rank in their order: one row each."""

    rank: int
    gpu: str
    # call_id, pattern, bytes, captured, opens (no graph goes on here), called_ns, start_ns, stop_ns, waiting_ns,
    # needed_ns; null: not known
    rows: pl.DataFrame
    comm: Ints  # comm_id
    ordinal: Ints  # the call's place among those of its communicator
    length: int = 0  # calls of an iteration
    first: int = 0  # row of the first iteration
    last: int = 0  # row behind the last one


def recorded(run: RunData, overlap_rate: float) -> Recorded:
    """The typical iteration of each rank of a run.

    `overlap_rate`: at what part of its speed a GPU computes while it communicates.

    Raises:
        NoProgramError: no kernels or marks were recorded, or nothing repeats; the text says which.
    """
    calls, kernels, waits = tables.calls(run), tables.kernels(run), tables.waits(run)
    if (calls["pattern"] == "send_receive").any():
        raise NoProgramError("it sends and receives, and records do not tell who exchanges with whom")
    if not len(kernels):
        raise NoProgramError("no kernel of NCCL was timed")
    if not len(waits) and not calls["captured"].all():
        raise NoProgramError("no marks tell where computation waited for communication")
    members = _members(run)
    kernels = kernels.with_columns(waiting_ns=match(run, calls, kernels).waiting_ns)
    ranks = [_rank_of(run, trace.rank, calls, kernels, waits) for trace in sorted(run.ranks, key=lambda t: t.rank)]
    if [each.rank for each in ranks] != list(range(len(ranks))):
        raise NoProgramError("traces of some ranks are missing")
    for each in ranks:
        _find_stretch(each)
    _align(ranks)
    number = min((each.last - each.first) // each.length for each in ranks)
    if number < FEWEST:
        raise NoProgramError(f"fewer than {FEWEST} iterations were recorded")
    shorts = _shortest(kernels)
    found = [_program(each, number, kernels, waits, members, shorts, overlap_rate) for each in ranks]
    edges = found[0][1]
    return Recorded([program for program, _ in found], float(np.median(np.diff(edges, axis=1))) / 1e3, edges)


def _members(run: RunData) -> dict[int, tuple[int, ...]]:
    found: dict[int, set[int]] = defaultdict(set)
    for trace in run.ranks:
        for row in trace.kinds[records.COMM]:
            found[int(row["comm_id"])].add(trace.rank)
    return {comm: tuple(sorted(of)) for comm, of in found.items()}


def _shortest(kernels: pl.DataFrame) -> dict[tuple[str, int], float]:
    rows = kernels.group_by("pattern", "bytes").agg(us=pl.col("duration_ns").quantile(0.05) / 1e3)
    return {(pattern, size): us for pattern, size, us in rows.select("pattern", "bytes", "us").iter_rows()}


def _rank_of(run: RunData, rank: int, calls: pl.DataFrame, kernels: pl.DataFrame, waits: pl.DataFrame) -> _Rank:
    trace = next(trace for trace in run.ranks if trace.rank == rank)
    names = {int(row["comm"]): int(row["comm_id"]) for row in trace.kinds[records.COMM]}
    mine = calls.filter(pl.col("rank") == rank).select(
        "call_id", "comm", "pattern", "bytes", "captured", called_ns="start_ns"
    )
    ran = kernels.filter(pl.col("rank") == rank).select("call_id", "start_ns", "stop_ns", "waiting_ns")
    once = ran.group_by("call_id").agg(pl.col("start_ns").min(), pl.col("stop_ns").max(), pl.col("waiting_ns").max())
    waited = _of_computation(waits.filter(pl.col("rank") == rank))
    needed = waited.group_by("call_id").agg(needed_ns=pl.col("stall_ns").min())
    live = mine.filter(~pl.col("captured")).join(once, on="call_id", how="left").join(needed, on="call_id", how="left")
    rows = live.sort("call_id")
    captured = mine.filter(pl.col("captured")).join(ran, on="call_id", how="inner")
    if len(captured):
        # What waits for what inside a graph nothing tells: its collectives are taken to run in turn with computation.
        captured = captured.with_columns(needed_ns=pl.col("start_ns"))
        rows = pl.concat([live, captured]).sort(pl.coalesce("start_ns", "called_ns"))
    again = (pl.col("call_id") > pl.col("call_id").shift(1)) & pl.col("captured") & pl.col("captured").shift(1)
    rows = rows.with_columns(opens=~again.fill_null(value=False))
    comm = np.array([names.get(each, 0) for each in rows["comm"].to_list()], dtype=np.uint64).astype(np.int64)
    before = {names.get(comm, 0): count for comm, count in trace.calls_before.items()}
    ordinal = np.zeros(len(rows), dtype=np.int64)
    for each in np.unique(comm):
        at = np.flatnonzero(comm == each)
        ordinal[at] = np.arange(len(at)) + before.get(int(np.uint64(each)), 0)
    return _Rank(rank, trace.gpu, rows, comm, ordinal)


def _of_computation(waits: pl.DataFrame) -> pl.DataFrame:
    """The waits of the stream that waits most often: it computes."""
    if not len(waits):
        return waits
    streams = waits.group_by("stream", maintain_order=True).len().sort("len", descending=True)
    return waits.filter(pl.col("stream") == streams["stream"][0])


def _find_stretch(each: _Rank) -> None:
    """The longest stretch in which the sequence of calls repeats."""
    times = each.rows.select(pl.coalesce("start_ns", "called_ns"))["start_ns"].to_numpy()
    middle = max(0, (len(each.rows) - SAMPLE) // 2)
    part = slice(middle, middle + SAMPLE)
    # Sizes that vary, as those of experts do, hide a sequence that repeats itself otherwise.
    for sized in (True, False):
        columns = each.rows.select("pattern", *(["bytes"] if sized else [])).with_columns(comm=pl.Series(each.comm))
        labels = columns.select(code=pl.struct(pl.all()).rank("dense"))
        names = labels["code"].to_numpy().astype(np.int64)
        length = rhythm(names[part], times[part])
        if length:
            break
    else:
        raise NoProgramError(f"the calls of rank {each.rank} do not repeat")
    same = np.concatenate([[False], names[length:] == names[:-length], [False]])
    turns = np.flatnonzero(same[1:] != same[:-1])
    begins, ends = turns[::2], turns[1::2]
    longest = int(np.argmax(ends - begins))
    each.length = length
    each.first, each.last = int(begins[longest]), int(ends[longest]) + length


def _gaps(each: _Rank) -> Floats:
    """Of each place in the iteration, from `first` on: the usual time in which nothing is called nor waited for."""
    start, stop, needed = (each.rows[name].cast(pl.Float64).to_numpy() for name in ("start_ns", "stop_ns", "needed_ns"))
    settled = np.fmax.accumulate(np.fmax(stop, needed))
    gaps = np.concatenate([[np.nan], start[1:] - settled[:-1]])[each.first : each.last]
    whole = gaps[: len(gaps) // each.length * each.length].reshape(-1, each.length)
    usual = np.nanmedian(np.where(np.isnan(whole), -1e18, whole), axis=0)
    return np.asarray(usual, dtype=np.float64)


def _align(ranks: list[_Rank]) -> None:
    """Let all ranks begin with the same call of each communicator.

    Where a pipeline fills and drains there is no instant at which all ranks end an iteration. Calls tell anyway: the
    n-th of a communicator is the same on all its ranks.
    """
    times = [each.rows.select(pl.coalesce("start_ns", "called_ns"))["start_ns"].to_numpy() for each in ranks]
    latest_ns = max(int(of[each.first]) for of, each in zip(times, ranks, strict=True))
    reference = ranks[0]
    begin = max(int(np.searchsorted(times[0], latest_ns)), reference.first) + SKIPPED * reference.length
    if begin + reference.length >= reference.last:
        raise NoProgramError(f"fewer than {FEWEST} iterations were recorded by all ranks")
    gaps = np.roll(_gaps(reference), -((begin - reference.first) % reference.length))
    for offset in np.argsort(-gaps, kind="stable"):
        if not reference.rows["opens"][begin + int(offset)]:
            continue
        begins = _begins(ranks, begin + int(offset))
        if begins is not None:
            for each, at in zip(ranks, begins, strict=True):
                each.first = at
            return
    raise NoProgramError("ranks have no call in common with which an iteration begins")


def _begins(ranks: list[_Rank], at: int) -> list[int] | None:
    """By rank, the row with which it begins if the first one begins with row `at`; None: they contradict."""
    found: dict[int, int] = {0: at}
    wanted: dict[int, int] = dict(_next_ordinals(ranks[0], at))
    left = set(range(1, len(ranks)))
    while left:
        number = next((each for each in sorted(left) if set(np.unique(ranks[each].comm).tolist()) & wanted.keys()), -1)
        if number < 0:
            return None
        low, high = ranks[number].first, ranks[number].last
        for comm, ordinal in wanted.items():
            rows = np.flatnonzero(ranks[number].comm == comm)
            if not len(rows):
                continue
            place = int(np.searchsorted(ranks[number].ordinal[rows], ordinal))
            low = max(low, int(rows[place - 1]) + 1 if place else 0)
            high = min(high, int(rows[place]) if place < len(rows) else ranks[number].last)
        if low > high:
            return None
        found[number] = high
        for comm, ordinal in _next_ordinals(ranks[number], high):
            if wanted.setdefault(comm, ordinal) != ordinal:
                return None
        left.remove(number)
    return [found[number] for number in range(len(ranks))]


def _next_ordinals(each: _Rank, at: int) -> Iterator[tuple[int, int]]:
    """Of each communicator in the iteration, the ordinal of its next call from row `at` on."""
    comm = each.comm[at : at + each.length]
    for name in np.unique(comm).tolist():
        yield name, int(each.ordinal[at + int(np.flatnonzero(comm == name)[0])])


class _Progress:
    """How far computation has come at any time: time, less what it waited and what collectives took from it."""

    def __init__(self, kernels: pl.DataFrame, waits: pl.DataFrame, overlap_rate: float) -> None:
        """`kernels` has a column `captured`: computation waits for those of graphs."""
        inside = kernels.filter("captured").select("start_ns", "stop_ns").to_numpy()
        begins = np.concatenate([waits["stall_ns"].to_numpy(), inside[:, 0]])
        self._stalls = iv.union(begins, np.concatenate([waits["resume_ns"].to_numpy(), inside[:, 1]]))
        moved = kernels["start_ns"].to_numpy() + np.maximum(kernels["waiting_ns"].to_numpy(), 0)
        self._beside = iv.minus(iv.union(moved, kernels["stop_ns"].to_numpy()), self._stalls)
        self._lost = 1 - overlap_rate

    def at(self, time_ns: Ints, origin_ns: int) -> Floats:
        """Microseconds of progress since the origin."""
        shape, flat = time_ns.shape, time_ns.ravel()
        lost = iv.covered_before(self._stalls, flat) + self._lost * iv.covered_before(self._beside, flat)
        return np.asarray(((flat - origin_ns) - lost).reshape(shape) / 1e3, dtype=np.float64)


def _program(
    each: _Rank,
    number: int,
    kernels: pl.DataFrame,
    waits: pl.DataFrame,
    members: dict[int, tuple[int, ...]],
    shorts: dict[tuple[str, int], float],
    overlap_rate: float,
) -> tuple[Program, Ints]:
    mine = kernels.filter(pl.col("rank") == each.rank).join(
        each.rows.select("call_id", "captured").unique(), on="call_id", how="inner"
    )
    waited = _of_computation(waits.filter(pl.col("rank") == each.rank))
    progress = _Progress(mine, waited, overlap_rate)
    number = min(number, MOST)
    index = each.first + np.arange(number)[:, None] * each.length + np.arange(each.length)
    columns = {
        name: each.rows[name].cast(pl.Float64).to_numpy() for name in ("start_ns", "stop_ns", "waiting_ns", "needed_ns")
    }
    # An iteration begins as the collective before it ends; where that was not timed, with its own first one.
    begins = columns["stop_ns"][index[:, 0] - 1] if each.first > 0 else columns["start_ns"][index[:, 0]]
    begins = np.where(np.isnan(begins), columns["start_ns"][index[:, 0]], begins)
    edges = np.stack([begins[:-1], begins[1:]], axis=1)
    index = index[:-1]
    whole = ~np.isnan(edges).any(axis=1)
    for gpu, spans in marked(waited).items():  # marks pause, and then nobody knows what waited
        inside = np.nan_to_num(edges).astype(np.int64)
        whole &= iv.contains(spans, inside[:, 0]) & iv.contains(spans, inside[:, 1] - 1) | (gpu != each.gpu)
    if int(whole.sum()) < FEWEST:
        raise NoProgramError(f"fewer than {FEWEST} iterations of rank {each.rank} were recorded as a whole")
    index, bounds = index[whole], edges[whole].astype(np.int64)
    origin = int(bounds[0, 0])
    begin, end = progress.at(bounds[:, 0], origin), progress.at(bounds[:, 1], origin)
    work = end - begin

    def since_begin(name: str) -> Floats:
        times = columns[name][index]
        known = progress.at(np.nan_to_num(times, nan=origin).astype(np.int64), origin) - begin[:, None]
        return np.where(np.isnan(times), np.nan, known)

    start, needs = since_begin("start_ns"), since_begin("needed_ns")
    lasts = (columns["stop_ns"] - columns["start_ns"])[index] / 1e3
    waiting = columns["waiting_ns"][index] / 1e3
    behind = _behind(each, columns)[index]
    usual = float(np.median(work))
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
                members=members[int(np.uint64(each.comm[row]))],
                transfer_us=_transfer(lasts[:, place], waiting[:, place], shorts.get((pattern, size), 0.0)),
                released_us=max(released, 0.0),
                needed_us=needed,
                graph=graph if captured[row] else None,
            )
        )
    mad = float(np.median(np.abs(work - usual))) * 1.4826 / max(usual, 1.0)
    return Program(each.rank, usual, mad if mad > UNEVEN else 0.0, found), bounds


def _behind(each: _Rank, columns: dict[str, Floats]) -> Floats:
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
