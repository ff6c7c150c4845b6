# SPDX-License-Identifier: Apache-2.0
"""Energy of one GPU as a curve over time, and its share inside intervals.

The total-energy counter is exact: a run's energy is its reading at the run's end, less that at its start. Samples
between the two only shape the curve. Current data-centre GPUs update the counter every 100 ms, so it is read more
often. Then a change of its value gives a point, dated midway between two reads. On an H200 one read takes 3 ms of
processor time, so the agent reads it seldom. Then power samples shape the time between two readings.
Without a counter the curve integrates power. Between points energy grows evenly, which smears short communication over
its surroundings. `split` mends that. In a step that holds both communication and other work, power is taken in the
ratio of steps that hold only one of them. How much that moved is the uncertainty given; nothing is extrapolated beyond
the first and last point.

Where samples are missing, nothing is put in their place. Between two sound readings of a counter the sum is known, and
its course is not (`blurred`). Where power alone was sampled not even the sum is (`unknown`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.traces.folder import RunData
from powerccl.traces.plausible import AT_EDGE_NS, EDGE_SHARE, GAP_PERIODS
from powerccl.traces.power import PowerLog, floats

MIN_PURE_STEPS = 3
CORRECTION = 0.05  # of a usual gain
SELDOM = 1.5  # samples per counter read from which on the counter only scales power
SOUND_SCALE = (0.5, 2.0)  # of counter to power: beyond, power is wrong and shapes nothing
# Of power and a counter that jumped, which both tell the energy of a run. At half, boards whose power reading is 5 %
# off lose a sound sum; at double, a counter that is wrong by a fifth passes.
ALIKE = 0.1
# Steps of a counter from which on it shows how far power is off. At half, a delay of power at the start moves what
# follows by 10 %. At double, a counter that is lost within four seconds corrects nothing.
SCALED_STEPS = 20
# Changes of a counter that tell how often it changes. One fewer is a single distance; double takes 0.6 s of a job.
FEW_CHANGES = 3

Times = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class EnergyCurve:
    """Cumulative energy: `joules[i]` at `time_ns[i]`, rising.

    source: `counter`, `power`, `power+counter`, or `counter+power` where the counter does not reach so far as power.
    `update_ns` is the median distance of points, `read_ns` that of the samples they came from. Over `unknown` the curve
    is flat: sums over it are "at least". Over `blurred` it is right from end to end alone.
    """

    time_ns: Times
    joules: Floats
    source: str
    read_ns: float
    update_ns: float
    unknown: iv.Intervals = field(default_factory=lambda: iv.EMPTY)
    blurred: iv.Intervals = field(default_factory=lambda: iv.EMPTY)

    def at(self, time_ns: Times) -> Floats:
        """Joules up to each time; times outside the curve take its ends."""
        origin = self.time_ns[0]
        # Differences first: nanoseconds since boot do not fit a float's 53 bits after 104 days.
        x, known = (time_ns - origin).astype(np.float64), (self.time_ns - origin).astype(np.float64)
        return np.asarray(np.interp(x, known, self.joules), dtype=np.float64)

    def within(self, intervals: iv.Intervals) -> float:
        """Joules inside the intervals; of what is not covered, none."""
        if not len(intervals):
            return 0.0
        return float((self.at(intervals[:, 1]) - self.at(intervals[:, 0])).sum())

    def covers(self, intervals: iv.Intervals) -> npt.NDArray[np.bool_]:
        """Of which intervals (in any order) the energy is known."""
        reached = (intervals[:, 0] >= self.time_ns[0]) & (intervals[:, 1] <= self.time_ns[-1])
        known = reached & ~iv.touches(intervals, self.unknown)
        if len(self.blurred):
            cut = iv.contains(self.blurred, intervals.ravel()) & ~np.isin(intervals.ravel(), self.blurred[:, 0])
            known &= ~cut.reshape(-1, 2).any(axis=1)
        return np.asarray(known)

    @property
    def sharp(self) -> npt.NDArray[np.bool_]:
        """Which steps between points resolve their own time: neither unknown nor blurred."""
        steps = np.stack([self.time_ns[:-1], self.time_ns[1:]], axis=1)
        return ~(iv.touches(steps, self.unknown) | iv.touches(steps, self.blurred))

    @property
    def slack_ns(self) -> int:
        """Longest time between points: more is a gap."""
        return int(GAP_PERIODS * max(self.read_ns, self.update_ns))


@dataclass(frozen=True)
class Attribution:
    """A curve whose steps are split between communication and the rest.

    resolved: there were enough steps of pure communication to know its power. If not, energy is shared by time.
    uncertainty_joules: how much splitting moved between the two, in all.
    """

    curve: EnergyCurve
    resolved: bool
    uncertainty_joules: float


def energy_curves(run: RunData) -> dict[str, EnergyCurve]:
    """The energy of each of the job's GPUs, by UUID."""
    curves: dict[str, EnergyCurve] = {}
    for log, rows in job_samples(run):
        curve = gpu_curve(log, rows, span_at(run, log))
        if curve is not None:
            curves[str(rows["uuid"][0])] = curve
    return curves


