# SPDX-License-Identifier: Apache-2.0
"""Mean power of parts of a run, from the energy of steps that mix them.

Each step's energy is the sum over parts of seconds x watts. A part's power is the sum of three things: its features
(features.py), its phase's difference from them, and its difference from its phase. How much each may differ is
estimated from the data (restricted maximum likelihood), up to a bound. Where a power limit moves the clock, the steps'
errors are not random, and would support any difference that explains them. Parts that the steps hardly tell apart so
fall back on their
phase, and phases on what is expected of them.

Errors of sums have three parts. The first is the steps' residuals, added up over blocks of time, all GPUs in one.
Residuals that follow one another or are alike on all GPUs are not independent. The second is the pull towards expected
values; it follows from how much parts and phases differ. The third: steps may be dated wrongly by a little.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerccl.analysis.attribution.features import Features

Array = npt.NDArray[np.float64]
Ratios = tuple[float, float, float]

RATIOS = tuple(10.0**e for e in (-9.0, -8.0, -7.0, -6.0, -5.0, -4.5, -4.0, -3.5, -3.0, -2.5, -2.0, -1.0, 0.0, 2.0))
FIRST: Ratios = (0.01, 0.0001, 0.0001)
ROUNDS = 2
CLEARLY_LESS = 10.0  # of a log likelihood: further on there is nothing better
OWN = 0.1  # of its variance is each part's own
WEAK = 1.0  # of the mean power: standard deviation of what is expected before anything was measured
# Of the mean power, standard deviations: how much parts (quiet, computing) and phases differ from what is expected of
# them at most.
MOST = (0.05, 0.1, 0.03)
LAGS = 3  # steps before, whose power may predict this one's
STRAY = 6.0  # standard deviations from which on a step is a misreading
MOST_STRAYS = 0.05


@dataclass(frozen=True)
class Steps:
    """One GPU's steps: `seconds` (steps, columns), `joules`, `begin_ns`.

    The first `parts` columns are parts of `phase`, the others what a phase draws more where it is stretched. `quiet`:
    of each column, that nothing computes.
    """

    seconds: Array
    joules: Array
    begin_ns: npt.NDArray[np.int64]
    phase: npt.NDArray[np.int64]
    parts: int
    quiet: npt.NDArray[np.bool_]
    where: Array  # of each part, in units over which power differs; NaN: not known
    features: Features  # what the power of parts is expected to be made of

    def mean_watts(self) -> float:
        """Of all steps."""
        return float(self.joules.sum() / max(float(self.seconds[:, : self.parts].sum()), 1e-12))

    def plain(self) -> Steps:
        """Without what a phase draws more where it is stretched, and the like."""
        cut = slice(0, self.parts)
        return Steps(
            self.seconds[:, cut],
            self.joules,
            self.begin_ns,
            self.phase[cut],
            self.parts,
            self.quiet[cut],
            self.where,
            self.features,
        )

    def lagged(self, left: Array) -> Steps:
        """With what the steps before drew above what was expected (`left`, J), by the time computed in this one.

        A power limit lets computation draw less after steps that drew much. It must be what was not expected: the rest
        repeats with the iteration, and would be mistaken for what runs in it.
        """
        busy = self.seconds[:, : self.parts] @ ~self.quiet[: self.parts]
        share = np.clip(left / max(float(self.joules.mean()), 1e-12), -0.2, 0.2)
        gaps = np.diff(self.begin_ns)
        usual = float(np.median(gaps)) if len(gaps) else 0.0
        lagged = np.zeros((len(left), LAGS))
        for lag in range(1, min(LAGS, len(left) - 1) + 1):
            near = self.begin_ns[lag:] - self.begin_ns[:-lag] < (lag + 0.5) * usual
            lagged[lag:, lag - 1] = np.where(near, share[:-lag], 0.0)
        return Steps(
            np.hstack([self.seconds, busy[:, None] * lagged]),
            self.joules,
            self.begin_ns,
            np.append(self.phase, np.full(LAGS, -1)),
            self.parts,
            np.append(self.quiet, np.zeros(LAGS, np.bool_)),
            self.where,
            self.features,
        )

    def only(self, chosen: npt.NDArray[np.bool_]) -> Steps:
        """Some of the steps."""
        return Steps(
            self.seconds[chosen],
            self.joules[chosen],
            self.begin_ns[chosen],
            self.phase,
            self.parts,
            self.quiet,
            self.where,
            self.features,
        )


class Normal:
    """The normal equations of one GPU's steps around their mean power, ready for any ratios.

    A part's power is what its features make it, what its phase differs from that, and what it differs itself. These
    are unknowns of their own here: `expand` tells how columns are made of them.
    """

    def __init__(self, steps: Steps, widen: float = 1.0, noise: float | None = None) -> None:
        """`noise`: variance of a step's energy, J^2, that bounds go by; None: as these steps tell."""
        self.steps = steps
        parts = steps.parts
        names = np.unique(steps.phase[:parts])
        members = (steps.phase[:parts, None] == names[None, :]).astype(np.float64)
        more = np.zeros((steps.seconds.shape[1] - parts, len(names) + steps.features.each.shape[1]))
        rest = np.vstack([np.hstack([members, steps.features.each]), more])
        self.expand = np.hstack([np.eye(steps.seconds.shape[1]), rest])
        seconds = steps.seconds @ self.expand
        self.gram = seconds.T @ seconds
        mean = steps.mean_watts()
        self.centre = np.zeros(steps.seconds.shape[1])
        self.centre[:parts] = steps.features.expected(mean)
        left = steps.joules - steps.seconds @ self.centre
        self.cross = seconds.T @ left
        self.square = float(left @ left)
        self.scale = float(np.mean(np.diag(self.gram)[:parts]))
        guess = max(self.square / max(len(left), 1), 1e-12)
        self.weak = 0.05 * guess / max(WEAK * mean, 1e-9) ** 2
        first = steps.quiet[:parts]
        columns = steps.seconds.shape[1]
        self.groups = [np.flatnonzero(first), np.flatnonzero(~first), np.arange(columns, columns + len(names))]
        # What computes follows clocks, which change slowly against a part, whether or not something runs beside it.
        alike = np.linalg.inv(_alike(steps.where[self.groups[1]]))
        self.precisions = [np.eye(len(self.groups[0])), alike, np.eye(len(names))]
        self.drawn = np.ones(len(self.gram), np.bool_)
        self.drawn[np.concatenate(self.groups)] = False
        self.freedom = max(len(steps.joules) - steps.features.each.shape[1], 1)
        # What the steps say counts less against what is known where their noise is not chance.
        self.widen = widen
        doubt = steps.features.doubt
        self.least, self.surely = (0.0, 0.0, 0.0), np.full(len(doubt), self.weak)
        if noise is None:
            pivots = self._pivots(FIRST)
            noise = widen**2 * (self.square if pivots is None else float(pivots[-1]) ** 2) / self.freedom
        self.noise = max(noise, 1e-12)
        self.surely = np.where(np.isfinite(doubt), self.noise / np.maximum(doubt, 1e-9) ** 2, self.weak)
        quiet, computing, phases = (self.noise / (self.scale * (most * mean) ** 2) for most in MOST)
        self.least = (quiet, computing, phases)

    def penalty(self, ratios: Ratios) -> Array:
        """Noise over variance: of parts (quiet, computing) and phases; weakly of all else."""
        return self._weighed(self._bounded(ratios), self.surely)

    def pull(self, ratios: Ratios) -> Array:
        """The same with what is known weighed by its own variance: noise is counted wider against it."""
        wider = self.widen**2
        bounded = [ratio if ratio > least else wider * least for ratio, least in zip(ratios, self.least, strict=True)]
        return self._weighed(bounded, np.where(np.isfinite(self.steps.features.doubt), wider, 1.0) * self.surely)

    def _weighed(self, ratios: list[float], features: Array) -> Array:
        weights = np.diag(np.where(self.drawn, self.weak, 0.0))
        known = np.arange(len(weights) - len(features), len(weights))
        weights[known, known] = features
        for own, precision, ratio in zip(self.groups, self.precisions, ratios, strict=True):
            weights[np.ix_(own, own)] = self.scale * ratio * precision
        return weights

    def _bounded(self, ratios: Ratios) -> list[float]:
        return [max(pair) for pair in zip(ratios, self.least, strict=True)]

    def likelihood(self, ratios: Ratios) -> float:
        """Log restricted likelihood but for a constant."""
        pivots = self._pivots(ratios)
        if pivots is None:
            return -np.inf
        rest = max(float(pivots[-1]) ** 2, 1e-12)
        drawn = zip(self.groups, self._bounded(ratios), strict=True)
        own = sum(len(group) * float(np.log(ratio)) for group, ratio in drawn)
        return float(-0.5 * (self.freedom * np.log(rest) + 2 * np.log(pivots[:-1]).sum() - own))

    def _pivots(self, ratios: Ratios) -> Array | None:
        """Of the equations, and last that of what is left of the sum of squares; None: they have no solution."""
        size = len(self.gram)
        whole = np.empty((size + 1, size + 1))
        whole[:size, :size] = self.gram + self.penalty(ratios)
        whole[size, :size] = whole[:size, size] = self.cross
        whole[size, size] = self.square
        try:
            return np.asarray(np.diag(np.linalg.cholesky(whole)), dtype=np.float64)
        except np.linalg.LinAlgError:
            return None


