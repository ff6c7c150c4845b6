# SPDX-License-Identifier: Apache-2.0
"""A recorded iteration as a scenario of powerccl-bench, with a way for each of its collectives: `tune --beside RUN`.

A way is a parameter of the search like NCCL's variables: `way.all_gather.268435456=copy-engine`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from powerccl.analysis.programs.calls import RECORD, NoProgramError
from powerccl.analysis.programs.program import Collective, Program, Recorded
from powerccl.analysis.programs.recording import program_of_a_rank, program_tables
from powerccl.bench.workload import STEP, Case, Workload
from powerccl.errors import PowercclError
from powerccl.platforms.parameters import Configuration, Parameter, version_key
from powerccl.platforms.tuned import TunedWay
from powerccl.platforms.ways import COPY_ENGINE, PLAIN, SURROUNDINGS, WaysTable
from powerccl.quantities import byte_size, seconds
from powerccl.traces.folder import read_run

PREFIX = "way."
# A stream for each collective, used in turn: computation then waits for one and not for those behind it. Each stream
# waits for the collective before, since ways have communicators of their own. A scenario has 16 streams at most.
STREAMS = 12
# The ways that NCCL has for a pattern on windows (native/testbed/bench/pattern.h). Others would be plain all the same.
WAYS_OF = {
    "all_gather": ("symmetric", COPY_ENGINE, "efficiency"),
    "reduce_scatter": ("symmetric", "efficiency"),
    "all_reduce": ("symmetric", "efficiency"),
    "all_to_all": (COPY_ENGINE,),
}
SINCE = {"symmetric": (2, 27), "efficiency": (2, 28), COPY_ENGINE: (2, 29)}  # NCCL
LEAST_US = 1.0  # of computation: a kernel is launched for it, which takes longer than less
# What may matter beside computation, of NCCL's own parameters: the multiprocessors that a collective takes, and how
# much traffic it makes. Each trial takes seconds, so there are few.
PARAMETERS = ("NCCL_MAX_CTAS", "NCCL_SYM_CTAS", "NCCL_NVLS_ENABLE", "NCCL_PROTO")


def recorded_iteration(folder: Path, table: WaysTable | None) -> Recorded:
    """The typical iteration of a run; `table`: what computation loses to collectives, where it is known.

    Raises:
        PowercclError: there is no such run, or it has no typical iteration of collectives of all its ranks.
    """
    try:
        run = read_run(folder)
    except FileNotFoundError as error:
        raise PowercclError(f"no run folder {folder}", "record one: powerccl run -- COMMAND") from error
    try:
        recorded = program_of_a_rank(
            *program_tables(run), lambda pattern, size: _lost_us(table, pattern, size) if table else 0.0
        )
    except NoProgramError as error:
        raise PowercclError(f"{folder} has no iteration to tune beside: {error}", RECORD) from error
    if len({each.comm for each in recorded.programs[0].collectives}) > 1:
        raise PowercclError(
            f"{folder} has collectives of several communicators, which --beside cannot replay yet",
            "tune for its collectives alone: powerccl tune --from RUN",
        )
    return recorded


def _lost_us(table: WaysTable, pattern: str, size: float) -> float:
    """Microseconds that computation loses to a plain call: the least that was measured; 0 where nothing was."""
    near = table.nearest_size(pattern, size)
    points = [table.point(pattern, near, PLAIN, beside) for beside in SURROUNDINGS] if near else []
    lost = [point.added_us for point in points if point and point.added_us is not None]
    return max(min(lost), 0.0) * size / near if near and lost else 0.0


def workload_of(recorded: Recorded, folder: Path) -> Workload:
    """The iteration as the one case of a search."""
    return Workload([Case(STEP, 0, ranks=ranks_of(recorded), calls=len(recorded.edges_ns))], str(folder))


def ranks_of(recorded: Recorded) -> int:
    """How many ranks the job had."""
    return len(recorded.programs[0].collectives[0].members)


def parameters_of(program: Program, nccl: str) -> list[Parameter]:
    """A parameter for each pattern and size that this NCCL has more than one way for."""
    parameters, version = {}, version_key(nccl)
    for each in program.collectives:
        ways = [way for way in WAYS_OF.get(each.pattern, ()) if not version or version >= SINCE[way]]
        name = f"{PREFIX}{each.pattern}.{each.bytes}"
        if ways:
            what = f"way of each {each.pattern} of {byte_size(each.bytes)}"
            parameters[name] = Parameter(name, (PLAIN, *ways), what=what, default=PLAIN)
    return list(parameters.values())


def first_tries(parameters: Iterable[Parameter]) -> list[Configuration]:
    """What to try before anything is drawn: each way for all of a pattern's sizes, then for each of several sizes.

    Few patterns and sizes make an iteration, and a trial takes seconds: what draws at random comes to each too late.
    """
    of_pattern: dict[str, list[Parameter]] = {}
    for each in parameters:
        if each.name.startswith(PREFIX):
            of_pattern.setdefault(each.name.split(".")[1], []).append(each)
    whole, single = [], []
    for way in (COPY_ENGINE, *(each for each in SINCE if each != COPY_ENGINE)):
        for sizes in of_pattern.values():
            names = [each.name for each in sizes if way in each.values]
            whole += [dict.fromkeys(names, way)] if names else []
            single += [{name: way} for name in names if len(names) > 1]
    return whole + single


def split(configuration: Mapping[str, str]) -> tuple[Configuration, list[TunedWay]]:
    """NCCL's variables and the ways of a configuration."""
    variables, ways = {}, []
    for name, value in configuration.items():
        if not name.startswith(PREFIX):
            variables[name] = value
            continue
        pattern, _, size = name.removeprefix(PREFIX).rpartition(".")
        ways.append(TunedWay(pattern, int(size), value))
    return variables, ways