def job_samples(run: RunData) -> list[tuple[PowerLog, pl.DataFrame]]:
    """Samples of each of the job's GPUs: those that its ranks name, or that it could see where no rank left a trace.

    A host samples all of its GPUs, also those that CUDA_VISIBLE_DEVICES keeps from the job and others work on.
    """
    if run.ranks:
        named = [gpu_samples(run, gpu) for gpu in dict.fromkeys(rank.gpu for rank in run.ranks)]
        return [samples for samples in named if samples is not None]
    return [(log, rows) for log in run.power for gpu in log.seen_by_job if (rows := log.of_gpu(gpu)) is not None]


def gpu_samples(run: RunData, gpu: str) -> tuple[PowerLog, pl.DataFrame] | None:
    """A GPU's samples and their log, by its name in the run (traces.identity); None: there are none."""
    for log in run.power:
        rows = log.of_gpu(gpu)
        if rows is not None:
            return log, rows
    return None


def span_at(run: RunData, log: PowerLog) -> tuple[int, int] | None:
    """When the job began and ended, on the clock of the host of these samples; None: not known there.

    An agent's first and last samples are of the job's start and end, so they count where this is not known.
    """
    return run.info.span if run.info and run.info.host == log.host else None


def gpu_curve(log: PowerLog, rows: pl.DataFrame, span: tuple[int, int] | None = None) -> EnergyCurve | None:
    """The curve of the one GPU whose samples `rows` of the log are; `span`: of the run, where that is known."""
    known = log.of(rows)
    time, power = rows["time_ns"].to_numpy(), floats(rows, "power_mw")
    energy = rows["energy_uj"].to_numpy()
    if span:
        time, power, energy = _of_span(time, power, energy, *span)
    return energy_curve(time, power, energy, known.gaps, known.breaks, known.period_ns, known.jumps)


def _of_span(time: Times, power: Floats, energy: Times, start_ns: int, stop_ns: int) -> tuple[Times, Floats, Times]:
    """Samples of a run: the last reading at or before its start is of its start, the first one behind it of its end.

    What the GPU used between the two moments is taken out, by the power that was read with it. A counter that updates
    seldom may not have moved there, so no reading within the run is undone.
    """
    counted = np.flatnonzero(energy >= 0)
    counted = counted if len(counted) else np.flatnonzero(np.isfinite(power))
    at = time[counted]
    first, last = int(np.searchsorted(at, start_ns, "right")) - 1, int(np.searchsorted(at, stop_ns))
    dated, kept, corrected = time.copy(), np.ones(len(time), np.bool_), energy.copy()

    def date(row: int, at_ns: int) -> None:
        if energy[row] >= 0 and np.isfinite(power[row]):
            corrected[row] += round(power[row] * (at_ns - int(time[row])) / 1e6)
        dated[row], kept[row] = at_ns, True

    if first >= 0 and start_ns - at[first] <= AT_EDGE_NS:
        kept &= time > start_ns
        date(counted[first], start_ns)
        corrected[counted[first]] = min([corrected[counted[first]], *energy[counted[first + 1 : first + 2]]])
    if first < last < len(at) and at[last] - stop_ns <= AT_EDGE_NS:
        kept &= dated < stop_ns
        date(counted[last], stop_ns)
        corrected[counted[last]] = max([corrected[counted[last]], *energy[counted[max(last - 1, 0) : last]]])
    return dated[kept], power[kept], corrected[kept]


