# SPDX-License-Identifier: Apache-2.0
"""`powerccl clocks`, and the lease protocol as Python speaks it, against a daemon that is scripted here."""

from __future__ import annotations

import json
import os
import pwd
import re
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import fakes
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from powerccl.commands import cli
from powerccl.doctor.checks import Check, check_daemon, check_gpus
from powerccl.errors import PowercclError
from powerccl.launch.gpus import Gpus
from powerccl.launch.native import DAEMON, NativeFiles
from powerccl.launch.services import start_daemon
from powerccl.leases import client as leases
from powerccl.leases import protocol
from powerccl.leases.client import Device, NoDaemonError, RefusedError, connect
from powerccl.leases.protocol import Flag, Status, Type
from powerccl.reports import clocks as report

HEADER_FILE = Path(__file__).parents[2] / "native/abi/lease.h"
UUIDS = tuple(f"GPU-{n:08x}-79cb-8a1e-7996-22f2e0b95d52" for n in (0x11111111, 0x11112222, 0x33333333, 0x44444444))
ME, OTHER = os.getuid(), 54321


def message(kind: int, serial: int, body: bytes, version: int = 1, magic: int = 0x534C4350) -> bytes:
    return struct.pack("=IHHIIQ", magic, version, kind, 24 + len(body), 0, serial) + body


def welcome(serial: int, flags: int = 0, version: int = 1, status: int = 0) -> bytes:
    body = struct.pack("=iIIIII32s", status, flags, 6000, 20, 5, 0, b"powerccld 9.8.7")
    return message(Type.WELCOME, serial, body, version)


def reply(serial: int, status: int = 0, text: str = "", kind: int = Type.REPLY) -> bytes:
    return message(kind, serial, struct.pack("=iIQIIIIQII120sII", status, *[0] * 9, text.encode(), 0, 0))


def device(
    serial: int,
    name: str,
    *,
    model: str = "NVIDIA H200",
    flags: int = 0,
    pid: int = 0,
    uid: int = 0,
    mhz: tuple[int, int, int] = (0, 0, 1980),
    held_ms: int = 0,
    changes: int = 0,
    sharers: int = 0,
    run: bytes = b"",
) -> bytes:
    body = struct.pack(
        "=48s64sIIIIIIIIQQ64s",
        *(name.encode(), model.encode(), flags, pid, uid, *mhz, sharers, 0, held_ms, changes, run),
    )
    return message(Type.DEVICE, serial, body)


def row(name: str, **fields: object) -> dict[str, Any]:
    """The fields of a device as FakeDaemon.devices takes them."""
    return {"name": name, **fields}


