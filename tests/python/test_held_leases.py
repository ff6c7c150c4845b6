# SPDX-License-Identifier: Apache-2.0
"""Leases held from Python, against a daemon that says what a test wants; e2e/test_profile_leases.py has a real one."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from lease_daemon import OTHER, UUIDS, FakeDaemon, message

from powerccl.errors import PowercclError
from powerccl.launch.gpus import visible_gpus_in
from powerccl.leases.client import open_session
from powerccl.leases.held import HeldLeases, LeaseLostError
from powerccl.leases.protocol import Status, Type

RANGES = ((300, 1500), (450, 1980))


def answer(serial: int, status: int = 0, lease: int = 0, mhz: tuple[int, int] = (0, 0), text: str = "") -> bytes:
    kind = Type.REPLY if serial else Type.ENDED
    fields = (status, 0, lease, *mhz, 0, 250, 0, 77, OTHER, text.encode(), 0, 0)
    return message(kind, serial, struct.pack("=iIQIIIIQII120sII", *fields))


class Server(FakeDaemon):
    """Gives leases 1 and 2, and sets the clock that was asked for, or `instead`."""

    def __init__(self, path: Path) -> None:
        self.given = 0
        self.instead: dict[int, list[tuple[int, tuple[int, int], str]]] = {}  # by type: status, clocks, text
        self.ended: list[bytes] = []
        super().__init__(path)

    def attend(self, connection: socket.socket) -> bool:
        try:
            return super().attend(connection)
        except (ConnectionResetError, BrokenPipeError):  # a session that has heard enough
            return False

    def answers(self, kind: int, serial: int) -> Iterator[bytes]:
        yield from self.ended
        if self.instead.get(kind):
            status, mhz, text = self.instead[kind].pop(0)
            yield answer(serial, status, 9, mhz, text)
        elif kind == Type.ACQUIRE:
            self.given += 1
            yield answer(serial, lease=self.given, mhz=RANGES[self.given - 1])
        elif kind == Type.SET:
            lease, low_mhz, high_mhz = struct.unpack("=QII", self.asked[-1][1])
            yield answer(serial, lease=lease, mhz=(low_mhz, high_mhz))
        else:
            yield from super().answers(kind, serial)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "d.sock")
    yield made
    made.stop()


@pytest.fixture
def held(server: Server) -> Iterator[HeldLeases]:
    with open_session(HeldLeases, server.path, "test") as session:
        assert isinstance(session, HeldLeases)
        yield session


def test_the_range_is_what_every_gpu_has(server: Server, held: HeldLeases) -> None:
    held.hold(list(UUIDS[:2]))
    assert held.range_mhz == (450, 1500)
    assert [name.decode() for name in server.told(Type.ACQUIRE)] == list(UUIDS[:2])
    assert held.set_all(900) == ""
    assert [struct.unpack("=QII", body) for kind, body in server.asked if kind == Type.SET] == [
        (1, 900, 900),
        (2, 900, 900),
    ]
    assert [call[0] for call in held.calls] == [250, 250]
    assert held.check_within_s == 2
    held.check_when_due()
    held.check()
    assert sum(kind == Type.HEARTBEAT for kind, _ in server.asked) == 1


def test_another_clock_than_asked_for_is_an_error(server: Server, held: HeldLeases) -> None:
    held.hold([UUIDS[0]])
    server.instead[Type.SET] = [(0, (450, 450), "")]
    with pytest.raises(PowercclError, match="powerccld set 450 to 450 MHz instead of 300 MHz"):
        held.set_all(300)


def test_what_the_driver_says_is_told(server: Server, held: HeldLeases) -> None:
    held.hold([UUIDS[0]])
    server.instead[Type.SET] = [(4, (0, 0), "no permission")]
    assert held.set_all(900) == f"{UUIDS[0]}: powerccld reports the driver's error 4: no permission"


ENDINGS = pytest.mark.parametrize(
    ("status", "words"),
    [(Status.REVOKED, "revoked it"), (Status.MISSED, "received no message from this process"), (-99, "status -99")],
)


@ENDINGS
def test_the_end_of_a_lease_is_noticed(server: Server, held: HeldLeases, status: int, words: str) -> None:
    held.hold([UUIDS[0]])
    server.ended = [answer(0, status, lease=5), answer(0, status, lease=1)]  # another's is nothing to us
    with pytest.raises(LeaseLostError, match=words):
        held.check()


@ENDINGS
def test_no_clock_without_a_lease(server: Server, held: HeldLeases, status: int, words: str) -> None:
    held.hold([UUIDS[0]])
    server.instead[Type.SET] = [(status, (0, 0), "")]
    with pytest.raises(LeaseLostError, match=words):
        held.set_all(900)


def test_the_end_is_heard_without_asking(server: Server, held: HeldLeases) -> None:
    held.hold([UUIDS[0]])
    server.override = lambda kind, serial: [b""]
    held._send(Type.STATUS, b"")
    with pytest.raises(PowercclError, match="closed the connection"):
        held.hear()


@pytest.mark.parametrize(
    ("status", "text", "words", "hint"),
    [
        (Status.HELD, "", f"{OTHER}'s process 77 has the lease", "`powerccl clocks`"),
        (Status.DRAINING, "", "grants no new leases", "ask the administrator"),
        (Status.NO_DEVICE, "", "has no such device", "`powerccl clocks` lists"),
        (Status.SHOW_FILE, "/nowhere/nvidia0", "cannot open /nowhere/nvidia0", "right to use the GPU"),
    ],
)
def test_why_there_is_none(server: Server, held: HeldLeases, status: int, text: str, words: str, hint: str) -> None:
    server.instead[Type.ACQUIRE] = [(status, (0, 0), text)]
    with pytest.raises(PowercclError, match=words) as raised:
        held.hold([UUIDS[0]])
    assert hint in raised.value.hint


def test_the_file_asked_for_is_shown(server: Server, held: HeldLeases, tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    server.instead[Type.ACQUIRE] = [(Status.SHOW_FILE, (0, 0), str(tmp_path / "nvidia0"))]
    held.hold([UUIDS[0]])
    assert held.range_mhz == RANGES[0]


def test_a_file_that_is_no_gpus_is_not_opened_for_a_stranger(
    server: Server, held: HeldLeases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("powerccl.leases.held.peer_uid", lambda _: OTHER)
    server.instead[Type.ACQUIRE] = [(Status.SHOW_FILE, (0, 0), str(tmp_path / "secret"))]
    with pytest.raises(PowercclError, match="which is not a GPU's device file"):
        held.hold([UUIDS[0]])


def test_without_cuda_no_gpu_is_visible() -> None:
    assert visible_gpus_in({"LD_LIBRARY_PATH": "/nowhere"}) == []
