# SPDX-License-Identifier: Apache-2.0
"""powerccld on emulated GPUs under attack by an unprivileged user.

While each attack lasts, root and an innocent user are served, and the innocent user keeps its leases. The attacks need
root, to become other users.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.harm import Figures, count, one

from powerccl.launch.native import NativeFiles
from powerccl.leases.client import connect

ATTACKER, INNOCENT = 65534, 65533
GPUS = 8
SESSIONS = 128  # of one user, by default
ATTACK_S = 6.0
BAD_MESSAGES = 1_000_000
ROUNDS, TOGETHER = 50, 4
HEADER = struct.Struct("=IHHIIQ")
HELLO, ACQUIRE, SET, RELEASE, HEARTBEAT, STATUS, METRICS = 1, 2, 3, 5, 6, 7, 8
REPLY, ENDED = 33, 48
Attack = Callable[[Path, float], None]


def message(kind: int, serial: int, body: bytes = b"") -> bytes:
    """A request."""
    return HEADER.pack(0x534C4350, 1, kind, HEADER.size + len(body), 0, serial) + body


def opened(path: Path, seconds: float = 20) -> socket.socket:
    """A connection."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Not settimeout(): with it, connecting where the backlog is full fails at once instead of waiting.
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(seconds), 0))
    connection.connect(str(path))
    return connection


def greeted(path: Path) -> socket.socket:
    """A session."""
    connection = opened(path)
    connection.send(message(HELLO, 1, b"harm".ljust(64, b"\0")))
    connection.recv(4200)
    return connection


def answered(connection: socket.socket, kind: int, serial: int, body: bytes = b"") -> bytes:
    """Ask, and wait for the reply; what was said before it is passed over."""
    connection.send(message(kind, serial, body))
    while True:
        told = connection.recv(4200)
        if not told:
            raise EOFError("powerccld has hung up")
        if HEADER.unpack_from(told)[2] == REPLY and HEADER.unpack_from(told)[5] == serial:
            return told


def round_trip_ms(path: Path) -> float:
    """A connection, HELLO and STATUS, by the code of root's `powerccl clocks`."""
    begin = time.monotonic()
    with connect(path) as session:
        if len(session.status()) != GPUS:
            raise RuntimeError("powerccld does not show all GPUs")
    return (time.monotonic() - begin) * 1e3


def sent(connection: socket.socket, request: bytes) -> bool:
    """Send it, or pass it over where the socket is full. False: the connection has ended."""
    try:
        connection.send(request)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


# ---- Attacks. Each is a process of the attacker's, and goes on until it is killed or `until`.


def unread_metrics(path: Path, until: float) -> None:
    """As many sessions as may be, each asks for metrics and status without end and reads nothing."""
    sessions: list[socket.socket] = []
    serial = 1
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            while len(sessions) < SESSIONS:
                connection = opened(path)
                sessions.append(connection)
                connection.setblocking(False)
                connection.send(message(HELLO, 1, bytes(64)))
        serial += 1
        for connection in list(sessions):
            if not sent(connection, message(METRICS if serial % 8 else STATUS, serial)):
                connection.close()
                sessions.remove(connection)


def as_many_sessions(path: Path) -> list[socket.socket]:
    """SESSIONS of them, or those that the daemon lets one have."""
    sessions: list[socket.socket] = []
    with contextlib.suppress(OSError, ValueError):
        for _ in range(SESSIONS):
            connection = greeted(path)
            connection.setblocking(False)
            sessions.append(connection)
    return sessions


def slow_readers(path: Path, until: float) -> None:
    """The same, with one message read now and then."""
    sessions = as_many_sessions(path)
    serial = 1
    while time.monotonic() < until:
        serial += 1
        for connection in sessions:
            with contextlib.suppress(OSError):
                connection.send(message(METRICS, serial))
                connection.send(message(STATUS, serial * 2 + (1 << 40)))
            if serial % 20 == 0:
                with contextlib.suppress(OSError):
                    connection.recv(4200)