def _alike(where: Array) -> Array:
    """Covariance of computing parts around their phase, by their distance; those of no known place are independent."""
    apart = np.abs(where[:, None] - where[None, :])
    near = np.where(np.isfinite(apart), np.exp(-np.nan_to_num(apart)), 0.0)
    return np.asarray((1 - OWN) * np.where(np.eye(len(near)) > 0, 1.0, near) + OWN * np.eye(len(near)))


def best_ratios(all_steps: list[Steps], widen: float) -> Ratios:
    """The ratios under which all GPUs' steps together are likeliest."""
    normals = [Normal(steps, widen) for steps in all_steps]
    known: dict[Ratios, float] = {}

    def likelihood(ratios: Ratios) -> float:
        if ratios not in known:
            known[ratios] = sum(normal.likelihood(ratios) for normal in normals)
        return known[ratios]

    best = FIRST
    for _ in range(ROUNDS):
        for which in (1, 2, 0):
            best = _climb(best, which, likelihood)
    return best


def _climb(start: Ratios, which: int, likelihood: Callable[[Ratios], float]) -> Ratios:
    """The likeliest with another of its three, up and down from where it is until that is clearly less likely."""
    best = start
    for side in (
        [each for each in RATIOS if each >= start[which]],
        [each for each in reversed(RATIOS) if each < start[which]],
    ):
        for ratio in side:
            choice = (*start[:which], ratio, *start[which + 1 :])
            if likelihood(choice) > likelihood(best):
                best = choice
            elif likelihood(choice) < likelihood(best) - CLEARLY_LESS:
                break
    return best


