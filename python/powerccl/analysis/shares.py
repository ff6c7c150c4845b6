# SPDX-License-Identifier: Apache-2.0
"""How much of a job's time is communication, how much of that is exposed: one definition for every output.

Working time: of each rank from its first communication to its last. Where the first iteration is far longer than the
others, since it compiles or loads, from the second; unless much was communicated before it. Start-up is what comes
before: imports, data, compilation. It is named, and in no share.

Communicating: a kernel of communication runs on the GPU. Exposed: the part of that in which nothing computes beside it.
Waiting: the part of communicating until the last peer has come. Each is an intersection with the one before, so that no
part exceeds its whole. A share is the sum over the ranks divided by the sum of their working time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.findings import FIRST_COMMUNICATION, FIRST_ITERATION, Communication, Shares
from powerccl.analysis.iterations import Cut, cut
from powerccl.analysis.report_findings import Parts
from powerccl.quantities import plural
from powerccl.traces import tables
from powerccl.traces.folder import RunData
from powerccl.traces.rank import RankTrace

# Times the median iteration: what takes longer before the first regular one compiles or loads. Half of it would drop
# a slow first iteration, double keep a compilation in short runs.
SLOW_START = 3.0
# Of a rank's operations: if more come before the first iteration, they are work. Half of it would count the ten
# broadcasts before a short job as work; double would hide a fifth of a job.
MOST_BEFORE = 0.1
ALL_TIMED = 0.99  # of a rank's calls: as `iterations.cut`
MOST_UNTIMED = 0.5  # of the calls: if nothing tells how long more of them took, the share is not known

Floats = npt.NDArray[np.float64]


@dataclass
class Sets:
    """One rank's times as interval sets (host ns); None: not known. `span`: its working time."""

    communication: iv.Intervals
    waiting: iv.Intervals | None
    exposed: iv.Intervals | None
    computation: iv.Intervals | None
    span: tuple[int, int]


@dataclass
class Working:
    """Each rank's working time, the iterations of each host and job, and until when the run started up."""

    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    cuts: dict[tuple[str, int], Cut] = field(default_factory=dict)
    startup_s: float | None = None
    startup_until: str = FIRST_COMMUNICATION
    startup_ns: tuple[int, int] | None = None  # host ns
    first_ns: list[int] = field(default_factory=list)  # first communication of each rank on the first host
    uncovered_ns: int = 0  # over the ranks: from a cut trace's last record to the end of the others'


Ends = dict[int, tuple[int, int]]  # of each rank, its first communication's start and its last one's end


def working(
    run: RunData,
    kernels: pl.DataFrame,
    ends: Ends,
    cuts: dict[tuple[str, int], Cut],
    window: tuple[int, int] | None = None,
) -> Working:
    """The working time of each rank that communicated; of a window (host ns), the part of it inside.

    `ends`, `cuts`: as ends_of and cuts_of have them.
    """
    window = window or run.window
    work = Working(cuts={place: replace(cut) for place, cut in cuts.items()})
    starts = tables.by_rank(kernels, "start_ns")
    by_iteration: dict[tuple[str, int], int] = {}
    for trace in run.ranks:
        if trace.rank not in ends or trace.rank in work.spans:
            continue
        first, last = ends[trace.rank]
        cut = work.cuts[trace.host, trace.job]
        begin = _first_iteration(cut, starts.get(trace.rank, kernels[:0])["start_ns"], first)
        if begin is not None and begin < last:
            first = begin
            by_iteration[trace.host, trace.job] = begin
        if window:
            first, last = max(first, window[0]), min(last, window[1])
        if first < last:
            work.spans[trace.rank] = (first, last)
    for place, begin in by_iteration.items():  # iterations of the start-up are in no mean
        edges = work.cuts[place].edges
        work.cuts[place].edges = edges[edges[:, 0] >= begin]
    work.uncovered_ns = _uncovered_ns(run, work.spans, window)
    info = run.info
    here = [work.spans[t.rank][0] for t in run.ranks if t.rank in work.spans and (not info or t.host == info.host)]
    if here and info and info.start_ns > 0 and not window:
        work.startup_ns = (info.start_ns, max(min(here), info.start_ns))
        work.first_ns = [ends[t.rank][0] for t in run.ranks if t.rank in work.spans and t.host == info.host]
        work.startup_s = (work.startup_ns[1] - info.start_ns) / 1e9
        work.startup_until = FIRST_ITERATION if by_iteration else FIRST_COMMUNICATION
    return work


