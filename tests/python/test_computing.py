# SPDX-License-Identifier: Apache-2.0
"""What computation alone draws: measured up to where a power limit cuts it, and what a prediction makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_whatif import finer_platform, follows

from powerccl.analysis.whatif.platform import ClockPlatform
from powerccl.errors import PowercclError
from powerccl.launch import computing

CLOCKS = [1590, 1050, 900, 450]


class Bench:
    """100 W a GHz at a clock that is no higher than 1100 MHz."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, arguments: list[str]) -> None:
        assert Path(arguments[1]).read_text().startswith("compute")
        mhz = int(arguments[arguments.index("--clocks") + 1])
        self.asked.append(mhz)
        clock = min(mhz, 1100)
        each = {"warmup": False, "step_ms": 200.0, "joules_per_gpu": clock / 1000 * 100 * 0.2, "sm_clock_mhz": clock}
        cold = each | {"warmup": True, "joules_per_gpu": 1.0}
        Path(arguments[arguments.index("--json") + 1]).write_text(json.dumps({"results": [cold, each, each]}))


def test_clocks_are_measured_up_to_the_first_that_a_limit_cuts(tmp_path: Path) -> None:
    bench = Bench()
    found = computing.measure(bench, [2000, *CLOCKS], tmp_path, "measured")
    assert [(point.clock_mhz, point.watts) for point in found] == [(450, 45.0), (900, 90.0), (1050, 105.0)]
    assert bench.asked == [450, 900, 1050, 1590]
    assert {point.provenance for point in found} == {"measured"}


def test_what_was_measured_before_is_kept(tmp_path: Path) -> None:
    class Fails(Bench):
        def __call__(self, arguments: list[str]) -> None:
            super().__call__(arguments)
            if len(self.asked) == 2:
                raise PowercclError("the lease is gone", "")

    with pytest.raises(PowercclError):
        computing.measure(Fails(), CLOCKS, tmp_path, "measured")
    with (tmp_path / "computing.jsonl").open("a") as file:
        file.write("[900, 9")  # cut off
    bench = Bench()
    found = computing.measure(bench, CLOCKS, tmp_path, "measured")
    assert bench.asked == [900, 1050, 1590]
    assert [point.clock_mhz for point in found] == [450, 900, 1050]


def test_power_that_was_not_measured_is_none() -> None:
    each = {"warmup": False, "step_ms": 200.0, "joules_per_gpu": None, "sm_clock_mhz": 900}
    assert computing.watts_at({"results": [each]}, 900) is None
    assert computing.watts_at({"results": []}, 900) is None


def computed(on: ClockPlatform, floor_w: float, *clocks: float) -> ClockPlatform:
    """The same with computation's power, of which a hundred watts follow the clock."""
    top_w = float(next(iter(next(iter(on.curves.values())).values())).watts[-1])
    idle_watts = floor_w + top_w * (1 - on.clock_shape.constant_share)
    points = tuple((mhz, floor_w + 100 * follows(mhz)) for mhz in clocks)
    return replace(on, idle_watts=idle_watts, computing=points)


def test_lower_clocks_are_as_computation_tells() -> None:
    on = finer_platform()
    clocks = (450.0, 600.0, 750.0, 900.0)
    # What communication says of them is off by a little, which is much of what follows the clock down there.
    wrong = {
        pattern: {
            size: replace(curve, watts=curve.watts * np.where(curve.clocks_mhz < 700, 1.004, 1.0))
            for size, curve in sizes.items()
        }
        for pattern, sizes in on.curves.items()
    }
    alone = replace(on, curves=wrong)
    told = computed(alone, 12.0, *clocks).clock_shape
    true = follows(450) / follows(900)
    assert abs(float(alone.clock_shape.at(450) / alone.clock_shape.at(900)) / true - 1) > 0.03
    assert float(told.at(450) / told.at(900)) == pytest.approx(true, rel=0.01)
    assert float(told.at(1590)) == 1.0
    # Three clocks are too few to go by.
    assert computed(alone, 12.0, *clocks[1:]).clock_shape.share.tolist() == alone.clock_shape.share.tolist()