def busy_sessions(path: Path, until: float) -> None:
    """Sessions that ask and read as fast as they are let."""
    sessions = as_many_sessions(path)
    serial = 1
    while time.monotonic() < until:
        serial += 1
        for connection in sessions:
            with contextlib.suppress(OSError):
                connection.send(message((METRICS, STATUS, HEARTBEAT)[serial % 3], serial))
                for _ in range(40):
                    connection.recv(4200)


def flood_of_connects(path: Path, until: float) -> None:
    """Connections, closed at once or kept, as fast as may be."""
    kept: list[socket.socket] = []
    while time.monotonic() < until:
        for _ in range(256):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            with contextlib.suppress(OSError):
                connection.connect(str(path))
            kept.append(connection)
        while len(kept) > 512:
            kept.pop(0).close()


def blocked_connects(path: Path, until: float) -> None:
    """Connections by many threads' worth of processes, which wait where the backlog is full."""
    children = []
    for _ in range(24):
        child = os.fork()
        if child == 0:
            while time.monotonic() < until:
                with contextlib.suppress(OSError):
                    opened(path, 2).close()
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def half_written(path: Path, until: float) -> None:
    """Messages that end too early, empty ones, and connections that say nothing."""
    whole = message(ACQUIRE, 1, bytes(56))
    length = 0
    kept: list[socket.socket] = []
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            kept.append(connection)
            connection.connect(str(path))
            length = (length + 1) % len(whole)
            connection.send(whole[:length])
        while len(kept) > SESSIONS:
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
        with contextlib.suppress(OSError):
            connection = opened(path)
            greeting = message(HELLO, 1, bytes(64))
            if len(far) % 3 == 0:  # left unread when its connection is closed
                connection.send(b"nonsense")
            socket.send_fds(connection, [greeting], [near.fileno()])
            far.append(connection)
        near.close()
    time.sleep(max(0.0, until - time.monotonic()))


ATTACKS: tuple[Attack, ...] = (
    unread_metrics,
    slow_readers,
    busy_sessions,
    flood_of_connects,
    blocked_connects,
    half_written,
    lingering_files,
)


def as_user(uid: int, work: Callable[[], None]) -> int:
    """Do that in a process of that user's, in a session of its own; its pid."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        work()
        code = 0
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Its exit code, killed with all that it has started if it still runs."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# ---- The machine.


@dataclass
class Machine:
    """An emulated server and a powerccld on it that everybody may talk to."""

    native: NativeFiles
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def socket(self) -> Path:
        """Where powerccld listens."""
        return self.folder / "d.sock"

    @property
    def log(self) -> Path:
        """What it has said."""
        return self.folder / "log"

    @contextlib.contextmanager
    def running(self) -> Iterator[Machine]:
        """The emulated server, for as long as the `with` lasts."""
        # It stands in for hardware, which has no need of a processor.
        command = ["chrt", "--rr", "1", str(self.native.path("bin/powerccl-emulator"))]
        command += ["--platform", str(self.native.root / "share/platforms/t4x8.conf")]
        command += ["--socket", str(self.folder / "gpus.sock")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout
            assert server.stdin
            if b"ready" not in server.stdout.readline():
                raise RuntimeError("the emulated server did not start")
            self.environment = {
                **os.environ,
                "POWERCCL_EMULATOR_SOCKET": str(self.folder / "gpus.sock"),
                "LD_LIBRARY_PATH": str(self.native.root / "emulator"),
            }
            try:
                yield self
            finally:
                for daemon in self.daemons:
                    if daemon.poll() is None:
                        daemon.terminate()
                        daemon.wait(30)
                server.stdin.close()

    def start(self, state: str = "leases") -> subprocess.Popen[bytes]:
        """A powerccld, which may not come up."""
        config = self.folder / f"{state}.toml"
        config.write_text(
            f'[socket]\npath = "{self.socket}"\nmode = "0666"\n[state]\nfile = "{self.folder / state}"\n'
            "[access]\nheartbeat_ms = 20000\n"
        )
        with self.log.open("ab") as log:
            daemon = subprocess.Popen(
                [str(self.native.path("bin/powerccld")), "--config", str(config)],
                env=self.environment,
                stderr=log,
                start_new_session=True,
            )
        # Its unit's Nice=-10: where the kernel groups processes by session, that is the session's to have.
        os.setpriority(os.PRIO_PROCESS, daemon.pid, -10)
        with contextlib.suppress(FileNotFoundError):
            Path(f"/proc/{daemon.pid}/autogroup").write_text("-10")
        self.daemons.append(daemon)
        return daemon

    def started(self) -> subprocess.Popen[bytes]:
        """A powerccld that listens."""
        daemon = self.start()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                opened(self.socket).close()
                return daemon
            time.sleep(0.01)
        raise RuntimeError(f"powerccld did not start: {self.log.read_text()}")


def rss_mib(pid: int) -> float:
    """Memory that the process has."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("powerccld has gone")


