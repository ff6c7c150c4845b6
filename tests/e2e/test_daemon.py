# SPDX-License-Identifier: Apache-2.0
"""powerccld on emulated GPUs: whatever becomes of a client or of the daemon, clocks go back; and who may do what."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lease_client as wire
import pytest
from daemon_process import NOBODY, Daemon, as_nobody, forked, killed, succeeded
from harness import IDLE_MHZ, LOCK_MHZ, EmulatedMachine, Powerccl, alive, eventually, points_are_right
from lease_client import Client

from powerccl.launch.native import NativeFiles

SET_MHZ = 600
CLONE_NEWPID = 0x20000000


def hold(daemon: Daemon, device: int, ready: int) -> None:
    """Lower a clock and wait to be killed."""
    client = Client(daemon.socket)
    assert client.set(client.lease(daemon.devices[device]), SET_MHZ).status == wire.OK
    os.write(ready, b"x")
    signal.pause()


def holder(daemon: Daemon, device: int) -> int:
    """A process that holds a lowered clock."""
    reading, writing = os.pipe()
    pid = forked(lambda: hold(daemon, device, writing))
    daemon.holders.append(pid)
    assert os.read(reading, 1) == b"x"
    os.close(reading)
    os.close(writing)
    return pid


# ---- Clocks go back.


def test_a_killed_client(daemon: Daemon, machine: EmulatedMachine) -> None:
    daemon.start()
    pid = holder(daemon, 3)
    assert machine.clocks_mhz()[3] == SET_MHZ
    killed(pid)
    assert eventually(lambda: machine.clocks_mhz()[3] == IDLE_MHZ, 5)


def test_a_killed_daemon(daemon: Daemon, machine: EmulatedMachine) -> None:
    daemon.start()
    pids = [holder(daemon, device) for device in (0, 5)]
    daemon.kill()
    assert machine.clocks_mhz()[0] == SET_MHZ, "nobody is there to undo it"
    daemon.restart()
    assert machine.clocks_mhz() == [IDLE_MHZ] * 8, "undone before it listens"
    for pid in pids:
        killed(pid)


def test_restore_without_a_daemon(daemon: Daemon, machine: EmulatedMachine) -> None:
    """What a unit's ExecStopPost does, also with a configuration that cannot be read."""
    daemon.start()
    pid = holder(daemon, 2)
    daemon.kill()
    (daemon.folder / "wrong").write_text("[gpu]\nmin_mzh = 1\n")
    command = [str(daemon.native.path("bin/powerccld")), "--restore", "--state", str(daemon.folder / "leases")]
    done = subprocess.run(
        [*command, "--config", str(daemon.folder / "wrong")],
        env=dict(daemon.environment),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert machine.clocks_mhz() == [IDLE_MHZ] * 8
    killed(pid)


def test_a_daemon_told_to_stop(daemon: Daemon, machine: EmulatedMachine) -> None:
    daemon.start()
    client = Client(daemon.socket)
    lease = client.lease(daemon.devices[1])
    client.set(lease, SET_MHZ)
    assert daemon.kill(signal.SIGTERM) == 0
    assert machine.clocks_mhz() == [IDLE_MHZ] * 8
    ended = client.hear_end()
    assert (ended.type, ended.status, ended.lease) == (wire.ENDED, wire.STOPPING, lease)
    assert not daemon.socket.exists()


def test_a_stopped_client_misses_its_heartbeats(daemon: Daemon, machine: EmulatedMachine) -> None:
    daemon.start("[access]\nheartbeat_ms = 300")
    pid = holder(daemon, 4)
    os.kill(pid, signal.SIGSTOP)
    assert eventually(lambda: machine.clocks_mhz()[4] == IDLE_MHZ, 5)
    killed(pid)
    assert "ended (silent)" in daemon.log.read_text()


def test_a_child_that_keeps_the_socket_does_not_keep_the_lease(daemon: Daemon, machine: EmulatedMachine) -> None:
    daemon.start()
    reading, writing = os.pipe()

    def hand_down() -> None:
        client = Client(daemon.socket)
        lease = client.lease(daemon.devices[6])
        assert client.set(lease, SET_MHZ).status == wire.OK
        child = os.fork()
        if child == 0:
            # Its messages are not the peer's.
            client.send(wire.SET, struct.pack("=QII", lease, 900, 900))
            time.sleep(30)
            os._exit(0)
        time.sleep(0.2)
        os.write(writing, str(child).encode())
        signal.pause()

    pid = forked(hand_down)
    child = int(os.read(reading, 32))
    assert machine.clocks_mhz()[6] == SET_MHZ, "a message through an inherited socket has no effect"
    killed(pid)
    assert alive(child)
    assert eventually(lambda: machine.clocks_mhz()[6] == IDLE_MHZ, 5)
    os.kill(child, signal.SIGKILL)


def test_an_idle_one_keeps_its_times(daemon: Daemon, machine: EmulatedMachine, tmp_path: Path) -> None:
    told = tmp_path / "notify"
    command = [str(daemon.native.path("bin/powerccld")), "--socket", str(daemon.socket), "--state"]
    command += [f"{daemon.folder}/leases"]
    environment = {**os.environ, **machine.environment, "NOTIFY_SOCKET": str(told), "WATCHDOG_USEC": "400000"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(told))
        manager.settimeout(5)
        daemon.process = subprocess.Popen(command, env=environment)  # nobody connects, which would wake it
        assert manager.recv(100) == b"READY=1"
        for _ in range(8):
            assert manager.recv(100) == b"WATCHDOG=1"


# ---- Who may what.


def test_one_users_processes_share_a_gpu(daemon: Daemon, machine: EmulatedMachine, on_machine: Powerccl) -> None:
    daemon.start()
    first, second = Client(daemon.socket, "first"), Client(daemon.socket, "second")
    lease = first.lease(daemon.devices[0], wire.SHARED)
    assert second.acquire(daemon.devices[0]).status == wire.HELD, "alone, as it does not say otherwise"
    other = second.lease(daemon.devices[0], wire.SHARED)
    assert first.set(lease, SET_MHZ).status == wire.OK
    shown = on_machine("clocks", "--socket", str(daemon.socket))
    assert shown.code == 0, shown.err
    assert f"{os.getpid()} +1 first" in shown.out, shown.out
    assert second.set(other, 0).status == wire.OK
    assert eventually(lambda: machine.clocks_mhz()[0] == IDLE_MHZ), "the newest wish counts"
    second.set(other, SET_MHZ)
    second.socket.close()
    assert eventually(lambda: machine.clocks_mhz()[0] == IDLE_MHZ, 5), "and goes with who wished for it"


def test_shared_at_the_highest_wish_or_not_at_all(daemon: Daemon, machine: EmulatedMachine) -> None:
    daemon.start('[gpu]\nsharing = "highest"\n')
    first, second = Client(daemon.socket), Client(daemon.socket)
    lease, other = (client.lease(daemon.devices[0], wire.SHARED) for client in (first, second))
    held_up = first.set(lease, SET_MHZ)
    assert (held_up.status, held_up.flags & wire.SHARED, held_up.max_mhz) == (wire.OK, wire.SHARED, 0)
    assert second.set(other, SET_MHZ + 150).max_mhz == SET_MHZ + 150
    second.socket.close()
    assert eventually(lambda: machine.clocks_mhz()[0] == SET_MHZ, 5)
    daemon.kill(signal.SIGTERM)
    daemon.start('[gpu]\nsharing = "none"\n')
    holding = Client(daemon.socket)
    holding.lease(daemon.devices[0], wire.SHARED)
    assert Client(daemon.socket).acquire(daemon.devices[0], flags=wire.SHARED).status == wire.HELD


def test_what_an_unprivileged_user_cannot(daemon: Daemon, machine: EmulatedMachine) -> None:
    files = [daemon.folder / f"nvidia{index}" for index in range(8)]
    for index, file in enumerate(files):
        file.write_text("")
        file.chmod(0o666 if index < 2 else 0o600)
    daemon.start(f'[gpu]\ndevice_files = "{daemon.folder}/nvidia%"\nmin_mhz = 500\nmax_mhz = 1000')
    roots = Client(daemon.socket, "roots")
    roots_lease = roots.lease(daemon.devices[1])
    roots.set(roots_lease, SET_MHZ)

    def try_everything() -> None:
        client = Client(daemon.socket)
        asked = client.acquire(daemon.devices[0])
        assert (asked.status, asked.text) == (wire.SHOW_FILE, str(files[0]))
        # A GPU that it may open, shown rightly and wrongly.
        for flags in (os.O_RDONLY, os.O_PATH):
            fd = os.open(files[0], flags)
            assert client.acquire(daemon.devices[0], fd).status == wire.NOT_ALLOWED
        fd = os.open(files[0], os.O_RDWR)
        granted = client.acquire(daemon.devices[0], fd)
        assert granted.status == wire.OK
        assert (granted.min_mhz, granted.max_mhz) == (500, 1000)
        # A GPU that it may not open.
        assert client.acquire(daemon.devices[5]).status == wire.SHOW_FILE
        assert client.acquire(daemon.devices[5], fd).status == wire.NOT_ALLOWED
        with pytest.raises(PermissionError):
            os.open(files[5], os.O_RDWR)
        # Beyond the range.
        low = client.set(granted.lease, 300)
        assert (low.status, low.max_mhz, low.flags & wire.CLAMPED) == (wire.OK, 500, wire.CLAMPED)
        # Another's lease, and what is for administrators.
        other = os.open(files[1], os.O_RDWR)
        assert client.acquire(daemon.devices[1], other).status == wire.HELD
        assert client.set(roots_lease, 900).status == wire.NONE
        assert client.acquire(daemon.devices[1], kind=wire.REVOKE).status == wire.NOT_ALLOWED
        assert client.acquire("", kind=wire.REVOKE).status == wire.OK  # all of its own
        assert client.acquire("", kind=wire.RESTORE).status == wire.NOT_ALLOWED
        assert client.ask(wire.DRAIN, struct.pack("=II", 1, 0)).status == wire.NOT_ALLOWED

    assert as_nobody(try_everything)
    assert eventually(lambda: machine.clocks_mhz()[0] == IDLE_MHZ, 5)
    assert machine.clocks_mhz()[1] == SET_MHZ


def test_root_of_a_container_is_no_administrator(daemon: Daemon) -> None:
    """A pid namespace of its own makes it one; with the host's, as the chart's own containers, it stays root."""
    if os.getuid() != 0:
        pytest.skip("needs root to make a pid namespace")
    daemon.start()
    reading, writing = os.pipe()
    daemon.holders.append(forked(lambda: hold(daemon, 1, writing), NOBODY))
    assert os.read(reading, 1) == b"x"

    def inside() -> None:
        client = Client(daemon.socket)
        assert client.set(client.lease(daemon.devices[0]), SET_MHZ).status == wire.OK
        assert client.acquire(daemon.devices[1], kind=wire.REVOKE).status == wire.NOT_ALLOWED
        assert client.acquire("", kind=wire.RESTORE).status == wire.NOT_ALLOWED
        assert client.ask(wire.DRAIN, struct.pack("=II", 1, 0)).status == wire.NOT_ALLOWED

    def make_namespace() -> None:
        assert ctypes.CDLL(None).unshare(CLONE_NEWPID) == 0
        assert succeeded(forked(inside))

    assert succeeded(forked(make_namespace))
    assert Client(daemon.socket).acquire(daemon.devices[1], kind=wire.REVOKE).status == wire.OK


def test_the_list_of_users(daemon: Daemon) -> None:
    daemon.start("[access]\nusers = [4711]")

    def ask() -> None:
        assert Client(daemon.socket).acquire(daemon.devices[0]).status == wire.NOT_ALLOWED

    assert as_nobody(ask)
    assert Client(daemon.socket).acquire(daemon.devices[0]).status == wire.OK, "root needs no list"


def test_the_socket_is_not_for_all_by_default(daemon: Daemon) -> None:
    daemon.start()
    daemon.kill(signal.SIGTERM)
    config = daemon.folder / "config"
    config.write_text(config.read_text().replace('mode = "0666"\n', ""))
    daemon.restart()
    assert daemon.socket.stat().st_mode & 0o777 == 0o660

    def connect() -> None:
        with pytest.raises(PermissionError):
            Client(daemon.socket)

    assert as_nobody(connect)


def test_revoked_is_revoked(daemon: Daemon, machine: EmulatedMachine) -> None:
    daemon.start()
    client, admin = Client(daemon.socket), Client(daemon.socket)
    client.set(client.lease(daemon.devices[0]), SET_MHZ)
    pid = holder(daemon, 7)
    assert admin.acquire(daemon.devices[7], kind=wire.REVOKE).status == wire.OK
    assert admin.acquire(daemon.devices[0], kind=wire.REVOKE).status == wire.OK
    ended = client.hear_end()
    assert (ended.type, ended.status) == (wire.ENDED, wire.REVOKED)
    assert client.acquire(daemon.devices[0]).status == wire.REVOKED
    assert Client(daemon.socket).acquire(daemon.devices[0]).status == wire.REVOKED, "nor by another connection"
    assert eventually(lambda: machine.clocks_mhz() == [IDLE_MHZ] * 8, 5)
    assert admin.acquire(daemon.devices[7]).status == wire.OK, "another process may have it"
    killed(pid)


def test_drained(daemon: Daemon) -> None:
    daemon.start()
    admin = Client(daemon.socket)
    lease = admin.lease(daemon.devices[0])
    assert admin.ask(wire.DRAIN, struct.pack("=II", 1, 0)).status == wire.OK
    assert admin.acquire(daemon.devices[1]).status == wire.DRAINING
    assert admin.set(lease, SET_MHZ).status == wire.OK, "what there is stays"
    assert admin.ask(wire.DRAIN, struct.pack("=II", 0, 0)).status == wire.OK
    assert admin.acquire(daemon.devices[1]).status == wire.OK


def test_one_that_asks_too_fast_waits_alone(daemon: Daemon) -> None:
    daemon.start("[access]\nrequests_per_s = 50")
    fast, slow = Client(daemon.socket), Client(daemon.socket)
    begin = time.monotonic()
    for _ in range(75):
        fast.ask(wire.HEARTBEAT)
    assert time.monotonic() - begin > 0.5, "the first 25 at once, then 50 a second"
    begin = time.monotonic()
    slow.ask(wire.HEARTBEAT)
    assert time.monotonic() - begin < 0.4


def test_one_that_asks_too_fast_and_leaves_costs_nothing(daemon: Daemon) -> None:
    daemon.start("[access]\nrequests_per_s = 10")
    clients = [Client(daemon.socket) for _ in range(4)]
    for client in clients:
        for _ in range(20):
            client.send(wire.HEARTBEAT)
        client.socket.close()

    def processor_s() -> float:
        assert daemon.process
        tasks = Path(f"/proc/{daemon.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    before = processor_s()
    time.sleep(1)
    assert processor_s() - before < 0.3, "it waits, and does not look again and again"


# ---- The program.


def test_without_gpus_it_says_so(native: NativeFiles, tmp_path: Path) -> None:
    command = [str(native.path("bin/powerccld")), "--socket", str(tmp_path / "s"), "--state", str(tmp_path / "l")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 1
    assert "cannot lease GPUs: " in done.stderr


# ---- Jobs.

JOB = ("all_reduce", "-b", "16M", "-e", "16M", "-w", "1", "-n", "10", "-c", "1")


def test_a_job_of_somebody_without_rights(native: NativeFiles, powerccl: Powerccl, profile: Path) -> None:
    """`powerccl run --set-clocks` by a user who may not set clocks."""
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    home = Path(tempfile.mkdtemp(prefix="powerccl-home-", dir="/dev/shm"))
    machine = EmulatedMachine(native, home)
    (home / "gpus.sock").chmod(0o666)
    daemon = Daemon(native, machine)
    daemon.start('[log]\nlevel = "debug"')
    os.chown(home, NOBODY, NOBODY)
    shutil.copy(profile, home / "t4.json")
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    program = str(Path(sys.executable).parent / "powerccl")
    options = ["--policy", "per-call", "--platform", "t4.json", "--set-clocks"]
    mine = {"POWERCCL_LEASE_SOCKET": str(daemon.socket), "POWERCCL_EMULATOR_MAY_SET_CLOCKS": "0", "HOME": str(home)}
    try:
        done = subprocess.run(
            [*become, program, "run", *options, "--", powerccl.bench, *JOB],
            cwd=home,
            env={**powerccl.environment, **machine.environment, **mine},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert points_are_right(done.stdout)
        log = daemon.log.read_text()
        assert log.count(f"of user {NOBODY}, run ") == 8
        assert f"set to {LOCK_MHZ} to {LOCK_MHZ} MHz, reads " in log  # where it arrives is the driver's matter
        assert log.count("ended (released)") == 8
    finally:
        daemon.end()
        machine.stop()
        shutil.rmtree(home)


def test_a_daemon_restarted_under_a_job(
    daemon: Daemon, on_machine: Powerccl, machine: EmulatedMachine, profile: Path
) -> None:
    daemon.start()
    options = ("--policy", "per-call", "--platform", str(profile), "--set-clocks")
    job = ("all_reduce", "-b", "16M", "-e", "16M", "-w", "1", "-n", "15", "-c", "1")
    running = on_machine.start("run", *options, "--", on_machine.bench, *job, POWERCCL_LEASE_SOCKET=str(daemon.socket))
    assert eventually(lambda: LOCK_MHZ in machine.clocks_mhz())
    daemon.kill()
    daemon.restart()
    done = running.wait()
    assert done.code == 0, done.err
    assert points_are_right(done.out)
    assert done.err.count("at present: powerccld closed the connection") <= 1
    assert daemon.log.read_text().count("leased to process") >= 16, "asked for again"


def test_a_gpu_that_another_job_has(
    daemon: Daemon, on_machine: Powerccl, machine: EmulatedMachine, profile: Path
) -> None:
    daemon.start()
    first = Client(daemon.socket, "the first job")
    first.set(first.lease(daemon.devices[0]), SET_MHZ)
    options = ("--policy", "per-call", "--platform", str(profile), "--set-clocks")
    done = on_machine("run", *options, "--", on_machine.bench, *JOB, POWERCCL_LEASE_SOCKET=str(daemon.socket))
    assert done.code == 0, done.err
    assert f"process {os.getpid()} of user {os.getuid()} has the lease" in done.err
    assert machine.clocks_mhz()[0] == SET_MHZ, "the first one's stays"