def energy_curve(
    time_ns: Times,
    power_mw: Floats,
    energy_uj: Times,
    gaps: iv.Intervals = iv.EMPTY,
    breaks: iv.Intervals = iv.EMPTY,
    period_ns: int = 0,
    jumps: iv.Intervals = iv.EMPTY,
) -> EnergyCurve | None:
    """The curve of one GPU from its samples (same length, sorted by time; energy -1, power NaN: not known).

    `gaps`: without power samples. `breaks`: over which the counter tells nothing. `period_ns`: how often it was to be
    read. `jumps`: where the counter went on from elsewhere. None when fewer than two samples say anything.
    """
    unique = np.concatenate([[True], np.diff(time_ns) > 0]) if len(time_ns) else np.zeros(0, np.bool_)
    time_ns, power_mw, energy_uj = time_ns[unique], power_mw[unique], energy_uj[unique]
    if len(time_ns) < 2:
        return None
    read_ns = float(np.median(np.diff(time_ns)))
    counted = energy_uj >= 0
    power = _from_power(time_ns, power_mw, read_ns)
    power = None if power is None else _without(power, gaps)
    counter = _from_counter(time_ns[counted], energy_uj[counted], read_ns)
    if counter is None:
        return power
    read = np.flatnonzero(counted)
    seldom = read[-1] - read[0] + 1 > SELDOM * len(read)  # and not only up to where it was lost
    long = np.diff(counter.time_ns) > max(counter.slack_ns, GAP_PERIODS * period_ns)
    counter = _without(replace(counter, blurred=_steps(counter)[long & ~seldom]), breaks)
    if power is None:
        return counter
    if len(jumps) and not _agree(counter, power):
        # One of the two is wrong, and which is not known: the lower sum, and "at least".
        lower = min(counter, power, key=lambda each: float(each.joules[-1]))
        return replace(lower, unknown=iv.union(*np.concatenate([lower.unknown, jumps]).T))
    return _beyond(_shaped(counter, power) if seldom else counter, power)


def _agree(counter: EnergyCurve, power: EnergyCurve) -> bool:
    """Whether power says the same as a counter that jumped, over the time of which both tell."""
    counted, integrated = _both(counter, power)
    return abs(counted - integrated) <= ALIKE * max(counted, integrated)


def _both(counter: EnergyCurve, power: EnergyCurve) -> tuple[float, float]:
    """Joules by counter and by power, over the time of which both tell."""
    both = iv.minus(clip_to(counter, _whole(power)), power.unknown)
    return counter.within(both), power.within(both)


def _whole(curve: EnergyCurve) -> iv.Intervals:
    return np.array([[curve.time_ns[0], curve.time_ns[-1]]], np.int64)


def _steps(curve: EnergyCurve) -> iv.Intervals:
    return np.stack([curve.time_ns[:-1], curve.time_ns[1:]], axis=1)


def _without(curve: EnergyCurve, holes: iv.Intervals) -> EnergyCurve:
    """The curve flat in all of its steps that reach into the holes."""
    if not len(holes):
        return curve
    steps = _steps(curve)
    gone = iv.touches(steps, iv.union(holes[:, 0], holes[:, 1]))
    if not gone.any():
        return curve
    joules = np.concatenate([[0.0], np.cumsum(np.where(gone, 0.0, np.diff(curve.joules)))])
    unknown = iv.union(steps[gone, 0], steps[gone, 1])
    return replace(curve, joules=joules, unknown=unknown, blurred=iv.minus(curve.blurred, unknown))


