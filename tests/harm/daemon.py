# SPDX-License-Identifier: Apache-2.0
"""powerccld on emulated GPUs under attack by an unprivileged user.

While each attack lasts, root and an innocent user are served, and the innocent user keeps its leases. The attacks need
root, to become other users. tests/e2e/test_daemon_attacks.py makes a second of each, and
sends the daemon messages that are none; test_daemon_place.py starts several daemons at once.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - an attacker, who connects, may not read the folder that it lies in
import os
import signal
import socket
import statistics
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import lease_client as wire
from daemon_process import NOBODY, Daemon, forked
from harness import EmulatedMachine
from lease_client import Client

from harm import Figures, count, one
from powerccl.launch.native import NativeFiles
from powerccl.leases.client import connect

INNOCENT = 65533
GPUS = 8
SESSIONS = 128  # of one user, by default
ATTACK_S = 6.0
SUPERSEDED = -8
CONFIG = "[access]\nheartbeat_ms = 20000\n"
Attack = Callable[[Path, float], None]


def asking(path: Path, until: float, reads: Callable[[int], int]) -> None:
    """As many sessions as may be, each asks for the status without end.

    `reads`: how many messages each takes after so many requests.
    """
    sessions: list[Client] = []
    requests = 0
    while time.monotonic() < until:
        with contextlib.suppress(OSError, EOFError):
            while len(sessions) < SESSIONS:
                sessions.append(Client(path))
                sessions[-1].socket.setblocking(False)
        requests += 1
        kind = (wire.STATUS, wire.STATUS, wire.HEARTBEAT)[requests % 3]
        sessions = [client for client in sessions if asked(client, kind, reads(requests))]


def asked(client: Client, kind: int, reads: int) -> bool:
    """Send a request and read so many messages, as far as the socket lets; False: the connection has ended."""
    try:
        client.send(kind)
        for _ in range(reads):
            client.socket.recv(8192)
    except BlockingIOError:
        return True
    except OSError:
        client.socket.close()
        return False
    return True


# ---- Attacks. Each is a process of the attacker's, and goes on until it is killed or `until`.


def unread_status(path: Path, until: float) -> None:
    """Sessions that read nothing."""
    asking(path, until, lambda _: 0)


def slow_readers(path: Path, until: float) -> None:
    """Sessions that read one message now and then."""
    asking(path, until, lambda requests: requests % 20 == 0)


def busy_sessions(path: Path, until: float) -> None:
    """Sessions that ask and read as fast as they are let."""
    asking(path, until, lambda _: 40)


def flood_of_connects(path: Path, until: float) -> None:
    """Connections, closed at once or kept, as fast as may be."""
    kept: list[socket.socket] = []
    while time.monotonic() < until:
        kept.append(unconnected())
        with contextlib.suppress(OSError):
            kept[-1].connect(str(path))
        if len(kept) > 512:
            kept.pop(0).close()


def blocked_connects(path: Path, until: float) -> None:
    """Connections by many processes, which wait where the backlog is full."""
    children = []
    for _ in range(24):
        child = os.fork()
        if child == 0:
            while time.monotonic() < until:
                with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                    # Not settimeout(): with it, connecting where the backlog is full fails at once.
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 2, 0))
                    connection.connect(str(path))
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def half_written(path: Path, until: float) -> None:
    """Messages that end too early, empty ones, and connections that say nothing."""
    whole = struct.pack("=IHHIIQ", wire.MAGIC, wire.VERSION, wire.ACQUIRE, 80, 0, 1) + bytes(56)
    length = 0
    kept: list[socket.socket] = []
    while time.monotonic() < until:
        kept.append(unconnected())
        length = (length + 1) % len(whole)
        with contextlib.suppress(OSError):
            kept[-1].connect(str(path))
            kept[-1].send(whole[:length])
        if len(kept) > SESSIONS:
            kept.pop(0).close()


def lingering_files(path: Path, until: float) -> None:
    """Messages that pass sockets whose last close waits for a minute."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    far: list[socket.socket] = []
    while time.monotonic() < until and len(far) < 40:
        near = socket.create_connection(listener.getsockname())
        far.append(listener.accept()[0])
        near.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                near.send(bytes(65536))
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
        with contextlib.suppress(OSError, EOFError):
            client = Client(path)
            far.append(client.socket)
            if len(far) % 4 == 0:  # left unread when its connection is closed
                client.socket.send(b"nonsense")
            client.send(wire.HEARTBEAT, file=near.fileno())
        near.close()
    time.sleep(max(0.0, until - time.monotonic()))


ATTACKS: tuple[Attack, ...] = (
    unread_status,
    slow_readers,
    busy_sessions,
    flood_of_connects,
    blocked_connects,
    half_written,
    lingering_files,
)


def unconnected() -> socket.socket:
    """A socket of the daemon's kind that waits for nothing."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)


def attacker(attack: Attack, path: Path, until: float) -> int:
    """A process of another user's that attacks, in a session of its own; its pid."""

    def work() -> None:
        os.setsid()
        attack(path, until)

    return forked(work, NOBODY)


