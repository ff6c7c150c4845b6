# SPDX-License-Identifier: Apache-2.0
"""What GPUs are to each other: who waited for whom in a collective, who came last, and who has time to spare."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from powerccl.analysis import intervals as iv
from powerccl.analysis.exposure import period
from powerccl.analysis.whatif_timeline import GpuTimeline, Operation
from powerccl.traces import records
from powerccl.traces.folder import RunData

PAIRS = "send_receive"  # who meets whom in it is not told by its place among a communicator's calls
NEARLY = 0.02  # of an operation's length: so close to the last, a rank is as late as that
LEAST_ITERATIONS, MOST_CALLS = 4, 2048
# As native/runtime/conductor_learning.cpp has it.
LEAST_COMPUTING, MARGIN, DEVIATIONS = 0.02, 0.01, 3.0
MOST_STRETCH, LEAST_STRETCH = 2.0, 1.02


def meet(run: RunData, lines: list[GpuTimeline]) -> None:
    """How long each operation waited for late peers: it takes as long as on the rank that came last, and no longer."""
    for meeting in _meetings(run, lines):
        for (_, operation), waited in zip(meeting, _waited(lines, meeting), strict=True):
            operation.waiting_ns = waited


def latest(run: RunData, lines: list[GpuTimeline]) -> list[tuple[iv.Intervals, npt.NDArray[np.float64]]]:
    """For each GPU, the computation that all others waited for, and its weight: ties are divided.

    It is what came before a collective that the GPU was last to. Power governors leave long computation less of a clock
    than short, so that it is not that of computation on average.
    """
    last: list[dict[int, float]] = [{} for _ in lines]
    for meeting in _meetings(run, lines):
        near = NEARLY * min(operation.stop_ns - operation.start_ns for _, operation in meeting)
        late = [each for each, waited in zip(meeting, _waited(lines, meeting), strict=True) if waited <= near]
        for place, operation in late:
            last[place][operation.call_id] = 1 / len(late)
    found = []
    for line, mine in zip(lines, last, strict=True):
        starts = np.array([operation.start_ns for operation in line.operations], dtype=np.int64)
        spans: list[tuple[int, int]] = []
        weights: list[float] = []
        before = int(starts[0]) if len(starts) else 0
        for start, stop in line.exposed.tolist():
            index = int(np.searchsorted(starts, stop)) - 1
            weight = mine.get(line.operations[index].call_id, 0.0) if index >= 0 else 0.0
            if weight > 0 and start > before:
                spans.append((before, start))
                weights.append(weight)
            before = stop
        found.append((np.array(spans, dtype=np.int64).reshape(-1, 2), np.array(weights)))
    return found


def usual(line: GpuTimeline) -> int:
    """After how many operations the iteration begins anew, 0: it is not told, or is another each time."""
    starts = np.array([operation.start_ns for operation in line.operations], dtype=np.int64)
    if len(starts) < LEAST_ITERATIONS:
        return 0
    return period([f"{o.pattern} {o.comm}" for o in line.operations], starts, MOST_CALLS)


def slack(line: GpuTimeline) -> float:
    """How many times as long computation may take on a GPU that waits for others in every operation of an iteration."""
    operations = line.operations
    starts = np.array([o.start_ns for o in operations], dtype=np.int64)
    length = usual(line)
    if not length or any(operation.called_ns < 0 for operation in operations):
        return 1.0
    reach = np.maximum.accumulate(np.array([o.stop_ns for o in operations], dtype=np.int64))
    computing = np.append(0, np.maximum(starts[1:] - reach[:-1], 0)).astype(np.float64)
    waiting = np.array([o.waiting_ns for o in operations], dtype=np.float64)
    took = np.array([o.stop_ns - o.start_ns for o in operations], dtype=np.float64)
    iteration_ns = float(np.median(starts[length:] - starts[:-length]))
    least = np.inf
    for place in range(length):
        mine = slice(place if place else length, None, length)
        before = float(np.median(computing[mine]))
        if before < LEAST_COMPUTING * iteration_ns:
            continue
        deviation = float(np.mean(np.abs(took[mine] - took[mine].mean())))
        spare = float(np.mean(waiting[mine])) - MARGIN * iteration_ns - DEVIATIONS * deviation
        least = min(least, spare / before)
    times = 1 + float(least) if np.isfinite(least) else 1.0
    return min(times, MOST_STRETCH) if times >= LEAST_STRETCH else 1.0


def _waited(lines: list[GpuTimeline], meeting: list[tuple[int, Operation]]) -> list[int]:
    """How long each GPU waited for the last of them, ns; clocks of several hosts are no measure, so lengths are."""
    lengths = [operation.stop_ns - operation.start_ns for _, operation in meeting]
    if len({lines[place].host for place, _ in meeting}) > 1:
        return [length - min(lengths) for length in lengths]
    last = max(operation.start_ns for _, operation in meeting)
    return [min(last - each.start_ns, length) for (_, each), length in zip(meeting, lengths, strict=True)]


def _meetings(run: RunData, lines: list[GpuTimeline]) -> list[list[tuple[int, Operation]]]:
    """Operations that are one collective, each with the place of its GPU in `lines`: the n-th of a communicator."""
    found: dict[tuple[int, int], list[tuple[int, Operation]]] = {}
    for place, line in enumerate(lines):
        trace = next(trace for trace in run.ranks if trace.gpu == line.gpu)
        names = {int(row["comm"]): int(row["comm_id"]) for row in trace.kinds[records.COMM]}
        count: dict[int, int] = {}
        number: dict[int, int] = {}
        calls = trace.kinds[records.CALL]
        for call_id, comm in zip(calls["call_id"].tolist(), calls["comm"].tolist(), strict=True):
            number[call_id] = count[comm] = count.get(comm, 0) + 1
        for operation in line.operations:
            # Of calls in graphs it is not told which replay a kernel is of.
            if (
                operation.called_ns >= 0
                and operation.pattern != PAIRS
                and operation.comm in names
                and operation.call_id in number
            ):
                key = (names[operation.comm], number[operation.call_id])
                found.setdefault(key, []).append((place, operation))
    return [meeting for meeting in found.values() if len(meeting) > 1]
