# SPDX-License-Identifier: Apache-2.0
"""What computation alone draws, measured up to where a power limit cuts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