def _uncovered_ns(run: RunData, spans: dict[int, tuple[int, int]], window: tuple[int, int] | None) -> int:
    """How long ranks with missing records worked on behind their last one: until the others' end, or the run's."""
    total = 0
    for trace in run.ranks:
        if not trace.incomplete or trace.rank not in spans:
            continue
        ends = [
            spans[other.rank][1]
            for other in run.ranks
            if other.host == trace.host and other.rank in spans and not other.incomplete
        ]
        if not ends and run.info and run.info.span and run.info.host == trace.host:
            ends = [min(run.info.span[1], window[1]) if window else run.info.span[1]]
        total += max(0, max(ends, default=0) - spans[trace.rank][1])
    return total


def ends_of(calls: pl.DataFrame, kernels: pl.DataFrame) -> Ends:
    """When ranks began and ended to communicate; by their calls where many were not timed."""
    ran = kernels.group_by("rank", maintain_order=True).agg(pl.len(), pl.col("start_ns").min(), pl.col("stop_ns").max())
    ends = {rank: (count, first, last) for rank, count, first, last in ran.iter_rows()}
    made = (
        calls.filter(~pl.col("captured"))
        .group_by("rank", maintain_order=True)
        .agg(pl.len(), first=pl.col("start_ns").min(), last=pl.col("start_ns").max())
    )
    for rank, count, first, last in made.iter_rows():
        timed, begin, end = ends.get(rank, (0, first, last))
        if timed < ALL_TIMED * count:
            ends[rank] = (timed, min(begin, first), max(end, last))
    return {rank: (first, last) for rank, (_, first, last) in ends.items()}


def cuts_of(
    traces: list[RankTrace],
    ends: Ends,
    known: dict[tuple[str, int], Cut],
    calls: pl.DataFrame,
    kernels: pl.DataFrame,
    window: tuple[int, int] | None,
) -> dict[tuple[str, int], Cut]:
    """Iterations of each host and job, by its first rank there that communicated; those that are `known` stay."""
    places = {(trace.host, trace.job): trace for trace in reversed(traces) if trace.rank in ends}
    first = {place: trace for place, trace in places.items() if place not in known}
    if not first:
        return known
    chosen = pl.col(tables.RANK).is_in([trace.rank for trace in first.values()])
    made, ran = tables.by_rank(calls.filter(chosen)), tables.by_rank(kernels.filter(chosen))
    return known | {
        place: _cut(window, trace.gaps, made.get(trace.rank, calls[:0]), ran.get(trace.rank, kernels[:0]))
        for place, trace in first.items()
    }


def _cut(
    window: tuple[int, int] | None, gaps: list[tuple[int, int]], calls: pl.DataFrame, kernels: pl.DataFrame
) -> Cut:
    iterations = cut(calls, kernels)
    if window:
        inside = (iterations.edges[:, 0] >= window[0]) & (iterations.edges[:, 1] <= window[1])
        iterations.edges = iterations.edges[inside]
    for begin, end in gaps:  # a restart is no iteration
        kept = iterations.edges[(iterations.edges[:, 0] > end) | (iterations.edges[:, 1] < begin)]
        iterations.edges = kept if len(kept) > 1 else kept[:0]
    return iterations


def _first_iteration(iterations: Cut, starts: pl.Series, first_ns: int) -> int | None:
    """When the first regular iteration begins; None: no sooner or later than `first_ns`, or much came before it."""
    if len(iterations.edges) < 2:
        return None
    lengths = iterations.edges[:, 1] - iterations.edges[:, 0]
    long = SLOW_START * np.median(lengths)
    begin = int(iterations.edges[np.argmax(lengths <= long), 0])
    few = (starts < begin).sum() <= MOST_BEFORE * len(starts)
    return begin if few and begin - first_ns > long else None


