# SPDX-License-Identifier: Apache-2.0
"""Who comes last: kernels of the same collective on different GPUs, side by side.

A communicator's members make the same sequence of collectives, so a kernel's place in that sequence says which kernels
belong together. Until the last of them has started, the others wait inside theirs. Ranks of several hosts are compared
where the hosts' clocks are aligned (traces/host_clocks.py), else those of each host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.host_alignment import alignments, domain, error_ns
from powerccl.analysis.report_findings import Peers, Straggler
from powerccl.traces import records
from powerccl.traces.folder import RunData
from powerccl.traces.rank import RankTrace
from powerccl.traces.replays import replays

if TYPE_CHECKING:
    from powerccl.analysis.shares import Sets

ALONE = ("send_receive",)  # two ends of one, which a trace does not tie together
STEADY = 0.6  # of the way from how often chance would make a rank last (one of n) to always
AT_ONCE = 1 << 17  # collectives that are compared at a time: some 100 bytes for each rank
REPLAY = 1 << 36  # more calls than a communicator makes
FEW = 8  # collectives that say nothing of a rank

Ints = npt.NDArray[np.int64]


@dataclass
class Matched:
    """Of each kernel that was asked for: ns it waited for the other ranks, -1 where that is not known."""

    waiting_ns: Ints
    peers: Peers
    # Of each kernel that waited: the rank that came last (-1: none did measurably). Then how many ns it had waited when
    # the next to last came.
    last_rank: npt.NDArray[np.int32]
    others_ns: Ints


@dataclass(frozen=True)
class Sequence:
    """Of each kernel its place in its communicator's sequence, which says which kernels belong together.

    `group`: number of the communicator on its clock; -1: the kernel is compared with none. `ordinal`: -1: not
    known. `inside`: the kernels that are looked at; others only tell when their ranks came. `collectives`: how many of
    those inside are collective. `inside`, `kernels` (rank, start_ns and stop_ns of all): None: all are inside.
    """

    group: npt.NDArray[np.int32]
    ordinal: npt.NDArray[np.signedinteger[Any]]
    inside: npt.NDArray[np.bool_] | None
    collectives: int
    kernels: pl.DataFrame | None

    @staticmethod
    def together(parts: list[Sequence]) -> Sequence:
        """Of several parts of a run."""
        if len(parts) == 1:
            return parts[0]
        return Sequence(
            group=np.concatenate([part.group for part in parts]),
            ordinal=np.concatenate([part.ordinal for part in parts]),
            inside=None,
            collectives=sum(part.collectives for part in parts),
            kernels=None,
        )


def in_sequence(
    run: RunData,
    ranks: list[RankTrace],
    calls: pl.DataFrame,
    kernels: pl.DataFrame,
    inside: npt.NDArray[np.bool_] | None = None,
) -> Sequence:
    """Of the kernels of some ranks of a run and of their calls (traces.tables). `inside`: None: all kernels."""
    inside = None if inside is None or inside.all() else inside
    own = None if inside is None else kernels.select("rank", "start_ns", "stop_ns")
    if _why_not(run, len(kernels)):
        none = np.full(len(kernels), -1, np.int32)
        return Sequence(none, none, inside, 0, own)
    ordinal = _ordinals(ranks, calls, kernels)
    group, members = _communicators(run, kernels)
    collective = ~kernels["pattern"].is_in(ALONE).to_numpy()
    group[(ordinal < 0) | (members < 2) | ~collective] = -1
    short = ordinal.astype(np.int32) if int(ordinal.max(initial=0)) < 1 << 31 else ordinal
    return Sequence(group, short, inside, int((collective if inside is None else collective & inside).sum()), own)


def match(run: RunData, sequence: Sequence, kernels: pl.DataFrame) -> Matched:
    """Compare the starts of kernels that belong to one collective; `kernels` are those inside, of the same run."""
    inside = slice(None) if sequence.inside is None else sequence.inside
    every = kernels if sequence.kernels is None else sequence.kernels
    rank, start, stop = (every[name].to_numpy() for name in ("rank", "start_ns", "stop_ns"))
    waiting = np.full(len(every), -1, dtype=np.int64)
    last_rank, others = np.full(len(every), -1, dtype=np.int32), np.zeros(len(every), dtype=np.int64)
    reason, hosts = _why_not(run, len(kernels)), alignments(run)
    if not reason and not (sequence.group[inside] >= 0).any():
        reason = "no collective was timed on two ranks of a host"
    if reason:
        return Matched(waiting[inside], Peers(reason=reason, hosts=hosts), last_rank[inside], others[inside])
    uncertainty_ns = max((trace.clock_map.spread_ns for trace in run.ranks if trace.clock_map.pairs), default=0.0)
    uncertainty_ns = max(uncertainty_ns, error_ns(run))
    members = _Members(run)
    tally = _Tally(np.array(sorted({trace.rank for trace in run.ranks})))
    for group, order in _side_by_side(sequence, start):
        most = members.counts[group]
        ordinal = sequence.ordinal[order]
        opens = np.append(True, ordinal[1:] != ordinal[:-1])
        first = np.flatnonzero(opens)
        last = np.append(first[1:], len(order)) - 1
        of = np.cumsum(opens) - 1
        # All members on hosts with one clock, each once: else a rank is missing that the others may have waited for.
        whole = last - first + 1 == most
        begin, end = start[order], stop[order]
        # Two kernels of one collective overlap; those that do not were taken for each other.
        whole &= begin[last] <= np.minimum.reduceat(end, first) + 1_000_000
        known = whole[of]
        waiting[order[known]] = np.clip(begin[last][of] - begin, 0, end - begin)[known]
        next_ns = begin[np.maximum(last - 1, first)]
        clear = begin[last] - next_ns > 2 * uncertainty_ns
        measured = known & clear[of] & (np.arange(len(order)) != last[of])
        last_rank[order[measured]] = rank[order[last]][of][measured]
        others[order[measured]] = np.maximum(next_ns[of] - begin, 0)[measured]
        here = np.ones(len(order), np.bool_) if sequence.inside is None else sequence.inside[order]
        tally.compared(rank[order[known & here]], 1 / most)
        late = whole & here[last] & clear
        tally.late(rank[order[last[late]]], (begin[last] - next_ns)[late])
    peers = Peers(
        hosts=hosts,
        matched_pct=100.0 * int(tally.count.sum()) / max(sequence.collectives, 1),
        uncertainty_us=uncertainty_ns / 1e3,
        ranks=_rank_rows(run, tally),
    )
    if int(waiting.max(initial=0)) < 1 << 31:  # in half of the memory
        waiting, others = waiting.astype(np.int32), others.astype(np.int32)
    return Matched(waiting[inside], peers, last_rank[inside], others[inside])


def _side_by_side(sequence: Sequence, start: Ints) -> Iterator[tuple[int, Ints]]:
    """The rows of each group's kernels, a collective's side by side and by their start; many collectives at a time."""
    at = np.arange(len(sequence.group)) if (sequence.group >= 0).all() else np.flatnonzero(sequence.group >= 0)
    group = sequence.group[at]
    if (group[1:] < group[:-1]).any():
        at = at[np.argsort(group, kind="stable")]
        group = sequence.group[at]
    edges = np.append(np.flatnonzero(np.append(True, group[1:] != group[:-1])), len(at))
    for first, last in pairwise(edges.tolist()):
        rows, number = at[first:last], int(group[first])
        ordinal = sequence.ordinal[rows]
        runs = np.append(np.flatnonzero(np.append(True, ordinal[1:] < ordinal[:-1])), len(rows))
        length = int(runs[1])
        shape = ordinal.reshape(-1, length) if (np.diff(runs) == length).all() else None
        if shape is not None and (shape == shape[0]).all():  # the same collectives of each rank: no need to sort them
            ranks = rows.reshape(-1, length)
            for begin in range(0, length, AT_ONCE):
                some = ranks[:, begin : begin + AT_ONCE].T
                yield number, np.take_along_axis(some, np.argsort(start[some], axis=1, kind="stable"), axis=1).ravel()
            continue
        order = rows[np.lexsort((start[rows], ordinal))]
        ordinal = sequence.ordinal[order]
        opens = np.flatnonzero(np.append(True, ordinal[1:] != ordinal[:-1]))
        cuts = [*opens[::AT_ONCE].tolist(), len(order)]
        for begin, end in pairwise(cuts):
            yield number, order[begin:end]


class _Tally:
    """What is counted of each rank: `count` and `chance` (to be the last) of collectives, and how far it was behind."""

    def __init__(self, ranks: Ints) -> None:
        self.ranks = ranks
        self.count, self.chance = np.zeros(len(ranks), np.int64), np.zeros(len(ranks))
        self._late: list[tuple[Ints, Ints]] = []

    def compared(self, rank: Ints, chance: float) -> None:
        count = np.bincount(np.searchsorted(self.ranks, rank), minlength=len(self.ranks))
        self.count += count
        self.chance += chance * count

    def late(self, rank: Ints, behind_ns: Ints) -> None:
        self._late.append((rank, behind_ns))

    def behind_ns(self) -> dict[int, Ints]:
        """How far each rank was behind the next to last, of the collectives to which it came last."""
        rank, behind = (np.concatenate(column) for column in zip(*self._late, strict=True))
        return {number: behind[at] for number, at in by_number(rank).items()}


class Costs:
    """What each straggler costs, from the times of the ranks that wait for it."""

    def __init__(self) -> None:
        self._gains: dict[int, float] = {}
        self._waited: dict[int, float] = {}
        self._exact = True

    def add(self, of: Sets, start: Ints, waiting_ns: Ints, last_rank: npt.NDArray[np.int32], others_ns: Ints) -> None:
        """Of one rank that may have waited: its sets, and its kernels as Matched has them."""
        waiting = np.flatnonzero(last_rank >= 0)
        for late, chosen in by_number(last_rank[waiting]).items():
            at = waiting[chosen]
            spans = iv.union(start[at] + others_ns[at], start[at] + waiting_ns[at])
            spans = iv.intersection(iv.clip(spans, *of.span), of.communication)
            if of.computation is not None:
                spans = iv.minus(spans, of.computation)
            elif of.exposed is not None:
                spans = iv.intersection(spans, of.exposed)
            else:
                self._exact = False
            length_s = iv.length_ns(spans) / 1e9
            self._gains[late] = max(self._gains.get(late, 0.0), length_s)
            self._waited[late] = self._waited.get(late, 0.0) + length_s

    def add_to(self, peers: Peers) -> None:
        """Fill in the rows of the stragglers, and sort them by cost."""
        for row in peers.ranks:
            gain = self._gains.get(row.rank, 0.0)
            row.cost_s, row.cost_at_most_s = (gain, None) if self._exact else (None, gain)
            row.waited_s = self._waited.get(row.rank, 0.0)
        peers.ranks.sort(key=lambda row: -(row.cost_s or row.cost_at_most_s or 0.0))


def _why_not(run: RunData, kernels: int) -> str:
    if not kernels:
        return "no kernel of communication was timed"
    hosts = [domain(run, trace.host) for trace in run.ranks]
    if len(set(hosts)) == len(hosts):
        return "each host has one rank, and hosts' clocks differ" if len(hosts) > 1 else "the job has one rank"
    return ""


def _ordinals(ranks: list[RankTrace], calls: pl.DataFrame, kernels: pl.DataFrame) -> Ints:
    """Of each kernel, its call's place among its communicator's, plus its replay times REPLAY; -1: not known."""
    if not len(calls):
        return np.full(len(kernels), -1, dtype=np.int64)
    rank, comm, call = (calls[name].to_numpy() for name in ("rank", "comm", "call_id"))
    order = np.lexsort((call, comm, rank))
    opens = np.ones(len(order), dtype=bool)
    opens[1:] = (rank[order][1:] != rank[order][:-1]) | (comm[order][1:] != comm[order][:-1])
    begins = np.flatnonzero(opens)
    place = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    before = {(trace.rank, comm): count for trace in ranks for comm, count in trace.calls_before.items()}
    for begin, stop in zip(begins, np.append(begins[1:], len(order)), strict=True):
        place[begin:stop] += before.get((int(rank[order[begin]]), int(comm[order[begin]])), 0)
    key = _key(rank, call)[order]
    sort = np.argsort(key, kind="stable")
    key, place = key[sort], place[sort]
    wanted = _key(kernels["rank"].to_numpy(), kernels["call_id"].to_numpy())
    at = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
    ordinal = np.where(key[at] == wanted, place[at], -1)
    return np.where(ordinal >= 0, ordinal + REPLAY * replays(wanted, kernels["start_ns"].to_numpy()), -1)


def _key(rank: Ints, call: Ints) -> Ints:
    return (call.astype(np.int64) << 20) + rank % (1 << 20)


class _Members:
    """The communicators of each clock: a number for each, and how many ranks with that clock it has (`counts`).

    Hosts that are aligned have one clock.
    """

    def __init__(self, run: RunData) -> None:
        numbers: dict[tuple[str, int, int], int] = {}
        self.of: dict[tuple[int, int], int] = {}
        counts: list[int] = []
        for trace in run.ranks:
            for row in trace.kinds[records.COMM]:
                if int(row["flags"]) & records.FLAG_ENDED:
                    continue
                number = numbers.setdefault((domain(run, trace.host), trace.job, int(row["comm_id"])), len(numbers))
                self.of[trace.rank, int(row["comm"])] = number
                counts += [0] * (number + 1 - len(counts))
                counts[number] += 1
        self.counts = counts


def _communicators(run: RunData, kernels: pl.DataFrame) -> tuple[npt.NDArray[np.int32], Ints]:
    """Of each kernel: its communicator's number on its clock (-1: not known), and how many ranks that has there."""
    members = _Members(run)
    pairs = kernels.select("rank", "comm").unique(maintain_order=True)
    numbers = [members.of.get(pair, -1) for pair in pairs.iter_rows()]
    known = pairs.with_columns(number=pl.Series(numbers, dtype=pl.Int32))
    joined = kernels.select("rank", "comm").join(known, on=["rank", "comm"], how="left", maintain_order="left")
    number = joined["number"].to_numpy().copy()
    return number, np.array([*members.counts, 0])[number]


