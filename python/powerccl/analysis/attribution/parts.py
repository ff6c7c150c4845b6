# SPDX-License-Identifier: Apache-2.0
"""Phases in parts whose power may differ: by their place in the iteration, and by how long they have lasted.

Power is not the same all through a phase. A power governor lets a burst of computation draw more at its beginning. An
idle gap hides between two kernels of computation. The first bucket of gradients runs beside other kernels than the
last. Where a job repeats itself such differences repeat too, and a regression that knows the places sees them.

Computation that is held down by a power limit takes longer and draws less. So time and power of one burst are not
independent, which would count computation too low and what runs beside it too high. Hence each place with computation
also has a *stretch*: how much longer than usual it took this time, weighted by its seconds. And where the clock was
sampled, how much more of each clock there was than is usual for the part.

Where the host is late, a GPU rests in what is taken for computation. Rarely but for long: one rest of 20 ms lacks more
energy than all other differences. Whatever its step holds less of would seem to draw more. Such segments are recognised
by their length (`late`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.attribution.clocks import Levels
from powerccl.analysis.attribution.features import Features, features, mean_shares
from powerccl.analysis.attribution.phases import ALONE, COMPUTING, LATE, Timeline
from powerccl.analysis.exposure import period
from powerccl.analysis.report_findings import Reference

_MS = 1_000_000
AGES_NS = np.array([1, 2, 4, 6, 8, 11, 14, 17, 20, 24, 28, 32, 36, 40, 45, 50, 55, 60, 70, 80, 100], np.int64) * _MS
LAST_NS = 2 * _MS  # a phase's end is a part of its own: where the host is late, nothing runs there
FEWEST = 96  # kernels in which an iteration is looked for; fewer are not split further
LOOKED_AT = 2000  # kernels
MOST_OPERATIONS = 64  # of an iteration
MOST_PARTS = 120  # of one GPU
RARE_LEVEL = 0.005  # of the time: a clock that says nothing
REAL_NS = 300_000  # a shorter segment without communication may be but the way from one kernel to the next
# A segment of computation began late if it takes FAR times the median of its place. It must also be FENCE times as far
# above the median as the shortest twentieth is below.
FENCE, FAR = 2.0, 1.4
RARE = 0.002  # of the time: a part of a phase that is merged with its other rare ones
MOST_STRETCH = 0.6
ALIKE_NS = 20_000_000.0  # over which computation's power changes in an iteration
MEMORY_NS = (
    10 * _MS,
    25 * _MS,
    50 * _MS,
    100 * _MS,
    300 * _MS,
    1000 * _MS,
)  # power limits look at means over such times

Numbers = npt.NDArray[np.int64]
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Parts:
    """`label[i]` from `edges_ns[i]` to `edges_ns[i + 1]`; part `p` is of phase `phase[p]` of the timeline.

    Segments of stretch `group[i]` (-1: none), of phase `group_phase[g]`, took `stretch[i]` longer than usual.
    `features`: what the power of parts is expected to be made of.
    `where[p]`: how far behind its iteration's beginning part `p` usually is, in ALIKE_NS; NaN: nothing repeats there.
    `memory` (lengths of memory, segments): how much more than usual for its part the GPU had rested before; 0 where
    nothing computes. Then the same of the share of each clock, where clocks are given.
    """

    edges_ns: Numbers
    label: Numbers
    phase: Numbers
    group: Numbers
    group_phase: Numbers
    stretch: Array
    memory: Array
    where: Array
    features: Features

    def columns(self) -> Numbers:
        """The phase of each column of `within`: of each part, of each stretch, then of memory: -1, of no phase."""
        return np.concatenate([self.phase, self.group_phase, np.full(len(self.memory), -1)])

    def within(self, begin_ns: Numbers, end_ns: Numbers) -> Array:
        """Seconds of each part, stretched ones of each group, rested ones, in each step; steps rise and do not overlap.

        Shape (steps, columns).
        """
        rows, parts, groups = len(begin_ns), len(self.phase), len(self.group_phase)
        low, high = np.searchsorted(self.edges_ns, [begin_ns[0], end_ns[-1]])
        edges = np.sort(np.concatenate([self.edges_ns[max(low - 1, 0) : high + 1], begin_ns, end_ns]))
        start, seconds = edges[:-1], np.diff(edges) / 1e9
        step = np.searchsorted(begin_ns, start, side="right") - 1
        at = np.searchsorted(self.edges_ns, start, side="right") - 1
        sound = (step >= 0) & (at >= 0) & (at < len(self.label))
        sound[sound] &= start[sound] < end_ns[step[sound]]
        step, at, seconds = step[sound], at[sound], seconds[sound]
        plain = np.bincount(step * parts + self.label[at], seconds, rows * parts).reshape(rows, parts)
        own = self.group[at] >= 0
        cell = step[own] * groups + self.group[at[own]]
        sway = np.bincount(cell, (seconds * self.stretch[at])[own], rows * groups).reshape(rows, groups)
        rested = [np.bincount(step, seconds * each[at], rows) for each in self.memory]
        return np.column_stack([plain, sway, *rested])

    def seconds(self, of: npt.NDArray[np.bool_]) -> Array:
        """What `within` would say of all the timeline, for columns of the phases chosen; 0 for the others."""
        length = np.diff(self.edges_ns) / 1e9
        own = self.group >= 0
        sway = np.bincount(self.group[own], (length * self.stretch)[own], len(self.group_phase))
        plain = np.bincount(self.label, length, len(self.phase))
        # Rest is counted from what is usual for each part: in all it adds nothing.
        everything = np.concatenate([plain, sway, np.zeros(len(self.memory))])
        return np.where(of[self.columns()], everything, 0.0)


def parts(
    line: Timeline, kernels: pl.DataFrame, levels: Levels | None = None, reference: Reference | None = None
) -> Parts:
    """The timeline's phases in parts. `kernels` are those it was made of; `levels`: at which clocks it ran.

    `reference`: of the platform, for what is expected of their power.
    """
    kernels = _in_order(kernels)
    start = kernels["start_ns"].to_numpy()
    own = line.edges_ns
    length = np.diff(own)
    cuts = [own, *(own[:-1][length > age] + age for age in AGES_NS), own[1:][length > 2 * LAST_NS] - LAST_NS]
    edges = iv.distinct(*cuts)
    segment = np.searchsorted(own, edges[:-1], side="right") - 1
    age = np.searchsorted(AGES_NS, edges[:-1] - own[segment], side="right")
    ending = (own[segment + 1] - edges[:-1] <= LAST_NS) & (length[segment] > 2 * LAST_NS)
    age = np.where(ending, len(AGES_NS) + 1, age)
    last = np.clip(np.searchsorted(start, own[:-1], side="right") - 1, 0, len(start) - 1)
    places, begins = _places(kernels, start)
    place = places[last] * len(line.phases) + line.label

    ages = len(AGES_NS) + 2
    values, label = np.unique(place[segment] * ages + age, return_inverse=True)
    seconds = np.bincount(label, np.diff(edges) / 1e9, len(values))
    rare = seconds < RARE * seconds.sum()
    rare[np.argsort(-seconds, kind="stable")[MOST_PARTS:]] = True
    phases = values // ages % len(line.phases)
    kept, again = np.unique(np.where(rare, -1 - phases, np.arange(len(values))), return_inverse=True)
    of_phase = np.where(kept < 0, -1 - kept, phases[np.maximum(kept, 0)])
    group, group_phase, stretch = _stretches(line, place)
    label = np.asarray(again[label], np.int64)
    quiet = np.array([entry.how == ALONE for entry in line.phases])
    without_computation = quiet[np.asarray(of_phase, np.int64)][label]
    memory = _memory(edges, label, without_computation)
    if levels is not None:
        memory = np.vstack([memory, _clocked(edges, label, without_computation, levels)])
    return Parts(
        edges,
        label,
        np.asarray(of_phase, np.int64),
        group[segment],
        group_phase,
        stretch[segment],
        memory,
        _where(edges, label, begins[last][segment]) / ALIKE_NS,
        features([line.phases[n] for n in of_phase], mean_shares(edges, label, levels), reference),
    )


def late(line: Timeline, kernels: pl.DataFrame) -> Timeline:
    """With a phase of its own where computation began late: what a segment is longer than its place's median.

    Only where it is far longer than others at its place: whatever kept the host, the GPU rested. `kernels` are those
    the timeline was made of.
    """
    free = np.array([phase == COMPUTING for phase in line.phases])[line.label]
    if free.sum() < FEWEST:  # at all places together
        return line
    kernels = _in_order(kernels)
    start = kernels["start_ns"].to_numpy()
    own = line.edges_ns
    last = np.clip(np.searchsorted(start, own[:-1], side="right") - 1, 0, len(start) - 1)
    place = _places(kernels, start)[0][last]
    length = np.diff(own)
    more = np.zeros(len(length), np.int64)
    for one in np.unique(place[free]).tolist():
        here = np.flatnonzero(free & (place == one) & (length > REAL_NS))
        if len(here) < FEWEST:
            continue
        short, middle = np.quantile(length[here], [0.05, 0.5])
        far = here[length[here] > max(middle + FENCE * (middle - short), FAR * middle)]
        more[far] = length[far] - round(middle)
    chosen = np.flatnonzero(more)
    if not len(chosen):
        return line
    edges = np.insert(own, chosen + 1, own[chosen] + more[chosen])
    label = np.insert(line.label, chosen, len(line.phases))
    return Timeline(edges, label, [*line.phases, LATE])


def _where(edges: Numbers, label: Numbers, begin: Numbers) -> Array:
    """Of each part: the mean distance from its iteration's beginning (`begin` of each segment, -1: none), ns."""
    length = np.diff(edges).astype(np.float64)
    known = begin >= 0
    away = np.where(known, edges[:-1] + length / 2 - begin, 0.0)
    count = int(label.max()) + 1
    total = np.bincount(label, np.where(known, length, 0.0), count)
    mean = np.bincount(label, np.where(known, length * away, 0.0), count) / np.maximum(total, 1.0)
    return np.where(total > 0.5 * np.bincount(label, length, count), mean, np.nan)