class FakeDaemon:
    """A thread that answers each request with what `script` makes of it; `asked` is what came."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.flags = int(Flag.ADMIN)
        self.devices: list[dict[str, Any]] = []
        self.metrics: list[bytes] = []
        self.refuse: dict[int, tuple[int, str]] = {}  # by type of request
        self.override: Callable[[int, int], list[bytes] | None] = lambda kind, serial: None
        self.asked: list[tuple[int, bytes]] = []
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listening.bind(str(path))
        self.listening.listen(4)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            with connection:
                while self.attend(connection):
                    pass

    def attend(self, connection: socket.socket) -> bool:
        request = connection.recv(8192)
        if not request:
            return False
        magic, version, kind, size, reserved, serial = struct.unpack_from("=IHHIIQ", request)
        assert (magic, version, size, reserved) == (0x534C4350, 1, len(request), 0)
        self.asked.append((kind, request[24:]))
        for answer in self.answers(kind, serial):
            if answer == b"":
                return False
            connection.send(answer)
        return True

    def answers(self, kind: int, serial: int) -> Iterator[bytes]:
        instead = self.override(kind, serial)
        if instead is not None:
            yield from instead
            return
        if kind == Type.HELLO:
            yield welcome(serial, self.flags)
            return
        if kind in self.refuse:
            yield reply(serial, *self.refuse[kind])
            return
        if kind == Type.STATUS:
            for fields in self.devices:
                yield device(serial, **fields)
        if kind == Type.METRICS:
            for chunk in self.metrics:
                yield message(Type.CHUNK, serial, struct.pack("=II4096s", len(chunk), 0, chunk))
        yield reply(serial)

    def told(self, kind: int) -> list[bytes]:
        """The devices that requests of that type named."""
        return [body[:48].rstrip(b"\0") for asked, body in self.asked if asked == kind]

    def stop(self) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.thread.join(10)


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    fake = FakeDaemon(tmp_path / "d.sock")
    monkeypatch.setenv("POWERCCL_LEASE_SOCKET", str(fake.path))
    monkeypatch.setattr(leases, "SILENCE_S", 1)
    yield fake
    fake.stop()


@pytest.fixture
def busy(daemon: FakeDaemon) -> FakeDaemon:
    """Four GPUs: mine, another's, one whose clock is not restored yet, and one that nobody holds; and two cores."""
    mine = int(Flag.MINE)
    daemon.devices = [
        row(UUIDS[0], flags=mine, pid=4711, uid=ME, mhz=(345, 345, 360), held_ms=725_000, changes=1234, sharers=2,
            run=b"train"),
        row(UUIDS[1], pid=4712, uid=OTHER, mhz=(210, 1200, 1980), held_ms=12_345, changes=2, run=b"solver"),
        row(UUIDS[2], flags=int(Flag.PENDING), mhz=(0, 0, 0)),
        row(UUIDS[3]),
        row("cpu0", model="core", mhz=(0, 0, 3200)),
        row("cpu1", model="core", flags=mine, pid=4711, uid=ME, mhz=(0, 800, 801), held_ms=90, changes=7),
    ]  # fmt: skip
    return daemon


def clocks(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["clocks", *arguments], env={"COLUMNS": "80", "NO_COLOR": "1"})


# ---- The protocol


def test_the_structs_are_those_of_the_header() -> None:
    text = re.sub(r"//.*", "", HEADER_FILE.read_text()).replace("POWERCCL_LEASE_TEXT]", "120]")
    text = text.replace("POWERCCL_LEASE_CHUNK_BYTES]", "4096]")
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
        "chunk": protocol.CHUNK,
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
        return [*unasked, reply(serial)] if kind == Type.STATUS else None

    daemon.override = script
    with connect(daemon.path, "a name " + "x" * 100) as session:
        assert session.status() == []
        session.drain(True)
    assert seen == sorted(set(seen)) and seen[0] > 0
    assert daemon.asked[0][1] == b"a name " + b"x" * 56 + b"\0"
    assert daemon.asked[2] == (Type.DRAIN, struct.pack("=II", 1, 0))


