# SPDX-License-Identifier: Apache-2.0
"""`powerccl-bench serve` as a client speaks to it, on the emulated machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import EmulatedMachine, Powerccl, alive, descendants, eventually

START = "AllReduce: sendbuff"  # what NCCL_DEBUG=INFO makes NCCL say of each call


class Server:
    """A server of two ranks, and its client."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
            )
        self.hello = self.reply()
        self.ranks = descendants(self.process.pid)

    def send(self, line: str) -> None:
        """A request that is not replied to."""
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def reply(self) -> dict[str, Any]:
        """The next reply."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, line: str) -> dict[str, Any]:
        """A request and its reply."""
        self.send(line)
        return self.reply()

    def end(self) -> int:
        """No more requests; the exit code."""
        assert self.process.stdin
        self.process.stdin.close()
        code = self.process.wait(60)
        assert not [pid for pid in self.ranks if alive(pid)]
        return code


Start = Callable[..., Server]


@pytest.fixture
def start(powerccl: Powerccl, machine: EmulatedMachine, tmp_path: Path) -> Iterator[Start]:
    """Starts a server with these options, and variables of its own environment."""
    started: list[Server] = []

    def starter(*options: str, **variables: str) -> Server:
        command = [powerccl.bench, "serve", "-g", "2", *options]
        environment = {**powerccl.environment, **machine.environment, **variables}
        started.append(Server(command, environment, tmp_path / f"serve-{len(started)}.log"))
        return started[-1]

    yield starter
    for server in started:
        if server.process.poll() is None:
            server.process.kill()  # its ranks die with it
            server.process.wait()
        for pipe in (server.process.stdin, server.process.stdout):
            assert pipe
            pipe.close()


def test_hello_says_what_a_sweep_does(start: Start) -> None:
    server = start()
    hello = server.hello
    assert (hello["type"], hello["mode"], hello["ranks"]) == ("ready", "serve", 2)
    assert hello["emulated"] is True
    assert hello["gpu"] == "Tesla T4"
    assert [gpu["rank"] for gpu in hello["gpus"]] == [0, 1]
    assert Path(hello["nccl_path"]).name == "libnccl.so.2"
    assert hello["nccl_version"] == "2.28.9"
    assert hello["pid"] == server.process.pid
    assert 0 < hello["seconds"] < 60
    assert server.end() == 0


def test_points_have_a_sweeps_fields_and_times_of_repeats(start: Start) -> None:
    server = start()
    opened = server.ask("open first one")
    assert (opened["type"], opened["id"], opened["fresh"]) == ("opened", "first one", True)
    point = server.ask("measure all_reduce 1M iterations=4 warmup=2 repeat=3")
    assert (point["type"], point["id"]) == ("point", "first one")
    assert (point["pattern"], point["size_bytes"], point["iterations"]) == ("all_reduce", 1 << 20, 4)
    assert len(point["times_us"]) == 3
    assert point["time_us"] == sorted(point["times_us"])[1]
    assert point["busbw_gbs"] == pytest.approx(1048576e-3 / point["time_us"], rel=1e-6)
    assert point["joules_all_gpus"] is None
    assert point["energy_reason"] == "energy=0"
    with_energy = server.ask("measure all_reduce 1M energy=1")
    assert with_energy["joules_all_gpus"] > 0
    assert with_energy["sm_clock_mhz"] > 0
    assert (with_energy["end_ns"] - with_energy["start_ns"]) * 1e-9 > 0.19
    again = server.ask("measure all_gather 64K in_place=1 dtype=float16 blocking=1")
    assert (again["in_place"], again["dtype"], again["op"]) == (True, "float16", None)
    assert server.ask("close")["type"] == "closed"
    assert server.end() == 0


def test_each_trial_reads_its_variables_anew(start: Start) -> None:
    server = start(NCCL_DEBUG="WARN")

    def calls_logged() -> int:
        before = server.log.read_text().count(START)
        assert server.ask("measure all_reduce 64K iterations=3")["type"] == "point"
        return server.log.read_text().count(START) - before

    server.ask("open as started")
    assert calls_logged() == 0
    server.send("set NCCL_DEBUG=INFO")
    assert calls_logged() == 0  # for the next trial, not for this one
    server.ask("close")
    assert server.ask("open talkative")["fresh"] is True
    assert calls_logged() > 0
    server.ask("close")
    server.send("clear")
    assert server.ask("open as started again")["fresh"] is True
    assert calls_logged() == 0
    assert server.end() == 0


def test_a_wrong_line_is_refused_and_the_server_goes_on(start: Start) -> None:
    server = start()
    for line in ("measure all_reduce 1M", "close", "set LD_PRELOAD=/x.so", "opne 1", "x" * 20000):
        refused = server.ask(line)
        assert (refused["type"], refused["line"]) == ("refused", line)
        assert refused["reason"]
        assert refused["hint"]
    server.ask("open 1")
    assert server.ask("open 2")["type"] == "refused"
    assert server.ask("measure all_reduce 1M check=1")["type"] == "refused"  # no data are moved
    assert server.ask("measure all_reduce 1M")["id"] == "1"
    assert server.end() == 0


def test_a_rank_that_dies_ends_the_server(start: Start) -> None:
    server = start()
    server.ask("open 1")
    os.kill(server.ranks[0], signal.SIGKILL)
    failed = server.reply()
    assert (failed["type"], failed["id"], failed["alive"]) == ("failed", "1", False)
    assert "SIGKILL" in failed["reason"] or "signal 9" in failed["reason"]
    assert server.end() == 4


def test_a_rank_that_hangs_ends_the_server(start: Start) -> None:
    server = start("--timeout", "1")
    server.ask("open 1")
    os.kill(server.ranks[1], signal.SIGSTOP)
    failed = server.ask("measure all_reduce 1M")
    assert (failed["type"], failed["id"], failed["alive"]) == ("failed", "1", False)
    assert server.end() == 5


def test_ranks_do_not_outlive_the_server(start: Start) -> None:
    server = start()
    server.ask("open 1")
    server.process.kill()
    server.process.wait()
    assert eventually(lambda: not any(alive(pid) for pid in server.ranks))


def test_what_runs_all_the_time_sleeps_between_requests(start: Start) -> None:
    server = start()
    server.ask("open 1")
    server.ask("measure all_reduce 64K")
    server.ask("close")

    def cpu_ticks() -> int:
        pids = [server.process.pid, *server.ranks]
        found = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
        return sum(int(fields[11]) + int(fields[12]) for fields in found)

    before = cpu_ticks()
    time.sleep(1.0)
    assert cpu_ticks() - before <= 5  # of 300 in which one that polls would have been running
    assert server.end() == 0
