# SPDX-License-Identifier: Apache-2.0
"""Predictions of clock policies, on runs whose outcome can be worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest
import synthetic
from click.testing import CliRunner
from synthetic import MS, TraceWriter

from powerccl import clean
from powerccl.analysis import intervals as iv
from powerccl.analysis.energy import EnergyCurve
from powerccl.analysis.exposure import ESTIMATED, WAITS, aligned, exposure, from_waits, period
from powerccl.analysis.whatif import what_if
from powerccl.analysis.whatif.comparing import ALONE, RARELY, left_alone, of_part
from powerccl.analysis.whatif.findings import Forecast, Range, WhatIf
from powerccl.analysis.whatif.meetings import latest, meet
from powerccl.analysis.whatif.platform import ClockPlatform
from powerccl.analysis.whatif.predict import SEARCHED_SHARE
from powerccl.analysis.whatif.sections import changes
from powerccl.analysis.whatif.timeline import timelines
from powerccl.commands import cli
from powerccl.commands.whatif import clock_platform
from powerccl.platforms.schema import ClockSwitch, GpuPower, OverheadPoint, PlatformProfile, Point, encode
from powerccl.platforms.store import load_profile
from powerccl.traces import tables
from powerccl.traces.folder import read_run

CLOCKS = (1590, 1200, 900, 600, 480, 300)
MIB = 1 << 20
LOW = 480  # the lowest clock that keeps the bandwidth
STEP_MS, COMPUTE_MS, COMM_MS = 600, 150, 450
COMPUTE_W, COMM_W = 70.0, 45.0
SLOW = 0.15 + 0.85 * 1590 / LOW  # computation at the low clock


def comm_w(mhz: float) -> float:
    """Communication's power: voltage does not change, so that it falls evenly with the clock."""
    return 30.0 + 15.0 * mhz / 1590


def profile(**more: object) -> PlatformProfile:
    points = [
        Point(
            pattern="all_reduce",
            size_bytes=size,
            clock_mhz=mhz,
            time_us=1000.0 if mhz >= LOW else 1500.0,
            busbw_gbs=3.0 if mhz >= LOW else 2.0,
            watts_per_gpu=comm_w(mhz),
            energy_uncertainty_pct=0.1,
            provenance="emulated",
        )
        for size in (MIB, 8 * MIB)
        for mhz in CLOCKS
    ]
    fields: dict[str, object] = {
        "name": "hand",
        "gpu": "Tesla T4",
        "gpus": 2,
        "emulated": True,
        "clock_max_mhz": 1590,
        "clock_min_mhz": 300,
        "clocks_set": True,
        "points": points,
        "overhead": [OverheadPoint(pattern="all_reduce", size_bytes=2 * MIB, provenance="emulated")],
        "clock_switch": ClockSwitch(
            call_us=1000, latency_us=1000, requests=10, provenance="emulated", transition_us=1000
        ),
        **more,
    }
    return PlatformProfile(**fields)  # type: ignore[arg-type]


def platform(**more: object) -> ClockPlatform:
    return clock_platform(profile(**more))


N = 16  # iterations: 9.6 s, for no clock is tried before 8.6


def exposed_run(folder: Path, iterations: int = N, ranks: int = 2, waits: bool = True, **more: int) -> Path:
    """150 ms of computation at 70 W, then 450 ms of exposed communication at 45 W, the clock at 1590 MHz throughout."""
    folder.mkdir(parents=True)
    sizes = ((65_536_000, 40), (609_222_656, 370), (65_536_000, 40))
    ahead_ns = more.get("called_ms_ahead", 10) * MS
    for rank in range(ranks):
        trace = TraceWriter(rank, ranks)
        trace.comm(1 * MS)
        call_id = 0
        for iteration in range(iterations):
            now = (iteration * STEP_MS + COMPUTE_MS) * MS
            for size, length in sizes:
                call_id += 1
                trace.call(call_id, now - ahead_ns, size, flags=0x40 | more.get("flags", 0))
                if not more.get("untimed"):
                    trace.kernel(call_id, now, now + length * MS, size, delay_ns=0)
                if waits:
                    trace.wait(call_id, now, now + length * MS)
                now += length * MS
        trace.write(folder)
    end_ns = iterations * STEP_MS * MS

    def watts(_: int, now: int) -> float:
        return COMPUTE_W if now % (STEP_MS * MS) < COMPUTE_MS * MS else COMM_W

    synthetic.write_power(folder, ranks, end_ns, watts)
    synthetic.write_info(folder, end_ns, platform="hand")
    return folder


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exposed_run(tmp_path_factory.mktemp("whatif") / "exposed")


def policy(found: WhatIf, name: str) -> Forecast:
    return next(forecast for forecast in found.policies if forecast.policy == name)