def _memory(edges: Numbers, label: Numbers, quiet: npt.NDArray[np.bool_]) -> Array:
    """Of each segment with computation: the share of rest in the time before, less the mean of its part."""
    length = np.diff(edges)
    rest = np.concatenate([[0.0], np.cumsum(np.where(quiet, length, 0) / 1e9)])
    middle = edges[:-1] + length // 2
    x = (edges - edges[0]).astype(np.float64)
    at = (middle - edges[0]).astype(np.float64)
    columns = []
    seconds = np.where(quiet, 0.0, length / 1e9)
    count = int(label.max()) + 1
    total = np.maximum(np.bincount(label, seconds, count), 1e-12)
    for reach in MEMORY_NS:
        share = (np.interp(at, x, rest) - np.interp(np.maximum(at - reach, 0), x, rest)) / (reach / 1e9)
        usual = np.bincount(label, seconds * share, count) / total
        columns.append(np.where(quiet, 0.0, share - usual[label]))
    return np.array(columns).reshape(len(MEMORY_NS), len(label))


def _clocked(edges: Numbers, label: Numbers, without_computation: npt.NDArray[np.bool_], levels: Levels) -> Array:
    """Of each segment: the share of each clock less the mean of its part, with computation and without."""
    seconds = np.diff(edges) / 1e9
    shares = levels.shares(edges)
    count = int(label.max()) + 1
    total = np.maximum(np.bincount(label, seconds, count), 1e-12)
    least = RARE_LEVEL * seconds.sum()
    columns = []
    for share in shares.T:
        usual = np.bincount(label, seconds * share, count) / total
        away = share - usual[label]
        columns += [
            np.where(own, away, 0.0)
            for own in (without_computation, ~without_computation)
            if seconds[own] @ share[own] > least
        ]
    return np.array(columns).reshape(-1, len(label))


