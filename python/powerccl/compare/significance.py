# SPDX-License-Identifier: Apache-2.0
"""Whether a figure differs between two sides, or only by chance.

Several runs of a side are compared run by run, so the interval covers what changes from start to start. With one run
of each side it covers only what varies within a run; `basis` says which of the two it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from powerccl.quantities import plural

_Numbers = np.ndarray[tuple[int], np.dtype[np.float64]]
LOWER, HIGHER, SAME, UNKNOWN = "lower", "higher", "no significant change", "not known"
# Ranges of four values each, drawn from one distribution, are disjoint in 2 of C(8, 4) = 70 cases. With three each it
# is 1 in 10, more than the 1 in 20 of a 95 % interval.
FEWEST_IN_RANGE = 4
# Fifths of what was repeated within a run. Fewer leave the spread unknown, more are too short to show slow noise. With
# half as many repeats, a fifth has two of them, and counts one unusual repeat for a slow change.
FIFTHS, FIFTHS_FROM = 5, 25


class Value(msgspec.Struct, kw_only=True, frozen=True):
    """A figure of one run, with what is known of its spread: None where nothing is.

    `kind` says what low and high are: `interval` (95 % of the figure), `range` (least and greatest of `n`), `` (none).
    `of` names what was counted: iterations, operations, stretches.
    `fifths`: means over the fifths of the run, in their order; empty: too little was repeated.
    """

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 1
    kind: str = ""
    of: str = ""
    fifths: tuple[float, ...] = ()


class Cell(msgspec.Struct, kw_only=True):
    """A figure of one side: the mean of its runs. low and high as in Value, or the 95 % interval over several runs."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0  # of what the interval rests on
    of: str = ""  # runs, iterations, operations, stretches


class Change(msgspec.Struct, kw_only=True):
    """A side against the baseline. None: not known."""

    pct: float | None = None
    low_pct: float | None = None  # 95 %
    high_pct: float | None = None
    verdict: str = UNKNOWN  # lower, higher, no significant change, not known: no spread to judge by
    basis: str = ""  # what the interval rests on, or why there is none
    of_settings: bool = False  # judged over several runs; else it says that these two runs differ, not why


def cell(values: Sequence[Value]) -> Cell:
    """A side's runs as one figure."""
    if not values:
        return Cell()
    if len(values) == 1:
        only = values[0]
        return Cell(value=only.value, low=only.low, high=only.high, n=only.n, of=only.of)
    numbers = np.array([each.value for each in values])
    mean = float(numbers.mean())
    positive = bool((numbers > 0).all())  # then what varies is a factor, and no end of the interval is below 0
    scale = np.log(numbers) if positive else numbers
    half = quantile(len(numbers) - 1) * float(scale.std(ddof=1)) / math.sqrt(len(numbers))
    low, high = float(scale.mean()) - half, float(scale.mean()) + half
    if positive:
        low, high = math.exp(low), math.exp(min(high, 700.0))
    return Cell(value=mean, low=low, high=high, n=len(numbers), of="runs")


def change(before: Sequence[Value], after: Sequence[Value]) -> Change:
    """How `after` differs from `before`; each holds a value a run."""
    if not before or not after:
        return Change(basis="not known of both")
    first = float(np.mean([each.value for each in before]))
    second = float(np.mean([each.value for each in after]))
    if first == 0:
        return Change(basis="the baseline is 0")
    pct = (second / first - 1) * 100
    if len(before) == len(after) == 1:
        return _within(before[0], after[0], pct)
    return _between([each.value for each in before], [each.value for each in after], pct)


def _between(before: Sequence[float], after: Sequence[float], pct: float) -> Change:
    """Several runs of at least one side: Welch's t on logarithms, since what differs is a factor."""
    if min(*before, *after) <= 0:
        return Change(pct=pct, basis="values of 0 or less")
    first, second = np.log(before), np.log(after)
    counts = len(first), len(second)
    if min(counts) > 1:
        of_logs = [Moments(len(logs), float(logs.mean()), float(logs.var(ddof=1))) for logs in (first, second)]
        return welch(of_logs[0], of_logs[1], pct)
    # One run of one side: as far from the others' mean as another one of them might be.
    several = first if len(first) > 1 else second
    error = float(several.std(ddof=1)) * math.sqrt(1 + 1 / len(several))
    basis = f"{counts[0]} against {plural(counts[1], 'run')}, the single run is taken to vary as the others do"
    return _of_runs(pct, float(second.mean() - first.mean()), quantile(len(several) - 1) * error, basis)