# What is replayed begins with the first iteration's communication.
COVERED_MS = N * COMM_MS + (N - 1) * COMPUTE_MS
JOULES = (N * COMM_MS * COMM_W + (N - 1) * COMPUTE_MS * COMPUTE_W) / 1e3
EXPOSED = N * COMM_MS / COVERED_MS


def test_phase_saves_what_communication_draws_less_and_takes_no_time(recorded: Path) -> None:
    found = what_if(read_run(recorded), platform())
    assert found.exposure_source == WAITS
    assert found.covered_s == pytest.approx(COVERED_MS / 1e3, rel=1e-3)
    assert found.joules == pytest.approx(2 * JOULES, rel=0.01)
    assert found.exposed_pct == pytest.approx(EXPOSED * 100, abs=0.1)
    phase = policy(found, "exposed")
    # Both ask at once, and half a call is what a GPU waits for the other's on average.
    low_ms = N * (COMM_MS - 0.5) * (1 - RARELY)
    assert phase.saved_pct.value == pytest.approx(low_ms * (COMM_W - comm_w(LOW)) / 1e3 / JOULES * 100, abs=0.2)
    assert phase.saved_pct.low <= phase.saved_pct.value <= phase.saved_pct.high
    assert phase.slowdown_pct.value == pytest.approx(0, abs=0.01)
    assert phase.low_clock_pct == pytest.approx(low_ms / COVERED_MS * 100, abs=0.05)
    assert phase.switches_per_s == pytest.approx((1 - RARELY) * 2 * N / (COVERED_MS / 1e3), rel=0.01)
    assert len(found.gpus) == 2
    assert found.gpus[1].joules == pytest.approx(JOULES, rel=0.01)


def test_percall_slows_what_still_computes_when_the_call_is_made(recorded: Path) -> None:
    """Calls are made 10 ms ahead; clocks follow 2 and 3 ms behind asking, since two GPUs' calls wait for each other."""
    found = what_if(read_run(recorded), platform())
    extra = [(N - 1) * (10 - late) * (SLOW - 1) + (N - 1) * late * (1 - 1 / SLOW) + N * 3 * 0.04 for late in (2, 3)]
    percall = policy(found, "per-call")
    # The one whose clock falls first is the one that the other waits for.
    assert percall.slowdown_pct.value == pytest.approx(max(extra) / COVERED_MS * 100, abs=0.03)
    for gpu in found.gpus:
        assert policy_of(gpu.policies, "per-call").slowdown_pct.value == pytest.approx(
            percall.slowdown_pct.value, abs=0.05
        )
    assert not percall.within_budget
    assert any("maximum slowdown of 1 %" in remark for remark in percall.remarks)
    # Without computation in its way it would be what exposed is.
    assert percall.saved_pct.value < policy(found, "exposed").saved_pct.value + 1


def policy_of(forecasts: list[Forecast], name: str) -> Forecast:
    return next(forecast for forecast in forecasts if forecast.policy == name)


def slower_pct(mhz: float) -> float:
    """Of the whole, with that clock held for all of it."""
    return 0.85 * (1590 / mhz - 1) * (1 - EXPOSED) * 100


def lowest(part_pct: float) -> int:
    """The lowest clock of the search's steps that takes no longer."""
    return next(mhz for mhz in range(300, 1590, 15) if slower_pct(mhz) <= part_pct)


def test_job_takes_the_lowest_clock_that_keeps_its_part_of_the_budget(recorded: Path) -> None:
    run = read_run(recorded)
    narrow = policy(what_if(run, platform()), "fixed")
    assert narrow.clock_mhz == lowest(SEARCHED_SHARE)
    # On average a search in steps ends half a step above what would just do.
    assert slower_pct(lowest(SEARCHED_SHARE) + 8) < narrow.slowdown_pct.value < SEARCHED_SHARE
    wide = what_if(run, platform(), budget_pct=10)
    job = policy(wide, "fixed")
    clock = job.clock_mhz
    assert clock == lowest(10 * SEARCHED_SHARE)
    assert slower_pct(clock + 8) < job.slowdown_pct.value < 10 * SEARCHED_SHARE
    slower = job.slowdown_pct.value / (1 - EXPOSED) / 100
    # The floor is half of communication's constant 30 W, where no idle GPU was sampled.
    computing_w = 15 + (COMPUTE_W - 15) * clock / 1590
    after = (N * COMM_MS * comm_w(clock) + (N - 1) * COMPUTE_MS * (1 + slower) * computing_w) / 1e3
    assert job.saved_pct.value == pytest.approx((1 - after / JOULES) * 100, abs=0.6)
    assert any("no idle GPU" in text for text in wide.assumptions)


