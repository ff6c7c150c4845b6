# SPDX-License-Identifier: Apache-2.0
"""At which clock a GPU ran when, where a power limit moves it: more than the samples themselves tell.

Under a power limit the power of a phase swings with the clock. The clock is sampled at moments, not as a mean, and
seldom compared with how fast it moves. Between two samples it is modelled as a Markov chain over a few levels. The
transitions depend on what runs and for how long it has. They are learned from all samples (Baum and Welch's algorithm);
levels are seen at the samples and hidden between. The result is how likely each level is at each moment, given the
samples on both sides. The nearest sample instead would bias a regression towards no effect.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerccl.analysis.attribution.phases import ALONE, Timeline

CELL_NS = 1_000_000
LEVEL = 1.06  # clocks within this factor are one level
MOST_LEVELS = 10
AGES_NS = np.array([1, 2, 4, 6, 8, 11, 15, 20, 30, 50], np.int64) * 1_000_000
RESTED_NS = 40_000_000  # power limits look at means over such times
RESTED = np.array([0.1, 0.3, 0.6])  # shares of it without computation
ROUNDS = 10  # of learning
LEARNED = 6_000  # intervals between samples to learn from
CHUNK = 4000  # intervals in one batch
FEW = 1.0  # transitions that count for what is expected of a kind of moment before any was seen
STAYS, ENTERS = 0.7, 0.2  # of it that the clock stays: while a phase lasts, and when one begins
MOST_CELLS = 200  # between two samples; beyond, samples are missing
VARIES = 0.03  # of the samples with computation that must be off their usual level

Numbers = npt.NDArray[np.int64]
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cells:
    """One GPU's time in cells of about CELL_NS: of a kind of moment each, a level (or -1) is `seen` in it."""

    edges_ns: Numbers
    moment: Numbers
    seen: Numbers


@dataclass(frozen=True)
class Levels:
    """`sums[i, l]`: seconds at level `l` that are expected before `edges_ns[i]`."""

    edges_ns: Numbers
    sums: Array

    def shares(self, edges_ns: Numbers) -> Array:
        """Of the time between each edge and the next. Shape (edges - 1, levels)."""
        x, own = edges_ns - self.edges_ns[0], self.edges_ns - self.edges_ns[0]
        before = np.column_stack([np.interp(x, own, each) for each in self.sums.T])
        return np.asarray(np.diff(before, axis=0) / (np.diff(edges_ns)[:, None] / 1e9), dtype=np.float64)


@dataclass(frozen=True)
class Seen:
    """One GPU's timeline and what was sampled of its clock: `time_ns`, `clock_mhz` (NaN: not known)."""

    line: Timeline
    time_ns: Numbers
    clock_mhz: Array


def clock_levels(gpus: list[Seen]) -> list[Levels] | None:
    """Of each GPU; None: the clock of computation did not vary, or was not sampled."""
    edges_mhz = _levels(gpus)
    if edges_mhz is None:
        return None
    names = sorted({phase for gpu in gpus for phase in gpu.line.phases})
    cells = [_cells(gpu, edges_mhz, [names.index(phase) for phase in gpu.line.phases], len(names)) for gpu in gpus]
    moments = np.unique(np.concatenate([each.moment for each in cells]))
    kinds = [np.searchsorted(moments, each.moment) for each in cells]
    levels = len(edges_mhz) - 1
    entering = moments // (len(RESTED) + 1) % (len(names) + len(AGES_NS) + 1) < len(names)
    chain = _learned(cells, kinds, np.where(entering, ENTERS, STAYS), levels)
    levels_of_gpus = []
    for own, kind in zip(cells, kinds, strict=True):
        seconds = _expected(own, kind, chain) * (np.diff(own.edges_ns) / 1e9)[:, None]
        levels_of_gpus.append(Levels(own.edges_ns, np.vstack([np.zeros(levels), np.cumsum(seconds, axis=0)])))
    return levels_of_gpus


