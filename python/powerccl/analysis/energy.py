# SPDX-License-Identifier: Apache-2.0
"""Energy of one GPU as a curve over time, and its share inside intervals.

Where the total-energy counter works, the curve goes through its updates; a counter that updates less often than it is
read (100 ms on current data-centre GPUs) gives a point only where its value changed, dated midway between two reads.
Elsewhere the curve integrates power samples; where reading the counter is so dear that the agent reads it seldom (3 ms
of processor time on an H200), they are scaled to what it counted in all. Between points energy grows evenly, which
smears short communication over its surroundings. `split` mends that: in a step that holds both communication and other
work, power is taken in the ratio found in steps that hold only one of them. How much that moved is the uncertainty
given; nothing is extrapolated beyond the first and last point.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerccl.analysis import intervals as iv

MIN_PURE_STEPS = 3
CORRECTION = 0.05  # of a usual gain
SELDOM = 1.5  # samples per counter read from which on the counter only scales power
SCALING_NS = 2_000_000_000  # over less, a counter's 100 ms steps say less than power samples do
SOUND_SCALE = (0.5, 2.0)  # beyond, one of the two is wrong, and which is not known


@dataclass(frozen=True)
class EnergyCurve:
    """Cumulative energy: `joules[i]` at `time_ns[i]`, rising; source is `counter`, `power` or `power+counter`.

    `update_ns` is the median distance of points, `read_ns` that of the samples they came from.
    """

    time_ns: npt.NDArray[np.int64]
    joules: npt.NDArray[np.float64]
    source: str
    read_ns: float
    update_ns: float

    def at(self, time_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Joules up to each time; times outside the curve take its ends."""
        origin = self.time_ns[0]
        # Differences first: nanoseconds since boot do not fit a float's 53 bits after 104 days.
        x, known = (time_ns - origin).astype(np.float64), (self.time_ns - origin).astype(np.float64)
        return np.asarray(np.interp(x, known, self.joules), dtype=np.float64)

    def within(self, intervals: iv.Intervals) -> float:
        """Joules inside the intervals."""
        if not len(intervals):
            return 0.0
        return float((self.at(intervals[:, 1]) - self.at(intervals[:, 0])).sum())


@dataclass(frozen=True)
class Attribution:
    """A curve whose steps are split between communication and the rest.

    resolved: there were enough steps of pure communication to know its power. If not, energy is shared by time.
    uncertainty_joules: how much splitting moved between the two, in all.
    """

    curve: EnergyCurve
    resolved: bool
    uncertainty_joules: float


def energy_curve(
    time_ns: npt.NDArray[np.int64], power_mw: npt.NDArray[np.float64], energy_uj: npt.NDArray[np.int64]
) -> EnergyCurve | None:
    """The curve of one GPU from its samples (same length, sorted by time; energy -1, power NaN: not known).

    None when fewer than two samples say anything.
    """
    unique = np.concatenate([[True], np.diff(time_ns) > 0]) if len(time_ns) else np.zeros(0, np.bool_)
    time_ns, power_mw, energy_uj = time_ns[unique], power_mw[unique], energy_uj[unique]
    if len(time_ns) < 2:
        return None
    read_ns = float(np.median(np.diff(time_ns)))
    counted = energy_uj >= 0
    counter = _from_counter(time_ns[counted], energy_uj[counted], read_ns)
    power = _from_power(time_ns, power_mw, read_ns)
    if counter and power and len(time_ns) > SELDOM * counted.sum():
        return _scaled(power, time_ns[counted], energy_uj[counted])
    return counter or power


def _from_counter(
    time_ns: npt.NDArray[np.int64], energy_uj: npt.NDArray[np.int64], read_ns: float
) -> EnergyCurve | None:
    gained = np.diff(energy_uj)
    usual = float(np.median(gained[gained > 0])) if np.any(gained > 0) else 0.0
    if len(time_ns) < 3 or np.any(gained < -CORRECTION * usual):
        return None  # no counter, or one that went back: not to be trusted
    energy_uj = np.maximum.accumulate(energy_uj)  # by a hundredth it may: a reading that was put right
    changed = np.flatnonzero(np.diff(energy_uj) > 0) + 1
    if len(changed) < 2:
        return None
    points = time_ns[changed]
    update_ns = float(np.median(np.diff(points)))
    if update_ns > 1.5 * read_ns:
        points = (time_ns[changed - 1] + points) // 2
    joules = (energy_uj[changed] - energy_uj[changed[0]]) / 1e6
    return EnergyCurve(points, joules, "counter", read_ns, update_ns)