def test_auto_has_windows_and_one_clock_outside_of_them(recorded: Path) -> None:
    found = what_if(read_run(recorded), platform())
    auto, phase, job = (policy(found, name) for name in ("auto", "exposed", "fixed"))
    assert auto.chosen == "exposed and fixed"
    assert auto.clock_mhz == job.clock_mhz
    assert auto.slowdown_pct.value == pytest.approx(job.slowdown_pct.value, abs=0.01)
    # In windows the clock is low anyhow; computation takes as much longer as it draws less.
    assert auto.saved_pct.value == pytest.approx(phase.saved_pct.value, abs=0.2)
    assert auto.saved_pct.value > job.saved_pct.value


def test_computation_behind_percalls_resets_draws_what_its_limit_allows(tmp_path: Path) -> None:
    """The reset comes behind the call, so that no governor has wound up by the time computation goes on."""
    run = read_run(exposed_run(tmp_path / "behind", called_ms_ahead=0))
    found = what_if(run, platform(gpu_power=GpuPower(provenance="emulated", behind_watts=60.0)))
    behind_mhz = (60 - 15) / (COMPUTE_W - 15) * 1590
    times = 0.15 + 0.85 * 1590 / behind_mhz
    # A reset takes 2 ms of computation at the low clock on one GPU, 3 on the other; the rest is behind it.
    low_ms = 2.5
    stretch_ms = low_ms + (COMPUTE_MS - low_ms / SLOW) * times
    percall = policy(found, "per-call")
    expected = ((N - 1) * (stretch_ms - COMPUTE_MS) + N * 3 * 0.04) / COVERED_MS * 100
    assert percall.slowdown_pct.value == pytest.approx(expected, abs=0.05)
    computing = (N - 1) * ((stretch_ms - low_ms) * 60 + low_ms * (15 + 55 * LOW / 1590))
    # The set comes 2 and 3 ms behind the call, in what is communication by then.
    communicating = N * ((COMM_MS - 2.5) * comm_w(LOW) + 2.5 * COMM_W)
    after = (computing + communicating) / 1e3
    assert percall.saved_pct.value == pytest.approx((1 - after / JOULES) * 100, abs=0.3)
    assert policy(found, "exposed").slowdown_pct.value == pytest.approx(0, abs=0.01)


def test_a_cooler_gpu_leaks_less(recorded: Path) -> None:
    run = read_run(recorded)
    power = GpuPower(provenance="emulated", kelvin_per_watt=1.0, leakage_watts_per_kelvin=0.1)
    found = what_if(run, platform(gpu_power=power))
    # The profile's own power at 480 MHz was that of a die cooled by the difference; what computes is held by its limit.
    warm = comm_w(LOW) + 0.1 * (COMM_W - comm_w(LOW))
    less_w = EXPOSED * (COMM_MS - 0.5) / COMM_MS * (COMM_W - warm) / (1 - 0.1 * EXPOSED)
    expected = (1 - RARELY) * less_w / (JOULES / COVERED_MS * 1e3) * 100
    assert policy(found, "exposed").saved_pct.value == pytest.approx(expected, abs=0.3)
    assert not any("cooler" in text for text in found.assumptions)
    assert any("cooler" in text for text in what_if(run, platform()).assumptions)


def test_windows_shorter_than_a_switch_are_left_alone(recorded: Path) -> None:
    slow = clock_platform(profile(), transition_us=500_000)
    phase = policy(what_if(read_run(recorded), slow), "exposed")
    assert phase.saved_pct.value == pytest.approx(0, abs=0.01)
    assert any("no exposed window outlasts a switch" in remark for remark in phase.remarks)


def test_calls_in_graphs_are_not_percalls(tmp_path: Path) -> None:
    found = what_if(read_run(exposed_run(tmp_path / "graph", flags=1)), platform())
    percall = policy(found, "per-call")
    assert percall.saved_pct.value == pytest.approx(0, abs=0.01)
    assert any("CUDA graphs" in remark for remark in percall.remarks)
    # Its kernels are seen as they run, and have windows as long as the job makes no calls beside graphs.
    phase = policy(found, "exposed")
    assert phase.saved_pct.value > 10
    wide = what_if(read_run(tmp_path / "graph"), platform(), budget_pct=10)
    assert policy(wide, "auto").chosen == "exposed and fixed"
    assert policy(wide, "auto").saved_pct.value > 3


def volts(mhz: float) -> float:
    """Constant up to 700 MHz, then growing evenly."""
    return 0.7 + 0.3 * max(mhz - 700, 0) / 890


def follows(mhz: float) -> float:
    """The share of the power at 1590 MHz that is left at a lower clock."""
    return mhz / 1590 * volts(mhz) ** 2


