# SPDX-License-Identifier: Apache-2.0
"""Who comes last: kernels of the same collective on different GPUs, side by side.

A communicator's members make the same sequence of collectives, so a kernel's place in that sequence says which kernels
belong together. Until the last of them has started, the others wait inside theirs. Ranks of several hosts are compared
where the hosts' clocks are aligned (traces/host_clocks.py), else those of each host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.host_alignment import alignments, domain, error_ns
from powerccl.analysis.report_findings import Peers, Straggler
from powerccl.traces import records
from powerccl.traces.folder import RunData

if TYPE_CHECKING:
    from powerccl.analysis.shares import Sets

ALONE = ("send_receive",)  # two ends of one, which a trace does not tie together
STEADY = 0.6  # of the way from how often chance would make a rank last (one of n) to always
FEW = 8  # collectives that say nothing of a rank

Ints = npt.NDArray[np.int64]


@dataclass
class Matched:
    """Of each kernel that was asked for: ns it waited for the other ranks, -1 where that is not known."""

    waiting_ns: Ints
    peers: Peers
    # Of each kernel that waited: the rank that came last (-1: none did measurably). Then how many ns it had waited when
    # the next to last came.
    last_rank: Ints
    others_ns: Ints


def match(
    run: RunData, calls: pl.DataFrame, kernels: pl.DataFrame, inside: npt.NDArray[np.bool_] | None = None
) -> Matched:
    """Compare the starts of kernels (traces.tables.kernels) that belong to one collective; calls are the same run's.

    `inside`: the kernels that what is found is of; None: all of them. A call's place in its communicator's sequence
    says which kernels belong together, so that all calls and kernels are needed to compare some.
    """
    inside = np.ones(len(kernels), np.bool_) if inside is None else inside
    unknown = np.full(len(kernels), -1, dtype=np.int64)
    reason, hosts = _why_not(run, inside), alignments(run)
    if reason:
        return Matched(unknown[inside], Peers(reason=reason, hosts=hosts), unknown[inside], unknown[inside])
    ordinal = _ordinals(run, calls, kernels)
    host, comm, members = _communicators(run, kernels)
    collective = ~kernels["pattern"].cast(pl.String).is_in(ALONE).to_numpy()
    usable = np.flatnonzero((ordinal >= 0) & (members > 1) & collective)
    start = kernels["start_ns"].to_numpy()
    order = usable[np.lexsort((start[usable], ordinal[usable], comm[usable], host[usable]))]
    if not inside[order].any():
        why = Peers(reason="no collective was timed on two ranks of a host", hosts=hosts)
        return Matched(unknown[inside], why, unknown[inside], unknown[inside])
    keys = np.stack([host[order], comm[order], ordinal[order]])
    opens = np.concatenate([[True], (keys[:, 1:] != keys[:, :-1]).any(axis=0)])
    first = np.flatnonzero(opens)
    last = np.concatenate([first[1:], [len(order)]]) - 1
    group = np.cumsum(opens) - 1
    ranks = kernels["rank"].to_numpy()
    # All members of hosts with one clock, each once: else a rank is missing that the others may have waited for.
    whole = last - first + 1 == members[order[first]]
    begin, end = start[order], kernels["stop_ns"].to_numpy()[order]
    ends_first = np.minimum.reduceat(end, first)
    # Two kernels of one collective overlap; those that do not were taken for each other.
    whole &= begin[last] <= ends_first + 1_000_000
    waits = np.clip(begin[last][group] - begin, 0, end - begin)
    known = whole[group]
    unknown[order[known]] = waits[known]
    compared = known & inside[order]
    uncertainty_ns = max((rank.clock_map.spread_ns for rank in run.ranks if rank.clock_map.pairs), default=0.0)
    uncertainty_ns = max(uncertainty_ns, error_ns(run))
    peers = Peers(
        hosts=hosts,
        matched_pct=100.0 * int(compared.sum()) / max(int((collective & inside).sum()), 1),
        uncertainty_us=uncertainty_ns / 1e3,
        ranks=_rank_rows(
            run, ranks[order], begin, last[whole & inside[order[last]]], 1 / members[order], compared, uncertainty_ns
        ),
    )
    late, others = np.full(len(kernels), -1, dtype=np.int64), np.zeros(len(kernels), dtype=np.int64)
    next_ns = begin[np.maximum(last - 1, first)]
    measured = known & (begin[last] - next_ns > 2 * uncertainty_ns)[group] & (np.arange(len(order)) != last[group])
    late[order[measured]] = ranks[order][last][group][measured]
    others[order[measured]] = np.maximum(next_ns[group] - begin, 0)[measured]
    return Matched(unknown[inside], peers, late[inside], others[inside])


def add_costs(matched: Matched, kernels: pl.DataFrame, sets: Mapping[int, Sets]) -> None:
    """What each straggler costs, from the times of the ranks that wait for it; `kernels` are those of `matched`."""
    gains: dict[int, float] = {}
    waited: dict[int, float] = {}
    exact = True
    rank, start = kernels["rank"].to_numpy(), kernels["start_ns"].to_numpy()
    waiting = np.flatnonzero(matched.last_rank >= 0)
    for peer, places in _by_rank(rank[waiting]).items():
        of = sets.get(peer)
        if of is None:
            continue
        for late, chosen in _by_rank(matched.last_rank[waiting[places]]).items():
            at = waiting[places[chosen]]
            spans = iv.union(start[at] + matched.others_ns[at], start[at] + matched.waiting_ns[at])
            spans = iv.intersection(iv.clip(spans, *of.span), of.communication)
            if of.computation is not None:
                spans = iv.minus(spans, of.computation)
            elif of.exposed is not None:
                spans = iv.intersection(spans, of.exposed)
            else:
                exact = False
            length_s = iv.length_ns(spans) / 1e9
            gains[late] = max(gains.get(late, 0.0), length_s)
            waited[late] = waited.get(late, 0.0) + length_s
    for row in matched.peers.ranks:
        gain = gains.get(row.rank, 0.0)
        row.cost_s, row.cost_at_most_s = (gain, None) if exact else (None, gain)
        row.waited_s = waited.get(row.rank, 0.0)
    matched.peers.ranks.sort(key=lambda row: -(row.cost_s or row.cost_at_most_s or 0.0))


def _why_not(run: RunData, inside: npt.NDArray[np.bool_]) -> str:
    if not inside.any():
        return "no kernel of communication was timed"
    hosts = [domain(run, trace.host) for trace in run.ranks]
    if len(set(hosts)) == len(hosts):
        return "each host has one rank, and hosts' clocks differ" if len(hosts) > 1 else "the job has one rank"
    return ""


def _ordinals(run: RunData, calls: pl.DataFrame, kernels: pl.DataFrame) -> Ints:
    """Of each kernel, its call's place among its communicator's, times a million plus its replay; -1: not known."""
    rank, comm, call = (calls[name].to_numpy() for name in ("rank", "comm", "call_id"))
    order = np.lexsort((call, comm, rank))
    opens = np.ones(len(order), dtype=bool)
    opens[1:] = (rank[order][1:] != rank[order][:-1]) | (comm[order][1:] != comm[order][:-1])
    begins = np.flatnonzero(opens)
    place = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    before = {(trace.rank, comm): count for trace in run.ranks for comm, count in trace.calls_before.items()}
    for begin, stop in zip(begins, np.append(begins[1:], len(order)), strict=True):
        place[begin:stop] += before.get((int(rank[order[begin]]), int(comm[order[begin]])), 0)
    key = _key(rank, call)[order]
    sort = np.argsort(key, kind="stable")
    key, place = key[sort], place[sort]
    wanted = _key(kernels["rank"].to_numpy(), kernels["call_id"].to_numpy())
    at = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
    if not len(key):
        return np.full(len(kernels), -1, dtype=np.int64)
    ordinal = np.where(key[at] == wanted, place[at], -1)
    return np.where(ordinal >= 0, ordinal * 1_000_000 + _replays(wanted, kernels["start_ns"].to_numpy()), -1)


def _key(rank: Ints, call: Ints) -> Ints:
    return (call.astype(np.int64) << 20) + rank % (1 << 20)


def _replays(key: Ints, start: Ints) -> Ints:
    """How many kernels of the same call ran before each: those of a graph run again and again."""
    order = np.lexsort((start, key))
    opens = np.concatenate([[True], key[order][1:] != key[order][:-1]])
    begins = np.flatnonzero(opens)
    counted = np.empty(len(key), dtype=np.int64)
    counted[order] = np.arange(len(key)) - np.repeat(begins, np.diff(np.append(begins, len(key))))
    return counted


def _communicators(run: RunData, kernels: pl.DataFrame) -> tuple[Ints, Ints, Ints]:
    """Of each kernel: its clock's number, its communicator's (alike on all ranks), and that one's ranks on the clock.

    Hosts that are aligned have one clock.
    """
    domains = {trace.host: domain(run, trace.host) for trace in run.ranks}
    numbers = {domain: index for index, domain in enumerate(dict.fromkeys(domains.values()))}
    hosts = {host: numbers[domain] for host, domain in domains.items()}
    names: dict[tuple[int, int], int] = {}
    of: dict[tuple[int, int], tuple[int, int]] = {}
    members: dict[tuple[int, int], int] = {}
    for trace in run.ranks:
        for row in trace.kinds[records.COMM]:
            if int(row["flags"]) & records.FLAG_ENDED:
                continue
            number = names.setdefault((trace.job, int(row["comm_id"])), len(names))
            of[trace.rank, int(row["comm"])] = (hosts[trace.host], number)
            members[hosts[trace.host], number] = members.get((hosts[trace.host], number), 0) + 1
    pairs = kernels.select("rank", "comm").unique(maintain_order=True)
    rows = []
    for rank, comm in pairs.iter_rows():
        host, number = of.get((rank, comm), (0, -1))
        rows.append((rank, comm, host, number, members.get((host, number), 0)))
    schema = dict.fromkeys(("rank", "comm", "host_index", "comm_index", "members"), pl.Int64)
    table = pl.DataFrame(rows, schema=schema, orient="row")
    joined = kernels.select("rank", "comm").join(table, on=["rank", "comm"], how="left", maintain_order="left")
    columns = [joined[name].to_numpy() for name in ("host_index", "comm_index", "members")]
    return columns[0], columns[1], columns[2]


def _by_rank(ranks: Ints) -> dict[int, Ints]:
    """The places of each rank, in order."""
    order = np.argsort(ranks, kind="stable")
    opens = np.flatnonzero(np.diff(ranks[order], prepend=ranks[order[:1]] - 1))
    return dict(zip(ranks[order[opens]].tolist(), np.split(order, opens[1:]), strict=True)) if len(ranks) else {}


def _rank_rows(
    run: RunData,
    ranks: Ints,
    begin: Ints,
    last: Ints,
    chance: npt.NDArray[np.float64],
    known: npt.NDArray[np.bool_],
    uncertainty_ns: float,
) -> list[Straggler]:
    """One row a rank; `last`: places of each collective's latest start; `chance` of each row, to be that one."""
    behind = begin[last] - begin[last - 1]
    measurable = behind > 2 * uncertainty_ns
    compared, chances = _by_rank(ranks[known]), chance[known]
    latest, behind = _by_rank(ranks[last][measurable]), behind[measurable]
    rows = []
    for trace in run.ranks:
        own_rows = compared.get(trace.rank)
        if own_rows is None:
            continue
        count = len(own_rows)
        usual = 100.0 * float(chances[own_rows].mean())
        lags = behind[latest.get(trace.rank, own_rows[:0])] / 1e3
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
