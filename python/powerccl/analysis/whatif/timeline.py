# SPDX-License-Identifier: Apache-2.0
"""What each GPU of a recorded run communicated, in order: what a prediction replays.

An operation is a call whose kernel was timed, or whose waiting is known. Calls that were neither timed nor waited for
are taken to be hidden behind computation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.traces import tables
from powerccl.traces.folder import RunData

Ints = npt.NDArray[np.int64]

QUANTILE_PCT = 5.0  # of the durations of one kind: an operation that waited for nobody
LEAST_ITERATIONS, MOST_CALLS = 4, 2048
SAME, EVEN, ABOUT, MOST = 0.97, 0.05, 0.15, 0.7  # shares: of labels, of a length, of a length, of lengths
FEW = 4  # durations of a kind that say nothing of its least
REMEMBERED = 12  # iterations, by a moving mean of the runtime


@dataclass
class Operation:
    """One operation of a GPU; host times, ns. `called_ns` -1: not known, or part of a graph.

    `waiting_ns` of its length, peers were late: it is as long as their computation is. `least_ns`: what operations of
    its kind take that wait for nobody, 0: not known.
    """

    call_id: int
    comm: int
    pattern: str
    size_bytes: int
    start_ns: int
    stop_ns: int
    called_ns: int
    waiting_ns: int = 0
    least_ns: int = 0
    comm_id: int = 0  # the same on all ranks
    received_kib: int = 0  # in an all-to-all put together from sends and receives


@dataclass
class GpuTimeline:
    """One GPU: operations by start, when computation stalled, and by which operation (-1: not known) each stall ended.

    `calls` are all its calls that are no part of a graph. `waited`: when computation went on behind a wait for a call,
    as marks tell, were it over or not; empty where several streams compute, none of which holds up the others.
    """

    gpu: str
    rank: int
    place: int  # among the GPUs of its host
    host: str
    operations: list[Operation]
    calls: list[tuple[int, str, int, int, int]]  # called_ns, pattern, bytes, call_id, comm
    waited: list[tuple[int, int]] = field(default_factory=list)  # resume_ns, call_id
    exposed: iv.Intervals = field(default_factory=lambda: iv.EMPTY)
    communicating: iv.Intervals = field(default_factory=lambda: iv.EMPTY)

    @cached_property
    def starts(self) -> Ints:
        """When each operation started."""
        return np.array([operation.start_ns for operation in self.operations], dtype=np.int64)


def timelines(
    run: RunData, exposed: dict[str, iv.Intervals], wanted: Callable[[str, int], bool] = lambda pattern, size: False
) -> list[GpuTimeline]:
    """Timelines of the run's GPUs, waits standing in for kernels that were not timed.

    Calls of a pattern and size that is `wanted` are there even if nothing was seen of them, where others of their kind
    were.
    """
    calls, kernels, waits = tables.calls(run), tables.kernels(run), tables.waits(run)
    shortest = _shortest(kernels)
    found: list[GpuTimeline] = []
    places: dict[str, int] = {}
    for trace in run.ranks:
        if any(line.gpu == trace.gpu for line in found):
            continue  # a second trace of the GPU: its kernels come with the first
        mine = pl.col("gpu") == trace.gpu
        operations = _operations(calls.filter(mine), kernels.filter(mine), waits.filter(mine), shortest)
        _add_unseen(operations, calls.filter(mine & ~pl.col("captured")), shortest, wanted)
        for operation in operations:
            operation.least_ns = shortest.get((operation.pattern, operation.size_bytes), 0)
        place = places.get(trace.host, 0)
        places[trace.host] = place + 1
        live = calls.filter(mine & ~pl.col("captured")).sort("start_ns")
        found.append(
            GpuTimeline(
                gpu=trace.gpu,
                rank=trace.rank,
                place=place,
                host=trace.host,
                operations=operations,
                calls=list(live.select("start_ns", "pattern", "bytes", "call_id", "comm").iter_rows()),
                waited=_waited(waits.filter(mine)),
                exposed=exposed.get(trace.gpu, iv.EMPTY),
                communicating=iv.union([o.start_ns for o in operations], [o.stop_ns for o in operations]),
            )
        )
    return found


def _operations(
    calls: pl.DataFrame, kernels: pl.DataFrame, waits: pl.DataFrame, shortest: dict[tuple[str, int], int]
) -> list[Operation]:
    called = {
        (rank, call_id): (start_ns, comm, pattern, size, captured, received_kib)
        for rank, call_id, start_ns, comm, pattern, size, captured, received_kib in calls.select(
            "rank", "call_id", "start_ns", "comm", "pattern", "bytes", "captured", "received_kib"
        ).iter_rows()
    }
    operations: list[Operation] = []
    timed: set[tuple[int, int]] = set()
    for rank, call_id, comm, pattern, size, start_ns, stop_ns in kernels.select(
        "rank", "call_id", "comm", "pattern", "bytes", "start_ns", "stop_ns"
    ).iter_rows():
        known = called.get((rank, call_id))
        at = known[0] if known and not known[4] else -1
        timed.add((rank, call_id))
        received_kib = known[5] if known else 0
        operations.append(Operation(call_id, comm, pattern, size, start_ns, stop_ns, at, received_kib=received_kib))
    for rank, call_id, stall_ns, resume_ns in waits.select("rank", "call_id", "stall_ns", "resume_ns").iter_rows():
        known = called.get((rank, call_id))
        if known is None or (rank, call_id) in timed:
            continue
        timed.add((rank, call_id))
        # What was waited for ran at least as long as it was waited for, and ended then.
        length = max(resume_ns - stall_ns, shortest.get((known[2], known[3]), 0))
        start_ns = max(resume_ns - length, min(known[0], stall_ns))
        operations.append(Operation(call_id, known[1], known[2], known[3], start_ns, resume_ns, known[0]))
    operations.sort(key=lambda operation: operation.start_ns)
    return operations


def _waited(waits: pl.DataFrame) -> list[tuple[int, int]]:
    if waits["stream"].n_unique() > 1:
        return []
    return list(waits.select("resume_ns", "call_id").sort("resume_ns").iter_rows())


def _add_unseen(
    operations: list[Operation],
    calls: pl.DataFrame,
    shortest: dict[tuple[str, int], int],
    wanted: Callable[[str, int], bool],
) -> None:
    """Wanted calls that nothing was seen of: as long behind the call as others of their pattern and size started."""
    behind: dict[tuple[str, int], list[int]] = {}
    seen = {operation.call_id for operation in operations}
    for operation in operations:
        if operation.called_ns >= 0:
            key = (operation.pattern, operation.size_bytes)
            behind.setdefault(key, []).append(operation.start_ns - operation.called_ns)
    for call_id, called_ns, comm, pattern, size in calls.select(
        "call_id", "start_ns", "comm", "pattern", "bytes"
    ).iter_rows():
        delays, length = behind.get((pattern, size)), shortest.get((pattern, size))
        if call_id in seen or not delays or not length or not wanted(pattern, size):
            continue
        start_ns = called_ns + int(np.median(delays))
        operations.append(Operation(call_id, comm, pattern, size, start_ns, start_ns + length, called_ns))
    operations.sort(key=lambda operation: operation.start_ns)


def _shortest(kernels: pl.DataFrame) -> dict[tuple[str, int], int]:
    """How long an operation of each pattern and size takes when nobody is late, ns."""
    rows = kernels.group_by("pattern", "bytes", maintain_order=True).agg(
        least=pl.col("duration_ns").quantile(QUANTILE_PCT / 100), count=pl.len()
    )
    return {
        (pattern, size): int(least)
        for pattern, size, least, count in rows.select("pattern", "bytes", "least", "count").iter_rows()
        if count >= FEW
    }


def window(lines: list[GpuTimeline]) -> tuple[int, int] | None:
    """From the first operation's start to the last one's end, over all GPUs; None: there is none."""
    starts = [line.operations[0].start_ns for line in lines if line.operations]
    stops = [max(o.stop_ns for o in line.operations) for line in lines if line.operations]
    return (min(starts), max(stops)) if starts else None


def usual(line: GpuTimeline, span: tuple[int, int]) -> int:
    """After how many calls the iteration begins anew, 0: it is not told, or is another each time."""
    inside = [o for o in line.operations if span[0] <= o.start_ns < span[1]]
    if any(o.called_ns < 0 for o in inside):  # in graphs: as they ran, again and again from one call
        labels = [f"{o.pattern} {o.comm}" for o in inside]
        return _rhythm(labels, np.array([o.start_ns for o in inside], dtype=np.int64))
    seen = {o.call_id: o for o in inside}
    if len(seen) < LEAST_ITERATIONS:
        return 0
    first, last = min(seen), max(seen)
    mine = [call for call in line.calls if first <= call[3] <= last]
    labels = [f"{pattern} {comm}" for _, pattern, _, _, comm in mine]
    return _rhythm(labels, np.array([call[0] for call in mine], dtype=np.int64))


def _rhythm(labels: list[str], at_ns: Ints) -> int:
    """After how many the labels come again, each about as long after the one before; 0: never.

    Four equal buckets make an iteration, not one: behind the last of them more time goes by, which makes the mean
    longer than the median. A machine that is disturbed now and then does not.
    """
    names = np.unique(np.array(labels), return_inverse=True)[1]
    for length in range(1, min(MOST_CALLS, len(names) // LEAST_ITERATIONS) + 1):
        if (names[length:] == names[:-length]).mean() < SAME:
            continue
        apart = (at_ns[length:] - at_ns[:-length]).astype(np.float64)
        usual = float(np.median(apart))
        if abs(float(apart.mean()) - usual) < EVEN * usual and (np.abs(apart - usual) < ABOUT * usual).mean() > MOST:
            return length
    return 0


def numbers_of(line: GpuTimeline) -> Ints:
    """Operations numbered as they were called, since some may not have been seen."""
    mine = np.array([operation.call_id for operation in line.operations], dtype=np.int64)
    if not line.calls or any(operation.called_ns < 0 for operation in line.operations):
        return np.arange(len(mine))
    called = np.union1d(mine, [call[3] for call in line.calls])
    return np.searchsorted(called, mine)


def deviation_of(values: npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> float:
    """The mean deviation of a few that follow each other, as most of them have it: one disturbance is not all of it."""
    count = max(1, len(values) // REMEMBERED)
    groups = [part for part in np.array_split(values.astype(np.float64), count) if len(part)]
    return float(np.median([np.mean(np.abs(part - part.mean())) for part in groups]))