def _stretches(line: Timeline, place: Numbers) -> tuple[Numbers, Numbers, Array]:
    """Of each segment of the timeline: its group or -1, and by which share it is longer than the group's median."""
    length = np.diff(line.edges_ns).astype(np.float64)
    values, group = np.unique(place, return_inverse=True)
    order = np.lexsort((length, group))
    first = np.searchsorted(group[order], np.arange(len(values)))
    count = np.bincount(group, minlength=len(values))
    median = length[order][first + count // 2]
    stretch = np.clip(length / np.maximum(median[group], 1) - 1, -MOST_STRETCH, MOST_STRETCH)
    total = np.bincount(group, length, len(values))
    phase = values % len(line.phases)
    quiet = np.array([entry.how == ALONE for entry in line.phases])
    chosen = ~quiet[phase] & (total > RARE * total.sum())
    number = np.where(chosen, np.cumsum(chosen) - 1, -1)
    return np.asarray(number[group], np.int64), np.asarray(phase[chosen], np.int64), stretch


def _in_order(kernels: pl.DataFrame) -> pl.DataFrame:
    """What is needed of kernels to find their places."""
    return kernels.select("start_ns", "pattern", "size_class", "comm").sort("start_ns")


def _places(kernels: pl.DataFrame, start: Numbers) -> tuple[Numbers, Numbers]:
    """A number for each kernel's place in its iteration, the same for the same place, and when that began.

    0 and -1 where nothing repeats.
    """
    begins = np.full(len(start), -1, np.int64)
    number = (
        kernels.select(pl.struct("pattern", "size_class", "comm").rank("dense").cast(pl.Int64)).to_series().to_numpy()
    )
    places = np.zeros(len(start), np.int64)
    known: dict[tuple[tuple[int, ...], int], int] = {}
    waiting = [(0, len(start))]
    while waiting:
        first, last = waiting.pop()
        here, times = number[first:last], start[first:last]
        length = _repeats(here, times)
        if not length:
            if last - first >= 2 * FEWEST:
                middle = (first + last) // 2
                waiting += [(first, middle), (middle, last)]
            continue
        gaps = np.diff(times, append=times[-1])
        # An iteration begins behind its longest gap, wherever this stretch begins.
        usual = [float(np.median(gaps[at : len(gaps) - 1 : length])) for at in range(length)]
        shift = int(np.argmax(usual)) + 1
        sequence = tuple(int(here[(shift + at) % length]) for at in range(length))
        table = np.array([known.setdefault((sequence, n), len(known) + 1) for n in range(length)])
        at = (np.arange(last - first) - shift) % length
        places[first:last] = table[at]
        # Iterations cut off by the stretch's ends begin where the stretch does.
        begins[first:last] = times[np.maximum(np.arange(last - first) - at, 0)]
    return places, begins


def _repeats(number: Numbers, start: Numbers) -> int:
    """After how many kernels the same follow again, 0: never: as far apart too, or at least of the same kinds."""
    if len(number) < 8:
        return 0
    few = number[:LOOKED_AT]
    lengths = [period([str(n) for n in few.tolist()], start[:LOOKED_AT], MOST_OPERATIONS)]
    if np.any(few != few[0]):
        lengths += range(2, min(MOST_OPERATIONS, len(few) // 4) + 1)
    for length in lengths:
        if length and (number[length:] != number[:-length]).mean() < 0.03:
            return length
    return 0