def by_number(numbers: npt.NDArray[np.signedinteger[Any]]) -> dict[int, Ints]:
    """The places of each number, in order."""
    order = np.argsort(numbers, kind="stable")
    opens = np.flatnonzero(np.diff(numbers[order], prepend=numbers[order[:1]] - 1))
    return dict(zip(numbers[order[opens]].tolist(), np.split(order, opens[1:]), strict=True)) if len(numbers) else {}


def _rank_rows(run: RunData, tally: _Tally) -> list[Straggler]:
    """One row a rank that was compared, those first that came last most often."""
    behind = tally.behind_ns()
    place = {rank: index for index, rank in enumerate(tally.ranks.tolist())}
    rows = []
    for trace in run.ranks:
        count = int(tally.count[place[trace.rank]])
        if not count:
            continue
        usual = 100.0 * float(tally.chance[place[trace.rank]]) / count
        lags = behind.get(trace.rank, np.empty(0, np.int64)) / 1e3
        share = 100.0 * len(lags) / count
        quarter = np.quantile(lags, [0.25, 0.5, 0.75]).tolist() if len(lags) else [None] * 3
        rows.append(
            Straggler(
                rank=trace.rank,
                gpu=trace.gpu,
                host=trace.host,
                collectives=count,
                last=len(lags),
                last_pct=share,
                behind_us=quarter[1],
                behind_p25_us=quarter[0],
                behind_p75_us=quarter[2],
                steady=count >= FEW and share >= usual + STEADY * (100.0 - usual),
            )
        )
    return sorted(rows, key=lambda row: -row.last)