FINER = (300, 390, 480, 600, 750, 900, 1000, 1100, 1200, 1400, 1590)


def finer_platform() -> ClockPlatform:
    coarse = profile().points[0]
    points = [
        msgspec.structs.replace(coarse, clock_mhz=mhz, watts_per_gpu=30 + 15 * follows(mhz), time_us=1000.0)
        for mhz in FINER
    ]
    return platform(points=points)


def test_voltage_is_read_off_what_communication_draws() -> None:
    shape = finer_platform().clock_shape
    assert shape.constant_share == pytest.approx(30 / 45, abs=0.003)
    for mhz in (300, 450, 600, 900, 1200):
        assert float(shape.at(mhz)) == pytest.approx(follows(mhz), abs=0.01)
        assert float(shape.volts(mhz)) == pytest.approx(volts(mhz), abs=0.02)


def test_a_steady_clock_is_worth_more_than_one_that_a_power_limit_moves(tmp_path: Path) -> None:
    """Computation half of the time at 900, half at 1200 MHz, at 15 W and 80 W that follow the clock."""
    folder = exposed_run(tmp_path / "limited")
    end_ns = N * STEP_MS * MS

    def clock(_: int, now: int) -> int:
        at_ms = now // MS % STEP_MS
        return 1590 if at_ms >= COMPUTE_MS else 1200 if at_ms < COMPUTE_MS // 2 else 900

    def watts(gpu: int, now: int) -> float:
        return 15 + 80 * follows(clock(gpu, now)) if now // MS % STEP_MS < COMPUTE_MS else COMM_W

    synthetic.write_power(folder, 2, end_ns, watts, clock, interval_ns=7 * MS)  # at all times of an iteration
    found = what_if(read_run(folder), finer_platform())
    rate = np.mean([1 / (0.15 + 0.85 * 1590 / mhz) for mhz in (900, 1200)])
    same_mhz = 0.85 * 1590 / (1 / rate - 0.15)
    job = policy(found, "fixed")
    assert job.clock_mhz is not None
    assert job.clock_mhz == pytest.approx(same_mhz, rel=0.04)
    assert job.slowdown_pct.value == pytest.approx(0.65, abs=0.35)
    before_j = N * COMM_MS * COMM_W + (N - 1) * COMPUTE_MS * (15 + 80 * (follows(900) + follows(1200)) / 2)
    held = follows(job.clock_mhz)
    longer = job.slowdown_pct.value / 100 * COVERED_MS
    after_j = N * COMM_MS * (30 + 15 * held) + ((N - 1) * COMPUTE_MS + longer) * (15 + 80 * held)
    assert job.saved_pct.value == pytest.approx((1 - after_j / before_j) * 100, abs=0.6)
    assert job.saved_pct.low < job.saved_pct.value - 0.5