@dataclass(frozen=True)
class Fit:
    """`watts` of each column; the rest is for what a sum of energies may be off."""

    steps: Steps
    watts: Array
    inverse: Array  # noise aside, the covariance of watts
    pull: Array  # what of it is for being drawn to what is expected
    noise: float  # variance of a step's energy, J^2
    freedom: float  # steps less what was fitted to them
    used: npt.NDArray[np.bool_]  # of the steps that were given; the others are misreadings

    def residuals(self) -> Array:
        """Of the steps' energy, J; as large as if nothing had been fitted to them."""
        left = self.steps.joules - self.steps.seconds @ self.watts
        return np.asarray(left * np.sqrt(len(left) / max(self.freedom, 1.0)), dtype=np.float64)

    def weights(self, seconds: Array) -> Array:
        """How much each step's energy counts in the energy of so many seconds of each column."""
        return np.asarray(self.steps.seconds @ (self.inverse @ seconds), dtype=np.float64)

    def pull_variance(self, seconds: Array) -> float:
        """What being drawn to means adds to the variance of that energy, J^2."""
        return float(self.noise * (seconds @ self.pull @ seconds))


def fit(steps: Steps, ratios: Ratios, widen: float) -> Fit:
    """Watts of each column under these ratios; steps that no other step is like are left out as misreadings."""
    first = _solve(steps, ratios, widen, np.ones(len(steps.joules), np.bool_))
    left = steps.joules - steps.seconds @ first.watts
    spread = 1.4826 * float(np.median(np.abs(left - np.median(left))))
    far = np.abs(left - np.median(left)) > STRAY * max(spread, 1e-9)
    if not far.any() or far.mean() > MOST_STRAYS:
        return first
    return _solve(steps.only(~far), ratios, widen, ~far)


def _solve(steps: Steps, ratios: Ratios, widen: float, used: npt.NDArray[np.bool_]) -> Fit:
    normal = Normal(steps, widen)
    penalty = normal.penalty(ratios)
    inverse = np.linalg.inv(normal.gram + penalty)
    change = inverse @ normal.cross
    freedom = max(len(steps.joules) - float(np.trace(inverse @ normal.gram)), 1.0)
    rest = max(normal.square - float(normal.cross @ change), 1e-12)
    spread = normal.expand @ inverse
    return Fit(
        steps,
        watts=np.asarray(normal.centre + normal.expand @ change, dtype=np.float64),
        inverse=np.asarray(spread @ normal.expand.T, dtype=np.float64),
        pull=np.asarray(spread @ normal.pull(ratios) @ spread.T, dtype=np.float64),
        noise=rest / normal.freedom,
        freedom=freedom,
        used=used,
    )


def block_variance(fits: list[Fit], seconds: list[Array], blocks_ns: npt.NDArray[np.int64]) -> float:
    """Variance, J^2, of a sum over GPUs of energies, from residuals added up in blocks of time."""
    sums = np.zeros(len(blocks_ns) + 1)
    for one, each in zip(fits, seconds, strict=True):
        block = np.searchsorted(blocks_ns, one.steps.begin_ns, side="right")
        sums += np.bincount(block, one.weights(each) * one.residuals(), len(sums))
    count = max(int(np.count_nonzero(sums)), 2)
    return float((sums**2).sum() * count / (count - 1))
