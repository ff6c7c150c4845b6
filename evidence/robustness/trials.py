"""A policy on a machine with a job, simulated: what it saves, beside the best clock that could have been held."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from evidence.robustness.jobs import Job
from evidence.robustness.machines import Machine

from powerccl.platforms.policy_table import policy_table
from powerccl.platforms.schema import ClockSwitch, PlatformProfile, Point
from powerccl.whatif.simulator import Simulated, call, simulate

BUDGET_PCT = 1.0
MEASURED_S, WARM_UP_S = 240.0, 60.0
HELD_S, HELD_WARM_UP_S = 6.0, 3.0  # nothing is learned, but dies warm
# Clocks that are tried, as shares of the range below the highest: close together where 1 % of time is soon lost.
HELD = (0.01, 0.02, 0.03, 0.045, 0.06, 0.08, 0.11, 0.15, 0.2, 0.27, 0.35, 0.45, 0.56, 0.68, 0.8, 0.9)
HALVINGS, RANK_HALVINGS = 4, 6  # of the range of clocks
UNNOTICED_PCT = 0.05  # of time: less is not told from chance


@dataclass(frozen=True)
class Trial:
    """What came of one machine, job and policy. Percent against `observe`.

    `held`: the best clock within the budget, held by all ranks; `each`: by each rank its own.
    """

    policy: str
    machine: str
    job: str
    base: str
    scenario: str
    iteration_ms: float
    saved_pct: float
    slowdown_pct: float
    held_pct: float
    held_mhz: int
    switches_per_s: float
    board: str
    each_pct: float | None = None  # saved by the best constant clock of each rank; None: not looked for


def profile_of(points_file: Path, name: str) -> PlatformProfile:
    """A profile from what powerccl-sim says that profiling would measure."""
    told = json.loads(points_file.read_text())
    points = [
        Point(pattern=pattern, size_bytes=size, clock_mhz=round(mhz), time_us=us, busbw_gbs=1.0, provenance="simulated")
        for pattern, size, mhz, us in told["points"]
    ]
    return PlatformProfile(
        name=name,
        gpu=told["gpu"],
        gpus=told["gpus"],
        emulated=True,
        clock_max_mhz=told["clock_max_mhz"],
        clock_min_mhz=told["clock_min_mhz"],
        clocks_set=True,
        points=points,
        clock_switch=ClockSwitch(
            call_us=told["set_clock_call_us"],
            latency_us=told["set_clock_call_us"],
            requests=0,
            provenance="simulated",
            transition_us=told["clock_transition_us"],
        ),
    )


class Simulator:
    """powerccl-sim for one machine and job."""

    def __init__(self, program: Path, machine: Machine, job: Job) -> None:
        self.program, self.conf, self.scenario = program, machine.conf, job.text
        self.befalls = list(machine.options)
        with tempfile.NamedTemporaryFile(suffix=".json") as points:
            call(program, machine.conf, ["--profile", points.name])
            self.profile = profile_of(Path(points.name), machine.base)
        self.table = policy_table(self.profile, "published")

    def run(self, policy: str, seconds: float, warm_up_s: float, *clocks_mhz: int) -> Simulated:
        """One policy, or clocks held under none: one, or one for each rank. `auto/slack` is auto without that part."""
        name, _, without = policy.partition("/")
        options = ["--clock", ",".join(map(str, clocks_mhz))] if clocks_mhz else []
        options += ["--without", without] if without else []
        options += [] if name == "observe" else self.befalls
        return simulate(self.program, self.conf, [self.scenario], name, seconds, warm_up_s, options, self.table)


@dataclass(frozen=True)
class Length:
    """What is simulated of each job: so many seconds, after others that do not count. `each`: see Trial."""

    seconds: float = MEASURED_S
    warm_up_s: float = WARM_UP_S
    each: bool = False


def try_out(
    program: Path, machine: Machine, job: Job, policies: list[str], length: Length | None = None
) -> list[Trial]:
    """Simulate it all, for each policy.

    Raises:
        SimulatorError: the simulator failed, and says why; or two runs have no iteration in common.
    """
    simulator = Simulator(program, machine, job)
    length = length or Length()
    plain = simulator.run("observe", length.seconds, length.warm_up_s)
    short = simulator.run("observe", HELD_S, HELD_WARM_UP_S)
    held_pct, held_mhz = best_held(simulator, short)
    each_pct = best_of_each(simulator, short, machine.gpus, held_mhz) if length.each else None
    trials = []
    for policy in policies:
        managed = simulator.run(policy, length.seconds, length.warm_up_s)
        saved, slowdown = managed.against(plain)
        about = (policy, machine.name, job.name, machine.base, job.scenario)
        figures = (plain.iteration_ms, saved, slowdown, held_pct)
        trials.append(Trial(*about, *figures, held_mhz, managed.switches_per_s, machine.board, each_pct))
    return trials


def best_held(simulator: Simulator, plain: Simulated) -> tuple[float, int]:
    """What the best clock saves that may be held all the time, and which that is; 0, 0: none saves anything."""
    least, most = simulator.profile.clock_min_mhz, simulator.profile.clock_max_mhz
    tried: dict[int, tuple[float, float]] = {}

    def slowdown_at(mhz: int) -> float:
        tried[mhz] = simulator.run("observe", HELD_S, HELD_WARM_UP_S, mhz).against(plain)
        return tried[mhz][1]

    for share in HELD:
        if slowdown_at(round(most - (most - least) * share)) > 2 * BUDGET_PCT:
            break  # lower ones take longer still
    # A GPU at its power limit keeps its own clock low, so nothing happens down to some clock between two of HELD.
    for _ in range(HALVINGS):
        kept = min((mhz for mhz, (_, slower) in tried.items() if slower <= BUDGET_PCT), default=most)
        missed = max((mhz for mhz in tried if mhz < kept), default=least)
        slowdown_at((kept + missed) // 2)
    return max([(0.0, 0), *((saved, mhz) for mhz, (saved, slower) in tried.items() if slower <= BUDGET_PCT)])


def best_of_each(simulator: Simulator, plain: Simulated, ranks: int, held_mhz: int) -> float:
    """What is saved if each rank holds a clock of its own within the budget, as far as this search finds it.

    One rank after the other goes down from the best clock for all, and from the highest clock.
    """
    most = simulator.profile.clock_max_mhz
    return max(lowered(simulator, plain, [base] * ranks) for base in {held_mhz or most, most})


def lowered(simulator: Simulator, plain: Simulated, clocks: list[int]) -> float:
    """What is saved once each rank's clock is as low as pays."""
    best, slowdown = simulator.run("observe", HELD_S, HELD_WARM_UP_S, *clocks).against(plain)
    # Half of what is left of the budget: the first rank would take all of it.
    most_slowdown = max(slowdown + UNNOTICED_PCT, (slowdown + BUDGET_PCT) / 2)
    for rank, base in enumerate(clocks):
        low, high = simulator.profile.clock_min_mhz, base
        for _ in range(RANK_HALVINGS):
            tried = [(low + high) // 2 if each == rank else clock for each, clock in enumerate(clocks)]
            saved, slower = simulator.run("observe", HELD_S, HELD_WARM_UP_S, *tried).against(plain)
            if slower <= most_slowdown:
                high = tried[rank]
                if saved > best:
                    best, clocks = saved, tried
            else:
                low = tried[rank]
    return best
