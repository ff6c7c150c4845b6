# SPDX-License-Identifier: Apache-2.0
"""A recorded run as the simulator replays it: fitted so that it takes as long and draws as much as the run did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from powerccl.analysis.programs.program import Recorded, stretched
from powerccl.platforms.conf import value_of
from powerccl.whatif import machines
from powerccl.whatif.gpus import Gpu, held_clocks, limited_clocks
from powerccl.whatif.scenarios import scenario_texts
from powerccl.whatif.simulator import Simulated

# Virtual seconds of a fit: twice a T4's slow power average (native/testbed/emulator/platforms), then enough for a mean
# that is good to 0.1 %.
WARM_UP_S, MEASURED_S = 4.0, 6.0
# Of computation. A step leaves a quarter of what was off, in jobs that mostly compute, and more where clocks swing at a
# power limit.
STRETCHES, MOST_STRETCH = 6, 1.25
STEPS = 5  # of a bisection between MOST_LOST and 1: the last one moves the rate by 2 %
MOST_LOST = 0.35  # of its speed is what computation keeps at least beside a collective
# Times what the model draws: GPUs of a model differ by less. More has another reason, such as pauses of the host.
MOST_WATTS = 1.15
MOST_DRAWS = 2.0  # of a GPU whose clock tells it; the emulator has no more
CLOSE = 0.004  # of the iteration's time: a nearer fit is a matter of chance
# Of what a GPU draws: it moves the clock by 5 MHz, and mean clocks at a limit differ as much from replay to replay.
CLOSE_DRAWS = 0.01
HALF = 0.5  # of such a step, as an exponent: whole steps follow what is a matter of chance in the replay before

# A platform file and a scenario for each rank, no policy; with the clocks at the power limit where it held the run's.
Simulate = Callable[[str, list[str]], Simulated]
Programs = Callable[[float], Recorded]  # by the rate at which computation goes on beside a collective


@dataclass(frozen=True)
class Model:
    """`conf`: a platform file; `scenarios`: one for each rank; `plain`: what they come to with no policy.

    `watts_times`: what its GPUs draw, against the model's; as it would have to be, not as far as it is believed.
    """

    conf: str
    scenarios: list[str]
    run: Recorded
    plain: Simulated
    watts_times: float
    memory_share: float


def fitted(
    base: str, programs: Programs, watts: float | None, gpus: list[Gpu], memory_share: float, simulate: Simulate
) -> Model:
    """Fit it. `base`: the platform file of the GPU; `watts`: what all GPUs of the run drew, None: not known.

    The rate beside collectives is found by bisection. On a GPU at its power limit this rate also holds the fall of
    the clock while both draw power. The simulation lowers the clock once more.

    Raises:
        NoProgramError: nothing can be simulated of the run.
    """
    low, high = MOST_LOST, 1.0
    times = needed = 1.0
    clocks = limited_clocks(gpus)
    draws = machines.draws_at_limit(base, clocks, memory_share)
    if draws:
        needed = fmean(draws)
        base = machines.with_draws(base, _believed(draws))
    held = held_clocks(gpus)
    best: tuple[float, Recorded, str, list[str], Simulated] | None = None
    rate = float(value_of(base, "overlap_compute_rate"))
    for _ in range(STEPS):
        run = programs(rate)
        if held:
            # GPUs that differ took their times at clocks that differ. The simulation applies the clock once more.
            run = stretched(run, [machines.speed(base, mhz, memory_share) for mhz in held])
        conf, texts = machines.of_run(base, run), scenario_texts(run, memory_share)
        if watts and best is None and not draws:
            needed = watts / simulate(conf, texts).watts
            times = min(max(needed, 1 / MOST_WATTS), MOST_WATTS)
        conf = machines.drawing(conf, times)
        simulated = simulate(conf, texts)
        off = simulated.iteration_ms * 1e3 / run.time_us - 1
        if best is None or abs(off) < best[0]:
            best = abs(off), run, conf, texts, simulated
        if abs(off) < CLOSE:
            break
        low, high = (low, rate) if off > 0 else (rate, high)
        rate = (low + high) / 2
    assert best is not None
    _, run, conf, texts, simulated = best
    return _nearer(Model(conf, texts, run, simulated, needed, memory_share), draws if held else [], held, simulate)


def _nearer(model: Model, draws: list[float], clocks: list[float], simulate: Simulate) -> Model:
    """Fit what is left. Computation was at another clock than that at which the model's lengths hold.

    `clocks`: those that the power limit left the GPUs; it must leave them the same in the replay. `draws` are by a
    formula for computation alone, and collectives beside it draw, too. Both are empty where no steady clock was held.
    """
    share, times_longer, fitting = model.memory_share, 1.0, model.run

    def ratio(of: Callable[[str, float, float], float]) -> list[float]:
        """Of something at the replay's clock to it at the recorded clock, for each GPU."""
        both = zip(model.plain.limited_mhz, clocks, strict=True) if clocks else ()
        return [of(model.conf, mhz or clock, share) / of(model.conf, clock, share) for mhz, clock in both]

    for _ in range(STRETCHES):
        off_draws = ratio(machines.computing_w)
        # Of the time that the replay would take at the recorded clocks.
        at_clocks = fmean(ratio(machines.speed) or [1.0])
        off = at_clocks * model.plain.iteration_ms * 1e3 / model.run.time_us - 1
        if abs(off) < CLOSE and all(abs(each - 1) < CLOSE_DRAWS for each in off_draws):
            break
        draws = [times * each**HALF for times, each in zip(draws, off_draws, strict=True)]
        times_longer = min(max(times_longer / (1 + off), 1 / MOST_STRETCH), MOST_STRETCH)
        run = stretched(fitting, [times_longer] * len(fitting.programs))
        conf = machines.with_draws(model.conf, _believed(draws)) if draws else model.conf
        texts = scenario_texts(run, share)
        needed = fmean(draws) if draws else model.watts_times
        model = Model(conf, texts, run, simulate(conf, texts), needed, share)
    return model


def _believed(draws: list[float]) -> list[float]:
    return [min(max(each, 1 / MOST_DRAWS), MOST_DRAWS) for each in draws]