class Innocent:
    """A user's job that has all GPUs and keeps them."""

    def __init__(self, path: Path) -> None:
        session = greeted(path)
        session.send(message(STATUS, 2))
        names = []
        while True:
            told = session.recv(4200)
            if HEADER.unpack_from(told)[2] == REPLY:
                break
            names.append(told[24:72])
        session.close()
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.child = as_user(INNOCENT, lambda: self.work(path, names, theirs))
        theirs.close()
        self.control.settimeout(60)
        if self.control.recv(16) != b"ready":
            raise RuntimeError("the innocent user was given no leases")

    @staticmethod
    def work(path: Path, names: list[bytes], told: socket.socket) -> None:
        """Lease each GPU by a session of its own, change clocks, and count leases that are lost."""
        sessions = []
        for name in names:
            session = greeted(path)
            granted = answered(session, ACQUIRE, 2, name + bytes(8))
            status, _, lease = struct.unpack_from("=iIQ", granted, HEADER.size)
            if status:
                raise RuntimeError(f"no lease: {status}")
            sessions.append((session, lease))
        told.send(b"ready")
        told.settimeout(0.2)
        serial, lost = 2, set[int]()
        while True:
            serial += 1
            mhz = 600 + 15 * (serial % 20)
            for index, (session, lease) in enumerate(sessions):
                status = -1
                with contextlib.suppress(OSError, EOFError):
                    answer = answered(session, SET, serial, struct.pack("=QII", lease, mhz, mhz))
                    (status,) = struct.unpack_from("=i", answer, HEADER.size)
                if status not in (0, -8):  # -8: a newer wish came first
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
            ended(self.child)


def attacked(
    machine: Machine, daemon: subprocess.Popen[bytes], attack: Attack, seconds: float
) -> tuple[list[float], float]:
    """Root's round trips while the attack lasts, and the most memory that the daemon had."""
    until = time.monotonic() + seconds
    attackers = [as_user(ATTACKER, lambda: attack(machine.socket, until)) for _ in range(2)]
    times, most_mib = [], 0.0
    # What is measured is how soon root is served, not how long root's command waits for a processor beside attackers.
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        time.sleep(0.5)
        while time.monotonic() < until:
            times.append(round_trip_ms(machine.socket))
            most_mib = max(most_mib, rss_mib(daemon.pid))
            time.sleep(0.02)
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        for attacker in attackers:
            ended(attacker)
    return times, most_mib


