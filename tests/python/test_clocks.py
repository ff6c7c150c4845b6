# SPDX-License-Identifier: Apache-2.0
"""`powerccl clocks`, against a daemon that is scripted here."""

from __future__ import annotations

import json
import pwd
import re
import struct
from io import StringIO
from typing import Any

import pytest
from lease_daemon import ME, OTHER, UUIDS, FakeDaemon, clocks, row

from powerccl.console import Console
from powerccl.leases.client import Device
from powerccl.leases.protocol import Flag, Status, Type
from powerccl.reports import clocks as report


def test_the_table_at_80_columns(busy: FakeDaemon) -> None:
    result = clocks()
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "powerccld 9.8.7 · 4 × NVIDIA H200"
    me = pwd.getpwuid(ME).pw_name
    rows = {line.split()[0]: re.split(r"\s{2,}", line.rstrip()) for line in lines[2:9] if line.strip()}
    assert rows["device"] == ["device", "clock now", "set to", "held by", "since", "changes"]
    assert rows["GPU-11111111"] == ["GPU-11111111", "360 MHz", "345 MHz", f"{me} 4711 +1 train", "12 min", "1234"]
    assert rows["GPU-11112222"] == ["GPU-11112222", "1980 MHz", "210–1200 MHz", "54321 4712 solver", "12 s", "2"]
    assert rows["GPU-33333333"] == ["GPU-33333333", "–", "restoring", "–"]
    assert rows["GPU-44444444"] == ["GPU-44444444", "1980 MHz", "default", "–"]
    assert "2 of 4 held, 1 of them yours." in result.output
    assert "! 1 clock not restored yet" in result.output
    assert "\x1b" not in result.output


def test_the_table_as_another_user_sees_it(busy: FakeDaemon) -> None:
    busy.flags = 0
    busy.devices[1].update(mhz=(0, 0, 1980), held_ms=0, changes=0, run=b"")  # as the daemon keeps it to itself
    (line,) = (line for line in clocks().output.splitlines() if line.startswith("GPU-11112222"))
    assert re.split(r"\s{2,}", line.rstrip()) == ["GPU-11112222", "1980 MHz", "–", "54321 4712", "–", "–"]
    holder = json.loads(clocks("--json").stdout)["devices"][1]["holder"]
    assert holder["told"] is False
    assert (holder["pid"], holder["held_ms"], holder["changes"]) == (4712, None, None)


def test_names_of_others_do_nothing_to_the_terminal(busy: FakeDaemon) -> None:
    busy.devices[1]["run"] = b"\x1b[2J[red]x\xff\n"
    output = clocks().output
    assert "\x1b" not in output
    assert "54321 4712 \ufffd[2J[red]x\ufffd\ufffd" in output


def test_a_long_name_leaves_the_table_in_shape(busy: FakeDaemon) -> None:
    busy.devices[1].update(run=b"r" * 63, uid=4_000_000_000, pid=4_194_303, changes=10**7, held_ms=86_400_000 * 365)
    lines = clocks().output.splitlines()
    assert max(map(len, lines)) <= 80
    (line,) = (line for line in lines if line.startswith("GPU-11112222"))
    assert "4000000000 4194303" in line and "…" in line and line.endswith("365 d  10000000")


@pytest.mark.parametrize(
    ("devices", "flags", "words"),
    [
        ([], 0, "knows no device"),
        ([row(UUIDS[0])], 0, "No process holds a GPU."),
        ([row(UUIDS[0])], Flag.DRAINED, "! draining: no new leases until `powerccl clocks --drain off`"),
        ([row(UUIDS[0])], Flag.DRY, "! dry: it decides and answers, and sets no clock"),
        ([row(UUIDS[0])], Flag.EMULATED, "NVIDIA H200  emulated"),
        ([row(UUIDS[0], flags=int(Flag.MINE), pid=1, uid=ME)], 0, "1 of 1 held, by you."),
    ],
)
def test_remarks(daemon: FakeDaemon, devices: list[dict[str, Any]], flags: int, words: str) -> None:
    daemon.devices, daemon.flags = devices, int(flags)
    result = clocks()
    assert result.exit_code == 0
    assert words in result.output


