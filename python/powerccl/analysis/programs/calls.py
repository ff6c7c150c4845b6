# SPDX-License-Identifier: Apache-2.0
"""The calls of each rank of a recorded run, in their order: which repeat, and who meets in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis.iterations import SAMPLE, iteration_length
from powerccl.traces import records
from powerccl.traces.folder import RunData

Ints = npt.NDArray[np.int64]
# A collective that begins within this after its call has waited for the host, not for the GPU: what a launch takes.
HOST_US = 150.0
# What to do where a run has no program.
RECORD = "record every kernel, and a hundred iterations: POWERCCL_KERNEL_EVENTS=all powerccl run -- COMMAND"


class NoProgramError(ValueError):
    """Why a run has no typical iteration that can be replayed."""


@dataclass
class RankCalls:
    """Calls of one rank in their order: one row each."""

    rank: int
    gpu: str
    # call_id, pattern, bytes, captured, opens (no graph goes on here), called_ns, start_ns, stop_ns, waiting_ns.
    # needed_ns: null where it is not known. sends_to and receives_from: ranks of the job, of a send-receive; -1: none.
    rows: pl.DataFrame
    comm: Ints  # comm_id
    waits: pl.DataFrame  # of the stream that computes
    # Who meets in the call, and its place among those in which they do: all of a communicator in a collective, two in a
    # message. A call is in up to two messages; -1: it is not.
    channel: Ints = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    ordinal: Ints = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))
    length: int = 0  # calls of an iteration
    first: int = 0  # row of the first iteration
    last: int = 0  # row behind the last one


def members_of(run: RunData) -> dict[int, tuple[int, ...]]:
    """The ranks of each communicator (comm_id), in its own order."""
    places: dict[int, dict[int, int]] = defaultdict(dict)
    for trace in run.ranks:
        for row in trace.kinds[records.COMM]:
            places[int(row["comm_id"])][int(row["rank"])] = trace.rank
    return {comm: tuple(of[place] for place in sorted(of)) for comm, of in places.items()}


def waits_by_stream(waits: pl.DataFrame) -> list[pl.DataFrame]:
    """The waits of each stream; the first one waits most often: it computes."""
    return sorted(waits.partition_by("stream", maintain_order=True), key=len, reverse=True)


def calls_of_rank(
    rank: int,
    gpu: str,
    calls: pl.DataFrame,
    kernels: pl.DataFrame,
    waits: pl.DataFrame,
    names: Mapping[int, int],
    members: Mapping[int, tuple[int, ...]],
) -> RankCalls:
    """A rank's calls and, of graphs, each run of a captured one; `kernels` has waiting_ns of stragglers.match.

    `names`: comm_id of each of its communicators; `members`: as members_of has them.
    """
    by_rank = calls.filter(pl.col("rank") == rank).select(
        "call_id", "comm", "pattern", "bytes", "captured", called_ns="start_ns"
    )
    ends = ("sends_to", "receives_from")
    ran = kernels.filter(pl.col("rank") == rank).select("call_id", "start_ns", "stop_ns", "waiting_ns", *ends)
    once = ran.group_by("call_id", maintain_order=True).agg(
        pl.col("start_ns").min(), pl.col("stop_ns").max(), pl.col("waiting_ns", *ends).max()
    )
    streams = waits_by_stream(waits.filter(pl.col("rank") == rank))
    waited = streams[0] if streams else waits.clear()
    needed = waited.group_by("call_id", maintain_order=True).agg(needed_ns=pl.col("stall_ns").min())
    live = (
        by_rank.filter(~pl.col("captured")).join(once, on="call_id", how="left").join(needed, on="call_id", how="left")
    )
    if not len(waits):  # computation waits for each immediately
        live = live.with_columns(needed_ns=pl.col("start_ns"))
    rows = live.sort("call_id")
    captured = by_rank.filter(pl.col("captured")).join(ran, on="call_id", how="inner")
    if len(captured):
        # What waits for what inside a graph nothing tells: its collectives are taken to run in turn with computation.
        captured = captured.with_columns(needed_ns=pl.col("start_ns"))
        rows = pl.concat([live, captured]).sort(pl.coalesce("start_ns", "called_ns"))
    again = (pl.col("call_id") > pl.col("call_id").shift(1)) & pl.col("captured") & pl.col("captured").shift(1)
    rows = rows.with_columns(opens=~again.fill_null(value=False))
    comm = np.array([names.get(each, 0) for each in rows["comm"].to_list()], dtype=np.uint64).astype(np.int64)
    of_job = {name: np.array([*ranks, -1], dtype=np.int64) for name, ranks in members.items()}
    for column in ends:
        others = rows[column].fill_null(-1).to_numpy().copy()
        for name in np.unique(comm):
            at, of = comm == name, of_job[int(np.uint64(name))]
            others[at] = of[np.minimum(others[at], len(of) - 1)]
        rows = rows.with_columns(pl.Series(column, others))
    return RankCalls(rank, gpu, rows, comm, waited)


def find_stretch(each: RankCalls) -> None:
    """The longest stretch in which the sequence of calls repeats."""
    times = each.rows.select(pl.coalesce("start_ns", "called_ns"))["start_ns"].to_numpy()
    middle = max(0, (len(each.rows) - SAMPLE) // 2)
    part = slice(middle, middle + SAMPLE)
    # Sizes that vary, as those of experts do, hide a sequence that repeats itself otherwise.
    for sized in (True, False):
        columns = each.rows.select("pattern", *(["bytes"] if sized else [])).with_columns(comm=pl.Series(each.comm))
        labels = columns.select(code=pl.struct(pl.all()).rank("dense"))
        names = labels["code"].to_numpy().astype(np.int64)
        length = iteration_length(names[part], times[part])
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


def find_channels(each: RankCalls, channels: dict[tuple[int, ...], int], calls_before: dict[int, int]) -> None:
    """Tell who meets in each call. A message whose kernel was not timed is as in the other iterations."""
    exchanges = (each.rows["pattern"] == "send_receive").to_numpy()
    each.channel = np.full((len(each.rows), 2), -1, dtype=np.int64)
    for name in np.unique(each.comm[~exchanges]).tolist():
        each.channel[~exchanges & (each.comm == name), 0] = channels.setdefault((name,), len(channels))
    if exchanges.any():
        _fill_ends(each, exchanges)
    for place, column in enumerate(("sends_to", "receives_from")):
        others = np.where(exchanges, each.rows[column].to_numpy(), -1)
        for name, other in {*zip(each.comm[others >= 0].tolist(), others[others >= 0].tolist(), strict=True)}:
            ends = (each.rank, other) if place == 0 else (other, each.rank)
            at = (each.comm == name) & (others == other)
            each.channel[at, place] = channels.setdefault((name, *ends), len(channels))
    # A trace read in part tells how many calls of each communicator it leaves out, not with whom.
    if exchanges.any() and calls_before:
        raise NoProgramError("it sends and receives, and its records are too many to be read as a whole")
    names = each.rows["comm"].to_numpy()
    each.ordinal = np.full_like(each.channel, -1)
    for channel in np.unique(each.channel[each.channel >= 0]):
        rows, places = np.nonzero(each.channel == channel)
        each.ordinal[rows, places] = np.arange(len(rows)) + calls_before.get(int(names[rows[0]]), 0)


def _fill_ends(each: RankCalls, exchanges: npt.NDArray[np.bool_]) -> None:
    """Where a message's kernel was not timed, its ends are those of the same call in other iterations."""
    place = (np.arange(len(each.rows)) - each.first) % each.length
    for column in ("sends_to", "receives_from"):
        ends = each.rows[column].to_numpy().copy()
        for at in np.unique(place[exchanges]):
            here = exchanges & (place == at)
            known = ends[here & (ends >= 0)]
            if len(known):
                ends[here & each.rows["start_ns"].is_null().to_numpy()] = known[0]
        each.rows = each.rows.with_columns(pl.Series(column, ends))
    peers_known = (each.rows["sends_to"].to_numpy() >= 0) | (each.rows["receives_from"].to_numpy() >= 0)
    if not peers_known[exchanges].all():
        raise NoProgramError("it sends and receives, and its records do not tell who exchanges with whom")
