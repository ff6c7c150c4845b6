# SPDX-License-Identifier: Apache-2.0
"""`powerccl prove`: what iterations say of clock calls, the fitted platform, the half page, and files as platforms."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest

from powerccl.errors import PowercclError
from powerccl.estimate import Estimate
from powerccl.launch.emulation import emulated_platform
from powerccl.launch.native import NativeFiles
from powerccl.platforms.conf import points_of, value_of
from powerccl.platforms.schema import Point, encode
from powerccl.platforms.store import load_profile
from powerccl.prove.calls import Switch, busy_share, calls_of, stall_of, transition_ms, transition_of
from powerccl.prove.file import Calls, LoadPoint, Proof, Restored, Stall, Training, Transition
from powerccl.prove.fit import emulated, fit_power, knee_and_fall, least_squares, memory_share
from powerccl.prove.loads import CLOCK_SHARES, FULL, QUICK, all_reduce, operations, parts
from powerccl.prove.loop import Iteration
from powerccl.prove.page import page_of

CONFS = Path(__file__).resolve().parents[2] / "native/testbed/emulator/platforms"
CONF = (CONFS / "h100x8.conf").read_text()
TOP = 1980
CLOCKS = [round(TOP * share) for share in CLOCK_SHARES]
MS = 1_000_000


def volts(clock: float) -> float:
    """Level up to 1,000 MHz, and half as much again at the top."""
    return 0.7 * (1 + 0.5 * max(0.0, clock - 1000) / (TOP - 1000))


def watts(load: str, clock: int) -> float:
    """A law that the fit does not know."""
    square = clock * volts(clock) ** 2
    added = {
        "idle": 0.0,
        "product": 0.5 * square,
        "copy": 40 + 0.08 * square,
        "decode": 30 + 0.15 * square,
        "all-reduce": 110 + 0.01 * square,
    }
    return 60 + 0.03 * square + added[load]


def times(load: str, clock: int) -> float | None:
    if load == "idle":
        return None
    if load == "all-reduce":
        return 50 * max(1.0, float((1200 / clock) ** 0.7))
    share = {"product": 0.0, "copy": 1.0, "decode": 0.85}[load]
    return 50 * (share + (1 - share) * TOP / clock)


def points() -> list[LoadPoint]:
    """Of all loads; the product is at its power limit at the two highest clocks."""
    found = []
    for load in ("idle", "product", "copy", "decode", "all-reduce"):
        for clock in CLOCKS:
            seen = min(clock, 1700) if load == "product" else clock
            found.append(LoadPoint(load, clock, seen, watts(load, seen), times(load, seen), 20))
    return found


def all_reduce_point() -> Point:
    """At the highest clock."""
    size = 64 << 20
    return Point(
        pattern="all_reduce", size_bytes=size, clock_mhz=TOP, time_us=300, busbw_gbs=220, provenance="measured"
    )


def proof(**changes: object) -> Proof:
    """A whole one."""
    made = Proof(
        name="h100x2",
        gpu="NVIDIA H100 80GB HBM3",
        gpus=2,
        emulated=False,
        clock_max_mhz=TOP,
        clock_min_mhz=345,
        clocks_set=True,
        loads=points(),
        points=[all_reduce_point()],
        calls=Calls(4200.0, 11000.0, 200),
        transitions=[Transition(1980, 2.0, 9.0, 6), Transition(1005, 20.0, 48.0, 6)],
        stalls=[
            Stall("all-reduce", Estimate(12.0, 10.5, 13.5, 8, "ms"), 80, 50.0),
            Stall("product", Estimate(0.02, -0.1, 0.14, 8, "ms"), 80, 50.0),
        ],
        training=Training(
            Estimate(85, 84, 86), Estimate(90, 89, 91), Estimate(6.1, 5.2, 7.0, 3), Estimate(0.3, 0.1, 0.4, 3), 25.0
        ),
        restored=Restored([1980.0, 1965.0], [1980.0, 1980.0]),
        power_limit_w=700.0,
        seconds=412.0,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def test_the_law_of_power_is_found() -> None:
    found = fit_power(points(), 0.7)
    assert found is not None
    for load in ("idle", "product", "copy", "decode", "all-reduce"):
        for clock in CLOCKS:
            assert found.of(load, clock) == pytest.approx(watts(load, clock), rel=0.005)
    for clock in CLOCKS:
        assert found.volts[clock] == pytest.approx(volts(clock), rel=0.01)
    assert found.watts["static"] == pytest.approx(60, rel=0.02)
    assert found.watts["compute"] == pytest.approx(0.5, rel=0.02)
    assert fit_power([each for each in points() if each.load != "copy"], 0.7) is None
    assert fit_power(points()[:3], 0.7) is None


def test_shares_of_time_that_no_clock_changes_are_found() -> None:
    for load, share in (("product", 0.0), ("decode", 0.85), ("copy", 1.0)):
        assert memory_share([each for each in points() if each.load == load], TOP) == pytest.approx(share, abs=0.01)
    assert memory_share(points()[:2], TOP) is None


def test_the_knee_of_an_all_reduce_is_found() -> None:
    found = knee_and_fall([each for each in points() if each.load == "all-reduce"])
    assert found == pytest.approx((1200, 0.7), rel=0.01)
    level = [LoadPoint("all-reduce", clock, clock, 200.0, 50.0, 20) for clock in CLOCKS]
    assert knee_and_fall(level) is None


def test_least_squares_has_no_negative_power() -> None:
    rows = [[1.0, x] for x in (1.0, 2.0, 3.0)]
    assert least_squares(rows, [3.0, 5.0, 7.0]) == pytest.approx([1.0, 2.0])

    assert least_squares(rows, [1.0, 3.0, 5.0])[0] == 0.0


def iterations(start_ms: float, *steps: float) -> list[Iteration]:
    """One behind the other."""
    found = []
    for step in steps:
        found.append(Iteration(round(start_ms * MS), round((start_ms + step) * MS), step))
        start_ms += step
    return found


def test_a_transition_is_cut_inside_of_an_iteration() -> None:
    old = iterations(0, *[1.0] * 10)
    # The call returns at 10 ms and the clock changes 5.4 ms later: 0.4 ms at the old clock and 0.6 of the work at half.
    new = iterations(10, *[1.0] * 5, 0.4 + 1.2, *[2.0] * 20)
    assert transition_ms(old, new, 10 * MS) == pytest.approx((5.4, 0.0), abs=0.01)
    late = [*new[:6], *iterations(17.6, *[2.0] * 20)]
    assert transition_ms(old, late, 10 * MS) == pytest.approx((5.9, 1.0), abs=0.01), "it began within a millisecond"
    slow = iterations(10, *[1.0] * 5, 1.6, *[2.0] * 8, 9.0, *[2.0] * 20)
    assert transition_ms(old, slow, 10 * MS) == pytest.approx((5.4, 0.0), abs=0.01), "an outlier is not the transition"
    assert transition_ms(old, iterations(10, *[1.01] * 20), 10 * MS) is None, "nothing has changed"
    assert transition_ms(old, new[:3], 10 * MS) is None
    assert transition_ms(old, iterations(10, *[2.0] * 20), 10 * MS) == (0.0, 0.0)


def test_transitions_count_where_the_calls_moment_is_known() -> None:
    sure = [(0.2, 20.0), (0.1, 22.0), (0.3, 21.0), (0.4, 48.0)]
    assert transition_of(900, [*sure, (7.0, 13.0)]) == Transition(900, 21.5, 48.0, 4)
    assert transition_of(900, [(7.0, 13.0), (5.0, 15.0)]) == Transition(900, 14.0, 15.0, 2), "the surest there are"


def test_a_stall_is_what_iterations_take_longer() -> None:
    top, below = [10.0] * 20, [10.2] * 20
    called = [10.1] * 16 + [15.1] * 4
    found = stall_of("product", [top, below, top], [(called, 4), (called, 4)])
    assert found.ms_per_call.value == pytest.approx(5.0)
    assert found.calls == 8
    noisy = stall_of("product", [top, below] * 5, [(called, 4)] * 8 + [([99.0] * 20, 4)])
    assert (noisy.ms_per_call.value, noisy.ms_per_call.high) == pytest.approx((5.0, 5.0)), "one turn is an outlier"
    none = stall_of("product", [top, below, top], [([10.1] * 20, 4)] * 2)
    assert none.ms_per_call.value == pytest.approx(0.0, abs=1e-9)


def test_the_cost_of_calls() -> None:
    assert calls_of([]) is None
    found = calls_of([4000.0] * 198 + [9000.0, 11000.0])
    assert found == Calls(4000.0, 4000.0, 200)
    assert calls_of([4000.0] * 97 + [9000.0] * 3) == Calls(4000.0, 9000.0, 100)


def test_the_plan_keeps_its_promise() -> None:
    for gpus in (1, 2, 8):
        assert sum(seconds for _, seconds in parts(FULL, gpus, dry=False)) <= 600
    assert sum(seconds for _, seconds in parts(FULL, 2, dry=True)) <= 180
    assert len(parts(QUICK, 1, dry=False)) < len(parts(QUICK, 2, dry=False)), "one GPU has nothing to reduce"
    assert operations(all_reduce(500.0)) == 400
    assert operations(all_reduce(1e6)) == 1


def test_half_a_page() -> None:
    text = page_of(proof(), "proof.json")
    assert "a clock call takes 4.2 ms, 11 ms at the 99th percentile of 200 calls" in text
    assert "a clock call stalls a running all-reduce for 12 ms [10.50, 13.50]" in text
    assert "no stall of a running product was seen; a clock call adds 0.14 ms at most" in text
    assert "as fast down to 1228 MHz" in text
    assert "auto saved 6.1 % [5.2, 7.0] of the training step's energy at +0.3 % [+0.1, +0.4] of time" in text
    assert "every clock is back: 1965 to 1980 MHz before, 1980 after" in text
    assert "emulated" not in text
    assert page_of(proof(emulated=True), "proof.json").startswith("emulated 2 x ")
    lost = page_of(proof(restored=Restored([1980.0], [1200.0])), "proof.json")
    assert "CLOCKS DIFFER" in lost
    assert len(text.splitlines()) < 25


def test_half_a_page_of_a_dry_run_has_no_zeros_for_what_is_not_known() -> None:
    dry = proof(
        dry=True, calls=None, transitions=[], stalls=[], restored=None, training=None, read_us=3100.0,
        loads=[LoadPoint("product", 1380, 1380.4, 699.0, 50.0, 20), LoadPoint("copy", 1980, None, None, 50.0, 20)],
    )  # fmt: skip
    text = page_of(dry, "proof.json")
    assert "no clock was set" in text
    assert "reading one GPU's energy takes 3.1 ms; what a clock call takes is not known" in text
    assert "product: 699 W at 1380 MHz" in text
    assert "copy: not known at 1980 MHz" in text


def test_the_file_is_an_emulated_platform(tmp_path: Path) -> None:
    made = proof()
    made.emulator = emulated(made, "h100x8", CONF)
    keys = made.emulator.keys
    assert keys["gpus"] == "2"
    assert keys["set_clock_call_us"] == "4200"
    assert float(keys["compute_w"]) == pytest.approx(0.5, rel=0.03)
    assert float(keys["link_scale"]) == pytest.approx(220 / 275, rel=0.01)
    assert all(value_of(CONF, key) for key in keys if key not in ("link_scale", "set_clock_stall_us")), (
        "keys that a platform file has"
    )
    assert len(points_of("voltage_v = " + keys["voltage_v"], "voltage_v")) == len(CLOCKS)
    file = tmp_path / "proof.json"
    file.write_bytes(encode(made))
    assert load_profile(str(file)).gpus == 2, "it is a platform profile as well"
    (tmp_path / "share/platforms").mkdir(parents=True)
    (tmp_path / "share/platforms/h100x8.conf").write_text(CONF)
    native = NativeFiles(tmp_path)
    text = str(emulated_platform(native, str(file)))
    assert text.startswith(f"{tmp_path}/share/platforms/h100x8.conf:")
    assert "gpus=2" in text.split(",")
    changed = str(emulated_platform(native, f"{file}:gpus=4,link_scale=2"))
    assert changed.count("gpus=") == changed.count("link_scale=") == 1
    assert "gpus=4" in changed


def test_tails_and_stalls_are_written() -> None:
    keys = emulated(proof(), "h100x8", CONF).keys
    assert float(keys["set_clock_stall_us"]) == 12000, "of the all-reduce; the product's may be none"
    assert float(keys["set_clock_call_spread"]) == pytest.approx(math.log(11 / 4.2) / 2.326, rel=0.01)
    assert 0.5 < float(keys["clock_transition_spread"]) < 1.5


def test_a_switch_knows_when_its_call_returned() -> None:
    switch = Switch(900, 0, 100 * MS, 4000.0, 104 * MS + 600_000, 400 * MS)
    assert switch.unsure_ms == pytest.approx(0.6)
    assert switch.returned_ns == pytest.approx(104.3 * MS)


def test_a_host_that_was_late_shows() -> None:
    whole = iterations(0, *[10.0] * 10)
    assert busy_share(whole) == pytest.approx(1.0)
    assert busy_share(whole[:4] + whole[6:]) == pytest.approx(0.8)
    assert busy_share(whole[:1]) == 0.0


def test_an_all_reduce_takes_what_its_last_rank_saw() -> None:
    assert Iteration(0, 9 * MS, 9.0, [9.0, 7.0, None]).collective_ms == 7.0
    assert Iteration(0, 9 * MS, 9.0).collective_ms == 9.0


def test_a_file_that_is_no_platform_is_refused(tmp_path: Path) -> None:
    native = NativeFiles(tmp_path)
    file = tmp_path / "other.json"
    with pytest.raises(PowercclError, match="no platform file"):
        emulated_platform(native, str(file))
    file.write_bytes(encode(proof()))
    with pytest.raises(PowercclError, match="is not an emulated platform"):
        emulated_platform(native, str(file))
    file.write_text(json.dumps({"emulator": {"like": "/etc/passwd", "keys": {}}}))
    with pytest.raises(PowercclError, match="is not an emulated platform"):
        emulated_platform(native, str(file))


def test_points_at_the_power_limit_say_nothing_of_the_voltage() -> None:
    with_limit = [each for each in points() if each.load != "product" or each.clock_mhz <= 1710]
    found, without = fit_power(points(), 0.7), fit_power(with_limit, 0.7)
    assert found is not None
    assert without is not None
    assert all(math.isclose(found.volts[clock], without.volts[clock]) for clock in CLOCKS)
