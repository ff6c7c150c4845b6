# SPDX-License-Identifier: Apache-2.0
"""When the energy of a reading was used: a search for what fits the run.

Readings say when they were read. A counter that is read every 20 ms and changes every 100 ms in step with that leaves
open 20 ms of when it changed. A sensor may be late by more. What ran in the steps is known, and with wrong dates it
explains their energy worse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from powerccl.analysis.attribution.observations import Observations
from powerccl.analysis.attribution.parts import Parts
from powerccl.analysis.attribution.phases import Timeline
from powerccl.analysis.attribution.regression import Array, Normal, Ratios, Steps

TRIES = 13
LATER_TRIES = 11
# Parts that are free to differ fit wrong dates nearly as well: a date must make them alike.
STIFF: Ratios = (100.0, 0.01, 1e-6)
FINE = 7
LATER = 0.3  # of a beat that readings may be late by beyond what their dates leave open
SOME = 4  # GPUs tell enough of that
OPEN_NS = 200_000  # below, there is nothing to search for
SURE, SURE_A_STEP = 8.0, 0.3  # by how much likelier that has to be: the latter takes nearly half of the variance
ENOUGH = 600  # steps to search in, from the first kernel on: start-up alone may have more
MEANS_NS = (25_000_000, 1_000_000_000)  # known windows of power readings that are not the beat itself (NVIDIA's)
CLEARLY = 0.8
DOUBT = 1.5  # the likelihood takes steps for independent, which they are not quite


@dataclass(frozen=True)
class Dated:
    """One GPU's steps, and how their seconds change with the date: by `slope` a ns; that is known to `sd_ns`."""

    steps: Steps
    late_ns: float
    mean_ns: float
    sd_ns: float
    slope: Array


def dated_steps(observed: Observations, own: Parts, quiet: Array, late_ns: float, mean_ns: float) -> Steps | None:
    """The steps inside the timeline, taken to be so late; None: fewer than two."""
    taken = observed.over(late_ns, mean_ns)
    inside = (taken.begin_ns >= own.edges_ns[0]) & (taken.end_ns <= own.edges_ns[-1])
    if inside.sum() < 2:
        return None
    begin, end = taken.begin_ns[inside], taken.end_ns[inside]
    seconds, joules = own.within(begin, end), taken.joules[inside]
    columns = own.columns()
    without_computation = (quiet[columns] > 0) & (columns >= 0)
    return Steps(seconds, joules, begin, columns, len(own.phase), without_computation, own.where, own.features)


def has_enough(observed: Observations, line: Timeline) -> bool:
    """Whether there is a date with more steps inside the timeline than it has phases: fewer determine nothing.

    It spares a search at all dates, of a timeline in parts.
    """
    back, ahead = -observed.slack_ns[1], observed.slack_ns[0]
    inside = (observed.begin_ns - back >= line.edges_ns[0]) & (observed.end_ns - ahead <= line.edges_ns[-1])
    return ahead - back <= OPEN_NS or bool(inside.sum() > len(np.unique(line.label)) + 1)


def date(observed: Observations, own: Parts, quiet: Array, ratios: Ratios = STIFF) -> Dated | None:
    """The steps of one GPU as they fit best, within what the reads leave open. None: too few of them.

    `quiet` of each phase: that nothing computes.
    """
    few = observed.first(ENOUGH, int(own.edges_ns[0]))
    mean_ns = _mean(few, own, quiet) if observed.averages else observed.beat_ns
    back, ahead = -observed.slack_ns[1], observed.slack_ns[0]
    late, sd = (back + ahead) / 2, (ahead - back) / 12**0.5
    if ahead - back > OPEN_NS:
        grid = np.linspace(back, ahead, TRIES)
        noise = _noise(few, own, quiet, late, mean_ns)
        for _ in range(2):
            values = np.array([_likely(few, own, quiet, ratios, each, mean_ns, noise) for each in grid])
            if not np.isfinite(values).any():
                return None
            late = float(grid[int(np.argmax(values))])
            weights = np.exp(np.clip(values - values.max(), -50, 0))
            sd = float(np.sqrt(np.average((grid - np.average(grid, weights=weights)) ** 2, weights=weights)))
            spacing = float(grid[1] - grid[0])
            grid = np.linspace(late - spacing, late + spacing, FINE)
    return at(observed, own, quiet, late, mean_ns, DOUBT * sd)