def with_plain(ways: list[TunedWay], parameters: Iterable[Parameter]) -> list[TunedWay]:
    """The ways that were found and, where any was, plain for all else that was searched: `run` goes by sizes."""
    chosen, rest = joined(ways), {each.name: PLAIN for each in parameters if each.name.startswith(PREFIX)}
    return split({**rest, **chosen})[1] if ways else []


def joined(ways: Iterable[TunedWay]) -> Configuration:
    """Ways as a configuration has them."""
    return {f"{PREFIX}{each.pattern}.{each.size_bytes}": each.way for each in ways}


def scenario_text(recorded: Recorded, ways: list[TunedWay], stretch: float = 1.0) -> str:
    """The iteration in the language of powerccl-bench's scenarios; `stretch` times as much computation."""
    chosen = {(each.pattern, each.size_bytes): each.way for each in ways}
    program = recorded.programs[0]
    streams = [f"s{i}" for i in range(min(STREAMS, len(program.collectives)))]
    what = f"an iteration of {len(program.collectives)} collectives in {seconds(recorded.time_us / 1e6)}"
    lines = [f"# {what}, as recorded on rank {program.rank}", f"streams {' '.join(streams)}"]
    # What happens at which progress of computation: a collective begins before computation waits for it or another.
    events: list[tuple[float, int, int]] = []
    for index, each in enumerate(program.collectives):
        events.append((min(each.released_us, program.work_us), 0, index))
        if each.needed_us is not None:
            events.append((min(max(each.needed_us, each.released_us), program.work_us), 1, index))
    progress = 0.0
    for at, waits, index in sorted(events):
        if at > progress + LEAST_US:
            lines.append(f"compute {round((at - progress) * stretch / 1e3, 4)}")
            progress = at
        stream = streams[index % len(streams)]
        if waits:
            lines.append(f"wait {stream} on compute")
        else:
            before = streams[(index - 1) % len(streams)]
            order = [f"wait {before} on {stream}"] if index > 0 and before != stream else []
            lines += [f"wait compute on {stream}", *order, _line(program.collectives[index], chosen, stream)]
    if program.work_us > progress + LEAST_US:
        lines.append(f"compute {round((program.work_us - progress) * stretch / 1e3, 4)}")
    lines += [f"wait {stream} on compute" for stream in streams]
    return "\n".join(lines) + "\n"


def _line(each: Collective, chosen: Mapping[tuple[str, int], str], stream: str) -> str:
    way = chosen.get((each.pattern, each.bytes), PLAIN)
    return f"{each.pattern} {each.bytes} on {stream} by {way}"
