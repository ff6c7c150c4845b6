# SPDX-License-Identifier: Apache-2.0
"""From replays to figures: energy and time with a policy against those without, and how far both may be off."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from powerccl.analysis import whatif_replay as replays
from powerccl.analysis.whatif_findings import Forecast, Range
from powerccl.analysis.whatif_platform import ClockPlatform
from powerccl.analysis.whatif_power import PowerModel

RESAMPLES = 400
AS_BUSY = 0.03  # idle so much more of the time than the busiest GPU, another still counts as one that the job waits for

Values = npt.NDArray[np.float64]


@dataclass
class Outcome:
    """Of one GPU under one policy: joules and ns of each block, share of time at a low clock, driver calls."""

    joules: Values
    length_ns: Values
    low: float
    switches: int


def together(outcomes: list[Outcome], idle_w: list[float], of: list[PowerModel]) -> list[Outcome]:
    """GPUs of a job end together: those that have least to wait for say when, the others idle until then."""
    least = min(m.drawn.idle_share for m in of)
    busy = [m.drawn.idle_share <= least + AS_BUSY for m in of]
    lengths = [float(o.length_ns.sum()) for o in outcomes]
    until = float(np.mean([length for length, is_busy in zip(lengths, busy, strict=True) if is_busy]))
    found = []
    for outcome, length, watts, is_busy in zip(outcomes, lengths, idle_w, busy, strict=True):
        more_ns = 0.0 if is_busy else max(0.0, until - length) / len(outcome.length_ns)
        joules = outcome.joules + more_ns * watts / 1e9
        found.append(replace(outcome, joules=joules, length_ns=outcome.length_ns + more_ns))
    return found


def outcome_of(
    replay: replays.Replay, of: PowerModel, platform: ClockPlatform, before_w: float | None = None
) -> Outcome:
    """What a replay comes to; `before_w` as for `whatif_replay.energy`."""
    joules, low = replays.energy(replay, of, platform, before_w)
    return Outcome(joules, np.diff(replay.edges_ns), low, replay.switches)


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