def _levels(gpus: list[Seen]) -> Array | None:
    """The edges of the levels, MHz; None: there is but one with computation."""
    busy, every = [], []
    for gpu in gpus:
        at = np.searchsorted(gpu.line.edges_ns, gpu.time_ns, side="right") - 1
        inside = (at >= 0) & (at < len(gpu.line.label)) & np.isfinite(gpu.clock_mhz) & (gpu.clock_mhz > 0)
        computes = np.array([phase.how != ALONE for phase in gpu.line.phases])
        every.append(gpu.clock_mhz[inside])
        busy.append(gpu.clock_mhz[inside][computes[gpu.line.label[at[inside]]]])
    clocks = np.sort(np.concatenate(every))
    if not len(clocks) or not len(np.concatenate(busy)):
        return None
    factor = LEVEL
    while True:
        edges = [float(clocks[0])]
        while edges[-1] * factor <= clocks[-1]:
            # The next level begins at a clock that was seen.
            edges.append(float(clocks[np.searchsorted(clocks, edges[-1] * factor, side="right") :].min(initial=1e9)))
        edges = [each for each in edges if each < 1e9] + [float(clocks[-1]) + 1]
        if len(edges) - 1 <= MOST_LEVELS:
            break
        factor = 1 + (factor - 1) * 1.3
    counts = np.histogram(np.concatenate(busy), edges)[0]
    if counts.sum() == 0 or counts.max() > (1 - VARIES) * counts.sum():
        return None
    return np.array(edges)


def _cells(gpu: Seen, edges_mhz: Array, named: list[int], names: int) -> Cells:
    """`named`: the number of each of its phases among those of all GPUs, of which there are `names`."""
    line = gpu.line
    length = np.diff(line.edges_ns)
    count = np.maximum(1, np.rint(length / CELL_NS)).astype(np.int64)
    segment = np.repeat(np.arange(len(length)), count)
    number = np.arange(len(segment)) - np.repeat(np.cumsum(count) - count, count)
    start = line.edges_ns[segment] + (length[segment] * number) // count[segment]
    edges = np.append(start, line.edges_ns[-1]).astype(np.int64)
    label = line.label[segment]
    # Since when there is, or is no, computation: what a governor goes by.
    without_computation = np.array([phase.how == ALONE for phase in line.phases])
    change = np.flatnonzero(np.diff(without_computation[line.label].astype(np.int64), prepend=-1))
    since = line.edges_ns[change][np.searchsorted(change, segment, side="right") - 1]
    age = np.searchsorted(AGES_NS, start - since, side="right")
    rest = np.concatenate([[0], np.cumsum(np.where(without_computation[label], np.diff(edges), 0))]).astype(np.float64)
    x = (edges - edges[0]).astype(np.float64)
    before = np.interp(np.maximum(x[:-1] - RESTED_NS, 0), x, rest)
    rested = np.searchsorted(RESTED, (rest[:-1] - before) / RESTED_NS, side="right")
    own = np.array(named)[label]
    entered = np.concatenate([[-1], own[:-1]])
    first = (number == 0) & (entered >= 0)
    ages, rests = len(AGES_NS) + 1, len(RESTED) + 1
    moment = np.where(first, entered, names + age)
    moment = (own * (names + ages) + moment) * rests + rested
    seen = np.full(len(label), -1, np.int64)
    sound = np.isfinite(gpu.clock_mhz) & (gpu.clock_mhz >= edges_mhz[0]) & (gpu.clock_mhz < edges_mhz[-1])
    at = np.searchsorted(edges, gpu.time_ns, side="right") - 1
    sound &= (at >= 0) & (at < len(label))
    seen[at[sound]] = np.searchsorted(edges_mhz, gpu.clock_mhz[sound], side="right") - 1
    return Cells(edges, moment, seen)


