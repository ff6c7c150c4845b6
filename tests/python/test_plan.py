# SPDX-License-Identifier: Apache-2.0
"""What is decided before a job starts: its policy, and whether clocks are set."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from powerccl.errors import PowercclError
from powerccl.launch.fixed_clock import FixedClock, nearest_clock
from powerccl.launch.gpus import Gpus, may_set_clocks
from powerccl.launch.plan import decide_clocks
from powerccl.launch.plan import plan_job as plan
from powerccl.launch.request import Request
from powerccl.platforms.store import load_profile


@pytest.mark.parametrize(
    ("policy", "emulated", "set_clocks", "environment", "mode", "words"),
    [
        ("observe", False, False, {}, "none", None),
        ("observe", True, False, {}, "none", None),
        ("observe", False, True, {}, "none", "sets no clocks"),
        ("per-call", True, False, {}, "lease", None),
        ("per-call", False, False, {}, "dry", "add --set-clocks to set them"),
        ("per-call", True, True, {"POWERCCL_CLOCKS": "dry"}, "dry", "POWERCCL_CLOCKS=dry"),
        ("per-call", False, True, {"POWERCCL_CLOCKS": "dry"}, "dry", "POWERCCL_CLOCKS=dry"),
    ],
)
def test_who_may_set_clocks(
    policy: str, emulated: bool, set_clocks: bool, environment: dict[str, str], mode: str, words: str | None
) -> None:
    found, said = decide_clocks(policy, emulated, set_clocks, environment)
    assert found == mode
    assert (said is None) if words is None else (said is not None and words in said)


@pytest.mark.parametrize(
    ("right", "daemon", "mode"), [(True, False, "lease"), (False, True, "lease"), (False, False, "dry")]
)
def test_consent_without_right_and_daemon_runs_dry(
    right: bool, daemon: bool, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("powerccl.launch.plan.may_set_clocks", lambda: right)
    monkeypatch.setattr("powerccl.launch.daemon.system_daemon", lambda _: Path("d.sock") if daemon else None)
    found, said = decide_clocks("per-call", False, True, {})
    assert found == mode
    assert (said is None) if mode != "dry" else (said is not None and "root, CAP_SYS_ADMIN or a powerccld" in said)


@pytest.mark.parametrize(
    ("request_of", "environment", "policy", "words"),
    [
        ({}, {}, "observe", []),
        ({"platform": "t4x8"}, {}, "observe", []),  # nothing is to be set, so nothing is looked up
        ({"emulate": "t4x8"}, {}, "auto", []),
        ({"emulate": "t4x8", "platform": "none"}, {}, "auto", []),
        ({"emulate": "t4x8", "platform": "t4x8"}, {}, "auto", []),
        (
            {"set_clocks": True, "platform": "t4x8"},
            {},
            "auto",
            ["policy auto ignores --platform, which is for per-call"],
        ),
        ({"emulate": "h200x4"}, {}, "auto", []),
        ({"emulate": "t4x8"}, {"POWERCCL_CLOCKS": "dry"}, "observe", []),
        ({}, {"POWERCCL_EMULATOR_SOCKET": "s"}, "auto", []),  # none of two was made
        ({"set_clocks": True}, {}, "auto", []),
        ({"policy": "per-call", "emulate": "t4x8"}, {}, "per-call", []),
        ({"policy": "observe", "emulate": "t4x8"}, {}, "observe", []),
    ],
)
def test_the_policy_where_none_is_named(
    request_of: dict[str, Any],
    environment: dict[str, str],
    policy: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("powerccl.launch.plan.query_gpus", lambda: Gpus(["Tesla T4"] * 2))
    monkeypatch.setattr("powerccl.launch.plan.may_set_clocks", lambda: True)
    said: list[str] = []
    _, planned, table, profile = plan(
        Request(**{"command": ["x"], "policy": "", **request_of}), environment, said.append
    )
    assert planned == policy
    assert bool(table) == (profile is not None) == (policy == "per-call")
    assert len(said) == len(words)
    assert all(word in line for word, line in zip(words, said, strict=True))


@pytest.mark.parametrize("wish", ["", "lease"])
@pytest.mark.parametrize("right", [False, True])
def test_a_daemon_is_no_consent(right: bool, wish: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("powerccl.launch.plan.may_set_clocks", lambda: right)
    monkeypatch.setattr("powerccl.launch.daemon.system_daemon", lambda _: tmp_path / "d.sock")
    monkeypatch.setattr("powerccl.launch.plan.query_gpus", lambda: Gpus(["Tesla T4"] * 8))
    monkeypatch.setattr("powerccl.platforms.store.profile_for", lambda _: load_profile("t4x8"))
    environment = {"POWERCCL_CLOCKS": wish, "POWERCCL_LEASE_SOCKET": str(tmp_path / "d.sock")}
    for policy in ("per-call", "auto"):
        found, said = decide_clocks(policy, False, False, environment)
        assert found == "dry"
        assert said is not None and "add --set-clocks" in said
    assert plan(Request(command=["x"], policy=""), environment, pytest.fail)[1] == "observe"
    # The same machine with consent.
    assert plan(Request(command=["x"], policy="", set_clocks=True), environment, pytest.fail)[1] == "auto"
    assert decide_clocks("auto", False, True, environment)[0] == "lease"


def test_clocks_asked_for_take_auto_where_there_are_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerccl.launch.plan.query_gpus", lambda: Gpus(["Tesla T4"] * 8))
    said: list[str] = []
    request = Request(command=["x"], policy="", set_clocks=True)
    assert plan(request, {}, said.append)[1:] == ("auto", "", None)
    assert said == []
    monkeypatch.setattr("powerccl.launch.plan.query_gpus", lambda: Gpus(reason="no NVIDIA driver here"))
    assert plan(request, {}, said.append)[1] == "observe"
    assert said == ["recording only: policy auto has no GPU to manage (no NVIDIA driver here)"]


def test_per_call_needs_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerccl.launch.plan.query_gpus", lambda: Gpus(["Tesla T4"] * 8))
    for platform, words in (("t4x9", "unknown platform 't4x9'"), ("none", "no platform profile for")):
        with pytest.raises(PowercclError, match=words):
            plan(Request(command=["x"], policy="per-call", platform=platform), {}, pytest.fail)


def test_a_run_that_only_records_does_not_ask_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerccl.launch.plan.query_gpus", lambda: pytest.fail("asked"))
    assert plan(Request(command=["x"], policy=""), {}, pytest.fail)[1] == "observe"


def test_capability_is_read_from_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _, **_more: "Name:\tx\nCapEff:\t0000000000200000\n")
    assert may_set_clocks()
    monkeypatch.setattr(Path, "read_text", lambda _, **_more: "CapEff:\t0000000000100000\n")
    assert not may_set_clocks()


@pytest.mark.parametrize(
    ("text", "mhz"), [("1200", 1200), ("1214.5 MHz", 1200), ("70%", 1110), ("100 %", 1590), ("300", 300)]
)
def test_the_nearest_clock_at_or_below(text: str, mhz: int) -> None:
    assert nearest_clock(text, range(300, 1591, 15)) == mhz


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("299", "300 to 1590 MHz"),
        ("1591", "300 to 1590 MHz"),
        ("10%", "18.9 to 100 %, 300 to 1590 MHz"),
        ("101%", "300 to 1590 MHz"),
        ("-5", "takes MHz or a percentage"),
        ("70%%", "takes MHz or a percentage"),
        ("", "takes MHz or a percentage"),
    ],
)
def test_impossible_clocks(text: str, words: str) -> None:
    with pytest.raises(PowercclError, match=words):
        nearest_clock(text, range(300, 1591, 15))


def test_a_fixed_clock_without_right_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerccl.launch.fixed_clock.may_set_clocks", lambda: False)
    monkeypatch.setattr("powerccl.launch.fixed_clock.system_daemon", lambda _: None)
    said: list[str] = []
    with ExitStack() as stack:
        clock = FixedClock("1200", stack, said.append)
        with pytest.raises(PowercclError, match="needs root, CAP_SYS_ADMIN or a powerccld") as error:
            clock.check({}, False, said.append)
        assert "leave --clock out" in error.value.hint
        clock.check({}, True, said.append)  # emulated GPUs are the user's
        assert not said
        clock.check({"POWERCCL_CLOCKS": "none"}, False, said.append)
        assert said == ["POWERCCL_CLOCKS=none: no clock is set, so --clock 1200 has no effect"]


def test_a_fixed_clock_goes_with_observe() -> None:
    assert plan(Request(["job"], policy="", clock="70%"), {}, print)[1] == "observe"
    assert plan(Request(["job"], policy="observe", clock="70%"), {}, print)[1] == "observe"
    with pytest.raises(PowercclError, match="policy auto chooses clocks"):
        plan(Request(["job"], policy="auto", clock="70%"), {}, print)
