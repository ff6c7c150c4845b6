# SPDX-License-Identifier: Apache-2.0
"""Profiles: loading, refusing, minimum clocks, overhead points and policy tables."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from powerccl.errors import PowercclError
from powerccl.patterns import KIB, MIB, PATTERNS, PUBLISHED_OVERHEAD_BYTES
from powerccl.platforms import store
from powerccl.platforms.catalog import BUILTIN
from powerccl.platforms.measurements import (
    BenchHeader,
    BenchPoint,
    clocks_to_profile,
    empty_profile,
    overhead_samples,
    profile_points,
    read_bench_lines,
)
from powerccl.platforms.policy_table import events_only_table, minimum_clocks, overhead_points, policy_table
from powerccl.platforms.schema import GpuPower, OverheadPoint, OverheadSample, PlatformProfile, Point, encode

CLOCKS = (1590, 1200, 900, 600, 480, 300)


def point(clock: int, busbw: float, size: int = MIB, pattern: str = "all_reduce", spread: float = 0.0) -> Point:
    time_us = size / busbw / 1e3
    return Point(
        pattern=pattern,
        size_bytes=size,
        clock_mhz=clock,
        time_us=time_us,
        busbw_gbs=busbw,
        provenance="emulated",
        time_low_us=time_us * (1 - spread),
        time_high_us=time_us * (1 + spread),
    )


def profile(points: list[Point] | None = None, **more: object) -> PlatformProfile:
    if points is None:
        points = [point(clock, 3.0 if clock >= 480 else 2.0, size) for size in (MIB, 8 * MIB) for clock in CLOCKS]
    fields: dict[str, object] = {
        "name": "t4x8",
        "gpu": "Tesla T4",
        "gpus": 8,
        "emulated": True,
        "clock_max_mhz": 1590,
        "clock_min_mhz": 300,
        "clocks_set": True,
        "points": points,
        "overhead": [OverheadPoint(pattern="all_reduce", size_bytes=2 * MIB, provenance="emulated")],
        **more,
    }
    return PlatformProfile(**fields)  # type: ignore[arg-type]


def test_minimum_clock_is_the_lowest_that_keeps_the_bandwidth() -> None:
    assert minimum_clocks(profile()) == {"all_reduce": {MIB: 480, 8 * MIB: 480}}


def test_the_scan_stops_where_bandwidth_falls() -> None:
    points = [point(c, b) for c, b in zip(CLOCKS, (3.0, 3.0, 2.5, 2.5, 3.0, 3.0), strict=True)]
    assert minimum_clocks(profile(points))["all_reduce"][MIB] == 1200


def test_one_bad_point_between_good_ones_is_noise() -> None:
    points = [point(c, b) for c, b in zip(CLOCKS, (3.0, 3.0, 2.5, 3.0, 3.0, 1.0), strict=True)]
    assert minimum_clocks(profile(points))["all_reduce"][MIB] == 480


def test_faster_when_slower_counts_as_equal() -> None:
    points = [point(c, b) for c, b in zip(CLOCKS, (2.8, 2.9, 3.0, 3.2, 3.5, 2.0), strict=True)]
    assert minimum_clocks(profile(points))["all_reduce"][MIB] == 480


@pytest.mark.parametrize(("loss", "clock"), [(0.0, 300), (0.019, 300), (0.021, 1590)])
def test_two_percent_less_bandwidth_is_a_loss(loss: float, clock: int) -> None:
    points = [point(1590, 3.0), *(point(c, 3.0 * (1 - loss)) for c in CLOCKS[1:])]
    assert minimum_clocks(profile(points))["all_reduce"][MIB] == clock


def test_the_least_times_are_compared_since_noise_only_adds() -> None:
    disturbed = [point(c, 3.0 * (0.8 if c == 600 else 1.0), spread=0.25 if c == 600 else 0.0) for c in CLOCKS]
    assert minimum_clocks(profile(disturbed))["all_reduce"][MIB] == 300


def test_table_is_what_the_reference_describes() -> None:
    assert policy_table(profile()) == (
        "powerccl-policy-table 1\n"
        "platform t4x8\n"
        "gpu Tesla T4\n"
        "gpus 8\n"
        "clock_max_mhz 1590\n"
        "overhead_bytes all_reduce 2097152\n"
        "min_clock_mhz all_reduce 1048576 inf 480\n"
        "end 6\n"
    )


def test_ranges_take_the_higher_clock_of_their_ends_and_leave_out_the_maximum() -> None:
    wanted = {128 * KIB: 1590, 256 * KIB: 600, 512 * KIB: 600, MIB: 480, 2 * MIB: 1590, 4 * MIB: 300}
    points = [point(c, 3.0 if c >= low else 1.0, size) for size, low in wanted.items() for c in CLOCKS]
    lines = [line for line in policy_table(profile(points)).splitlines() if line.startswith("min_clock")]
    assert lines == [
        f"min_clock_mhz all_reduce {256 * KIB} {MIB} 600",
        f"min_clock_mhz all_reduce {4 * MIB} inf 300",
    ]


def test_published_overhead_points_can_be_chosen() -> None:
    assert f"overhead_bytes all_reduce {PUBLISHED_OVERHEAD_BYTES['all_reduce']}" in policy_table(profile(), "published")
    assert "overhead_bytes all_reduce never" in policy_table(profile(overhead=[]))


def test_a_profile_without_clocks_makes_no_table() -> None:
    with pytest.raises(PowercclError) as error:
        policy_table(profile(clocks_set=False, clocks_reason="no --set-clocks"))
    assert "no --set-clocks" in error.value.message
    assert "--policy observe" in error.value.hint


def test_a_table_too_long_is_refused() -> None:
    points = [
        point(c, 3.0 if c >= (480 if i % 4 < 2 else 600) else 1.0, 1024 * (i + 1), pattern)
        for pattern in PATTERNS
        for i in range(60)
        for c in CLOCKS
    ]
    with pytest.raises(PowercclError, match="256 are allowed"):
        policy_table(profile(points))


def test_events_only_table_manages_everything_at_the_maximum() -> None:
    lines = events_only_table(profile(), ["all_reduce", "gather"]).splitlines()
    assert "clock_max_mhz 1591" in lines  # the runtime leaves alone what is at the maximum
    assert "min_clock_mhz gather 0 inf 1590" in lines
    assert lines[-1] == f"end {len(lines) - 2}"


def test_overhead_point_is_where_the_loss_stays_under_the_tolerance() -> None:
    def sample(size: int, loss: float) -> OverheadSample:
        return OverheadSample(
            pattern="reduce", size_bytes=size, plain_us=100.0, managed_us=100.0 / (1 - loss), provenance="emulated"
        )

    samples = [sample(1, 0.5), sample(2, 0.01), sample(3, 0.03), sample(4, 0.019), sample(5, -0.02)]
    assert overhead_points(samples)[0].size_bytes == 4
    assert overhead_points([sample(1, 0.5), sample(2, 0.03)])[0].size_bytes is None
    assert overhead_points([]) == []


def test_profile_survives_the_disk_and_diffs_by_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(encode(profile()))
    assert store.load_profile(str(path)) == profile()
    assert sum(b'"clock_mhz"' in line for line in path.read_bytes().splitlines()) == 2 * len(CLOCKS)


def test_profiles_of_before_0_1_load(tmp_path: Path) -> None:
    """They have the power of computation alone, which no output uses now."""
    old = json.loads(encode(profile(gpu_power=GpuPower(provenance="modelled", idle_watts=25.1))))
    old["gpu_power"]["behind_watts"] = 72.2
    old["computing"] = [{"clock_mhz": 900, "watts": 52.94, "provenance": "emulated"}]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(old))
    read = store.load_profile(str(path)).gpu_power
    assert read is not None and read.idle_watts == 25.1


def users_folder() -> Path:
    folder = store.PROFILES.folder
    assert folder is not None
    return folder


def test_users_profiles_are_found_by_name_and_hide_built_in_ones() -> None:
    folder = users_folder()
    folder.mkdir(parents=True)
    (folder / "t4x8.json").write_bytes(encode(profile(links="mine")))
    assert store.load_profile("t4x8").links == "mine"


def test_unknown_profile_suggests(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = users_folder()
    folder.mkdir(parents=True)
    (folder / "cluster9.json").write_bytes(encode(profile()))
    with pytest.raises(PowercclError) as error:
        store.load_profile("cluster8")
    assert error.value.message == "unknown platform 'cluster8'"
    assert "did you mean 'cluster9'?" in error.value.hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a platform profile"),
        ("[]", "is not a platform profile"),
        ('{"schema_version": 2}', "platform profile of schema 2; this powerccl reads 1"),
        ('{"schema_version": 1}', "is not a platform profile"),
        (encode(profile(gpus=0)).decode(), "impossible values"),
        (encode(profile([point(1590, 3.0, pattern="all_redcue")])).decode(), "unknown pattern 'all_redcue'"),
        (encode(profile([point(1590, -3.0)])).decode(), "impossible values"),
        (encode(profile()).decode()[:-30], "is not a platform profile"),
        (encode(profile()).decode().replace('"provenance":"emulated"', '"provenance":"guessed"', 1), "'guessed'"),
    ],
)
def test_damaged_profiles_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(PowercclError, match=words) as error:
        store.load_profile(str(path))
    assert "powerccl profile" in error.value.hint


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PowercclError, match="No such file"):
        store.load_profile(str(tmp_path / "none.json"))


def test_a_profile_of_another_machine_is_refused() -> None:
    store.check_machine(profile(), ["Tesla T4"] * 8)
    store.check_machine(profile(), [])
    with pytest.raises(PowercclError, match="this machine has 2 x NVIDIA H200") as error:
        store.check_machine(profile(), ["NVIDIA H200"] * 2)
    assert "run `powerccl profile`" in error.value.hint
    with pytest.raises(PowercclError, match="this machine has 4 of them"):
        store.check_machine(profile(), ["Tesla T4"] * 4)


def test_the_machines_own_profile_is_found_but_never_an_emulated_one() -> None:
    folder = users_folder()
    folder.mkdir(parents=True)
    (folder / "broken.json").write_text("{")
    (folder / "t4x8.json").write_bytes(encode(profile()))
    assert store.profile_for(["Tesla T4"] * 8) is None
    (folder / "real.json").write_bytes(encode(profile(name="real", emulated=False)))
    found = store.profile_for(["Tesla T4"] * 8)
    assert found is not None
    assert found.name == "real"
    assert store.profile_for(["Tesla T4"] * 7) is None


def test_clocks_to_profile_are_supported_ones() -> None:
    chosen = clocks_to_profile(list(range(300, 1591, 15)))
    assert chosen[0] == 1590
    assert chosen[-1] == 300
    assert 450 in chosen
    assert 480 in chosen
    assert 750 in chosen
    assert len(chosen) == 12
    assert clocks_to_profile([1000]) == [1000]


def bench_line(**fields: object) -> str:
    return json.dumps(
        {"type": "point", "pattern": "gather", "size_bytes": 1024, "time_us": 10.0, "busbw_gbs": 1.0, "x": 1, **fields}
    )


def test_bench_lines_are_read_up_to_the_interruption(tmp_path: Path) -> None:
    header = {"type": "header", "emulated": True, "ranks": 8, "gpu": "Tesla T4", "nccl_version": "2.28.9", "y": {}}
    path = tmp_path / "points.jsonl"
    lines = [json.dumps(header), bench_line(clock_requested_mhz=900), "{torn", bench_line(sm_clock_mhz=1590.2)]
    path.write_text("\n".join(lines) + '\n{"type": "point", "patt')
    found, points = read_bench_lines(path)
    assert found is not None
    assert found.nccl_version == "2.28.9"
    assert [p.clock_mhz for p in profile_points(points, "emulated")] == [1590, 900]
    assert read_bench_lines(tmp_path / "none") == (None, [])


def test_points_without_time_or_clock_are_left_out() -> None:
    points = [
        BenchPoint("gather", 8, 0.0, 1.0, 900),
        BenchPoint("gather", 8, 1.0, 0.0, 900),
        BenchPoint("gather", 8, 1.0, 1.0),
    ]
    assert profile_points(points, "emulated") == []


def test_overhead_samples_pair_by_pattern_and_size() -> None:
    plain = [BenchPoint("gather", 8, t, 1.0) for t in (20.0, 30.0, 40.0)] + [BenchPoint("reduce", 8, 5.0, 1.0)]
    managed = [BenchPoint("gather", 8, 40.0, 1.0), BenchPoint("gather", 16, 1.0, 1.0)]
    found = overhead_samples(plain, managed, "measured")
    assert [(s.pattern, s.plain_us, s.managed_us) for s in found] == [("gather", 20.0, 40.0)]


def test_where_clocks_could_not_be_set_the_profile_says_why() -> None:
    header = BenchHeader(False, 2, "NVIDIA H200", clock_control="refused", clock_control_reason="not root")
    found = empty_profile("h200-x2", header, [1980], False)
    assert found.clocks_reason == "not root"
    assert "no consent" in empty_profile("x", BenchHeader(False, 2, "g"), [1980], False).clocks_reason
    assert msgspec.json.decode(encode(found), type=PlatformProfile) == found


def test_built_in_profiles_are_sound() -> None:
    for path in BUILTIN.glob("*.json"):
        built_in = store.load_profile(str(path))
        assert built_in.name == path.stem
        assert policy_table(built_in).startswith("powerccl-policy-table 1\n")
