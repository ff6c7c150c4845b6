# SPDX-License-Identifier: Apache-2.0
"""The lease protocol as Python speaks it, against a daemon that is scripted here."""

from __future__ import annotations

import dataclasses
import grp
import os
import pwd
import re
import socket
import struct
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from lease_daemon import ME, FakeDaemon, clocks, message, reply, totals, welcome

from powerccl.errors import PowercclError
from powerccl.leases import client as leases
from powerccl.leases import protocol
from powerccl.leases.client import NoDaemonError, RefusedError, connect
from powerccl.leases.protocol import Flag, Status, Type

HEADER_FILE = Path(__file__).parents[2] / "native/abi/lease.h"


def test_the_structs_are_those_of_the_header() -> None:
    text = re.sub(r"//.*", "", HEADER_FILE.read_text()).replace("POWERCCL_LEASE_TEXT]", "120]")
    letters = {"uint32_t": "I", "int32_t": "i", "uint16_t": "H", "uint64_t": "Q"}

    def layout(name: str) -> str:
        (body,) = re.findall(rf"struct powerccl_lease_{name} \{{(.*?)\}};", text, re.DOTALL)
        found = "="
        for kind, names in re.findall(r"(\w+)\s+([^;]+);", body.replace("struct powerccl_lease_header header;", "")):
            for field in names.split(","):
                size = re.search(r"\[(\d+)\]", field)
                found += f"{size[1]}s" if size else letters[kind]
        return found

    used = {
        "header": protocol.HEADER,
        "hello": protocol.HELLO,
        "welcome": protocol.WELCOME,
        "acquire": protocol.ACQUIRE,
        "set": protocol.SET,
        "drain": protocol.DRAIN,
        "reply": protocol.REPLY,
        "device": protocol.DEVICE,
        "totals": protocol.TOTALS,
    }
    assert {name: layout(name) for name in used} == {name: used[name].format for name in used}
    sizes = dict(re.findall(r"sizeof\(struct powerccl_lease_(\w+)\) == (\d+)", text))
    assert {name: used[name].size + 24 * (name != "header") for name in used if name in sizes} == {
        name: int(size) for name, size in sizes.items() if name in used
    }


def test_the_numbers_are_those_of_the_header() -> None:
    text = HEADER_FILE.read_text()
    declared = {name: int(value) for name, value in re.findall(r"POWERCCL_LEASE_(\w+) = (-?\d+)", text)}
    for ours in (*Type, *Status, *Flag):
        assert declared[str(ours.name)] == ours.value, ours
    assert {name for name, value in declared.items() if value < 0} <= set(Status.__members__)
    assert f'SOCKET "{leases.SOCKET}"' in text
    assert f"VERSION {protocol.VERSION}u" in text
    assert f"MAGIC {protocol.MAGIC:#x}u" in text


def test_serials_grow_and_words_unasked_are_passed_over(daemon: FakeDaemon) -> None:
    seen: list[int] = []

    def script(kind: int, serial: int) -> list[bytes] | None:
        seen.append(serial)
        unasked = [reply(0, -12, kind=Type.ENDED), reply(0, kind=Type.SETTLED)]
        return [*unasked, totals(serial), reply(serial)] if kind == Type.STATUS else None

    daemon.override = script
    with connect(daemon.path, "a name " + "x" * 100) as session:
        assert session.status() == []
        session.drain(True)
    assert seen == sorted(set(seen)) and seen[0] > 0
    assert daemon.asked[0][1] == b"a name " + b"x" * 56 + b"\0"
    assert daemon.asked[2] == (Type.DRAIN, struct.pack("=II", 1, 0))


GARBAGE: dict[str, Callable[[int], bytes]] = {
    "short": lambda serial: b"hello",
    "magic": lambda serial: message(Type.REPLY, serial, b"\0" * 176, magic=0x12345678),
    "type": lambda serial: message(77, serial, b""),
    "cut": lambda serial: reply(serial)[:-1],
    "long": lambda serial: reply(serial) + b"\0",
    "lying size": lambda serial: reply(serial)[:8] + struct.pack("=I", 24) + reply(serial)[12:],
    "too long for any": lambda serial: reply(serial) + b"\0" * 6000,
    "of another request": lambda serial: reply(serial + 1),
    "not an answer": lambda serial: welcome(serial),
}


@pytest.mark.parametrize(
    ("when", "what"),
    [(Type.STATUS, what) for what in GARBAGE] + [(Type.HELLO, what) for what in GARBAGE if what != "not an answer"],
)
def test_garbage_is_refused(daemon: FakeDaemon, when: Type, what: str) -> None:
    daemon.override = lambda kind, serial: [GARBAGE[what](serial)] if kind == when else None
    result = clocks()
    assert result.exit_code == 1
    assert "does not follow the lease protocol" in result.output
    assert "hint: check that it is powerccld" in result.output


@pytest.mark.parametrize("times", [0, 2])
def test_a_status_has_one_totals(daemon: FakeDaemon, times: int) -> None:
    def answers(kind: int, serial: int) -> list[bytes] | None:
        return [*[totals(serial)] * times, reply(serial)] if kind == Type.STATUS else None

    daemon.override = answers
    assert f"with {times} totals" in clocks().output