def measure(sets: Sets, edges: iv.Intervals) -> dict[str, Floats]:
    """Seconds of each part in each stretch of `edges`, by the names of Parts; parts that are not known are left out."""

    def inside(intervals: iv.Intervals) -> Floats:
        return (iv.covered_before(intervals, edges[:, 1]) - iv.covered_before(intervals, edges[:, 0])) / 1e9

    span = (edges[:, 1] - edges[:, 0]) / 1e9
    communication = inside(sets.communication)
    columns = {"span_s": span, "communication_s": communication, "stalled_s": np.zeros(len(span))}
    waiting = None if sets.waiting is None else iv.intersection(sets.communication, sets.waiting)
    if waiting is not None:
        columns["waiting_s"] = inside(waiting)
        columns["transfer_s"] = communication - columns["waiting_s"]
    if sets.computation is not None:
        beside = iv.intersection(sets.communication, sets.computation)
        columns["overlapped_s"] = inside(beside)
        columns["exposed_s"] = communication - columns["overlapped_s"]
        columns["computation_s"] = inside(sets.computation) - columns["overlapped_s"]
        if waiting is not None:
            columns["exposed_waiting_s"] = columns["waiting_s"] - inside(iv.intersection(waiting, sets.computation))
    elif sets.exposed is not None:
        columns["exposed_s"] = inside(iv.intersection(sets.communication, sets.exposed))
        columns["overlapped_s"] = communication - columns["exposed_s"]
        columns["stalled_s"] = inside(sets.exposed) - columns["exposed_s"]
        if waiting is not None:
            columns["exposed_waiting_s"] = inside(iv.intersection(waiting, sets.exposed))
    columns["rest_s"] = span - communication - columns["stalled_s"]
    if sets.computation is not None:
        columns["idle_s"] = columns["rest_s"] - columns["computation_s"]
    # Differences of sums of nanoseconds: what is below zero is rounding.
    return {name: np.maximum(values, 0.0) for name, values in columns.items()}


def whole(sets: Sets) -> Parts:
    """The parts of a rank's working time."""
    each = measure(sets, np.array([sets.span], dtype=np.int64))
    return Parts(**{name: float(values[0]) for name, values in each.items()})


def of_parts(rows: Iterable[Parts]) -> Shares:
    """The shares of ranks, or of any stretches of time, together."""
    known = [row for row in rows if row.span_s > 0]
    span_s = sum(row.span_s for row in known)
    if not span_s:
        return Shares(reason="nothing was communicated")

    def share(values: list[float | None]) -> float | None:
        measured = [value for value in values if value is not None]
        return 100 * sum(measured) / span_s if len(measured) == len(values) else None

    return Shares(
        span_s=span_s / len(known),
        communicating_pct=share([row.communication_s for row in known]),
        exposed_pct=share([row.exposed_s for row in known]),
    )


def of_stretches(gpus: Iterable[tuple[iv.Intervals, iv.Intervals | None]], stretches: iv.Intervals) -> Shares:
    """The shares of some stretches of time: of each GPU, when it communicates and when nothing computes (or None)."""
    rows = []
    for communication, exposed in gpus:
        each = measure(Sets(communication, None, exposed, None, (0, 0)), stretches)
        rows.append(Parts(**{name: float(values.sum()) for name, values in each.items()}))
    return of_parts(rows)


def of_job(rows: Iterable[Parts], work: Working, counted: Communication) -> Shares:
    """The shares of a job, from its ranks' rows and the count of its calls."""
    shares = of_parts(rows)
    shares.startup_s, shares.startup_until = work.startup_s, work.startup_until
    uncovered_s = work.uncovered_ns / 1e9
    shares.at_least = (
        counted.timed_calls < ALL_TIMED * counted.calls or counted.untimed_captured_calls > 0 or counted.incomplete
    )
    if counted.incomplete:
        worked_s = sum(last - first for first, last in work.spans.values()) / 1e9
        shares.uncovered_pct = 100 * uncovered_s / (worked_s + uncovered_s) if worked_s + uncovered_s > 0 else None
    if counted.time_s is None:
        shares.reason = f"none of {plural(counted.calls + counted.captured_calls, 'call')} was timed"
    elif counted.untimed_calls > MOST_UNTIMED * counted.calls:
        shares.communicating_pct = shares.exposed_pct = None
        shares.reason = f"{counted.untimed_calls:,} of {plural(counted.calls, 'call')} were not timed"
    return shares