def end(pid: int) -> None:
    """Kill an attacker, with all that it has started."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def rss_mib(daemon: Daemon) -> float:
    """Memory that the daemon has."""
    assert daemon.process
    status = Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS:"))


def round_trip_ms(path: Path) -> float:
    """A connection, HELLO and STATUS, by the code of root's `powerccl clocks`."""
    begin = time.monotonic()
    with connect(path) as session:
        if len(session.status()) != GPUS:
            raise RuntimeError("powerccld does not show all GPUs")
    return (time.monotonic() - begin) * 1e3


class Innocent:
    """A user's job that has all GPUs and keeps them."""

    def __init__(self, daemon: Daemon) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.child = forked(lambda: self.work(daemon, theirs), INNOCENT)
        theirs.close()
        self.control.settimeout(60)
        if self.control.recv(16) != b"ready":
            raise RuntimeError("the innocent user was given no leases")

    @staticmethod
    def work(daemon: Daemon, told: socket.socket) -> None:
        """Lease each GPU by a session of its own, change clocks, and count leases that are lost."""
        sessions = [Client(daemon.socket) for _ in daemon.devices]
        leases = [session.lease(device) for session, device in zip(sessions, daemon.devices, strict=True)]
        told.send(b"ready")
        told.settimeout(0.2)
        turn, lost = 0, set[int]()
        while True:
            turn += 1
            for index, (session, lease) in enumerate(zip(sessions, leases, strict=True)):
                with contextlib.suppress(OSError, EOFError):
                    if session.set(lease, 600 + 15 * (turn % 20)).status in (wire.OK, SUPERSEDED):
                        continue
                lost.add(index)
            with contextlib.suppress(TimeoutError):
                if told.recv(16):
                    told.send(str(len(lost)).encode())
                    return

    def lost(self) -> int:
        """How many of its leases it has lost by its end."""
        self.control.send(b"end")
        try:
            return int(self.control.recv(16))
        finally:
            end(self.child)


def attacked(daemon: Daemon, attack: Attack, seconds: float) -> tuple[list[float], float]:
    """Root's round trips while the attack lasts, and the most memory that the daemon had."""
    until = time.monotonic() + seconds
    attackers = [attacker(attack, daemon.socket, until) for _ in range(2)]
    times, most_mib = [], 0.0
    # What is measured is how soon root is served, not how long root's command waits for a processor beside attackers.
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        time.sleep(0.5)
        while time.monotonic() < until:
            times.append(round_trip_ms(daemon.socket))
            most_mib = max(most_mib, rss_mib(daemon))
            time.sleep(0.02)
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        for pid in attackers:
            end(pid)
    if len(times) < 3:
        raise RuntimeError(f"root was served {len(times)} times during {attack.__name__}")
    return times, most_mib


def prefer(machine: EmulatedMachine, daemon: Daemon) -> None:
    """Give the emulated hardware a processor whenever it wants one, and the daemon its unit's Nice=-10.

    Where the kernel groups processes by session, nice is the session's; attackers have sessions of their own.
    """
    assert daemon.process
    server = str(machine.server.pid)
    subprocess.run(["chrt", "--all-tasks", "--rr", "--pid", "1", server], check=True, stdout=subprocess.DEVNULL)
    os.setpriority(os.PRIO_PROCESS, daemon.process.pid, -10)
    with contextlib.suppress(FileNotFoundError):
        Path(f"/proc/{daemon.process.pid}/autogroup").write_text("-10")


def measure(native: NativeFiles, folder: Path) -> Figures:
    """Attack it."""
    if os.getuid() != 0:
        raise RuntimeError("takes root, to become other users")
    machine = EmulatedMachine(native, folder)
    daemon = Daemon(native, machine)
    figures: Figures = {}
    try:
        daemon.start(CONFIG)
        prefer(machine, daemon)
        innocent = Innocent(daemon)
        worst_ms, most_mib, trips = 0.0, 0.0, 0
        for attack in ATTACKS:
            times, mib = attacked(daemon, attack, ATTACK_S)
            worst_ms, most_mib, trips = max(worst_ms, *times), max(most_mib, mib), trips + len(times)
            name, n = f"harm.daemon.{attack.__name__}", len(times)
            figures[f"{name}.root_median_ms"] = one(round(statistics.median(times), 2), "ms", n)
            figures[f"{name}.root_worst_ms"] = one(round(max(times), 2), "ms", n)
        figures["harm.daemon.leases_lost"] = count(innocent.lost(), GPUS)
        figures["harm.daemon.rss_mib"] = one(round(most_mib, 1), "MiB", len(ATTACKS))
        figures["harm.daemon.root_ms"] = one(round(worst_ms, 2), "ms", trips)
        return figures
    finally:
        daemon.end()
        machine.stop()
