# SPDX-License-Identifier: Apache-2.0
"""What a sample can say and what it cannot: bounds of power, counters that jump, times that do not go forward.

A value that cannot be is taken for one that was not read. Nothing here guesses what it should have been.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from powerccl.traces.sample_file import number_of

if TYPE_CHECKING:
    import polars as pl

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

# Readings peak above a board's limit while the governor catches up, by up to a third on the GPUs we measured. At half
# of this real peaks would go. At double of it a counter that jumped has to be read within 0.5 s, not 1 s, to be found.
PEAKS = 2.0
# A board's governor keeps the mean of a second within 2 % of its limit on H100s, within some 10 % on small boards. At
# half of these 20 % small boards would be doubted; at double two fifths too much power goes unseen.
SUSTAINED = 1.2
SUSTAINED_NS = 1_000_000_000
# W, where the file does not tell a GPU's limit: the largest boards on sale take 1.4 kW. A sample of 2^32 - 1 mW is a
# thousand times as much. At half of it a board to come might be left out.
MOST_WATTS = 4000.0
# W of one socket with its memory; the largest take 0.6 kW.
MOST_CPU_WATTS = 2000.0
# Power that stays at one value for so long, to the mW, may be a sensor that stands still. The counter then shows
# another power, by more than STANDS_SHARE. At half of either, a steady load may pass for a standstill. At double, a
# sensor stands still for twice as long, or is wrong by a fifth, before it is seen.
STANDS_NS = 1_000_000_000
STANDS_SHARE = 0.1
# A period is missed now and then by a busy host, and its neighbours then show it; three in turn are a hole.
GAP_PERIODS = 3
LONGEST_PERIOD_NS = 60_000_000_000  # the agent's longest interval
# A counter moves every 20 to 100 ms, and what it gained may belong to the update before. Of bounds, nothing else.
UPDATE_NS = 200_000_000
# A reading so close to a run's start or end counts as the reading at that moment: a counter's own step is as long.
# At half, a busy host's late agent costs a run its total; at double, idle time beside the run counts as part of it.
AT_EDGE_NS = UPDATE_NS
# Of a run, at either end: less may be missing. At half, nothing changes for runs that the agent saw whole; at double, a
# sum that is 1 % low passes for whole.
EDGE_SHARE = 0.0025
# Of a usual gain: a reading just behind an update may be put right by so much at the next one.
CORRECTION = 0.05
# Times further outside the run are no times of it. Half or double of it makes no difference: clocks that are wrong are
# wrong by days.
FAR_NS = 3600 * 1_000_000_000
# Of energy by power samples: a counter's reading that differs by more is no continuation of one before. Half is what
# boards differ by; with double, a counter that goes back by half of what a GPU uses meanwhile passes for whole.
ALIKE_USED = 0.25
LOOK_AHEAD = 8  # readings after which a counter that jumped may be back where it was
MOST_BREAKS = 1000  # of a counter in one part of a file; one that breaks more often counts nothing

EMPTY: Ints = np.empty((0, 2), np.int64)


def limit_watts(about: dict[str, str], gpu: int) -> float:
    """The highest power limit that this GPU can have, by its file's head; 0: not known."""
    return max(number_of(about, f"gpu{gpu}_{key}") / 1e3 for key in ("power_limit_max_mw", "power_limit_mw"))


def most_watts(about: dict[str, str], gpu: int) -> float:
    """The most that a sample of this GPU can say, by the limits in its file's head."""
    limit_w = limit_watts(about, gpu)
    return min(PEAKS * limit_w, MOST_WATTS) if limit_w > 0 else MOST_WATTS