def at(observed: Observations, own: Parts, quiet: Array, late_ns: float, mean_ns: float, sd_ns: float) -> Dated | None:
    """The steps of one GPU, taken to be so late."""
    steps = dated_steps(observed, own, quiet, late_ns, mean_ns)
    if steps is None:
        return None
    later = dated_steps(observed, own, quiet, late_ns + 1e5, mean_ns)
    return Dated(steps, late_ns, mean_ns, sd_ns, _slope(steps, later))


def lateness(gpus: list[tuple[Observations, Parts, Array, Dated]]) -> float:
    """By how much, ns, the readings of all GPUs are later than when they changed: sensors of a kind are alike."""
    some = [
        (all_of.first(ENOUGH, int(own.edges_ns[0])), own, quiet, dated) for all_of, own, quiet, dated in gpus[:SOME]
    ]
    noise = [_noise(few, own, quiet, dated.late_ns, dated.mean_ns) for few, own, quiet, dated in some]
    spacing = LATER * min(observed.beat_ns for observed, *_ in some) / LATER_TRIES

    def best(tries: Array) -> tuple[float, float, float]:
        sums = [
            sum(
                _likely(few, own, quiet, STIFF, dated.late_ns + each, dated.mean_ns, of)
                for (few, own, quiet, dated), of in zip(some, noise, strict=True)
            )
            for each in tries.tolist()
        ]
        top = int(np.argmax(sums))
        return float(tries[top]), sums[top], sums[0]

    late, likely, now = best(np.arange(LATER_TRIES, dtype=np.float64) * spacing)
    count = sum(len(few.joules) for few, *_ in some)
    if likely <= now + max(SURE, SURE_A_STEP * count):
        return 0.0
    return best(np.linspace(late - spacing, late + spacing, FINE, dtype=np.float64))[0]


def _noise(observed: Observations, own: Parts, quiet: Array, late_ns: float, mean_ns: float) -> float | None:
    """Variance of a step's energy, J^2: about the same at any date. None: no steps."""
    steps = dated_steps(observed, own, quiet, late_ns, mean_ns)
    return None if steps is None else Normal(steps).noise


def _likely(
    observed: Observations,
    own: Parts,
    quiet: Array,
    ratios: Ratios,
    late_ns: float,
    mean_ns: float,
    noise: float | None,
) -> float:
    steps = dated_steps(observed, own, quiet, late_ns, mean_ns)
    if steps is None or len(steps.joules) <= len(np.unique(steps.phase)):
        return -np.inf
    # Steps at the ends come and go with the date: by step, that no date is better for having fewer.
    return Normal(steps, noise=noise).likelihood(ratios) / len(steps.joules) * len(observed.joules)


def _slope(steps: Steps, later: Steps | None) -> Array:
    """Change of the seconds of each step by a nanosecond more of lateness; 0 where there is none to compare with."""
    if later is None or later.seconds.shape != steps.seconds.shape:
        return np.zeros_like(steps.seconds)
    return np.asarray((later.seconds - steps.seconds) / 1e5, dtype=np.float64)


def _mean(observed: Observations, own: Parts, quiet: Array) -> float:
    """Over how long a power reading averages: its beat, unless another window fits clearly better."""
    best: tuple[float, float] | None = None
    for mean_ns in (observed.beat_ns, *(each for each in MEANS_NS if not 0.7 < each / observed.beat_ns < 1.4)):
        steps = dated_steps(observed, own, quiet, 0.0, mean_ns)
        if steps is None or len(steps.joules) < 2 * len(np.unique(steps.phase)):
            continue
        normal = Normal(steps)
        matrix = normal.gram + normal.penalty(STIFF)
        left = normal.square - float(normal.cross @ np.linalg.solve(matrix, normal.cross))
        share = left / max(normal.square, 1e-12)
        if best is None or share < CLEARLY * best[0]:
            best = (share, mean_ns)
    return best[1] if best else observed.beat_ns
