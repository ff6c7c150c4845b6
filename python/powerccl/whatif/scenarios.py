# SPDX-License-Identifier: Apache-2.0
"""Programs of ranks in the language of powerccl-sim's scenarios (docs/reference/scenarios.md)."""

from __future__ import annotations

import math

from powerccl.analysis.programs.calls import NoProgramError
from powerccl.analysis.programs.program import Collective, Program, Recorded

STREAMS = 15  # beside the computation's
# Between a collective's release and the wait for it: as far as both are known. Computation that long is not worth a
# stream of its own.
AT_ONCE_US, AT_ONCE_SHARE = 150.0, 0.01  # the latter of the iteration's computation
LEAST_US = 1.0  # of computation: a kernel is launched for it, which takes longer than less


def scenario_texts(run: Recorded, memory_share: float | None = None) -> list[str]:
    """A scenario for each rank. `memory_share`: of computation's time, what no clock changes; None: the platform's.

    Raises:
        NoProgramError: a communicator is none that a scenario can name.
    """
    count = len(run.programs)
    groups: dict[tuple[int, int], str] = {}
    for each in (each for program in run.programs for each in program.collectives):
        size, stride = shape_of(each.members)
        block = size * stride
        if count % block or each.members[0] % block >= stride:
            raise NoProgramError(f"communicators of {size} ranks at a distance of {stride} do not divide {count} ranks")
        if (size, stride) != (count, 1):
            groups.setdefault((size, stride), f"g{len(groups)}")
    heading = [f"group {name} {size} stride {stride}" for (size, stride), name in groups.items()]
    memory = "" if memory_share is None else f" memory {100 * memory_share:.0f}%"
    return ["\n".join([*heading, *_lines(program, groups, memory)]) + "\n" for program in run.programs]


def shape_of(members: tuple[int, ...]) -> tuple[int, int]:
    """Size and distance of a communicator's ranks.

    Raises:
        NoProgramError: they are at no even distance.
    """
    if len(members) < 2:
        return 1, 1
    stride = members[1] - members[0]
    if members != tuple(range(members[0], members[-1] + 1, stride)):
        raise NoProgramError(f"a communicator has the ranks {members}, which are at no even distance")
    return len(members), stride


def _lines(program: Program, groups: dict[tuple[int, int], str], memory: str) -> list[str]:
    used = min(STREAMS, len(program.collectives))
    streams = [f"s{index}" for index in range(used)]
    lines = [f"streams {' '.join(streams)}"] if used else []
    # A stream for each collective, used in turn: computation then waits for one and not for those behind it.
    events: list[tuple[float, int, int]] = []
    for index, each in enumerate(program.collectives):
        released = min(each.released_us, program.work_us)
        events.append((released, 0, index))
        if each.needed_us is not None and not _at_once(each, program):
            events.append((min(max(each.needed_us, released), program.work_us), 1, index))
    progress = 0.0
    vary = f" vary {min(90.0, 100 * math.sqrt(3) * program.uneven):.2f}%" if program.uneven else ""

    def compute(until_us: float, how: str = "") -> None:
        nonlocal progress
        if until_us > progress + LEAST_US:
            lines.append(f"compute {(until_us - progress) / 1e3:.4f}{memory}{how}")
            progress = until_us

    graph: int | None = None
    for at, waits, index in _in_order(events):
        stream = streams[index % used]
        each = program.collectives[index]
        if each.graph != graph:
            lines += ["end"] if graph is not None else []
            lines += ["capture"] if each.graph is not None else []
            graph = each.graph
        # What is captured does not vary: its graph is made once.
        compute(at, vary if graph is None else "")
        if waits:
            lines.append(f"wait {stream} on compute")
            continue
        group = groups.get(shape_of(each.members))
        where = f" in {group}" if group else ""
        if not _at_once(each, program):
            where += f" on {stream}"
            lines.append(f"wait compute on {stream}")
        elif each.hosted and graph is None:
            lines.append("sync compute")  # the host has waited for computation before it made the call
        lines += [f"{call}{where}" for call in _calls(each, program.rank)]
    lines += ["end"] if graph is not None else []
    compute(program.work_us, vary)
    lines += [f"wait {stream} on compute" for stream in streams]
    return lines


def _calls(each: Collective, rank: int) -> list[str]:
    """A collective, or a message each way. Of two neighbours one sends first, or both would wait for the other."""
    if each.pattern != "send_receive":
        return [f"{each.pattern} {each.bytes}"]
    distance = shape_of(each.members)[1]
    place = {member: index for index, member in enumerate(each.members)}
    lines = []
    if each.sends_to is not None:
        lines.append(f"send {each.bytes} to {(each.sends_to - rank) // distance:+d}")
    if each.receives_from is not None:
        lines.append(f"receive {each.bytes} from {(each.receives_from - rank) // distance:+d}")
    return lines if place[rank] % 2 == 0 else lines[::-1]


def _at_once(each: Collective, program: Program) -> bool:
    """Whether computation waits for it as soon as it is called: as if it were in the stream that computes."""
    return each.needed_us is not None and each.needed_us < each.released_us + max(
        AT_ONCE_US, AT_ONCE_SHARE * program.work_us
    )


def _in_order(events: list[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    """By progress; calls stay in their order, as the host made them, and a wait follows its call."""
    latest: dict[int, float] = {}
    released = 0.0
    for at, waits, index in sorted(events, key=lambda event: event[2]):
        if not waits:
            released = latest[index] = max(released, at)
    return sorted((max(at, latest[index]), waits, index) for at, waits, index in events)