def test_the_totals_are_those_of_the_header() -> None:
    (body,) = re.findall(r"struct powerccl_lease_totals \{(.*?)\};", re.sub(r"//.*", "", HEADER_FILE.read_text()), re.S)
    declared = [field for names in re.findall(r"uint64_t ([^;]+);", body) for field in names.split(", ")]
    assert [field.name for field in dataclasses.fields(leases.Totals)] == declared


def test_another_version(daemon: FakeDaemon) -> None:
    daemon.override = lambda kind, serial: [reply(0)[:4] + struct.pack("=H", 2) + reply(0)[6:]]
    result = clocks()
    assert result.exit_code == 1
    assert "uses version 2 of the lease protocol, this powerccl uses 1" in result.output
    assert "hint: install powerccld and powerccl of one release" in result.output


def test_a_daemon_that_is_full_says_so_before_it_hangs_up(daemon: FakeDaemon) -> None:
    daemon.override = lambda kind, serial: [reply(0, Status.TOO_MANY, "too many connections"), b""]
    result = clocks()
    assert "powerccld has too many sessions: too many connections" in result.output


def test_last_words_are_heard_behind_a_reset(tmp_path: Path) -> None:
    # As powerccld does it: said and closed before our hello has been read.
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(tmp_path / "s"))
    listening.listen(1)
    said = threading.Event()

    def refuse() -> None:
        connection, _ = listening.accept()
        connection.send(reply(0, Status.TOO_MANY))
        said.wait(10)
        connection.close()

    thread = threading.Thread(target=refuse)
    thread.start()
    real = leases.Leases._next

    def late(session: leases.Leases) -> bytes:
        said.set()
        thread.join(10)
        return real(session)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases.Leases, "_next", late)
        with pytest.raises(RefusedError) as error:
            connect(tmp_path / "s")
    assert error.value.status == Status.TOO_MANY
    listening.close()


def test_a_daemon_that_hangs_up(daemon: FakeDaemon) -> None:
    daemon.override = lambda kind, serial: [b""] if kind == Type.STATUS else None
    assert "closed the connection" in clocks().output


def test_a_silent_daemon(daemon: FakeDaemon) -> None:
    daemon.override = lambda kind, serial: [] if kind == Type.STATUS else None
    result = clocks()
    assert result.exit_code == 1
    assert "has not answered for 1 s" in result.output
    assert "hint: an administrator" in result.output


def test_a_daemon_that_takes_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "SILENCE_S", 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen(0)
        first = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        first.connect(str(tmp_path / "s"))
        with first, pytest.raises(PowercclError, match="has accepted no connection for 1 s"):
            connect(tmp_path / "s")


def test_no_daemon(tmp_path: Path) -> None:
    result = clocks("--socket", str(tmp_path / "none.sock"))
    assert result.exit_code == 1
    assert f"error: no powerccld listens at {tmp_path}/none.sock" in result.output
    assert "powerccl admin install" in result.output
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stale.bind(str(tmp_path / "stale"))
    stale.close()
    with pytest.raises(NoDaemonError, match="any more"):
        connect(tmp_path / "stale")


def test_something_else_listens(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(tmp_path / "s"))
        other.listen(1)
        with pytest.raises(PowercclError, match=r"cannot connect to powerccld at .*wrong type"):
            connect(tmp_path / "s")
    with pytest.raises(PowercclError, match="too long"):
        connect(tmp_path / ("x" * 200))


def test_no_permission(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    refusing = type("Refusing", (), {"connect": denied})
    monkeypatch.setattr(leases, "_reach", lambda _, path: leases_reach(refusing(), path))
    daemon.path.chmod(0o660)
    result = clocks()
    assert result.exit_code == 1
    assert "no permission to use powerccld's socket" in result.output
    group = grp.getgrgid(daemon.path.stat().st_gid).gr_name
    assert f"hint: ask the administrator to add you to the group that owns the socket: {group}" in result.output
    daemon.path.chmod(0o600)
    assert "may use it" in clocks().output
    daemon.path.chmod(0o660)
    me = pwd.getpwuid(ME).pw_name
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(("power", "x", gid, [me])))
    monkeypatch.setattr(os, "getgroups", list)
    assert "you joined its group power after you logged in" in clocks().output


leases_reach = leases._reach


@pytest.mark.skipif(os.getuid() != 0, reason="takes root to be somebody else")
def test_who_is_not_in_the_group_is_told_so() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        fake = FakeDaemon(folder / "d.sock")
        fake.path.chmod(0o660)
        assert clocks("--socket", str(fake.path)).exit_code == 0  # and everything has been imported
        fake.asked.clear()
        child = os.fork()
        if child == 0:  # whose Python may not be readable to a stranger, so no new one is started
            code = 99
            try:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                result = clocks("--socket", str(fake.path))
                told = "error: no permission to use powerccld's socket" in result.output
                told &= "the group that owns the socket: root" in result.output
                code = result.exit_code if told else 98
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        fake.stop()
    assert fake.asked == []
