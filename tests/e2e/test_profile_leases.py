# SPDX-License-Identifier: Apache-2.0
"""`powerccl profile` through leases: only clocks that were had are recorded, whatever becomes of the lease."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from daemon_process import Daemon
from harness import IDLE_MHZ, EmulatedMachine, Powerccl, Running, descendants, eventually, name_of
from lease_client import OK, REVOKE, Client
from test_daemon import SET_MHZ

FEW = ("--patterns", "all_reduce", "--sizes", "8M")
MANY = ("--patterns", "all_reduce,gather", "--sizes", "2M:8M:2", "--clocks", "900,600")
POINTS = 2 * 3 * 2


def points(folder: Path, name: str = "points.jsonl") -> list[dict[str, Any]]:
    """What has been measured so far by an unfinished profile."""
    file = folder / "made.profiling" / name
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [point for point in map(json.loads, lines) if point["type"] == "point"]


def at_their_clock(measured: list[dict[str, Any]]) -> bool:
    """Whether each was measured at the clock that it claims."""
    return all(abs(point["sm_clock_mhz"] - point["clock_requested_mhz"]) < 1 for point in measured)


def begin(on_machine: Powerccl, daemon: Daemon) -> Running:
    """A profile that has measured a little."""
    running = on_machine.start("profile", *MANY, "--out", "made.json", POWERCCL_LEASE_SOCKET=str(daemon.socket))
    assert eventually(lambda: len(points(on_machine.folder)) > 1), running.err.read_text()
    return running


def goes_on(on_machine: Powerccl, daemon: Daemon) -> None:
    """What the interrupted profile has left is right, and --resume keeps it and measures the rest."""
    kept = points(on_machine.folder)
    assert 0 < len(kept) < POINTS
    assert at_their_clock(kept)
    done = on_machine("profile", *MANY, "--out", "made.json", "--resume", POWERCCL_LEASE_SOCKET=str(daemon.socket))
    assert done.code == 0, done.err
    made = json.loads((on_machine.folder / "made.json").read_text())
    assert len(made["points"]) == POINTS
    assert all(abs(point["sm_clock_mhz"] - point["clock_mhz"]) < 1 for point in made["points"])
    times = {(point["pattern"], point["size_bytes"], point["clock_mhz"]): point["time_us"] for point in made["points"]}
    for point in kept:
        where = point["pattern"], point["size_bytes"], point["clock_requested_mhz"]
        assert times[where] == pytest.approx(point["time_us"], rel=1e-3)


def test_clocks_outside_the_administrators_range_are_left_out(
    daemon: Daemon, on_machine: Powerccl, tmp_path: Path
) -> None:
    for index in range(8):
        (tmp_path / f"gpu{index}").touch()  # shown to the daemon as /dev/nvidia0 is
    daemon.start(f'[gpu]\nmin_mhz = 480\nmax_mhz = 1200\ndevice_files = "{tmp_path}/gpu%"\n')
    options = (*FEW, "--clocks", "1590,900,480,300", "--out", "made.json")
    done = on_machine("profile", *options, POWERCCL_LEASE_SOCKET=str(daemon.socket))
    assert done.code == 0, done.err
    assert done.err.count("powerccld sets clocks from 480 to 1200 MHz here; it cannot profile 1590, 300") == 1
    made = json.loads((tmp_path / "made.json").read_text())
    assert [(point["clock_mhz"], round(point["sm_clock_mhz"])) for point in made["points"]] == [(900, 900), (480, 480)]
    assert made["clocks_set"]
    # The emulated driver takes 0.25 ms; the ranks' requests, which come at the same time and queue, are not counted.
    assert 250 <= made["clock_switch"]["call_us"] <= made["clock_switch"]["latency_us"]
    assert made["clock_switch"]["requests"] == 64
    # Plain and managed times are compared at one clock.
    (sample,) = made["overhead_samples"]
    assert sample["managed_us"] == pytest.approx(sample["plain_us"], rel=0.1)


def test_clocks_are_chosen_within_the_range(daemon: Daemon, on_machine: Powerccl, tmp_path: Path) -> None:
    daemon.start("[gpu]\nmin_mhz = 900\nmax_mhz = 1000\n")
    done = on_machine("profile", *FEW, "--out", "made.json", POWERCCL_LEASE_SOCKET=str(daemon.socket))
    assert done.code == 0, done.err
    assert "powerccld sets clocks from 900 to 1000 MHz here; it cannot profile others" in done.err
    clocks = [point["clock_mhz"] for point in json.loads((tmp_path / "made.json").read_text())["points"]]
    assert len(clocks) > 1
    assert all(900 <= clock <= 1000 for clock in clocks)
    none = on_machine("profile", *FEW, "--clocks", "600", POWERCCL_LEASE_SOCKET=str(daemon.socket))
    assert none.code == 1
    assert "hint: try --clocks 1000,900" in none.err


def test_a_daemon_that_answers_late_is_asked_again(daemon: Daemon, on_machine: Powerccl, tmp_path: Path) -> None:
    daemon.start()
    options = (*FEW, "--clocks", "900", "--out", "made.json")
    running = on_machine.start("profile", *options, POWERCCL_LEASE_SOCKET=str(daemon.socket))
    # The run that times setting clocks is about to ask for its leases.
    assert eventually(lambda: "with PCCL's events" in running.err.read_text()), running.err.read_text()
    assert daemon.process is not None
    os.kill(daemon.process.pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(daemon.process.pid, signal.SIGCONT)
    done = running.wait()
    assert done.code == 0, done.err
    made = json.loads((tmp_path / "made.json").read_text())
    assert made["clock_switch"]["requests"] > 0


@pytest.mark.slow
def test_a_lease_that_is_revoked(daemon: Daemon, on_machine: Powerccl, machine: EmulatedMachine) -> None:
    daemon.start()
    running = begin(on_machine, daemon)
    assert on_machine("clocks", "--socket", str(daemon.socket), "--revoke", daemon.devices[3]).code == 0
    done = running.wait()
    assert done.code == 1
    assert f"lost control of the clocks: the lease on {daemon.devices[3]} has ended: " in done.err
    assert "`powerccl profile --resume` continues with the measurements so far" in done.err
    assert eventually(lambda: machine.clocks_mhz() == [IDLE_MHZ] * 8)
    goes_on(on_machine, daemon)


def test_a_daemon_that_is_killed(daemon: Daemon, on_machine: Powerccl) -> None:
    daemon.start()
    running = begin(on_machine, daemon)
    daemon.kill()
    daemon.restart()
    done = running.wait()
    assert done.code == 1
    assert "error: lost control of the clocks: " in done.err
    goes_on(on_machine, daemon)


@pytest.mark.slow
def test_a_profile_that_is_stopped_for_too_long(daemon: Daemon, on_machine: Powerccl, machine: EmulatedMachine) -> None:
    daemon.start("[access]\nheartbeat_ms = 1500\n")
    running = begin(on_machine, daemon)
    os.kill(running.process.pid, signal.SIGSTOP)
    assert eventually(lambda: "ended (silent)" in daemon.log.read_text()), daemon.log.read_text()
    time.sleep(0.5)  # a point that was under way is over, and waits to be told that it may be written
    os.kill(running.process.pid, signal.SIGCONT)
    done = running.wait()
    assert done.code == 1
    assert "has ended: powerccld received no message from this process" in done.err
    assert eventually(lambda: machine.clocks_mhz() == [IDLE_MHZ] * 8)
    goes_on(on_machine, daemon)


def test_a_profile_that_is_killed(daemon: Daemon, on_machine: Powerccl, machine: EmulatedMachine) -> None:
    daemon.start()
    running = begin(on_machine, daemon)
    bench = [pid for pid in descendants(running.process.pid) if name_of(pid) == "powerccl-bench"]
    assert bench
    running.process.kill()
    assert running.wait().code == -signal.SIGKILL
    assert eventually(lambda: not any(map(name_of, bench))), "powerccl-bench does not go on without it"
    assert eventually(lambda: machine.clocks_mhz() == [IDLE_MHZ] * 8)
    goes_on(on_machine, daemon)


def test_leases_lost_while_calls_are_timed(daemon: Daemon, on_machine: Powerccl) -> None:
    """The ranks hold their own then, and go on without; what that took is not the time of managed calls."""
    daemon.start()
    administrator = Client(daemon.socket)
    options = ("profile", *FEW, "--clocks", "900,600", "--out", "made.json")
    running = on_machine.start(*options, POWERCCL_LEASE_SOCKET=str(daemon.socket))
    assert eventually(lambda: daemon.log.read_text().count("leased to process") == 16), "the profile's and the ranks'"
    assert administrator.acquire("", kind=REVOKE).status == OK
    done = running.wait()
    assert done.code == 1
    assert "clocks could no longer be set while setting them was timed" in done.err
    assert "`powerccl profile --resume` continues with the measurements so far" in done.err
    assert not points(on_machine.folder, "managed.jsonl")
    done = on_machine(*options, "--resume", POWERCCL_LEASE_SOCKET=str(daemon.socket))
    assert done.code == 0, done.err
    assert json.loads((on_machine.folder / "made.json").read_text())["clock_switch"]["requests"] == 64


def test_roots_own_daemon(on_machine: Powerccl, machine: EmulatedMachine) -> None:
    options = ("profile", *MANY, "--out", "made.json")
    running = on_machine.start(*options)
    assert eventually(lambda: len(points(on_machine.folder)) > 1), running.err.read_text()
    (log,) = (on_machine.folder / "made.profiling").glob("powerccld-*.log")
    assert log.read_text().count(f"leased to process {running.process.pid}") == 8
    os.kill(running.process.pid, signal.SIGINT)
    assert "--resume" in running.wait().err
    assert eventually(lambda: machine.clocks_mhz() == [IDLE_MHZ] * 8)
    done = on_machine(*options, "--resume")
    assert done.code == 0, done.err
    made = json.loads((on_machine.folder / "made.json").read_text())
    assert len(made["points"]) == POINTS
    assert all(abs(point["sm_clock_mhz"] - point["clock_mhz"]) < 1 for point in made["points"])


def test_a_gpu_that_somebody_has(daemon: Daemon, on_machine: Powerccl) -> None:
    daemon.start()
    other = Client(daemon.socket, "the other")
    other.set(other.lease(daemon.devices[2]), SET_MHZ)
    done = on_machine("profile", *FEW, "--out", "made.json", POWERCCL_LEASE_SOCKET=str(daemon.socket))
    assert done.code == 1
    assert f"cannot lease the clock of {daemon.devices[2]}" in done.err
    assert f"process {os.getpid()}" in done.err
    assert "`powerccl clocks` shows all leases" in done.err
