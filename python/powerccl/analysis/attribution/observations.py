# SPDX-License-Identifier: Apache-2.0
"""What the samples of one GPU say of its energy: so many joules between two moments.

An energy counter gives it directly: its gain from one update to the next. Without a counter, a power reading is a mean
over some time before it was taken. Both are read more often than they change. So the moment of a change is known only
to be between two reads. Changes that come at a steady beat are dated by that beat. How late a reading is, and over how
long a power reading averages, is open here. `late_ns` and `mean_ns` are chosen by what fits the run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from powerccl.analysis import intervals as iv

SLOW = 1.5  # reads a change, from which on changes are slower than reads
CORRECTION = 0.02  # of a usual step: a counter may go back by so much without a restart
BEAT_TRIES, BEAT_ZOOMS = 21, 3
BEAT_FIRST, BEAT_OFF, BEAT_GRID = 500, 0.02, 1001
STEADY = 0.9  # of the changes must fit a beat, or there is none
SELDOM_UPDATES = 3  # a counter read less often than power changes by this factor only scales power
LONG_STEPS = 4.0  # usual steps: a longer one lost readings and is left out
SCALING_NS = 2_000_000_000
SOUND_SCALE = (0.5, 2.0)


@dataclass(frozen=True)
class Observations:
    """`joules[i]` were used from `begin_ns[i]` to `end_ns[i]` (host); `source`: counter, power or power+counter.

    `slack_ns`: how much the changes may really be before (first) and behind (second) the moments given.
    `beat_ns`: the usual step. Of power, `end_ns` is when the reading changed and joules are watts: `over` makes steps.
    """

    begin_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    joules: npt.NDArray[np.float64]
    source: str
    beat_ns: float
    slack_ns: tuple[float, float]

    @property
    def averages(self) -> bool:
        """Whether these are power readings, means over a time that is not known."""
        return self.source != "counter"

    def first(self, count: int, begin_ns: int) -> Observations:
        """The first so many from `begin_ns` on, and one before."""
        begin = max(0, int(np.searchsorted(self.end_ns, begin_ns)) - 1)
        cut = slice(begin, begin + count)
        return replace(self, begin_ns=self.begin_ns[cut], end_ns=self.end_ns[cut], joules=self.joules[cut])

    def over(self, late_ns: float, mean_ns: float) -> Observations:
        """Taken to be so late and, of power, means over `mean_ns`; joules then are joules, and steps do not overlap."""
        late = round(late_ns)
        if not self.averages:
            return replace(self, begin_ns=self.begin_ns - late, end_ns=self.end_ns - late)
        stride = max(1, int(np.ceil(mean_ns / max(self.beat_ns, 1.0) - 0.05)))
        end = (self.end_ns - late)[::stride]
        begin = np.maximum(end - round(mean_ns), np.append(end[0] - round(mean_ns), end[:-1]))
        return replace(self, begin_ns=begin, end_ns=end, joules=self.joules[::stride] * (end - begin) / 1e9)


def observations(
    time_ns: npt.NDArray[np.int64],
    power_mw: npt.NDArray[np.float64],
    energy_uj: npt.NDArray[np.int64],
    gaps: iv.Intervals = iv.EMPTY,
    breaks: iv.Intervals = iv.EMPTY,
) -> Observations | None:
    """Of one GPU from its samples (same length, sorted by time; energy -1, power NaN: not known).

    `gaps`: without power samples; `breaks`: over which the counter tells nothing. None when fewer than three changes
    are known.
    """
    keep = np.concatenate([[True], np.diff(time_ns) > 0]) if len(time_ns) else np.zeros(0, np.bool_)
    time_ns, power_mw, energy_uj = time_ns[keep], power_mw[keep], energy_uj[keep]
    counted = energy_uj >= 0
    counter = _counter(time_ns[counted], energy_uj[counted])
    power = _power(time_ns, power_mw)
    if counter is not None and len(breaks):
        steps = np.stack([counter.begin_ns, counter.end_ns], axis=1)
        sound = ~iv.touches(steps, iv.union(breaks[:, 0], breaks[:, 1]))
        parts = {name: getattr(counter, name)[sound] for name in ("begin_ns", "end_ns", "joules")}
        counter = replace(counter, **parts) if sound.sum() > 1 else None
    if counter is None or power is None:
        return counter or power
    if counter.beat_ns < SELDOM_UPDATES * power.beat_ns:
        return counter
    holes = np.concatenate([gaps, breaks])
    return _scaled(power, time_ns[counted], energy_uj[counted], iv.union(holes[:, 0], holes[:, 1]))


def _counter(time_ns: npt.NDArray[np.int64], energy_uj: npt.NDArray[np.int64]) -> Observations | None:
    if len(time_ns) < 4:
        return None
    gained = np.diff(energy_uj)
    usual = float(np.median(gained[gained > 0])) if np.any(gained > 0) else 0.0
    if usual <= 0:
        return None
    changed = np.flatnonzero(np.abs(gained) > CORRECTION * usual) + 1
    if len(changed) < 3:
        return None
    at_ns, beat_ns, slack_ns = _dated(time_ns, changed)
    # A value read just after its update may be put right at the next read: of a beat the first date and last value.
    last = np.append(changed[1:], len(time_ns)) - 1
    first = np.concatenate([[True], np.diff(np.rint((at_ns - at_ns[0]) / beat_ns)) > 0])
    at_ns, last = at_ns[first], last[np.append(np.flatnonzero(first)[1:], len(first)) - 1]
    value = energy_uj[last].astype(np.float64) / 1e6
    joules, length = np.diff(value), np.diff(at_ns)
    sound = (joules > 0) & (length > 0) & (length < LONG_STEPS * max(beat_ns, 1))
    if sound.sum() < 2:
        return None
    return Observations(at_ns[:-1][sound], at_ns[1:][sound], joules[sound], "counter", beat_ns, slack_ns)


def _power(time_ns: npt.NDArray[np.int64], power_mw: npt.NDArray[np.float64]) -> Observations | None:
    known = np.isfinite(power_mw) & (power_mw > 0)
    time_ns, power_mw = time_ns[known], power_mw[known]
    if len(time_ns) < 4:
        return None
    changed = np.flatnonzero(np.diff(power_mw) != 0) + 1
    if len(changed) < 3:
        return None
    at_ns, beat_ns, slack_ns = _dated(time_ns, changed)
    last = np.append(changed[1:], len(time_ns)) - 1
    return Observations(at_ns, at_ns, power_mw[last] / 1e3, "power", beat_ns, slack_ns)


def _dated(
    time_ns: npt.NDArray[np.int64], changed: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], float, tuple[float, float]]:
    """When the values that were new at reads `changed` came to be, their beat, and how far that may be off."""
    after, before = time_ns[changed], time_ns[changed - 1]
    beat_ns = float(np.median(np.diff(after)))
    read_ns = float(np.median(np.diff(time_ns)))
    if beat_ns < SLOW * read_ns:
        return after, beat_ns, (read_ns, 0.0)
    on_a_beat = _on_a_beat(before, after, beat_ns)
    if on_a_beat is not None:
        return on_a_beat
    half = (after - before) // 2
    return before + half, beat_ns, (float(np.median(half)), float(np.median(half)))


def _on_a_beat(
    before: npt.NDArray[np.int64], after: npt.NDArray[np.int64], beat_ns: float
) -> tuple[npt.NDArray[np.int64], float, tuple[float, float]] | None:
    """Moments a steady beat apart, each between its two reads; None when there is no such beat."""
    origin = int(after[0])
    x = (after - origin).astype(np.float64)
    low = (before - origin).astype(np.float64)
    apart = np.diff(x)
    near = np.abs(apart - beat_ns) < 0.5 * beat_ns
    if not near.any():
        return None
    # The beat under which the first changes fall together best, then more of them by what that gives.
    some = (x + low)[:BEAT_FIRST] / 2
    tries = float(apart[near].mean()) * np.linspace(1 - BEAT_OFF, 1 + BEAT_OFF, BEAT_GRID)
    together = [abs(np.exp(2j * np.pi * some / each).sum()) for each in tries.tolist()]
    beat_ns = float(tries[int(np.argmax(together))])
    number = np.zeros(len(x))
    count = min(BEAT_FIRST, len(x))
    while True:
        angle = np.angle(np.exp(2j * np.pi * (x[:count] + low[:count]) / 2 / beat_ns).sum())
        number = np.round((x + low) / 2 / beat_ns - angle / (2 * np.pi))
        if np.ptp(number[:count]) <= 0:
            return None
        beat_ns = float(np.polyfit(number[:count], (x + low)[:count] / 2, 1)[0])
        if count == len(x):
            break
        count = min(4 * count, len(x))
    agreed = _agreed(low, x, number, beat_ns)
    if agreed is None:
        return None
    beat_ns, earliest, latest = agreed
    phase = (earliest + latest) / 2
    at = np.clip(phase + number * beat_ns, low, x)
    moments = origin + np.rint(at).astype(np.int64)
    return moments, beat_ns, (phase - earliest, latest - phase)


def _agreed(
    low: npt.NDArray[np.float64], high: npt.NDArray[np.float64], number: npt.NDArray[np.float64], beat_ns: float
) -> tuple[float, float, float] | None:
    """The beat, and between which phases of it most changes could have been; None: most changes keep no beat.

    Where reads and updates keep step, a few reads just before an update bend a line through them, but not this.
    """
    span = float(np.median(high - low)) / max(float(np.ptp(number)), 1.0)
    agree, earliest, latest = 0, 0.0, 0.0
    for _ in range(BEAT_ZOOMS):
        tries: list[tuple[int, float, float, float]] = []
        for each_ns in np.linspace(beat_ns - span, beat_ns + span, BEAT_TRIES).tolist():
            count, first, last = _most_agree(low - number * each_ns, high - number * each_ns)
            tries.append((count, each_ns, first, last))
        most = max(count for count, *_ in tries)
        tied = [entry for entry in tries if entry[0] == most]
        agree, beat_ns, earliest, latest = tied[len(tied) // 2]
        span /= BEAT_TRIES / 2
    return (beat_ns, earliest, latest) if agree >= STEADY * len(number) else None


def _most_agree(after: npt.NDArray[np.float64], until: npt.NDArray[np.float64]) -> tuple[int, float, float]:
    """How many of the intervals (after, until] share a point at most, and the longest stretch inside so many."""
    edges = np.unique(np.concatenate([after, until]))
    middle = edges[:-1] + np.diff(edges) / 2
    inside = np.searchsorted(np.sort(after), middle) - np.searchsorted(np.sort(until), middle)
    if not len(inside):
        return 0, 0.0, 0.0
    best = inside == inside.max()
    start = np.flatnonzero(best & ~np.append(False, best[:-1]))
    stop = np.flatnonzero(best & ~np.append(best[1:], False)) + 1
    longest = int(np.argmax(edges[stop] - edges[start]))
    return int(inside.max()), float(edges[start[longest]]), float(edges[stop[longest]])


def _scaled(
    power: Observations, read_at_ns: npt.NDArray[np.int64], energy_uj: npt.NDArray[np.int64], holes: iv.Intervals
) -> Observations:
    """Power readings made to agree with what a seldom read counter gained over all of them, but for the holes."""
    inside = (power.end_ns >= read_at_ns[0]) & (power.end_ns <= read_at_ns[-1])
    if inside.sum() < 2 or read_at_ns[-1] - read_at_ns[0] < SCALING_NS:
        return power
    weights, gained_uj, length_ns = np.diff(power.end_ns[inside]), energy_uj[-1] - energy_uj[0], np.ptp(read_at_ns)
    between = np.stack([read_at_ns[:-1], read_at_ns[1:]], axis=1)
    whole = ~iv.touches(between, holes)
    if not whole.all():  # over a hole the counter goes on, and power readings do not
        gained_uj, length_ns = np.diff(energy_uj)[whole].sum(), np.diff(read_at_ns)[whole].sum()
        covered = iv.union(between[whole, 0], between[whole, 1])
        weights = np.where(iv.contains(covered, power.end_ns[inside][1:]), weights, 0)
        if length_ns < SCALING_NS or not weights.any():
            return power
    mean_w = float(np.average(power.joules[inside][1:], weights=weights))
    counted_w = float(gained_uj) / 1e6 / (float(length_ns) / 1e9)
    scale = counted_w / mean_w if mean_w > 0 else 0.0
    if not SOUND_SCALE[0] < scale < SOUND_SCALE[1]:
        return power
    return replace(power, joules=power.joules * scale, source="power+counter")