def _from_counter(time_ns: Times, energy_uj: Times, read_ns: float) -> EnergyCurve | None:
    """Through the first reading, those that changed, and the last; None: no counter, or one that is not to be trusted.

    A counter that stood still for long before its last reading, or after its first, tells nothing of that time.
    """
    gained = np.diff(energy_uj)
    usual = float(np.median(gained[gained > 0])) if np.any(gained > 0) else 0.0
    if usual == 0.0 or np.any(gained < -CORRECTION * usual):
        return None
    energy_uj = np.maximum.accumulate(energy_uj)  # by a hundredth it may go back: a reading that was put right
    changed = np.flatnonzero(np.diff(energy_uj) > 0) + 1
    every_ns = float(np.median(np.diff(time_ns)))  # read_ns is of all samples
    update_ns = float(np.median(np.diff(time_ns[changed]))) if len(changed) > 1 else every_ns
    points, joules = time_ns[changed], energy_uj[changed]
    stands_ns = GAP_PERIODS * max(every_ns, update_ns)
    if len(changed) <= FEW_CHANGES:
        stands_ns = max(stands_ns, AT_EDGE_NS)
    slow = update_ns > 1.5 * every_ns
    if slow:
        points = (time_ns[changed - 1] + points) // 2
    begin = int(time_ns[0]) if time_ns[changed[0]] - time_ns[0] <= stands_ns else int(time_ns[changed[0] - 1])
    end = int(time_ns[-1]) if time_ns[-1] - time_ns[changed[-1]] <= stands_ns else int(time_ns[changed[-1]])
    # The update nearest to an end would leave a step of no energy, or of twice the power, between the two.
    inside = slice(1, -1) if slow else slice(0, -1)
    points = np.concatenate([[begin], points[inside], [end]])
    joules = np.concatenate([[energy_uj[0]], joules[inside], [energy_uj[-1]]])
    return EnergyCurve(points, (joules - joules[0]) / 1e6, "counter", read_ns, update_ns)


def _from_power(time_ns: Times, power_mw: Floats, read_ns: float) -> EnergyCurve | None:
    known = np.isfinite(power_mw) & (power_mw >= 0)
    time_ns, power_mw = time_ns[known], power_mw[known]
    if len(time_ns) < 2 or not power_mw.any():
        return None
    seconds = np.diff(time_ns) / 1e9
    steps = seconds * (power_mw[1:] + power_mw[:-1]) / 2e3
    joules = np.concatenate([[0.0], np.cumsum(steps)])
    return EnergyCurve(time_ns, joules, "power", read_ns, read_ns)


def _shaped(counter: EnergyCurve, power: EnergyCurve) -> EnergyCurve:
    """A counter that was read seldom, with power samples between its readings, scaled to what it counted there.

    One scale holds for all of a run, since a reading may be an update late. Where power is not known, or clearly wrong,
    the sum between two readings is known and its course is not.
    """
    reads, steps = counter.time_ns, _steps(counter)
    counted = np.diff(counter.joules)
    integrated = np.diff(power.at(reads))
    lost = iv.touches(steps, counter.unknown)
    reached = (steps[:, 0] >= power.time_ns[0] - power.slack_ns) & (steps[:, 1] <= power.time_ns[-1] + power.slack_ns)
    told = ~lost & reached & ~iv.touches(steps, power.unknown) & (integrated > 0)
    scale = float(counted[told].sum() / integrated[told].sum()) if told.any() else 0.0
    if not SOUND_SCALE[0] < scale < SOUND_SCALE[1]:
        return replace(counter, blurred=iv.minus(_whole(counter), counter.unknown))
    time = np.unique(np.concatenate([reads, power.time_ns[(power.time_ns > reads[0]) & (power.time_ns < reads[-1])]]))
    which = np.clip(np.searchsorted(reads, time[:-1], side="right") - 1, 0, len(steps) - 1)
    gained = scale * np.diff(power.at(time))
    even = ~told & ~lost  # between readings, of whose course power tells nothing
    rate = counted / (steps[:, 1] - steps[:, 0])
    gained = np.where(even[which], rate[which] * np.diff(time), np.where(lost[which], 0.0, gained))
    joules = np.concatenate([[0.0], np.cumsum(gained)])
    return EnergyCurve(
        time,
        joules,
        "power+counter",
        power.read_ns,
        power.update_ns,
        unknown=counter.unknown,
        blurred=iv.union(steps[even, 0], steps[even, 1]),
    )