def test_a_job_that_changes_is_learnt_anew(tmp_path: Path) -> None:
    """Two rhythms, of 600 and of 300 ms: in the second, ten seconds go by before anything is managed."""
    folder = tmp_path / "changes"
    folder.mkdir()
    first, second = 20, 50
    steps = [600] * first + [300] * second
    begins = np.cumsum([0, *steps])
    for rank in range(2):
        trace = TraceWriter(rank, 2)
        trace.comm(1 * MS)
        for number, (begin, step) in enumerate(zip(begins.tolist(), steps, strict=False)):
            start, stop = (begin + step // 4) * MS, (begin + step) * MS
            trace.call(number + 1, start - 10 * MS, 609_222_656, flags=0x40)
            trace.kernel(number + 1, start, stop, 609_222_656, delay_ns=0)
            trace.wait(number + 1, start, stop)
        trace.write(folder)

    def watts(_: int, now: int) -> float:
        at = int(np.searchsorted(begins, now // MS, side="right")) - 1
        return COMPUTE_W if at < len(steps) and now // MS - begins[at] < steps[at] // 4 else COMM_W

    end_ns = int(begins[-1]) * MS
    synthetic.write_power(folder, 2, end_ns, watts)
    synthetic.write_info(folder, end_ns, platform="hand")
    run = read_run(folder)
    found = what_if(run, platform())
    changed_ms = begins[first]
    line = timelines(run, from_waits(tables.waits(run)))[0]
    (at_ns,) = changes(line, (0, end_ns))
    assert at_ns / MS == pytest.approx(changed_ms, abs=700)
    assert any("the job changes 1 time" in note for note in found.notes)
    # Of 15 s in the second rhythm, 5 are managed, but for a block in 40; a window is 449.5 of 600 ms, and 224.5 of 300.
    managed_s = (12 + 15 - 10) * (1 - RARELY)
    per_s = 449.5 / 600 * (COMM_W - comm_w(LOW))
    whole_j = 27 * (COMM_W * 0.75 + COMPUTE_W * 0.25)
    assert policy(found, "exposed").saved_pct.value == pytest.approx(managed_s * per_s / whole_j * 100, abs=0.7)

    # Samples of one GPU are missing in the first part: what is saved is told in percent, and not in watts.
    (power,) = folder.glob("power-*.csv")
    head = [line for line in power.read_text().splitlines() if not line[:1].isdigit()]
    rows = [line.split(",") for line in power.read_text().splitlines() if line[:1].isdigit()]
    kept = [[*row[:4], "-1", *row[5:]] for row in rows if row[1] == "0" or not 2000 < int(row[0]) / MS < 6000]
    power.write_text("\n".join([*head, *(",".join(row) for row in kept)]) + "\n")
    found = what_if(read_run(folder), platform())
    assert found.joules is None
    for forecast in found.policies:
        assert math.isnan(forecast.saved_watts)
        assert 0 <= forecast.saved_pct.value < 100
    assert json.loads(clean.to_json(found))["policies"][1]["saved_watts"] is None


EARLY_MS = 50  # that the second rank has computed less


def uneven_run(folder: Path) -> Path:
    """As exposed_run, with a second rank that computes for 100 ms and waits for the first."""
    folder.mkdir(parents=True)
    for rank in range(2):
        trace = TraceWriter(rank, 2)
        trace.comm(1 * MS)
        for iteration in range(N):
            start = (iteration * STEP_MS + COMPUTE_MS - rank * EARLY_MS) * MS
            stop = (iteration + 1) * STEP_MS * MS
            trace.call(iteration + 1, start - 10 * MS, 609_222_656, flags=0x40)
            trace.kernel(iteration + 1, start, stop, 609_222_656, delay_ns=0)
            trace.wait(iteration + 1, start, stop)
        trace.write(folder)
    end_ns = N * STEP_MS * MS

    def watts(gpu: int, now: int) -> float:
        return COMPUTE_W if now // MS % STEP_MS < COMPUTE_MS - gpu * EARLY_MS else COMM_W

    synthetic.write_power(folder, 2, end_ns, watts)
    synthetic.write_info(folder, end_ns, platform="hand")
    return folder


def test_a_rank_that_waits_in_every_collective_computes_as_much_longer(tmp_path: Path) -> None:
    run = read_run(uneven_run(tmp_path / "uneven"))
    lines = timelines(run, from_waits(tables.waits(run)))
    met = meet(run, lines)
    assert len(met) == N
    assert {operation.waiting_ns for operation in lines[0].operations} == {0}
    assert all(operation.waiting_ns == pytest.approx(EARLY_MS * MS, rel=0.01) for operation in lines[1].operations)
    # Only the first rank's computation is what all wait for.
    assert [last.tolist() for last in latest(lines, met)] == [[1.0] * N, [0.0] * N]
    # Ahead of it the job takes no longer than for the first rank's clock.
    found = what_if(run, platform())
    assert policy(found, "fixed").slowdown_pct.value < 1
    first_saved, second_saved = (policy_of(gpu.policies, "fixed").saved_pct.value for gpu in found.gpus)
    # 100 ms of computation may take 148, a five-hundredth of the iteration being kept.
    own_mhz = 0.85 * 1590 / (1.48 - 0.15)
    spared_w = (COMPUTE_W - 15) * (1 - own_mhz / 1590)
    most = (spared_w * 148 - (COMPUTE_W - COMM_W) * 48) / (COMM_W * 500 + COMPUTE_W * 100) * 100
    assert 0.5 * most < second_saved - first_saved < 2 * most + 5


@pytest.mark.parametrize(("differ", "alone"), [(0.0, RARELY), (0.01, RARELY), (0.07, ALONE)])
def test_jobs_whose_iterations_differ_are_compared_all_along(differ: float, alone: float) -> None:
    lengths = 100e6 * (1 + differ * np.random.default_rng(1).normal(size=400))
    lengths[200] *= 20  # a checkpoint is none of it
    assert left_alone(np.cumsum(lengths).astype(np.int64), 0.01) == alone
    assert left_alone(np.cumsum(lengths[:5]).astype(np.int64), 0.01) == RARELY


def test_a_part_of_the_job_has_a_part_of_what_comes_of_it() -> None:
    whole = Forecast(
        policy="auto",
        saved_pct=Range(20.0, 16.0, 24.0),
        slowdown_pct=Range(0.8, 0.4, 1.2),
        saved_watts=12.0,
        low_clock_pct=100.0,
        switches_per_s=40.0,
    )
    part = of_part(whole, 0.75)
    assert part.saved_pct == Range(15.0, 12.0, 18.0)
    assert part.slowdown_pct == Range(0.6, 0.3, 0.9)
    assert (part.saved_watts, part.low_clock_pct, part.switches_per_s) == (9.0, 75.0, 30.0)
    assert of_part(whole, 1.0) == whole


def test_calls_below_their_overhead_point_are_not_managed(recorded: Path) -> None:
    never = [OverheadPoint(pattern="all_reduce", size_bytes=None, provenance="emulated")]
    percall = policy(what_if(read_run(recorded), platform(overhead=never)), "per-call")
    assert percall.switches_per_s == 0
    assert any("no call is above its overhead point" in remark for remark in percall.remarks)


def test_without_marks_exposure_is_told_by_power(tmp_path: Path) -> None:
    """Two equal operations an iteration: one beside computation, one alone."""
    folder = tmp_path / "estimated"
    folder.mkdir()
    iterations = 20
    step_ms = 617  # no multiple of the samples' 20 ms
    for rank in range(2):
        trace = TraceWriter(rank, 2)
        trace.comm(1 * MS)
        for iteration in range(iterations):
            for number, at_ms in enumerate((100, 417)):
                start = (iteration * step_ms + at_ms) * MS
                trace.call(2 * iteration + number, iteration * step_ms * MS, 64 * MIB, flags=0x40)
                trace.kernel(2 * iteration + number, start, start + 200 * MS, 64 * MIB, delay_ns=0)
        trace.write(folder)
    synthetic.write_power(
        folder, 2, iterations * step_ms * MS, lambda _, now: COMM_W if now % (step_ms * MS) >= 417 * MS else COMPUTE_W
    )
    synthetic.write_info(folder, iterations * step_ms * MS)
    found = what_if(read_run(folder), platform())
    assert found.exposure_source == ESTIMATED
    assert found.exposed_pct == pytest.approx(200 / step_ms * 100, abs=2)
    assert found.communication_pct == pytest.approx(400 / step_ms * 100, abs=3)
    assert any("no marks" in text for text in found.assumptions)


@pytest.mark.parametrize("late_ms", [0, 7, 13])
def test_readings_that_come_late_are_moved_back(late_ms: int) -> None:
    kernels = pl.DataFrame(
        [
            {"gpu": "g", "pattern": "all_reduce", "comm": 0, "size_class": 1, "start_ns": s, "stop_ns": s + 70 * MS}
            for s in range(50 * MS, 20_000 * MS, 117 * MS)
        ]
    )
    busy = iv.union(kernels["start_ns"].to_numpy(), kernels["stop_ns"].to_numpy())
    now = np.arange(0, 20_000 * MS, 20 * MS)
    joules = (now * 70.0 - iv.covered_before(busy, now) * 25.0) / 1e9
    curve = EnergyCurve(now + late_ms * MS, joules, "counter", 20.0 * MS, 20.0 * MS)
    _, found_ms = aligned(pl.DataFrame(), kernels, {"g": curve})
    assert found_ms == pytest.approx(late_ms, abs=1)


def test_exposed_is_when_all_computing_streams_wait() -> None:
    def waits(stream: int, *pairs: tuple[int, int]) -> list[dict[str, object]]:
        return [{"rank": 0, "gpu": "g", "stream": stream, "stall_ns": a, "resume_ns": b} for a, b in pairs]

    one, other = waits(1, (10, 50), (60, 90), (90, 100)), waits(2, (30, 70), (95, 95), (80, 120))
    assert from_waits(pl.DataFrame(one))["g"].tolist() == [[10, 50], [60, 100]]
    assert from_waits(pl.DataFrame(one + other))["g"].tolist() == [[30, 50], [60, 70], [80, 100]]
    # A stream that hardly ever waits is not what computes.
    often = waits(1, *((10 * n, 10 * n + 5) for n in range(20)))
    assert len(from_waits(pl.DataFrame(often + waits(3, (0, 1))))["g"]) == 20


def test_four_equal_buckets_make_one_iteration() -> None:
    starts = np.array([iteration * 110 + bucket * 18 for iteration in range(10) for bucket in range(4)])
    assert period(["a"] * 40, starts) == 4
    assert period(["a", "b"] * 20, np.arange(40) * 10) == 2
    assert period([str(n) for n in range(40)], np.arange(40)) == 0


def test_no_kernels_no_exposure(tmp_path: Path) -> None:
    run = read_run(exposed_run(tmp_path / "run", iterations=1))
    nothing = tables.kernels(run).clear()
    assert exposure(tables.waits(run).clear(), nothing, {}, None).source == "none"


def test_the_built_in_platform_has_all_a_prediction_needs() -> None:
    found = clock_platform(load_profile("t4x8"))
    assert found.switch.transition_known
    assert found.behind_watts
    assert found.kelvin_per_watt
    assert 390 <= found.percall_mhz("all_reduce", 64 * MIB) <= 450
    assert found.percall_mhz("all_reduce", MIB) == 0
    assert 0.6 < found.clock_shape.constant_share < 0.8
    assert found.clock_shape.clock_of(float(found.clock_shape.at(1100))) == pytest.approx(1100, abs=2)
    # Powers as of one warmth fall less than powers as profiled.
    cold = replace(found, curves=clock_platform(replaced_without_warmth()).curves)
    assert found.power_ratio(450) > cold.power_ratio(450)


def replaced_without_warmth() -> PlatformProfile:
    known = load_profile("t4x8")
    known.gpu_power = None
    return known


def whatif(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["whatif", *arguments])
    return result.exit_code, result.output


@pytest.fixture
def named(tmp_path: Path) -> str:
    path = tmp_path / "hand.json"
    path.write_bytes(encode(profile()))
    return str(path)


def test_command_prints_every_policy_and_writes_json(recorded: Path, named: str, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    code, text = whatif(str(recorded), "--platform", named, "--gpus", "--json", str(out))
    assert code == 0, text
    for word in ("per-call", "exposed", "fixed", "auto", "exposed communication", "predicted, not measured"):
        assert word in text
    assert "\x1b" not in text
    found = json.loads(out.read_text())
    assert [forecast["policy"] for forecast in found["policies"]] == ["per-call", "exposed", "fixed", "auto"]
    assert found["exposure_source"] == "waits"
    assert "exposed would save" in text or "auto would save" in text
    code, text = whatif(str(recorded), "--platform", named, "--json", "-")
    assert json.loads(text[: text.index("\n}\n") + 2])["platform"] == "hand"


def test_an_emulated_profile_of_a_real_run_is_said(recorded: Path, tmp_path: Path) -> None:
    words = "profile hand is of an emulated server"
    emulated = tmp_path / "emulated.json"
    emulated.write_bytes(encode(profile(emulated=True)))
    code, text = whatif(str(recorded), "--platform", str(emulated))
    assert code == 0, text
    assert words not in " ".join(text.split())
    real = exposed_run(tmp_path / "real")
    for power in real.glob("power-*.csv"):
        power.write_text(power.read_text().replace("# emulated: 1", "# emulated: 0"))
    code, text = whatif(str(real), "--platform", str(emulated))
    assert code == 0, text
    assert words in " ".join(text.split())


def test_a_profile_of_another_machine_is_refused(recorded: Path) -> None:
    """As `run` refuses it: powers and bandwidths of other GPUs, or of another number of them, say nothing here."""
    for verb in ("whatif", "report"):
        done = CliRunner().invoke(cli, [verb, str(recorded), "--platform", "t4x8"])
        assert done.exit_code == 1, done.output
        assert "was measured on 8 x Tesla T4; the run's node node1 has 2 of them" in " ".join(done.output.split())


def test_command_says_what_is_wrong_and_what_to_do(recorded: Path, named: str, tmp_path: Path) -> None:
    def wrong(folder: Path | str, *more: str) -> str:
        code, text = whatif(str(folder), *(more or ("--platform", named)))
        assert code == 1, text
        assert "hint:" in text
        return text

    assert "no run nowhere" in wrong("nowhere")
    assert "is a run of MPI alone" in wrong(synthetic.mpi_run(tmp_path / "mpi"))
    empty = tmp_path / "empty"
    empty.mkdir()
    synthetic.write_info(empty, 1000 * MS)
    assert "has no trace of NCCL" in wrong(empty)
    managed = exposed_run(tmp_path / "managed", iterations=1)
    trace = TraceWriter(0, 2, policy="per-call", clock_client="lease")
    trace.clock(1, 100 * MS, 450)
    trace.write(managed)
    assert "was recorded under per-call" in wrong(managed)
    dark = exposed_run(tmp_path / "dark", iterations=1)
    (dark / f"power-{synthetic.HOST}.csv").unlink()
    assert "no power was sampled" in wrong(dark)
    quiet = tmp_path / "quiet"
    quiet.mkdir()
    trace = TraceWriter(0, 1)
    trace.comm(1 * MS)
    trace.write(quiet)
    assert "no communication was timed" in wrong(quiet)
    (tmp_path / "found.json").write_bytes(encode(profile(clocks_set=False, clocks_reason="no right")))
    assert "has no minimum clocks" in wrong(recorded, "--platform", str(tmp_path / "found.json"))
    assert "unknown platform" in wrong(recorded, "--platform", "nosuch")
    assert "names no platform profile" in wrong(exposed_run(tmp_path / "real", iterations=1), "--max-slowdown", "1")


def test_long_runs_are_replayed_from_their_middle(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerccl.analysis.whatif.predict.MOST_OPERATIONS", 24)
    found = what_if(read_run(recorded), platform())
    assert found.covered_s == pytest.approx(COVERED_MS / 1e3, rel=0.01)
    assert policy(found, "exposed").saved_pct.value == pytest.approx(15, abs=2)
    assert policy(found, "per-call").slowdown_pct.value == pytest.approx(2.8, abs=1)


def test_replaced_numbers_of_an_emulated_platform_count(tmp_path: Path, named: str) -> None:
    folder = exposed_run(tmp_path / "slow", iterations=5)
    synthetic.write_info(folder, 3000 * MS, platform=named, emulated="t4x8:link_scale=2,clock_transition_us=500000")
    code, text = whatif(str(folder), "--json", "-")
    assert code == 0, text
    assert "no exposed window outlasts a switch (501 ms)" in text
    code, text = whatif(str(folder), "--transition-us", "1000")
    assert code == 0, text
    assert "outlasts a switch" not in text


def test_waits_alone_are_enough(tmp_path: Path, recorded: Path) -> None:
    """No kernel was timed (POWERCCL_KERNEL_EVENTS=none), but computation said when it waited."""
    found = what_if(read_run(exposed_run(tmp_path / "untimed", untimed=1)), platform())
    usual = what_if(read_run(recorded), platform())
    for name in ("per-call", "exposed"):
        assert policy(found, name).saved_pct.value == pytest.approx(policy(usual, name).saved_pct.value, abs=0.3)
        assert policy(found, name).slowdown_pct.value == pytest.approx(policy(usual, name).slowdown_pct.value, abs=0.1)


def once_run(folder: Path, seconds: int = 12) -> Path:
    """Computation and exposed communication of random lengths: nothing comes again in the same order."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(3)
    spans: list[tuple[int, int, int, str]] = []
    now = 0
    while now < seconds * 1000:
        now += int(random.integers(20, 200))
        length = int(random.integers(30, 400))
        pattern = str(random.choice(["all_reduce", "all_gather", "reduce_scatter", "broadcast"]))
        spans.append((now, now + length, int(random.integers(1, 64)) * 1_000_000, pattern))
        now += length
    for rank in range(2):
        trace = TraceWriter(rank, 2)
        trace.comm(1 * MS)
        for call, (start, stop, size, pattern) in enumerate(spans, 1):
            trace.call(call, (start - 10) * MS, size, pattern, flags=0x40)
            trace.kernel(call, start * MS, stop * MS, size, pattern, delay_ns=0)
            trace.wait(call, start * MS, stop * MS)
        trace.write(folder)
    starts = np.array([start for start, *_ in spans])
    stops = np.array([stop for _, stop, *_ in spans])

    def watts(_: int, at: int) -> float:
        place = int(np.searchsorted(starts, at // MS, side="right")) - 1
        return COMM_W if place >= 0 and at // MS < stops[place] else COMPUTE_W

    synthetic.write_power(folder, 2, now * MS, watts)
    synthetic.write_info(folder, now * MS, platform="hand")
    return folder


def promised(found: WhatIf, name: str) -> list[float]:
    """What a policy is told to change, on all GPUs and on each."""
    rows = [policy(found, name), *(policy_of(gpu.policies, name) for gpu in found.gpus)]
    return [value for f in rows for value in (f.saved_pct.value, f.saved_pct.high, f.slowdown_pct.value, f.saved_watts)]


def test_policies_that_learn_promise_nothing_without_an_iteration(tmp_path: Path) -> None:
    found = what_if(read_run(once_run(tmp_path / "once")), platform())
    for name in ("exposed", "fixed", "auto"):
        assert set(promised(found, name)) == {0.0}
        assert policy(found, name).reason == "lowers no clock: no iteration found"
        assert policy(found, name).clock_mhz is None
    assert policy(found, "per-call").saved_pct.value != 0  # it learns nothing and needs none


def test_a_run_that_is_over_before_a_clock_is_tried_is_promised_windows_only(tmp_path: Path) -> None:
    found = what_if(read_run(exposed_run(tmp_path / "short", iterations=10)), platform())
    assert set(promised(found, "fixed")) == {0.0}
    over = "the run ends after 5.85 s, before the policy tries a clock for the whole job (8.6 s)"
    assert policy(found, "fixed").reason == f"lowers no clock: {over}"
    assert promised(found, "auto") == promised(found, "exposed")
    assert policy(found, "auto").chosen == "exposed"
    few = what_if(read_run(exposed_run(tmp_path / "few", iterations=5)), platform())
    for name in ("exposed", "fixed", "auto"):
        assert set(promised(few, name)) == {0.0}
        assert policy(few, name).reason == "lowers no clock: learning takes 6 iterations, and the run has 5"