GARBAGE = {
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


@pytest.mark.parametrize("what", GARBAGE)
@pytest.mark.parametrize("when", [Type.HELLO, Type.STATUS])
def test_garbage_is_refused(daemon: FakeDaemon, what: str, when: Type) -> None:
    if (what, when) == ("not an answer", Type.HELLO):
        pytest.skip("there a welcome is one")
    daemon.override = lambda kind, serial: [GARBAGE[what](serial)] if kind == when else None
    result = clocks()
    assert result.exit_code == 1
    assert "does not follow the lease protocol" in result.output
    assert "hint: check that it is powerccld" in result.output


def test_a_chunk_longer_than_it_can_be(daemon: FakeDaemon) -> None:
    chunk = struct.pack("=II4096s", 4097, 0, b"")
    page = lambda serial: [message(Type.CHUNK, serial, chunk), reply(serial)]  # noqa: E731
    daemon.override = lambda kind, serial: page(serial) if kind == Type.METRICS else None
    assert "4097 bytes in a chunk" in clocks("--metrics").output


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
    assert "packaging/README.md" in result.output
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

    monkeypatch.setattr(leases, "_reach", lambda _, path: original(Denied(), path))
    original, Denied = leases_reach, type("Denied", (), {"connect": denied})  # noqa: N806
    daemon.path.chmod(0o660)
    result = clocks()
    assert result.exit_code == 1
    assert "no permission to use powerccld's socket" in result.output
    group = leases.grp.getgrgid(daemon.path.stat().st_gid).gr_name
    assert f"hint: ask the administrator to add you to the group that owns the socket: {group}" in result.output
    daemon.path.chmod(0o600)
    assert "may use it" in clocks().output
    daemon.path.chmod(0o660)
    me = pwd.getpwuid(ME).pw_name
    monkeypatch.setattr(leases.grp, "getgrgid", lambda gid: leases.grp.struct_group(("power", "x", gid, [me])))
    monkeypatch.setattr(os, "getgroups", list)
    assert "you joined its group power after you logged in" in clocks().output


leases_reach = leases._reach


# ---- The verb


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
    assert rows["cpu1"] == ["cpu1", "801 MHz", "800 MHz", f"{me} 4711", "90 ms", "7"]
    assert "cpu0" not in rows
    assert "3 of 6 held, 2 of them yours. 1 core that nobody holds left out." in result.output
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
        ([row(UUIDS[0])], 0, "Nobody holds a GPU."),
        ([row(UUIDS[0]), row("cpu0")], 0, "Nobody holds a GPU and no core."),
        ([row("cpu0")], 0, "Nobody holds a core."),
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
        console = Console(file=StringIO(), force_terminal=True, color_system="standard", width=80, no_color=not wanted)
        report.print_clocks(console, about, [held])
        assert ("\x1b[1;96m" in console.file.getvalue()) is wanted  # type: ignore[attr-defined]


def test_short_names_tell_devices_apart() -> None:
    near = [f"GPU-4ba2dfe4-79cb-8a1e-7996-22f2e0b95d{n}" for n in (52, 53)]
    assert list(report.short_names([*UUIDS[:3], "cpu3"]).values()) == [
        "GPU-11111111", "GPU-11112222", "GPU-33333333", "cpu3",
    ]  # fmt: skip
    assert list(report.short_names(near).values()) == ["GPU-4ba2…5d52", "GPU-4ba2…5d53"]
    assert report.short_names(["GPU-1", "GPU-1"]) == {"GPU-1": "GPU-1"}


def test_json(busy: FakeDaemon) -> None:
    result = clocks("--json")
    document = json.loads(result.stdout)
    assert (document["schema"], document["server"], document["admin"]) == (1, "powerccld 9.8.7", True)
    assert (document["heartbeat_ms"], document["gpu_interval_ms"], document["core_interval_ms"]) == (6000, 20, 5)
    first, second, third, fourth, *_ = document["devices"]
    assert first["device"] == UUIDS[0]
    assert first["holder"] == {
        "uid": ME, "user": pwd.getpwuid(ME).pw_name, "pid": 4711, "mine": True, "told": True, "run": "train",
        "held_ms": 725_000, "changes": 1234, "leases": 2,
    }  # fmt: skip
    assert (first["min_mhz"], first["max_mhz"], first["now_mhz"], first["kind"]) == (345, 345, 360, "gpu")
    assert second["holder"]["mine"] is False
    assert (third["pending"], third["now_mhz"], third["holder"]) == (True, None, None)
    assert (fourth["max_mhz"], fourth["pending"]) == (None, False)
    assert document["devices"][4]["kind"] == "core"


def test_metrics_in_several_chunks(daemon: FakeDaemon) -> None:
    page = ("# HELP x Ä clock.\n# TYPE x gauge\n" + "x 1\n" * 2000).encode()
    cut = page.index("Ä".encode()) + 1  # in the middle of a character
    daemon.metrics = [page[:cut], page[cut : cut + 4096], page[cut + 4096 :]]
    result = clocks("--metrics")
    assert result.exit_code == 0
    assert result.stdout == page.decode()


def test_release_ends_mine_and_no_others(busy: FakeDaemon) -> None:
    result = clocks("--release")
    assert result.exit_code == 0
    assert busy.told(Type.REVOKE) == [UUIDS[0].encode(), b"cpu1"]
    assert f"{UUIDS[0]}: ended the lease of {pwd.getpwuid(ME).pw_name}'s process 4711 (train)" in result.output
    busy.devices = busy.devices[1:4]
    assert "you hold no lease" in clocks("--release").output
    assert len(busy.told(Type.REVOKE)) == 2


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
        ("GPU-33…5d52", UUIDS[2], "nobody holds GPU-33…5d52"),
        ("GPU-1111", "", "2 devices are called so"),
        ("all", "all", "54321's process 4712 (solver)"),
        ("0000:1b:00.0", "0000:1b:00.0", "0000:1b:00.0: revoked"),
        ("cpu", "cpu", "cpu: revoked"),  # not the first core
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
    [("--json", "--metrics"), ("--release", "--revoke", "all"), ("--drain", "on", "--json"), ("--user", "x")],
)
def test_one_thing_at_a_time(daemon: FakeDaemon, arguments: tuple[str, ...]) -> None:
    result = clocks(*arguments)
    assert result.exit_code == 1
    assert "hint: `powerccl clocks --help`" in result.output or "hint: `cli clocks --help`" in result.output
    assert daemon.asked == []


