# SPDX-License-Identifier: Apache-2.0
"""Figures as bench/results keeps them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.figures import confirmed, figure


@pytest.mark.parametrize(
    ("values", "low", "value", "high"),
    [
        ([7.0], 7.0, 7.0, 7.0),
        ([3.0, 1.0, 2.0], 1.0, 2.0, 3.0),
        ([1.0, 2.0, 3.0, 4.0, 100.0], 2.0, 3.0, 4.0),
    ],
)
def test_quartiles_are_among_the_values(values: list[float], low: float, value: float, high: float) -> None:
    assert figure(values, "s") == {"value": value, "unit": "s", "low": low, "high": high, "n": len(values)}


def test_what_tune_confirmed_has_its_interval_the_right_way_round() -> None:
    case = {"time": 0.8, "time_low": 0.5, "time_high": 1.0, "energy": 0.9, "energy_low": 0.85, "energy_high": 0.95}
    found = confirmed("tune.x", {**case, "rounds": 9})
    assert found["tune.x.speedup"] == {"value": 1.25, "unit": "times", "low": 1.0, "high": 2.0, "n": 9}
    assert found["tune.x.energy_saved_pct"] == {"value": 10.0, "unit": "%", "low": 5.0, "high": 15.0, "n": 9}
    assert list(confirmed("tune.x", {**case, "energy": None, "rounds": 9})) == ["tune.x.speedup"]