def bad_messages(machine: Machine, wanted: int) -> tuple[int, int]:
    """How many messages that are none could be sent, and how many lines the daemon wrote."""
    before = machine.log.read_bytes().count(b"\n")
    reading, writing = os.pipe()

    def work() -> None:
        number = kind = 0
        deadline = time.monotonic() + 600
        while number < wanted and time.monotonic() < deadline:
            kind += 1
            with contextlib.suppress(OSError):
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                connection.connect(str(machine.socket))
                if kind % 3 == 0:
                    connection.send(message(HELLO, 1, bytes(64)))
                bad = (os.urandom(24), message(HEARTBEAT, 1), message(HELLO, 1 + kind, bytes(64)))[kind % 3]
                while number < wanted:
                    connection.send(bad)
                    number += 1
        os.write(writing, str(number).encode())

    attacker = as_user(ATTACKER, work)
    os.close(writing)
    number = int(os.read(reading, 32) or b"0")
    os.close(reading)
    ended(attacker)
    time.sleep(0.5)
    return number, machine.log.read_bytes().count(b"\n") - before


def stolen_sockets(machine: Machine, rounds: int) -> tuple[int, int]:
    """Of many starts at once of daemons with one socket, how often two served or one that lives was unreachable."""
    stolen = 0
    for number in range(rounds):
        daemons = [machine.start(f"state-{index}") for index in range(TOGETHER)]
        deadline = time.monotonic() + 20
        while sum(daemon.poll() is None for daemon in daemons) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        living = [daemon for daemon in daemons if daemon.poll() is None]
        if number % 2:  # what a daemon leaves that is killed
            living[0].kill()
            living[0].wait()
            living = [machine.start("state-0")]
        served = 0
        deadline = time.monotonic() + 20
        while not served and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                connection = opened(machine.socket)
                served = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
                connection.close()
        # One that comes and goes later does not take it away either.
        later = machine.start("state-later")
        later.wait(20)
        reachable = machine.socket.exists()
        stolen += len(living) != 1 or served != living[0].pid or later.returncode != 1 or not reachable
        for daemon in living:
            daemon.terminate()
            daemon.wait(30)
        stolen += machine.socket.exists()
    return stolen, rounds * (TOGETHER + 1)


def measure(native: NativeFiles, folder: Path) -> Figures:
    """Attack it."""
    if os.getuid() != 0:
        raise RuntimeError("takes root, to become other users")
    del folder  # other users may not enter it
    place = Path(tempfile.mkdtemp(prefix="harm-daemon-", dir="/dev/shm"))
    place.chmod(0o755)
    try:
        with Machine(native, place).running() as machine:
            return measured(machine)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def measured(machine: Machine) -> Figures:
    """The figures, on a machine that runs."""
    figures: Figures = {}
    stolen, starts = stolen_sockets(machine, ROUNDS)
    figures["harm.daemon.stolen"] = count(stolen, starts)
    daemon = machine.started()
    innocent = Innocent(machine.socket)
    worst_ms, most_mib, trips = 0.0, 0.0, 0
    for attack in ATTACKS:
        times, mib = attacked(machine, daemon, attack, ATTACK_S)
        if len(times) < 3:
            raise RuntimeError(f"root was served {len(times)} times during {attack.__name__}")
        worst_ms, most_mib, trips = max(worst_ms, *times), max(most_mib, mib), trips + len(times)
        figures[f"harm.daemon.{attack.__name__}.root_median_ms"] = one(
            round(statistics.median(times), 2), "ms", len(times)
        )
        figures[f"harm.daemon.{attack.__name__}.root_worst_ms"] = one(round(max(times), 2), "ms", len(times))
    number, lines = bad_messages(machine, BAD_MESSAGES)
    if number < BAD_MESSAGES:
        raise RuntimeError(f"only {number} bad messages could be sent")
    most_mib = max(most_mib, rss_mib(daemon.pid))
    figures["harm.daemon.leases_lost"] = count(innocent.lost(), GPUS)
    figures["harm.daemon.log_lines"] = count(lines, number)
    figures["harm.daemon.rss_mib"] = one(round(most_mib, 1), "MiB", len(ATTACKS))
    figures["harm.daemon.root_ms"] = one(round(worst_ms, 2), "ms", trips)
    return figures
