# SPDX-License-Identifier: Apache-2.0
"""A recorded job as a graph: on each GPU computation, what it starts and what it waits for, in the order it was seen.

Computation and communication keep their order: an operation begins when computation has got as far as it had and the
operation before it in its communicator is over, and moves data once all its GPUs have come; computation that stalled
for an operation goes on when that is over. The host calls when computation has got as far as it had.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from powerccl.analysis import intervals as iv
from powerccl.analysis.whatif.gathers import Gather
from powerccl.analysis.whatif.meetings import Meeting
from powerccl.analysis.whatif.platform import ClockPlatform
from powerccl.analysis.whatif.timeline import GpuTimeline, Operation

NEAR_NS = 1_000_000  # what two clocks, a GPU's and the host's, may differ by
HOLD, START, RESUME, EDGE, GATHER = range(5)


@dataclass
class Lane:
    """One GPU. Items in order: how far computation had got (ns), what, and of which operation or edge.

    A RESUME of operation -1 is a stall that nothing known ended, which lasts as long as it did. At a GATHER, numbered,
    all lanes wait for the last. `before[i]`: the operation that precedes the i-th in its communicator; `meeting[i]`:
    the one it is part of.
    """

    line: GpuTimeline
    progress: list[int]
    what: list[int]
    index: list[int]
    lasted: list[int]  # ns; of RESUME items: the stall, of HOLD items: since the call before
    before: list[int]
    after: list[int]
    meeting: list[int]
    percall_mhz: list[int]  # what per-call sets for each operation, 0: it leaves it alone


@dataclass
class Job:
    """All GPUs of a stretch of a run, from `span[0]` on."""

    span: tuple[int, int]
    lanes: list[Lane]
    meetings: list[Meeting] = field(default_factory=list)


def job_of(
    lines: list[GpuTimeline],
    meetings: list[Meeting],
    platform: ClockPlatform,
    span: tuple[int, int],
    edges_ns: list[int],
    gathers: tuple[Gather, ...] = (),
) -> Job:
    """The graph of what the lines hold from span[0] to span[1]; meetings are cut to it, and gathers are inside."""
    kept: list[Meeting] = []
    of: list[dict[int, int]] = [{} for _ in lines]
    first = [int(np.searchsorted(line.starts, span[0])) for line in lines]
    count = [
        sum(1 for operation in line.operations[begin:] if operation.start_ns < span[1])
        for line, begin in zip(lines, first, strict=True)
    ]
    for meeting in meetings:
        inside = [(p, i - first[p]) for p, i in meeting.members if 0 <= i - first[p] < count[p]]
        if inside:
            for place, index in inside:
                of[place][index] = len(kept)
            kept.append(Meeting(inside, meeting.pattern, meeting.size_bytes, meeting.transfer_ns, meeting.unknown_ns))
    lanes = [
        _lane(line, platform, span, edges_ns, slice(begin, begin + many), mine, waits)
        for line, begin, many, mine, waits in zip(lines, first, count, of, _waits(gathers, len(lines)), strict=True)
    ]
    return Job(span, lanes, kept)


def _lane(
    line: GpuTimeline,
    platform: ClockPlatform,
    span: tuple[int, int],
    edges_ns: list[int],
    which: slice,
    meeting: dict[int, int],
    waits: iv.Intervals,
) -> Lane:
    operations = line.operations[which]
    exposed = iv.clip(line.exposed, *span)
    mhz = [platform.percall_mhz(o.pattern, o.size_bytes) if o.called_ns >= 0 else 0 for o in operations]
    items: list[tuple[int, int, int, int]] = []
    held = [(max(operation.called_ns, span[0]), i) for i, operation in enumerate(operations) if mhz[i]]
    called_ns = span[0]
    for at_ns, index in sorted(held):
        items.append((at_ns, HOLD, index, at_ns - called_ns))
        called_ns = at_ns
    items += [(operation.start_ns, START, i, 0) for i, operation in enumerate(operations)]
    items += _resumes(line, operations, exposed, span)
    items += [(edge, EDGE, 0, 0) for edge in edges_ns]
    items += [(stop, GATHER, number, 0) for number, stop in enumerate(waits[:, 1].tolist())]
    items.sort()
    at = np.clip(np.array([item[0] for item in items], dtype=np.int64), *span)
    stands = iv.union(np.append(exposed[:, 0], waits[:, 0]), np.append(exposed[:, 1], waits[:, 1]))
    progress = at - span[0] - iv.covered_before(stands, at)
    before, after, last = [-1] * len(operations), [-1] * len(operations), dict[int, int]()
    for index, operation in enumerate(operations):
        before[index] = last.get(operation.comm, -1)
        if before[index] >= 0:
            after[before[index]] = index
        last[operation.comm] = index
    return Lane(
        line=GpuTimeline(
            gpu=line.gpu,
            rank=line.rank,
            place=line.place,
            host=line.host,
            operations=operations,
            calls=line.calls,
            exposed=exposed,
            communicating=iv.clip(line.communicating, *span),
        ),
        progress=np.maximum.accumulate(progress).tolist() if len(items) else [],
        what=[item[1] for item in items],
        index=[item[2] for item in items],
        lasted=[item[3] for item in items],
        before=before,
        after=after,
        meeting=[meeting[index] for index in range(len(operations))],
        percall_mhz=mhz,
    )


def _waits(gathers: tuple[Gather, ...], lanes: int) -> list[iv.Intervals]:
    """When each lane waited for the others, one interval a gather, empty ones included."""
    at = np.array([gather.at_ns for gather in gathers], dtype=np.int64)
    waited = np.array([gather.waited_ns for gather in gathers], dtype=np.int64).reshape(len(gathers), lanes)
    return [np.column_stack([at - mine, at]) for mine in waited.T]


def _resumes(
    line: GpuTimeline, operations: list[Operation], exposed: iv.Intervals, span: tuple[int, int]
) -> list[tuple[int, int, int, int]]:
    """What computation waits for: what its stalls ended with, and what was over by the time it was waited for."""
    starts = np.array([o.start_ns for o in operations], dtype=np.int64)
    stops = np.array([o.stop_ns for o in operations], dtype=np.int64)
    by_call = {o.call_id: i for i, o in enumerate(operations) if o.called_ns >= 0}
    told = {resume: by_call[call] for resume, call in line.waited if call in by_call and span[0] <= resume < span[1]}
    told = {resume: index for resume, index in told.items() if starts[index] < resume}
    items = []
    for (start, stop), near in zip(exposed.tolist(), awaited(starts, stops, exposed), strict=True):
        items.append((stop, RESUME, told.pop(stop, near), stop - start))
    return items + [(resume, RESUME, index, 0) for resume, index in told.items()]


def awaited(starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64], exposed: iv.Intervals) -> list[int]:
    """The operation that each stall waited for: of those begun, the one whose end is nearest; -1: none is near."""
    order = np.argsort(stops, kind="stable")
    ordered = stops[order]
    found: list[int] = []
    for resume in exposed[:, 1].tolist():
        place = int(np.searchsorted(ordered, resume))
        near = [int(order[i]) for i in (place - 1, place) if 0 <= i < len(order)]
        near = [index for index in near if starts[index] < resume]
        best = min(near, key=lambda index: abs(int(stops[index]) - resume), default=-1)
        found.append(best if best >= 0 and abs(int(stops[best]) - resume) <= NEAR_NS else -1)
    return found