def test_models_are_named_where_they_differ(daemon: FakeDaemon) -> None:
    daemon.devices = [row(UUIDS[0]), row(UUIDS[2], model="Tesla T4")]
    output = clocks().output
    assert "GPU-11111111  NVIDIA H200" in output
    assert "GPU-33333333  Tesla T4" in output
    assert max(map(len, output.splitlines())) <= 80


def test_colour_unless_unwanted(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Device(UUIDS[0], "Tesla T4", Flag.MINE, 4711, ME, 345, 345, 345, 1000, 1, 1, "train")
    about = type("About", (), {"server": "powerccld", "draining": False, "dry": False, "emulated": False})()
    monkeypatch.delenv("NO_COLOR", raising=False)
    for wanted in (True, False):
        shown = StringIO()
        console = Console(file=shown, force_terminal=True, color_system="standard", width=80, no_color=not wanted)
        report.print_clocks(console, about, [held])
        assert ("\x1b[1;96m" in shown.getvalue()) is wanted


def test_short_names_tell_devices_apart() -> None:
    near = [f"GPU-4ba2dfe4-79cb-8a1e-7996-22f2e0b95d{n}" for n in (52, 53)]
    assert list(report.short_names([*UUIDS[:3], "0000:1b"]).values()) == [
        "GPU-11111111", "GPU-11112222", "GPU-33333333", "0000:1b",
    ]  # fmt: skip
    assert list(report.short_names(near).values()) == ["GPU-4ba2…5d52", "GPU-4ba2…5d53"]
    assert report.short_names(["GPU-1", "GPU-1"]) == {"GPU-1": "GPU-1"}


def test_json(busy: FakeDaemon) -> None:
    result = clocks("--json")
    document = json.loads(result.stdout)
    assert (document["schema"], document["server"], document["admin"]) == (1, "powerccld 9.8.7", True)
    assert (document["heartbeat_ms"], document["gpu_interval_ms"]) == (6000, 20)
    first, second, third, fourth, *_ = document["devices"]
    assert first["device"] == UUIDS[0]
    assert first["holder"] == {
        "uid": ME, "user": pwd.getpwuid(ME).pw_name, "pid": 4711, "mine": True, "told": True, "run": "train",
        "held_ms": 725_000, "changes": 1234, "leases": 2,
    }  # fmt: skip
    assert (first["min_mhz"], first["max_mhz"], first["now_mhz"]) == (345, 345, 360)
    assert second["holder"]["mine"] is False
    assert (third["pending"], third["now_mhz"], third["holder"]) == (True, None, None)
    assert (fourth["max_mhz"], fourth["pending"]) == (None, False)


def test_release_ends_mine_and_no_others(busy: FakeDaemon) -> None:
    result = clocks("--release")
    assert result.exit_code == 0
    assert busy.told(Type.REVOKE) == [UUIDS[0].encode()]
    assert f"{UUIDS[0]}: ended the lease of {pwd.getpwuid(ME).pw_name}'s process 4711 (train)" in result.output
    busy.devices = busy.devices[1:4]
    assert "you hold no lease" in clocks("--release").output
    assert len(busy.told(Type.REVOKE)) == 1


def test_release_where_only_administrators_may(busy: FakeDaemon) -> None:
    busy.refuse[Type.REVOKE] = (Status.NOT_ALLOWED, "")
    result = clocks("--release")
    assert result.exit_code == 1
    assert "process 4711" in result.output
    assert "hint: a lease ends with its process: kill 4711\n" in result.output


@pytest.mark.parametrize(
    ("wish", "named", "said"),
    [
        (UUIDS[1], UUIDS[1], "ended the lease of 54321's process 4712 (solver)"),
        ("GPU-11112", UUIDS[1], "ended the lease of 54321's process 4712 (solver)"),
        ("GPU-1…52", "", "2 devices are called so"),
        ("GPU-33…5d52", UUIDS[2], "no process holds GPU-33…5d52"),
        ("GPU-1111", "", "2 devices are called so"),
        ("all", "all", "54321's process 4712 (solver)"),
        ("0000:1b:00.0", "0000:1b:00.0", "0000:1b:00.0: revoked"),
    ],
)
def test_revoke(busy: FakeDaemon, wish: str, named: str, said: str) -> None:
    result = clocks("--revoke", wish)
    assert said in result.output
    assert result.exit_code == (0 if named else 1)
    assert busy.told(Type.REVOKE) == ([named.replace("all", "").encode()] if named else [])


def test_revoke_of_one_users(busy: FakeDaemon) -> None:
    assert clocks("--revoke", "all", "--user", str(OTHER)).exit_code == 0
    assert busy.told(Type.REVOKE) == [UUIDS[1].encode()]
    assert clocks("--revoke", UUIDS[0], "--user", str(OTHER)).exit_code == 0  # mine: left alone
    assert busy.told(Type.REVOKE) == [UUIDS[1].encode()]
    assert clocks("--revoke", "GPU-11111111", "--user", pwd.getpwuid(ME).pw_name).exit_code == 0
    assert busy.told(Type.REVOKE) == [UUIDS[1].encode(), UUIDS[0].encode()]
    for arguments, words in (
        (["--revoke", "all", "--user", "no-such-user"], "no user is called 'no-such-user'"),
        (["--revoke", "0000:1b:00.0", "--user", "0"], "has to be a device as `powerccl clocks` lists it"),
    ):
        result = clocks(*arguments)
        assert (result.exit_code, words in result.output) == (1, True)
    assert len(busy.told(Type.REVOKE)) == 2


def test_revoke_without_the_right(busy: FakeDaemon) -> None:
    busy.flags = 0
    result = clocks("--revoke", "all")
    assert result.exit_code == 1
    assert "--revoke all is for administrators" in result.output
    assert busy.told(Type.REVOKE) == []
    busy.refuse[Type.REVOKE] = (Status.NOT_ALLOWED, "it is another user's")
    result = clocks("--revoke", UUIDS[1])
    assert result.exit_code == 1
    assert "powerccld does not allow this user to do that: it is another user's" in result.output
    assert "`admin_groups`" in result.output and "`powerccl clocks --release`" in result.output


def test_restore(busy: FakeDaemon) -> None:
    result = clocks("--restore", "all")
    assert (result.exit_code, "all devices: the default clock is restored" in result.output) == (0, True)
    assert f"{UUIDS[2]}: the default clock is restored" in clocks("--restore", "GPU-3").output
    assert busy.told(Type.RESTORE) == [b"", UUIDS[2].encode()]
    busy.refuse[Type.RESTORE] = (Status.NO_DEVICE, "no device x")
    result = clocks("--restore", "x")
    assert result.exit_code == 1
    assert "has no such device" in result.output
    assert clocks("--restore", "x" * 48).exit_code == 1  # too long for the wire
    assert len(busy.told(Type.RESTORE)) == 3


def test_drain(daemon: FakeDaemon) -> None:
    assert "no new leases from now on" in clocks("--drain", "on").output
    assert "given again" in clocks("--drain", "off").output
    assert [body for kind, body in daemon.asked if kind == Type.DRAIN] == [struct.pack("=II", on, 0) for on in (1, 0)]


@pytest.mark.parametrize("arguments", [("--drain", "on"), ("--restore", "all")])
def test_without_the_right(daemon: FakeDaemon, arguments: tuple[str, ...]) -> None:
    refused = (Status.NOT_ALLOWED, "that is for administrators")
    daemon.refuse = {Type.DRAIN: refused, Type.RESTORE: refused}
    result = clocks(*arguments)
    assert result.exit_code == 1
    assert "powerccld does not allow this user to do that: that is for administrators" in result.output
    assert "hint: run as root, or join one of `admin_groups`" in result.output


@pytest.mark.parametrize("status", [-99, 999, Status.SYSTEM, Status.STOPPING])
def test_every_refusal_has_words(daemon: FakeDaemon, status: int) -> None:
    daemon.refuse[Type.STATUS] = (status, "because")
    result = clocks()
    assert result.exit_code == 1
    assert re.search(r"error: powerccld .*: because", result.output)


@pytest.mark.parametrize(
    "arguments",
    [("--json", "--restore", "all"), ("--release", "--revoke", "all"), ("--drain", "on", "--json"), ("--user", "x")],
)
def test_one_thing_at_a_time(daemon: FakeDaemon, arguments: tuple[str, ...]) -> None:
    result = clocks(*arguments)
    assert result.exit_code == 2
    assert "hint: `powerccl clocks --help`" in result.output or "hint: `cli clocks --help`" in result.output
    assert daemon.asked == []