# ---- The doctor


def test_the_doctor_finds_a_daemon(busy: FakeDaemon) -> None:
    busy.refuse[Type.ACQUIRE] = (Status.NO_DEVICE, "")
    check = check_daemon(busy.path)
    assert (check.state, check.advice) == ("ok", "")
    assert check.found == "powerccld 9.8.7, 4 GPUs and 2 cores; you may have leases and revoke those of others"
    busy.flags = 0
    assert check_daemon(busy.path).found.endswith("; you may have leases")
    assert busy.told(Type.ACQUIRE)[0] == b""  # asks for nothing that it could get
    busy.flags = int(Flag.DRAINED)
    assert (check_daemon(busy.path).state, "draining" in check_daemon(busy.path).found) == ("missing", True)


def test_the_doctor_finds_no_way_in(busy: FakeDaemon, tmp_path: Path) -> None:
    busy.refuse[Type.ACQUIRE] = (Status.NOT_ALLOWED, "")
    check = check_daemon(busy.path)
    assert check.state == "missing"
    assert "you may have no leases" in check.found
    assert "ask the administrator" in check.advice
    check = check_daemon(tmp_path / "none")
    assert check.state == "missing"
    assert "packaging/README.md" in check.advice
    assert "only observe need none" in check.advice
    busy.override = lambda kind, serial: [b"garbage"]
    assert check_daemon(busy.path).state == "missing"


def test_the_doctor_knows_who_may_set_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerccl.doctor.checks.may_set_clocks", lambda: False)
    gpus = Gpus(["Tesla T4"], clocks_mhz=[300, 1590])

    def clocks_check(leases: bool) -> Check:
        return next(check for check in check_gpus(gpus, leases) if check.name == "clocks")

    check = clocks_check(leases=True)
    assert check.state == "ok"
    assert check.found == "300 to 1590 MHz in 2 steps; can be set through powerccld (with --set-clocks)"
    check = clocks_check(leases=False)
    assert check.state == "missing"
    assert "powerccld" in check.advice
    assert "CAP_SYS_ADMIN" in check.advice


# ---- A daemon of one's own


def test_a_private_daemon(tmp_path: Path) -> None:
    native = NativeFiles(tmp_path / "native")
    fakes.write_program(native.root / DAEMON, '#!/bin/sh\necho "$*" >&2\necho ready\ncat > /dev/null\necho over >&2\n')
    service = start_daemon(native, tmp_path / "s", tmp_path / "state", tmp_path / "log", os.environ)
    assert service.words() == [f"--private --socket {tmp_path}/s --state {tmp_path}/state"]
    assert service.release(10)  # it lives by its stdin
    assert service.last_words() == "over"


def test_a_private_daemon_that_does_not_start(tmp_path: Path) -> None:
    native = NativeFiles(tmp_path / "native")
    with pytest.raises(PowercclError, match="powerccld is missing"):
        start_daemon(native, tmp_path / "s", tmp_path / "state", tmp_path / "log", os.environ)
    fakes.write_program(native.root / DAEMON, "#!/bin/sh\necho 'powerccld: nothing to lease' >&2\nexit 1\n")
    with pytest.raises(PowercclError, match="did not start: powerccld: nothing to lease") as error:
        start_daemon(native, tmp_path / "s", tmp_path / "state", tmp_path / "log", os.environ)
    assert str(tmp_path / "log") in error.value.hint


# ---- As strangers, and in Slurm's scripts


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
