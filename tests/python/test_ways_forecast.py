# SPDX-License-Identifier: Apache-2.0
"""What other ways would save in a recorded iteration, against figures by hand."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from test_programs import Tables

from powerccl.analysis.energy import EnergyCurve
from powerccl.errors import PowercclError
from powerccl.platforms.ways import COPY_ENGINE, PLAIN, WayPoint, WaysTable
from powerccl.ways.forecast import Forecaster, predict_best, ways_what_if

SIZE = 1 << 20
KEY = ("all_gather", SIZE)
WATTS = 500.0


def point(way: str, beside: str, time_us: float, joules: float, added_us: float | None = None) -> WayPoint:
    kinds = {"added_us": added_us, "added_joules_per_gpu": joules} if beside else {"joules_per_gpu": joules}
    return WayPoint(pattern="all_gather", size_bytes=SIZE, way=way, beside=beside, time_us=time_us, **kinds)


# By itself the other way takes 100 us less of 1000; beside computation it costs 60 us instead of 200.
POINTS = [
    point(PLAIN, "", 1000.0, 0.3),
    point(PLAIN, "matmul", 1000.0, 0.2, 200.0),
    point(COPY_ENGINE, "", 900.0, 0.25),
    point(COPY_ENGINE, "matmul", 900.0, 0.1, 60.0),
]


def table(points: list[WayPoint], gpus: int = 2) -> WaysTable:
    return WaysTable(name="here", gpu="NVIDIA H200", gpus=gpus, emulated=False, provenance="a test", points=points)


def curve() -> EnergyCurve:
    """One GPU at a constant power."""
    times = np.array([0, 2_000_000_000], dtype=np.int64)
    return EnergyCurve(times, times / 1e9 * WATTS, "counter", 1e6, 1e8)


def forecaster(
    points: list[WayPoint] = POINTS,
    gpus: int = 2,
    symmetric: bool = False,
    curves: dict[str, EnergyCurve] | None = None,
    limit_w: float | None = None,
) -> Forecaster:
    calls, kernels, waits = Tables().tables
    calls = calls.with_columns(symmetric=pl.lit(symmetric), copy_engine=pl.lit(value=False))
    return Forecaster(calls, kernels, waits, curves or {}, table(points, gpus), limit_w)


def test_time_follows_from_what_waits_and_what_is_slowed() -> None:
    """1300 us: 300 of computation, then the collective, and beside it the computation that it slows."""
    found = forecaster()
    (forecast,) = ways_what_if(found).forecasts
    assert found.program.work_us == pytest.approx(860.0)
    assert [(each.pattern, each.way, each.calls) for each in forecast.chosen] == [("all_gather", COPY_ENGINE, 1)]
    assert forecast.time_saved_pct[0] == pytest.approx(100 * 100 / 1300)
    assert forecast.time_saved_pct[0] == forecast.time_saved_pct[1]
    assert forecast.energy_saved_pct is None


def test_energy_is_that_of_the_collectives_and_of_the_rest_of_the_time() -> None:
    found = forecaster(curves={"GPU-0": curve(), "GPU-1": curve()})
    assert found.joules == pytest.approx(2 * WATTS * 1300e-6)
    (forecast,) = ways_what_if(found).forecasts
    assert forecast.energy_saved_pct is not None
    beside = (0.7 + 560.0 / (1 - 60 / 900) / 900) / 2  # of the collective, before and after
    collective_us = beside * 140 + (1 - beside) * 100
    joules = beside * 0.1 + (1 - beside) * 0.05
    rest_us = 1300 * forecast.time_saved_pct[0] / 100 - collective_us
    saved = 2 * (joules + rest_us / 1e6 * 0.3 / 1000e-6)  # a GPU that waits draws what plain collectives do
    assert forecast.energy_saved_pct[0] == pytest.approx(100 * saved / (2 * WATTS * 1300e-6), rel=1e-3)


def test_gpus_at_their_power_limit_save_as_much_energy_as_time() -> None:
    """Two H200s that trained at 692 of 700 W saved 11.3 % of the time and 11.0 % of the energy."""
    curves = {"GPU-0": curve(), "GPU-1": curve()}
    found = ways_what_if(forecaster(curves=curves, limit_w=2 * WATTS / 0.98))
    assert found.power_limited
    assert found.forecasts[0].energy_saved_pct == pytest.approx(found.forecasts[0].time_saved_pct)
    assert not ways_what_if(forecaster(curves=curves, limit_w=2 * WATTS / 0.96)).power_limited


def test_no_gpu_draws_more_than_its_limit_in_the_mean() -> None:
    """The job that takes less time draws more power, up to the limit."""
    cheap = [*POINTS[:2], point(COPY_ENGINE, "", 800.0, 0.299), point(COPY_ENGINE, "matmul", 800.0, 0.199, 60.0)]
    limit_w = 2 * WATTS / 0.96
    curves = {"GPU-0": curve(), "GPU-1": curve()}
    free, held = (ways_what_if(forecaster(cheap, curves=curves, limit_w=w)).forecasts[0] for w in (None, limit_w))
    assert free.energy_saved_pct is not None
    assert held.energy_saved_pct is not None
    assert free.energy_saved_pct[0] < held.energy_saved_pct[0]
    left = (1 - held.energy_saved_pct[0] / 100) / (1 - held.time_saved_pct[0] / 100)
    assert left == pytest.approx(1 / 0.96)


def test_a_way_that_costs_time_is_not_the_best() -> None:
    slower = [*POINTS[:2], point(COPY_ENGINE, "", 1200.0, 0.1), point(COPY_ENGINE, "matmul", 1200.0, 0.1, 300.0)]
    found = forecaster(slower)
    assert found.best() == {}
    assert found.automatic() == {}
    assert found.forecast("", {KEY: COPY_ENGINE}).time_saved_pct[0] < -5


def test_what_the_table_lacks_stays_as_it_is() -> None:
    found = ways_what_if(forecaster(gpus=4))
    assert found.unmeasured == 1
    assert found.forecasts[0].chosen == []
    assert found.forecasts[0].time_saved_pct == (0.0, 0.0)


def test_a_call_that_went_another_way_already_stays() -> None:
    assert ways_what_if(forecaster(symmetric=True)).unmeasured == 1


def test_a_table_without_computation_is_refused() -> None:
    with pytest.raises(PowercclError, match="not measured beside computation"):
        forecaster([each for each in POINTS if not each.beside])


def test_surroundings_make_a_range() -> None:
    """Beside memory traffic the other way, too, is held up: by half of what plain is."""
    points = [
        *(point(PLAIN, beside, 1000.0 if beside else 800.0, 0.2, 200.0) for beside in ("", "matmul", "memory")),
        *(point(COPY_ENGINE, beside, 700.0, 0.1, 60.0) for beside in ("", "matmul")),
        point(COPY_ENGINE, "memory", 800.0, 0.1, 60.0),
    ]
    least, most = ways_what_if(forecaster(points)).forecasts[0].time_saved_pct
    assert most == pytest.approx(100 * 300 / 1300)
    assert 100 * 200 / 1300 < least < most


def test_a_replay_that_is_far_off_predicts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerccl.ways.forecast.REPLAYED", -1.0)
    with pytest.raises(PowercclError, match="off, so it predicts nothing"):
        forecaster()


@pytest.mark.parametrize("seed", range(6))
def test_tables_that_make_no_sense_predict_nothing(seed: int) -> None:
    """Rows that are missing, out of order or impossible: a prediction or none, and never an error."""
    calls, kernels, waits = Tables(ranks=2).tables
    calls = calls.with_columns(symmetric=pl.lit(value=False), copy_engine=pl.lit(value=False))
    damaged = [
        (calls, kernels.sample(fraction=0.7, seed=seed), waits),
        (calls, kernels, waits.sample(fraction=0.5, seed=seed)),
        (calls.sample(fraction=0.5, seed=seed), kernels, waits),
        (calls, kernels.with_columns(pl.col("start_ns").shuffle(seed=seed)), waits),
        (calls, kernels, waits.with_columns(pl.col("stall_ns").shuffle(seed=seed))),
        (calls, kernels.with_columns(stop_ns="start_ns", duration_ns=pl.lit(0)), waits),
        (calls, kernels.head(seed), waits),
    ]
    for tables in damaged:
        found = predict_best(*tables, {}, table(POINTS))
        assert found is None or found.time_saved_pct[0] < 100
