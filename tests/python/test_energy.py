# SPDX-License-Identifier: Apache-2.0
"""Interval sets, energy curves and their division between communication and the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from powerccl.analysis import intervals as iv
from powerccl.analysis.energy import EnergyCurve, energy_curve, split

MS = 1_000_000
NO_POWER = np.empty(0)


def test_union_merges_overlaps_and_drops_empties() -> None:
    found = iv.union([10, 0, 12, 30, 40], [20, 5, 15, 30, 50])
    assert found.tolist() == [[0, 5], [10, 20], [40, 50]]
    assert iv.union([0, 5], [5, 9]).tolist() == [[0, 9]]  # touching ones are one
    assert iv.union([], []).tolist() == []


def test_clip_length_and_containment() -> None:
    spans = iv.union([0, 10, 20], [5, 15, 25])
    assert iv.clip(spans, 3, 21).tolist() == [[3, 5], [10, 15], [20, 21]]
    assert iv.length_ns(spans) == 15
    assert iv.contains(spans, np.array([0, 5, 12, 25, -1])).tolist() == [True, False, True, False, False]
    assert iv.covered_before(spans, np.array([-5, 0, 3, 7, 12, 100])).tolist() == [0, 0, 3, 5, 7, 15]
    assert iv.covered_before(iv.EMPTY, np.array([5])).tolist() == [0]


def ideal(end_ms: int, every_ms: int, watts: Callable[[int], float]) -> tuple[Any, Any, Any]:
    """Sample times, power (mW) and the exact counter (uJ) of a power given per ms."""
    power = np.array([watts(t) for t in range(end_ms + 1)], dtype=np.float64)
    energy = np.concatenate([[0], np.cumsum(power * 1000)])
    t = np.arange(0, end_ms + 1, every_ms)
    return (t * MS).astype(np.int64), power[t] * 1000, energy[t].astype(np.int64)


def test_counter_gives_exact_energy() -> None:
    time, power, energy = ideal(1000, 20, lambda t: 50 if t < 500 else 100)
    curve = energy_curve(time, power, energy)
    assert curve is not None
    assert curve.source == "counter"
    assert curve.update_ns == 20 * MS
    assert curve.within(np.array([[100 * MS, 900 * MS]])) == pytest.approx(20 + 40)


def test_a_slow_counter_is_dated_between_the_reads() -> None:
    time, power, exact = ideal(3000, 20, lambda t: 80)
    # Every 100 ms, at 10 ms past a read, the counter shows what it was then.
    shown = np.array([exact[0] + 80_000 * (t // MS - (t // MS - 10) % 100) if t else 0 for t in time], dtype=np.int64)
    curve = energy_curve(time, power, np.maximum.accumulate(np.maximum(shown, 0)))
    assert curve is not None
    assert curve.update_ns == 100 * MS
    assert curve.within(np.array([[1000 * MS, 2000 * MS]])) == pytest.approx(80, rel=0.02)


def test_a_counter_read_seldom_scales_the_power_samples() -> None:
    time, power, exact = ideal(10_000, 20, lambda t: 50 if t % 2000 < 1000 else 100)
    seldom = np.full(len(exact), -1, dtype=np.int64)
    seldom[::70] = exact[::70]
    seldom[-1] = exact[-1]
    curve = energy_curve(time, power * 0.9, seldom)  # a board whose power reading is 10 % low
    assert curve is not None
    assert curve.source == "power+counter"
    assert curve.within(np.array([[2000 * MS, 3000 * MS]])) == pytest.approx(50, rel=0.03)
    assert curve.within(np.array([[3000 * MS, 4000 * MS]])) == pytest.approx(100, rel=0.03)
    assert curve.within(np.array([[0, 10_000 * MS]])) == pytest.approx(750, rel=0.001)


@pytest.mark.parametrize(
    ("end_ms", "gain", "source"), [(10_000, 5.0, "counter"), (10_000, 0.1, "counter"), (1000, 0.9, "power+counter")]
)
def test_a_seldom_counter_is_the_truth_whatever_power_says(end_ms: int, gain: float, source: str) -> None:
    time, power, exact = ideal(end_ms, 20, lambda t: 60)
    seldom = np.full(len(exact), -1, dtype=np.int64)
    seldom[[0, len(exact) // 2, -1]] = exact[[0, len(exact) // 2, -1]]
    curve = energy_curve(time, power * gain, seldom)
    assert curve is not None
    assert curve.source == source
    assert curve.within(np.array([[0, end_ms * MS]])) == pytest.approx(60 * end_ms / 1000)


@pytest.mark.parametrize("every_ms", [20, 100, 500, 2000, 10_000])
@pytest.mark.parametrize("update_ms", [1, 100])
@pytest.mark.parametrize("power_known", [True, False])
def test_nothing_between_the_first_and_the_last_reading_is_dropped(
    every_ms: int, update_ms: int, power_known: bool
) -> None:
    for end_ms in (300, 2500, 12_345):
        _, power, exact = ideal(end_ms, 1, lambda t: 50 if t % 700 < 300 else 300)
        at = np.unique(np.append(np.arange(0, end_ms + 1, every_ms), end_ms))
        shown = exact[at // update_ms * update_ms]
        curve = energy_curve(at * MS, power[at] if power_known else np.full(len(at), np.nan), shown)
        assert curve is not None
        assert curve.within(np.array([[0, end_ms * MS]])) == pytest.approx((shown[-1] - shown[0]) / 1e6)


def test_a_counter_that_is_lost_scales_the_power_that_goes_on() -> None:
    time, power, energy = ideal(8000, 20, lambda t: 50 if t % 400 < 200 else 250)
    energy[len(energy) * 5 // 8 :] = -1
    curve = energy_curve(time, power * 0.9, energy)
    assert curve is not None and curve.source == "counter+power"
    assert curve.within(np.array([[0, 8000 * MS]])) == pytest.approx(150 * 8, rel=0.005)


def test_without_a_counter_power_is_integrated() -> None:
    time, power, _ = ideal(1000, 20, lambda t: 60)
    curve = energy_curve(time, power, np.full(len(time), -1))
    assert curve is not None
    assert curve.source == "power"
    assert curve.joules[-1] == pytest.approx(60)


def test_a_counter_that_stands_or_goes_back_is_not_trusted() -> None:
    time, power, energy = ideal(1000, 20, lambda t: 60)
    assert energy_curve(time, power, np.full(len(time), 5)).source == "power"  # type: ignore[union-attr]
    energy[30] = 0
    assert energy_curve(time, power, energy).source == "power"  # type: ignore[union-attr]


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_samples_are_no_curve(count: int) -> None:
    time = np.arange(count, dtype=np.int64)
    assert energy_curve(time, np.full(count, 5e4), np.full(count, -1)) is None


def test_samples_that_say_nothing_are_no_curve() -> None:
    time = np.arange(10, dtype=np.int64) * MS
    assert energy_curve(time, np.full(10, np.nan), np.full(10, -1)) is None


def test_mixed_steps_are_divided_by_the_power_of_pure_ones() -> None:
    # 45 W in communication, 90 W elsewhere, edges in the middle of sampling steps.
    def watts(t: int) -> float:
        return 45 if t % 200 >= 110 else 90

    time, power, energy = ideal(4000, 20, watts)
    curve = energy_curve(time, power, energy)
    assert curve is not None
    spans = np.array([[(k * 200 + 110) * MS, (k + 1) * 200 * MS] for k in range(20)], dtype=np.int64)
    exact = 20 * 0.090 * 45
    attribution = split(curve, spans)
    assert attribution.resolved
    assert attribution.curve.within(spans) == pytest.approx(exact, rel=0.005)
    assert curve.within(spans) - exact > exact * 0.02  # what splitting mends
    assert attribution.uncertainty_joules == pytest.approx(curve.within(spans) - exact, rel=0.3)
    assert attribution.curve.joules[-1] == pytest.approx(curve.joules[-1])


def test_communication_shorter_than_samples_is_not_resolved() -> None:
    time, power, energy = ideal(2000, 20, lambda t: 60)
    curve = energy_curve(time, power, energy)
    assert curve is not None
    spans = np.array([[k * 20 * MS + 5 * MS, k * 20 * MS + 10 * MS] for k in range(100)], dtype=np.int64)
    attribution = split(curve, spans)
    assert not attribution.resolved
    assert attribution.curve is curve
    assert attribution.uncertainty_joules > 0


def test_intervals_outside_the_curve_add_nothing() -> None:
    curve = EnergyCurve(np.array([0, 100], dtype=np.int64), np.array([0.0, 5.0]), "power", 1, 1)
    assert curve.within(np.array([[200, 300]])) == 0
    assert split(curve, np.array([[200, 300]])).uncertainty_joules == 0