def _beyond(counter: EnergyCurve, power: EnergyCurve) -> EnergyCurve:
    """A counter's curve, and where it was not read yet or no more, power's, scaled to what the counter counted."""
    slack_ns = counter.slack_ns
    before = power.time_ns < counter.time_ns[0] if counter.time_ns[0] - power.time_ns[0] > slack_ns else None
    behind = power.time_ns > counter.time_ns[-1] if power.time_ns[-1] - counter.time_ns[-1] > slack_ns else None
    if before is None and behind is None:
        return counter
    counted, integrated = _both(counter, power)
    if len(counter.time_ns) > SCALED_STEPS and SOUND_SCALE[0] * integrated < counted < SOUND_SCALE[1] * integrated:
        power = replace(power, joules=power.joules * counted / integrated)
    time, joules, unknown = counter.time_ns, counter.joules, counter.unknown
    if before is not None:
        base = power.at(time[:1])
        time = np.concatenate([power.time_ns[before], time])
        joules = np.concatenate([power.joules[before] - base, joules])
    if behind is not None:
        base = power.at(counter.time_ns[-1:])
        time = np.concatenate([time, power.time_ns[behind]])
        joules = np.concatenate([joules, joules[-1] + power.joules[behind] - base])
    between = [counter.time_ns[-1], power.time_ns[0]], [power.time_ns[-1], counter.time_ns[0]]  # neither shows it
    neither = np.array([each for each in between if each[1] - each[0] > slack_ns], np.int64).reshape(-1, 2)
    outside = iv.minus(iv.union(*np.concatenate([power.unknown, neither]).T), _whole(counter))
    unknown = iv.union(*np.concatenate([unknown, outside]).T)
    return replace(counter, time_ns=time, joules=joules - joules[0], source="counter+power", unknown=unknown)


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
    sharp = curve.sharp
    pure, other = sharp & (share >= 0.999), sharp & (share <= 0.001)
    if pure.sum() < MIN_PURE_STEPS or other.sum() < MIN_PURE_STEPS:
        resolved = bool(pure.sum() >= MIN_PURE_STEPS)
        mixed = (share > 0.001) & (share < 0.999)
        # All that mixed steps hold could be on either side.
        return Attribution(curve, resolved, float((energy * np.minimum(share, 1 - share))[mixed].sum()))
    ratio = float(np.median((energy / step_ns)[pure])) / max(float(np.median((energy / step_ns)[other])), 1e-12)
    weight_ns = in_communication * ratio + (step_ns - in_communication)
    communication_watts = np.where(weight_ns > 0, energy / weight_ns * ratio, 0.0)  # J per ns
    other_watts = np.where(weight_ns > 0, energy / weight_ns, 0.0)

    knots = iv.distinct(time, inside)
    middle = knots[:-1] + np.diff(knots) // 2
    step = np.clip(np.searchsorted(time, middle, side="right") - 1, 0, len(step_ns) - 1)
    rate = np.where(iv.contains(inside, middle), communication_watts[step], other_watts[step])
    refined = joules[0] + np.concatenate([[0.0], np.cumsum(rate * np.diff(knots))])
    mixed_energy = communication_watts * in_communication
    uncertainty = float(np.abs(mixed_energy - energy * share).sum())
    if not sharp.all():  # where the course is not known, all of a step could be on either side
        uncertainty += float((energy * np.minimum(share, 1 - share))[~sharp].sum())
    return Attribution(replace(curve, time_ns=knots, joules=refined), True, uncertainty)


def clip_to(curve: EnergyCurve, intervals: iv.Intervals, sharp: bool = False) -> iv.Intervals:
    """The part of the intervals that the curve covers; with `sharp` only where it resolves each moment."""
    inside = iv.clip(intervals, int(curve.time_ns[0]), int(curve.time_ns[-1]))
    inside = iv.minus(inside, curve.unknown)
    return iv.minus(inside, curve.blurred) if sharp else inside


def window_of(curve: EnergyCurve, start_ns: int, stop_ns: int) -> iv.Intervals:
    """The part of [start_ns, stop_ns) whose energy the curve tells: no blurred stretch is cut."""
    first, last = max(start_ns, int(curve.time_ns[0])), min(stop_ns, int(curve.time_ns[-1]))
    for begin, end in curve.blurred.tolist():
        first = end if begin < first < end else first
        last = begin if begin < last < end else last
    return iv.minus(iv.union([first], [last]), curve.unknown)


def missing_ns(curve: EnergyCurve, start_ns: int, stop_ns: int) -> int:
    """For how much of [start_ns, stop_ns) energy is not known; a sliver at either end does not count."""
    covered = window_of(curve, start_ns, stop_ns)
    if not len(covered):
        return stop_ns - start_ns
    ends = (int(covered[0, 0]) - start_ns, stop_ns - int(covered[-1, 1]))
    inside = int(covered[-1, 1] - covered[0, 0]) - iv.length_ns(covered)
    sliver_ns = min(curve.slack_ns, EDGE_SHARE * (stop_ns - start_ns))
    return inside + sum(end for end in ends if end > sliver_ns)
