# SPDX-License-Identifier: Apache-2.0
"""One user does to powerccld what one may not, and others and root are served."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import lease_client as wire
import pytest
from daemon_process import NOBODY, PATIENT, Daemon, as_nobody
from harm import daemon as attacks
from harness import IDLE_MHZ, EmulatedMachine, eventually
from lease_client import Client

from powerccl.leases.client import Leases, RefusedError, connect
from powerccl.leases.protocol import Status, Type

SOON_S = 5.0  # generous: it takes milliseconds


def root_is_served(daemon: Daemon) -> None:
    """As by `powerccl clocks`, soon."""
    begin = time.monotonic()
    with connect(daemon.socket) as session:
        assert len(session.status()) == 8
    assert time.monotonic() - begin < SOON_S


@contextlib.contextmanager
def attacker(work: Callable[[], None]) -> Iterator[None]:
    """A process of another user's, for as long as the `with` lasts."""
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    pid = attacks.attacker(lambda _, __: work(), Path(), 0)
    try:
        yield
    finally:
        attacks.end(pid)


@pytest.mark.parametrize("attack", attacks.ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack(attack: attacks.Attack, daemon: Daemon, machine: EmulatedMachine) -> None:
    """Root is served, and so is a client that has a lease; the daemon's memory stays small."""
    daemon.start(PATIENT + "requests_per_s = 100000\n")
    assert Path(f"{daemon.socket}.root").stat().st_mode & 0o777 == 0o600
    holding = Client(daemon.socket)
    lease = holding.lease(daemon.devices[0])
    until = time.monotonic() + 1.2
    with attacker(lambda: attack(daemon.socket, until + 60)):
        time.sleep(0.3)
        while time.monotonic() < until:
            root_is_served(daemon)
            for mhz in (600, 0):
                assert holding.set(lease, mhz).status == wire.OK
            assert attacks.rss_mib(daemon) < 64
            time.sleep(0.05)
    assert machine.clocks_mhz()[0] == IDLE_MHZ


def test_who_reads_late_gets_all_of_it(daemon: Daemon) -> None:
    """Much more than a socket holds, asked for at once."""
    daemon.start(PATIENT + "requests_per_s = 100000\n")
    client = Client(daemon.socket)
    client.socket.setblocking(False)  # with a time limit, sending waits until the socket is nearly empty
    asked = [client.send(wire.STATUS) for _ in range(90)]
    client.socket.settimeout(20)
    time.sleep(0.2)
    parts: dict[int, list[int]] = {serial: [] for serial in asked}
    answered: list[int] = []
    while len(answered) < len(asked):
        message = client.socket.recv(8192)
        kind, serial = struct.unpack_from("=H", message, 6)[0], struct.unpack_from("=Q", message, 16)[0]
        if kind == Type.REPLY:
            answered.append(serial)
        else:
            parts[serial].append(kind)
    assert answered == asked, "one after the other"
    assert all(part == [Type.DEVICE] * 8 + [Type.TOTALS] for part in parts.values())


def test_bad_messages_write_few_lines(daemon: Daemon) -> None:
    daemon.start(PATIENT + "sessions_per_user = 4096\nsessions = 4096\n")
    before = daemon.log.read_text().count("\n")

    def send_nonsense() -> None:
        for number in range(1200):
            client = Client(daemon.socket)
            with contextlib.suppress(OSError):
                if number % 2:
                    client.socket.send(b"nonsense")
                else:
                    for _ in range(100):  # said before
                        client.send(wire.HEARTBEAT, serial=1)
            with contextlib.suppress(OSError, EOFError):
                while True:
                    client.hear()

    assert as_nobody(send_nonsense)
    assert daemon.log.read_text().count("\n") - before < 60
    assert daemon.kill(signal.SIGTERM) == 0
    assert "more lines about messages not of the protocol were suppressed" in daemon.log.read_text()


def test_places_of_a_user_and_of_root(daemon: Daemon) -> None:
    daemon.start(PATIENT + "sessions = 6\nsessions_per_user = 4\n")

    def fill() -> None:
        kept = [Client(daemon.socket) for _ in range(4)]
        with pytest.raises(RefusedError) as refused:
            connect(daemon.socket)
        assert refused.value.status == Status.TOO_MANY
        assert f"user {NOBODY} has 4 connections already (access.sessions_per_user)" in str(refused.value)
        kept.pop().socket.close()
        admitted: list[Leases] = []

        def place_is_free() -> bool:  # once the daemon has seen the other's end
            with contextlib.suppress(RefusedError):
                admitted.append(connect(daemon.socket))
            return bool(admitted)

        assert eventually(place_is_free, 10)
        time.sleep(60)

    with attacker(fill):
        assert eventually(lambda: sessions(daemon) == 5, 10)
        kept = [Client(daemon.socket) for _ in range(6)]
        with pytest.raises(RefusedError, match="all 6 connections are taken"):
            connect(daemon.socket)
        del kept


def sessions(daemon: Daemon) -> int:
    """How many there are, this one counted."""
    with connect(daemon.socket) as session:
        return session.status_and_totals()[1].sessions


def test_who_has_no_descriptor_left_says_so(daemon: Daemon) -> None:
    """With a limit as a shell may have it, places are fewer; none is promised that cannot be had."""
    daemon.start(PATIENT + "sessions = 4096\nsessions_per_user = 4096\n")
    daemon.kill(signal.SIGTERM)
    daemon.restart(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)))
    assert "only 16 connections can be taken" in daemon.log.read_text()
    kept = [connect(daemon.socket) for _ in range(16)]
    with pytest.raises(RefusedError, match="all 16 connections are taken"):
        connect(daemon.socket)
    del kept