def sustained(time_ns: Ints, watts: Floats, limit_w: float) -> Mask:
    """Samples above the limit, where the mean of the second around them is clearly above it: no governor allows that.

    `watts` has NaN where nothing was sampled; without a limit (0), or in less than a second, nothing is found.
    """
    above = np.zeros(len(time_ns), np.bool_)
    known = np.flatnonzero(np.isfinite(watts))
    time, power = time_ns[known], watts[known]
    if not limit_w > 0 or not (power > limit_w).any() or time[-1] - time[0] < SUSTAINED_NS:
        return above
    joules = np.concatenate([[0.0], np.cumsum(np.diff(time) / 1e9 * (power[1:] + power[:-1]) / 2)])
    # At an end, the first or last whole second: peaks of half a second are usual.
    start = np.clip(time - SUSTAINED_NS // 2, time[0], time[-1] - SUSTAINED_NS)
    first = np.searchsorted(time, start)
    last = np.minimum(np.searchsorted(time, start + SUSTAINED_NS), len(time) - 1)
    seconds = (time[last] - time[first]) / 1e9
    mean = np.divide(joules[last] - joules[first], seconds, out=np.zeros(len(time)), where=seconds > 0)
    above[known] = (mean > SUSTAINED * limit_w) & (power > limit_w)
    return above


def stands_still(time_ns: Ints, watts: Floats, energy_uj: Ints, most_watts: float) -> Mask:
    """Samples of power that stays at one value while the counter (uJ, -1: not read) shows another power.

    What the counter gains by more than `most_watts`, or loses, tells nothing of it.
    """
    still = np.zeros(len(time_ns), np.bool_)
    known = np.flatnonzero(np.isfinite(watts))
    read = np.flatnonzero(energy_uj >= 0)
    if len(known) < 2 or len(read) < 2:
        return still
    edges = np.flatnonzero(np.diff(watts[known]) != 0) + 1
    begins, ends = np.append(0, edges), np.append(edges, len(known)) - 1
    long = time_ns[known[ends]] - time_ns[known[begins]] >= STANDS_NS
    at, uj = time_ns[read], energy_uj[read]
    for first, last in zip(known[begins[long]].tolist(), known[ends[long]].tolist(), strict=True):
        # Between the first and the last reading inside: what a counter gained since a reading before is of before.
        a, b = int(np.searchsorted(at, time_ns[first])), int(np.searchsorted(at, time_ns[last], side="right")) - 1
        # Up to its last change: a counter that moves no more is the one that is wrong, since a GPU always draws power.
        changes = np.flatnonzero(np.diff(uj[a : b + 1]))
        b = a + int(changes[-1]) + 1 if len(changes) else a
        gained, length_ns = np.diff(uj[a : b + 1]), np.diff(at[a : b + 1])
        sound = (gained >= 0) & (gained <= most_watts * (length_ns + UPDATE_NS) / 1e3)
        told_ns = float(length_ns[sound].sum())
        if told_ns < STANDS_NS // 2:
            continue
        counted = float(gained[sound].sum()) / told_ns * 1e3
        update = 2 * UPDATE_NS / told_ns  # by so much of itself it may be early or late at both ends
        if counted > 0 and abs(counted - watts[first]) > (STANDS_SHARE + update) * counted:
            still[first : last + 1] = True
    return still & np.isfinite(watts)


def forward(time_ns: Ints) -> Mask:
    """The most samples whose times rise all the way: all but those that go back, come twice or run ahead."""
    if np.all(np.diff(time_ns) > 0):
        return np.ones(len(time_ns), np.bool_)
    tails: list[int] = []  # the least time that ends a rising sequence of each length, and which sample that is
    ends: list[int] = []
    before = np.full(len(time_ns), -1, np.int64)
    for index, time in enumerate(time_ns.tolist()):
        place = bisect_left(tails, time)
        before[index] = ends[place - 1] if place else -1
        if place == len(tails):
            tails.append(time)
            ends.append(index)
        elif time < tails[place]:
            tails[place], ends[place] = time, index
    kept = np.zeros(len(time_ns), np.bool_)
    at = ends[-1] if ends else -1
    while at >= 0:
        kept[at] = True
        at = int(before[at])
    return kept


def only_forward(rows: pl.DataFrame, after_ns: int) -> tuple[pl.DataFrame, Ints, int]:
    """Rows whose times rise and are behind `after_ns`, those times, and how many rows were left out."""
    import polars as pl

    time = rows["time_ns"].to_numpy()
    kept = forward(time) & (time > after_ns)
    if kept.all():
        return rows, time, 0
    return rows.filter(pl.Series(kept)), time[kept], int((~kept).sum())


@dataclass
class Counter:
    """An energy counter followed reading by reading, in parts. It comes out rising, without its jumps.

    A reading from which the next ones come back is left out. Behind one that stays, the counter goes on with another
    origin. What it should have gained meanwhile is taken from `watts` where power was sampled, else it is not known.
    """

    most_watts: float
    left_out: int = 0  # readings
    breaks: int = 0  # times that it went on from elsewhere
    jumps: list[tuple[int, int]] = field(default_factory=list)  # ns, of each break
    unknown: list[tuple[int, int]] = field(default_factory=list)  # those of which what was used is not known
    _offset: int = 0
    # The reading before the last change, the change and the last reading: time and value as they came.
    _before: list[tuple[int, int]] = field(default_factory=list)

    def take(self, time_ns: Ints, energy_uj: Ints, used_j: Callable[[int, int], float]) -> Ints:
        """Readings that follow; `used_j`: energy between two times (ns) by power samples, NaN: not known.

        Returns them on one origin, -1 where a reading is left out.
        """
        if not len(time_ns):
            return energy_uj
        carried = len(self._before)
        time = np.concatenate([np.array([t for t, _ in self._before], np.int64), time_ns])
        value = np.concatenate([np.array([e for _, e in self._before], np.int64), energy_uj])
        gained = np.diff(value)
        usual = float(np.median(gained[gained > 0])) if np.any(gained > 0) else 0.0
        low = -CORRECTION * min(usual, self.most_watts * UPDATE_NS / 1e3)
        # How long a value has stood: what it gains at last it may have gained in all that time.
        places = np.arange(len(value))
        changed = np.maximum.accumulate(np.where(np.append(True, gained != 0), places, 0))
        since = time[np.maximum(changed - 1, 0)]
        bad = np.flatnonzero((gained < low) | (gained > self._most(time[1:] - since[:-1]))) + 1
        bad = bad[bad >= carried]
        corrected = value + self._offset
        if len(bad) > MOST_BREAKS:
            self.left_out += len(time_ns)
            return np.full(len(time_ns), -1, np.int64)
        kept = np.ones(len(value), np.bool_)
        until = 0
        for at in bad.tolist():
            if at < until:
                continue
            last = int(np.flatnonzero(kept[:at])[-1])
            # Readings before it that were too high, but not too high to be, then those behind it that come back.
            before = np.arange(last - 1, max(last - LOOK_AHEAD, carried - 2, -1), -1)  # what went out already stays
            fits = before[self._follows(value[at] - value[before], time[at] - since[before], low) & kept[before]]
            # A slip is between two readings of which the second goes on from the first, as power shows.
            goes_on = partial(self._goes_on, time, value, used_j, usual)
            if gained[at - 1] < low and len(fits) and goes_on(int(fits[0]), at):
                kept[int(fits[0]) + 1 : at] = False
                continue
            after = np.arange(at + 1, min(at + LOOK_AHEAD, len(value)))
            back = after[self._follows(value[after] - value[last], time[after] - since[last], low)]
            if len(back) and goes_on(last, int(back[0])):
                until = int(back[0]) + 1
                kept[at : back[0]] = False
                continue
            self.breaks += 1
            self.jumps.append((int(time[last]), int(time[at])))
            used = used_j(int(time[last]), int(time[at]))
            if not np.isfinite(used):
                self.unknown.append((int(time[last]), int(time[at])))
            jumped_uj = round(used * 1e6) if np.isfinite(used) else 0
            corrected[at:] = value[at:] + (corrected[last] + jumped_uj - value[at])
        self.left_out += int((~kept).sum())
        good = np.flatnonzero(kept)
        self._offset = int(corrected[good[-1]] - value[good[-1]])
        steps = np.flatnonzero(np.diff(value[good]) != 0)
        ends = [*([good[steps[-1]], good[steps[-1] + 1]] if len(steps) else [good[0]]), good[-1]]
        self._before = [(int(time[i]), int(value[i])) for i in dict.fromkeys(int(i) for i in ends)]
        corrected[~kept] = -1
        return corrected[carried:]

    def _goes_on(
        self, time: Ints, value: Ints, used_j: Callable[[int, int], float], usual: float, first: int, second: int
    ) -> bool:
        """Whether a reading goes on from an earlier one, by what power says; without power, that time is not known."""
        # The counter's update may come one reading early or late.
        used_uj = used_j(int(time[first]), int(time[second])) * 1e6
        if not np.isfinite(used_uj):
            self.unknown.append((int(time[first]), int(time[second])))
            return True
        return abs(used_uj - float(value[second] - value[first])) <= ALIKE_USED * used_uj + usual

    def _follows(self, gained_uj: Ints, length_ns: Ints, low: float) -> Mask:
        """Whether a counter may gain so much in so long."""
        return (gained_uj >= low) & (gained_uj <= self._most(length_ns))

    def _most(self, length_ns: Ints) -> Floats:
        return self.most_watts * (length_ns.astype(np.float64) + UPDATE_NS) / 1e3


@dataclass(frozen=True)
class Used:
    """Energy between two moments by power samples, mW; NaN where samples are missing there.

    `before`: the last sample before those, ns and mW.
    """

    time_ns: Ints
    power_mw: Floats
    before: tuple[int, float] | None
    period_ns: int

    def __call__(self, start_ns: int, stop_ns: int) -> float:
        """Joules."""
        usable = np.isfinite(self.power_mw)
        time, power = self.time_ns[usable], self.power_mw[usable]
        if self.before:
            time, power = np.append(self.before[0], time), np.append(self.before[1], power)
        first = int(np.searchsorted(time, start_ns, side="right")) - 1
        last = int(np.searchsorted(time, stop_ns))
        if first < 0 or last >= len(time) or last <= first:
            return float("nan")
        steps = np.diff(time[first : last + 1])
        if steps.max() > GAP_PERIODS * max(self.period_ns, 1):
            return float("nan")
        watts = (power[first:last] + power[first + 1 : last + 1]) / 2e3
        return float((watts * steps).sum() / steps.sum() * (stop_ns - start_ns) / 1e9)