def _from_power(
    time_ns: npt.NDArray[np.int64], power_mw: npt.NDArray[np.float64], read_ns: float
) -> EnergyCurve | None:
    known = np.isfinite(power_mw) & (power_mw >= 0)
    time_ns, power_mw = time_ns[known], power_mw[known]
    if len(time_ns) < 2 or not power_mw.any():
        return None
    seconds = np.diff(time_ns) / 1e9
    steps = seconds * (power_mw[1:] + power_mw[:-1]) / 2e3
    joules = np.concatenate([[0.0], np.cumsum(steps)])
    return EnergyCurve(time_ns, joules, "power", read_ns, read_ns)


def _scaled(power: EnergyCurve, read_at_ns: npt.NDArray[np.int64], energy_uj: npt.NDArray[np.int64]) -> EnergyCurve:
    """The power curve, made to agree with the counter from its first to its last read."""
    ends = power.at(read_at_ns[[0, -1]])
    integrated = float(ends[1] - ends[0])
    scale = float(energy_uj[-1] - energy_uj[0]) / 1e6 / integrated if integrated > 0 else 0.0
    if read_at_ns[-1] - read_at_ns[0] < SCALING_NS or not SOUND_SCALE[0] < scale < SOUND_SCALE[1]:
        return power
    return EnergyCurve(power.time_ns, power.joules * scale, "power+counter", power.read_ns, power.update_ns)


def split(curve: EnergyCurve, communication: iv.Intervals) -> Attribution:
    """Divide each step of the curve between communication and the rest by the power each has where it is alone."""
    time, joules = curve.time_ns, curve.joules
    inside = clip_to(curve, communication)
    if not len(inside):
        return Attribution(curve, False, 0.0)
    step_ns = np.diff(time).astype(np.float64)
    in_communication = np.diff(iv.covered_before(inside, time)).astype(np.float64)
    energy = np.diff(joules)
    share = in_communication / step_ns
    pure, other = share >= 0.999, share <= 0.001
    if pure.sum() < MIN_PURE_STEPS or other.sum() < MIN_PURE_STEPS:
        resolved = bool(pure.sum() >= MIN_PURE_STEPS)
        mixed = ~pure & ~other
        # All that mixed steps hold could be on either side.
        return Attribution(curve, resolved, float((energy * np.minimum(share, 1 - share))[mixed].sum()))
    ratio = float(np.median((energy / step_ns)[pure])) / max(float(np.median((energy / step_ns)[other])), 1e-12)
    weight_ns = in_communication * ratio + (step_ns - in_communication)
    communication_watts = np.where(weight_ns > 0, energy / weight_ns * ratio, 0.0)  # J per ns
    other_watts = np.where(weight_ns > 0, energy / weight_ns, 0.0)

    knots = np.unique(np.concatenate([time, inside.ravel()]))
    middle = knots[:-1] + np.diff(knots) // 2
    step = np.clip(np.searchsorted(time, middle, side="right") - 1, 0, len(step_ns) - 1)
    rate = np.where(iv.contains(inside, middle), communication_watts[step], other_watts[step])
    refined = joules[0] + np.concatenate([[0.0], np.cumsum(rate * np.diff(knots))])
    mixed_energy = communication_watts * in_communication
    uncertainty = float(np.abs(mixed_energy - energy * share).sum())
    return Attribution(EnergyCurve(knots, refined, curve.source, curve.read_ns, curve.update_ns), True, uncertainty)


def clip_to(curve: EnergyCurve, intervals: iv.Intervals) -> iv.Intervals:
    """The part of the intervals that the curve covers."""
    return iv.clip(intervals, int(curve.time_ns[0]), int(curve.time_ns[-1]))
