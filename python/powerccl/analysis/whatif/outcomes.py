# SPDX-License-Identifier: Apache-2.0
"""From replays to figures: energy and time with a policy against those without, and how far both may be off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerccl.analysis.whatif.findings import Forecast, Range
from powerccl.analysis.whatif.joules import Doing, energy
from powerccl.analysis.whatif.platform import ClockPlatform
from powerccl.analysis.whatif.power import PowerModel

RESAMPLES = 400

Values = npt.NDArray[np.float64]


@dataclass
class Outcome:
    """Of one GPU under one policy: joules and ns of each block, share of time at a low clock, driver calls."""

    joules: Values
    length_ns: Values
    low: float
    switches: int


def outcome_of(doing: Doing, of: PowerModel, platform: ClockPlatform, before_w: float | None = None) -> Outcome:
    """What it comes to; `before_w` as for `joules.energy`."""
    joules, low = energy(doing, of, platform, before_w)
    return Outcome(joules, np.diff(doing.edges_ns), low, doing.switches)


def forecast_of(
    policy: str,
    before: list[Outcome],
    sweep: list[list[Outcome]],
    spread_pct: float,
    doubt_pct: float,
    budget_pct: float,
) -> Forecast:
    """`sweep[0]` is the prediction, the others what it would be under other assumptions."""
    saved = _figure([o.joules for o in before], [[o.joules for o in s] for s in sweep], -1.0)
    slower = _figure([o.length_ns for o in before], [[o.length_ns for o in s] for s in sweep], 1.0)
    # Half of what a GPU draws while it communicates is not what the policy changes, so this is an upper bound.
    saved = _widened(saved, np.hypot(spread_pct, abs(saved.value) * doubt_pct / 100))
    after = sweep[0]
    after_s = sum(float(o.length_ns.sum()) for o in after) / 1e9
    before_s = sum(float(o.length_ns.sum()) for o in before) / 1e9
    watts = sum(float(o.joules.sum()) for o in before) / before_s - sum(float(o.joules.sum()) for o in after) / after_s
    return Forecast(
        policy=policy,
        saved_pct=saved,
        slowdown_pct=slower,
        saved_watts=round(watts, 3),
        low_clock_pct=round(float(np.mean([o.low for o in after])) * 100, 2),
        switches_per_s=round(sum(o.switches for o in after) / after_s, 3),
        within_budget=slower.value <= budget_pct,
    )


def _figure(before: list[Values], sweep: list[list[Values]], sign: float) -> Range:
    """The change in percent, times `sign`: blocks resampled, and the other assumptions' distance, in quadrature."""
    old = np.sum(before, axis=0)
    values = [sign * (float(np.sum(of)) / float(old.sum()) - 1) * 100 for of in sweep]
    new = np.sum(sweep[0], axis=0)
    random = np.random.default_rng(0)
    picks = random.integers(0, len(old), (RESAMPLES, len(old)))
    drawn = sign * (new[picks].sum(axis=1) / old[picks].sum(axis=1) - 1) * 100
    low, high = np.percentile(drawn, [2.5, 97.5])
    below = np.hypot(values[0] - low, max(0.0, values[0] - min(values)))
    above = np.hypot(high - values[0], max(0.0, max(values) - values[0]))
    return Range(round(values[0], 3), round(float(values[0] - below), 3), round(float(values[0] + above), 3))


def _widened(figure: Range, by: float) -> Range:
    below, above = np.hypot(figure.value - figure.low, by), np.hypot(figure.high - figure.value, by)
    return Range(figure.value, round(float(figure.value - below), 3), round(float(figure.value + above), 3))