def _learned(cells: list[Cells], kinds: list[Numbers], stays: Array, levels: int) -> Array:
    """Probabilities of each level after each other, shape (moments, levels, levels)."""
    pairs = [(own, kind, *_intervals(own)) for own, kind in zip(cells, kinds, strict=True)]
    every = sum(len(first) for _, _, first, _ in pairs)
    stride = max(1, -(-every // LEARNED))
    moments = len(stays)
    usual = np.ones((moments, levels))
    for own, kind in zip(cells, kinds, strict=True):
        known = own.seen >= 0
        np.add.at(usual, (kind[known], own.seen[known]), 1.0)
    usual /= usual.sum(axis=1, keepdims=True)
    expected = stays[:, None, None] * np.eye(levels) + (1 - stays[:, None, None]) * usual[:, None, :]
    chain = expected
    for _ in range(ROUNDS):
        counts = np.zeros((moments, levels * levels))
        for own, kind, first, last in pairs:
            for chosen in _chunks(first[::stride], last[::stride]):
                _bridge(own, kind, chain, first[::stride][chosen], last[::stride][chosen], counts, None)
        chain = counts.reshape(moments, levels, levels) + FEW / levels * expected
        chain = chain / chain.sum(axis=2, keepdims=True)
    return np.asarray(chain, dtype=np.float64)


def _intervals(own: Cells) -> tuple[Numbers, Numbers]:
    """First and last cell between samples."""
    at = np.flatnonzero(own.seen >= 0)
    first, last = at[:-1], at[1:]
    short = last - first <= MOST_CELLS
    return first[short], last[short]


def _chunks(first: Numbers, last: Numbers) -> list[Numbers]:
    """Intervals of about the same length together."""
    order = np.argsort(last - first, kind="stable")
    return [order[n : n + CHUNK] for n in range(0, len(order), CHUNK)]


def _bridge(
    own: Cells, kind: Numbers, chain: Array, first: Numbers, last: Numbers, counts: Array | None, likely: Array | None
) -> None:
    """Between samples: transitions are added to `counts`, probabilities of each level of each cell go to `likely`."""
    levels = chain.shape[1]
    length = last - first
    most = int(length.max())
    unit = np.eye(levels)
    # Shorter intervals end before: what follows them changes nothing any more.
    backward = np.empty((most + 1, len(first), levels))
    steps: list[Array] = []
    backward[most] = unit[own.seen[last]]
    for n in range(most, 0, -1):
        live = n <= length
        step = np.where(live[:, None, None], chain[kind[np.minimum(first + n, last)]], unit)
        steps.append(step)
        past = np.einsum("nab,nb->na", step, backward[n])
        backward[n - 1] = past / past.sum(axis=1, keepdims=True)
    steps.reverse()
    forward = unit[own.seen[first]]
    for n in range(1, most + 1):
        live = n <= length
        if counts is not None:
            both = forward[:, :, None] * steps[n - 1] * backward[n][:, None, :]
            both = (both / np.maximum(both.sum(axis=(1, 2), keepdims=True), 1e-300)).reshape(len(first), -1)[live]
            moment = kind[(first + n)[live]]
            order = np.argsort(moment, kind="stable")
            begin = np.flatnonzero(np.diff(moment[order], prepend=-1))
            counts[moment[order][begin]] += np.add.reduceat(both[order], begin, axis=0)
        forward = np.einsum("na,nab->nb", forward, steps[n - 1])
        forward /= forward.sum(axis=1, keepdims=True)
        if likely is not None:
            share = forward * backward[n]
            likely[(first + n)[live]] = (share / share.sum(axis=1, keepdims=True))[live]


def _expected(own: Cells, kind: Numbers, chain: Array) -> Array:
    """How likely each level is in each cell, shape (cells, levels)."""
    levels = chain.shape[1]
    likely = np.full((len(own.moment), levels), np.nan)
    first, last = _intervals(own)
    for chosen in _chunks(first, last):
        _bridge(own, kind, chain, first[chosen], last[chosen], None, likely)
    known = own.seen >= 0
    likely[known] = np.eye(levels)[own.seen[known]]
    # Before the first sample, behind the last and where samples are missing: as usual at such moments.
    lacking = ~np.isfinite(likely[:, 0])
    usual = np.full((chain.shape[0], levels), 1e-9)
    np.add.at(usual, kind[~lacking], likely[~lacking])
    likely[lacking] = (usual / usual.sum(axis=1, keepdims=True))[kind[lacking]]
    return likely