class Moments(NamedTuple):
    """Logarithms of a figure of several runs: how many, their mean and their variance (of a sample)."""

    n: int
    mean: float
    variance: float


def welch(before: Moments, after: Moments, pct: float | None = None) -> Change:
    """How a figure of at least two runs a side changed. `pct`: of the means; None: of the geometric means."""
    parts = [side.variance / side.n for side in (before, after)]
    total = sum(parts)
    squares = sum(part**2 / (side.n - 1) for part, side in zip(parts, (before, after), strict=True))
    freedom = total**2 / squares if squares else 1e9
    difference = after.mean - before.mean
    basis = f"{before.n} against {plural(after.n, 'run')}"
    return _of_runs(_pct(difference) if pct is None else pct, difference, quantile(freedom) * math.sqrt(total), basis)


def _of_runs(pct: float, difference: float, half: float, basis: str) -> Change:
    change = judged(pct, difference - half, difference + half, basis)
    change.of_settings = True
    return change


def _within(before: Value, after: Value, pct: float) -> Change:
    """One run each."""
    if not before.kind or not after.kind or min(before.value, after.value) <= 0:
        return Change(pct=pct, basis="one value each: name several runs per side, A1,A2,A3")
    if None in (before.low, before.high, after.low, after.high) or before.kind != after.kind:
        return Change(pct=pct, basis="one value each: name several runs per side, A1,A2,A3")
    lows = before.low or 0.0, after.low or 0.0
    highs = before.high or 0.0, after.high or 0.0
    basis = f"{before.n} against {after.n} {before.of} of one run each"
    if before.kind == "range":
        if min(before.n, after.n) < FEWEST_IN_RANGE:
            return Change(pct=pct, basis=f"{min(before.n, after.n)} {before.of} are too few to judge")
        if min(lows) <= 0:
            return Change(pct=pct, basis="values of 0 or less")
        return judged(pct, math.log(lows[1] / highs[0]), math.log(highs[1] / lows[0]), basis)
    if min(before.n, after.n) < 2:
        return Change(pct=pct, basis="one value each: name several runs per side, A1,A2,A3")
    relative = [(high - low) / 2 / each.value for low, high, each in zip(lows, highs, (before, after), strict=True)]
    half = math.hypot(*relative)  # both are 95 % intervals: their difference's is as wide as both at right angles
    difference = math.log(after.value / before.value)
    return judged(pct, difference - half, difference + half, basis)


def judged(pct: float, low: float, high: float, basis: str) -> Change:
    """A change whose logarithm is between low and high."""
    verdict = HIGHER if low > 0 else LOWER if high < 0 else SAME
    return Change(pct=pct, low_pct=_pct(low), high_pct=_pct(high), verdict=verdict, basis=basis)


def _pct(logarithm: float) -> float:
    return math.expm1(min(logarithm, 700.0)) * 100


def mean_of(numbers: Sequence[float], of: str) -> Value | None:
    """The mean of what was repeated within one run, with its 95 % interval; None of nothing.

    The repeats are taken as independent. Neighbours that resemble each other make the true interval wider: it is
    computed over stretches of neighbours where there are enough of them.
    """
    if not len(numbers):
        return None
    array = np.asarray(numbers, float)
    mean = float(array.mean())
    if len(array) < 2:
        return Value(value=mean, of=of)
    blocks = _blocks(array, 20) if len(array) >= 40 else array
    half = quantile(len(blocks) - 1) * float(blocks.std(ddof=1)) / math.sqrt(len(blocks))
    fifths = tuple(_blocks(array, FIFTHS).tolist()) if len(array) >= FIFTHS_FROM else ()
    return Value(value=mean, low=mean - half, high=mean + half, n=len(array), kind="interval", of=of, fifths=fifths)


def _blocks(array: _Numbers, count: int) -> _Numbers:
    """Means of so many stretches of neighbours."""
    length = len(array) // count
    means: _Numbers = array[: length * count].reshape(count, length).mean(axis=1)
    return means


def median_of(median: float, quarter: float, three_quarters: float, n: int, of: str) -> Value:
    """A median known with its quartiles: 1.82 quartile distances over the root of n to each side.

    A median's standard error is 1.253 times a mean's, and the quartiles of a normal distribution are 1.349 apart.
    """
    if n < 5:
        return Value(value=median, n=n, of=of)
    half = 1.96 * 1.253 / 1.349 * (three_quarters - quarter) / math.sqrt(n)
    return Value(value=median, low=median - half, high=median + half, n=n, kind="interval", of=of)


def quantile(freedom: float) -> float:
    """97.5 % quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(max(freedom, 1.0), 0.975))
