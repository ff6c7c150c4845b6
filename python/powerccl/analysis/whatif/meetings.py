# SPDX-License-Identifier: Apache-2.0
"""Which operations of a host's GPUs are one: the n-th collective of a communicator, or what one sends and another gets.

Who sends to whom is not in a trace. Both ends of an exchange end together, within what their clocks are known to.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerccl.analysis.whatif.timeline import GpuTimeline, Operation
from powerccl.traces import records
from powerccl.traces.folder import RunData

PAIRS = "send_receive"
NEARLY = 0.02  # of an operation's length: so close to the last, a rank is as late as that
TOGETHER_NS = 200_000  # the ends of one exchange are no further apart

Member = tuple[int, int]  # place of the GPU among the lines, place of the operation in its line


@dataclass
class Meeting:
    """One operation of all its GPUs: it moves data once all have come.

    `transfer_ns`: from then on, as it was; `unknown_ns`: of what is not explained by those that are known here, peers
    that are not (of another host, or not timed) were late.
    """

    members: list[Member]
    pattern: str
    size_bytes: int
    transfer_ns: int
    unknown_ns: int = 0


def meet(run: RunData, lines: list[GpuTimeline]) -> list[Meeting]:
    """All operations of the lines as meetings; those that nobody else is known to be in stand alone.

    Sets each operation's `waiting_ns`: until the last of its meeting came.
    """
    groups: dict[tuple[str, int, int], list[Member]] = {}
    exchanges: dict[tuple[str, int, int], list[tuple[Member, int, int]]] = {}
    sizes: dict[Member, int] = {}
    alone: list[Member] = []
    for place, line in enumerate(lines):
        trace = next(trace for trace in run.ranks if trace.gpu == line.gpu)
        names = {int(row["comm"]): int(row["comm_id"]) for row in trace.kinds[records.COMM]}
        ranks = {int(row["comm"]): int(row["nranks"]) for row in trace.kinds[records.COMM] if int(row["nranks"])}
        calls = trace.kinds[records.CALL]
        parts = {
            call_id: (sends, receives)
            for call_id, sends, receives in zip(
                calls["call_id"].tolist(), calls["sends"].tolist(), calls["receives"].tolist(), strict=True
            )
        }
        number = _numbers(line, calls)
        for index, operation in enumerate(line.operations):
            mine = (place, index)
            name = names.get(operation.comm)
            operation.comm_id = name or 0
            # Of calls in graphs it is not told which replay a kernel is of.
            if operation.called_ns < 0 or name is None or operation.call_id not in number:
                alone.append(mine)
            elif operation.pattern == PAIRS:
                key = (line.host, name, operation.size_bytes)
                exchanges.setdefault(key, []).append((mine, *parts[operation.call_id]))
            else:
                groups.setdefault((line.host, name, number[operation.call_id]), []).append(mine)
                sizes[mine] = ranks.get(operation.comm, 0)
    found = [_meeting(lines, members, len(members) >= sizes[members[0]]) for members in groups.values()]
    for ends in exchanges.values():
        found += [_meeting(lines, members, len(members) > 1) for members in _paired(lines, ends)]
    found += [_meeting(lines, [member], False) for member in alone]
    for meeting in found:
        last = max(lines[place].operations[index].start_ns for place, index in meeting.members)
        for place, index in meeting.members:
            operation = lines[place].operations[index]
            length = operation.stop_ns - operation.start_ns
            operation.waiting_ns = min(max(last - operation.start_ns, 0) + meeting.unknown_ns, length)
    return found


def _numbers(line: GpuTimeline, calls: npt.NDArray[np.void]) -> dict[int, int]:
    """Which of its communicator's collectives each call is; exchanges are not counted, since not all take part."""
    kinds = {call_id: pattern for _, pattern, _, call_id, _ in line.calls}
    count: dict[int, int] = {}
    number: dict[int, int] = {}
    for call_id, comm in zip(calls["call_id"].tolist(), calls["comm"].tolist(), strict=True):
        if kinds.get(call_id, PAIRS) == PAIRS:
            number[call_id] = -1
        else:
            number[call_id] = count[comm] = count.get(comm, 0) + 1
    return number


def _paired(lines: list[GpuTimeline], ends: list[tuple[Member, int, int]]) -> list[list[Member]]:
    """Exchanges of one communicator and size: each that only sends with the receive that ended nearest to it.

    What sends and receives at once meets all that end with it.
    """

    def stop(member: Member) -> int:
        return lines[member[0]].operations[member[1]].stop_ns

    def start(member: Member) -> int:
        return lines[member[0]].operations[member[1]].start_ns

    both = sorted((member for member, sends, receives in ends if sends and receives), key=stop)
    found: list[list[Member]] = []
    for member in both:
        if found and stop(member) - stop(found[-1][-1]) <= TOGETHER_NS and start(member) < stop(found[-1][0]):
            found[-1].append(member)
        else:
            found.append([member])
    sends = [member for member, sent, received in ends if sent and not received]
    receives = sorted((member for member, sent, _ in ends if not sent), key=stop)
    stops = [stop(member) for member in receives]
    near: list[tuple[int, int, int]] = []
    for number, member in enumerate(sends):
        at = stop(member)
        for place in range(bisect_left(stops, at - TOGETHER_NS), len(stops)):
            if stops[place] > at + TOGETHER_NS:
                break
            other = receives[place]
            if other[0] != member[0] and start(other) < at and start(member) < stops[place]:
                near.append((abs(stops[place] - at), number, place))
    taken_sends: set[int] = set()
    taken: set[int] = set()
    for _, number, place in sorted(near):
        if number not in taken_sends and place not in taken:
            taken_sends.add(number)
            taken.add(place)
            found.append([sends[number], receives[place]])
    found += [[member] for number, member in enumerate(sends) if number not in taken_sends]
    found += [[member] for place, member in enumerate(receives) if place not in taken]
    return found


def _meeting(lines: list[GpuTimeline], members: list[Member], complete: bool) -> Meeting:
    operations = [lines[place].operations[index] for place, index in members]
    last = max(operation.start_ns for operation in operations)
    # What a rank learnt late of is no reason for the others.
    moves = max(0, min(operation.stop_ns for operation in operations) - last)
    least = _least(operations)
    unknown = max(0, moves - least) if least and not complete else 0
    first = operations[0]
    return Meeting(members, first.pattern, first.size_bytes, moves - unknown, unknown)


def _least(operations: list[Operation]) -> int:
    return min(operation.least_ns for operation in operations)


def latest(lines: list[GpuTimeline], meetings: list[Meeting]) -> list[npt.NDArray[np.float64]]:
    """For each GPU how much each of its operations was what others waited for: 1 where it came last, ties divided."""
    last = [np.zeros(len(line.operations)) for line in lines]
    for meeting in meetings:
        if len(meeting.members) < 2:
            continue
        operations = [lines[place].operations[index] for place, index in meeting.members]
        near = NEARLY * min(operation.stop_ns - operation.start_ns for operation in operations)
        late = [m for m, o in zip(meeting.members, operations, strict=True) if o.waiting_ns <= near]
        for place, index in late:
            last[place][index] = 1 / len(late)
    return last
