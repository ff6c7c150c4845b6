# SPDX-License-Identifier: Apache-2.0
"""A scenario without any schedule, in steady state: what bounds and schedules are compared with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .bound import Case
from .gpu import Gpu
from .platform import Platform
from .program import Builder, Program
from .scenario import Scenario
from .simulator import Call, Host, Iteration, Simulator

WARM_UP_MS = 6000.0  # several times the longest lag of governor and die of the T4
MEASURED_MS = 9000.0
DRAWS = 4  # of a scenario that varies: its first iterations, over and over


@dataclass
class Stretch:
    """Iterations that follow each other over and over, of weight in the whole run."""

    programs: list[Program]
    weight: float


@dataclass
class Measured:
    """Means over whole passes through a stretch's programs, by program: ms from start to start, J of all GPUs."""

    total_ms: list[float]
    joules: list[float]
    step_ms: list[float]
    passes: list[list[Iteration]]
    gpus: list[Gpu]


def stretches_of(platform: Platform, scenario: Scenario) -> list[Stretch]:
    """One for each section; of a scenario that varies its first draws."""
    builder = Builder(platform, scenario)
    found = []
    for i, (begin, operations) in enumerate(scenario.sections):
        end = scenario.sections[i + 1][0] if i + 1 < len(scenario.sections) else 1.0
        varies = any(op.vary > 0 for op in operations)
        first = round(begin * scenario.iterations)
        programs = [builder.program(operations, first + k) for k in range(DRAWS if varies else 1)]
        found.append(Stretch(programs, end - begin))
    return found


def run(
    platform: Platform,
    programs: Sequence[Program],
    host: Host,
    calls: Sequence[Call] = (),
    warm: Sequence[Gpu] | None = None,
    passes: int = 1,
    warm_passes: int = 0,
) -> Measured:
    """Passes through the programs, those of the warm-up not counted; calls name iterations of one pass."""
    count = len(programs)
    every = [replace(c, iteration=c.iteration + k * count) for k in range(passes + warm_passes) for c in calls]
    simulator = Simulator(platform, list(programs) * (passes + warm_passes), every, host)
    if warm:
        simulator.warm(warm)
    iterations = simulator.run()
    begin = warm_passes * count
    found = Measured([0.0] * count, [0.0] * count, [0.0] * count, [], simulator.gpus)
    for k in range(passes):
        mine = iterations[begin + k * count : begin + (k + 1) * count + 1]
        found.passes.append(mine[:-1])
        for i in range(count):
            found.total_ms[i] += (mine[i + 1].start_ns - mine[i].start_ns) * 1e-6 / passes
            found.step_ms[i] += (mine[i].end_ns - mine[i].start_ns) * 1e-6 / passes
            found.joules[i] += mine[i].joules / passes
    return found


def measure(platform: Platform, stretch: Stretch, host: Host) -> Measured:
    """Without any schedule, after governor and die have settled."""
    once = run(platform, stretch.programs, host)
    pass_ms = sum(once.total_ms)
    scale = platform["thermal_tau_ms"] / 1000.0 if platform["leakage_w_per_kv"] else 1.0
    warm = max(1, round(WARM_UP_MS * scale / pass_ms))
    return run(platform, stretch.programs, host, passes=max(2, round(MEASURED_MS / pass_ms)), warm_passes=warm)


def cases_of(stretches: Sequence[Stretch], measured: Sequence[Measured]) -> list[Case]:
    """What the bound is computed from."""
    cases = []
    for stretch, found in zip(stretches, measured, strict=True):
        for i, program in enumerate(stretch.programs):
            compute_ms = [
                compute_time_ms(program, rank, [each[i] for each in found.passes]) for rank in range(program.ranks)
            ]
            weight = stretch.weight / len(stretch.programs)
            repeats = len(stretch.programs) == 1
            cases.append(Case(program, weight, found.total_ms[i], found.joules[i], compute_ms, repeats))
    return cases


def compute_time_ms(program: Program, rank: int, iterations: Sequence[Iteration]) -> float:
    """How long a rank computes in an iteration, on average."""
    numbers = [task.number for task in program.tasks(rank) if task.comm is None]
    spans = [it.spans[rank][number] for it in iterations for number in numbers]
    return sum(end - begin for begin, end in spans) * 1e-6 / len(iterations)
