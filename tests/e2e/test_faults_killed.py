# SPDX-License-Identifier: Apache-2.0
"""Processes that die, jobs in each other's way and odd collectives: clocks go back, and the run folder still reads."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from harness import (
    LOCK_MHZ,
    EmulatedMachine,
    Powerccl,
    Running,
    alive,
    descendants,
    eventually,
    is_whole,
    last_run,
    machine_is_back,
    name_of,
    points_are_right,
)
from test_faults import MANAGED, OBSERVED, SHORT, advised

from powerccl.analysis.summary import summarise
from powerccl.traces import records
from powerccl.traces.folder import read_run

pytestmark = pytest.mark.timeout(300)

COMMUNICATORS = str(Path(__file__).parent / "programs/communicators.py")
LONG = ("all_reduce", "-b", "64M", "-e", "64M", "-c", "0", "-n", "5000")  # over three minutes, unless it is ended


# ---- Processes that die.


def start_long(powerccl: Powerccl, *options: str) -> tuple[Running, int, list[int]]:
    """A job of eight ranks amid its collectives: the launcher, powerccl-bench and its ranks."""
    running = powerccl.start("run", *options, "--", powerccl.bench, *LONG)
    bench = 0
    ranks: list[int] = []

    def started() -> bool:
        nonlocal bench, ranks
        assert running.process.poll() is None, running.err.read_text()
        for pid in descendants(running.process.pid):
            if name_of(pid) == "powerccl-bench" and len(descendants(pid)) >= 8:
                bench, ranks = pid, descendants(pid)
                return True
        return False

    assert eventually(started), running.err.read_text()
    folder = powerccl.runs[-1]

    def communicating() -> bool:
        traces = read_run(folder).ranks
        return len(traces) == 8 and all(len(trace.kinds[records.KERNEL]) > 0 for trace in traces)

    assert eventually(communicating), running.err.read_text()
    return running, bench, ranks


def agents_below(pid: int) -> list[int]:
    """The launcher's agents."""
    return [child for child in descendants(pid) if "powerccl-agent" in Path(f"/proc/{child}/cmdline").read_text()]


def test_rank_killed_mid_collective(on_machine: Powerccl, machine: EmulatedMachine, profile: Path) -> None:
    options = ["--policy", "per-call", "--platform", str(profile)]
    running, _, ranks = start_long(on_machine, *options)
    assert eventually(lambda: LOCK_MHZ in machine.clocks_mhz())
    time.sleep(0.2)
    os.kill(ranks[3], signal.SIGKILL)
    done = running.wait()
    assert done.code == 4, done.err
    assert "rank 3" in done.err
    assert not any(alive(pid) for pid in ranks)
    assert machine_is_back(machine)
    run, summary = last_run(on_machine)
    assert is_whole(run)
    assert len(run.ranks) == 8
    assert summary.communication.time_s and summary.communication.time_s > 0
    assert run.info
    assert run.info.exit_code == 4


def test_whole_job_killed(on_machine: Powerccl, machine: EmulatedMachine, profile: Path) -> None:
    """Every process of the job at once, as an out-of-memory killer or a batch system does."""
    running, bench, ranks = start_long(on_machine, "--policy", "per-call", "--platform", str(profile))
    for pid in (bench, *ranks):
        os.kill(pid, signal.SIGKILL)
    done = running.wait()
    assert done.code == 128 + signal.SIGKILL
    assert machine_is_back(machine)
    run, _ = last_run(on_machine)
    assert is_whole(run)
    assert run.info
    assert run.info.signal == signal.SIGKILL


def test_launcher_killed_job_lives(on_machine: Powerccl, machine: EmulatedMachine, profile: Path) -> None:
    running, bench, ranks = start_long(on_machine, "--policy", "per-call", "--platform", str(profile))
    guards = [pid for pid in descendants(running.process.pid) if name_of(pid) == "powerccld"]
    assert len(guards) == 1
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait()
    time.sleep(0.5)
    assert alive(bench), "the job is unharmed"
    assert all(alive(pid) for pid in ranks)
    assert alive(guards[0]), "and guarded on"
    for pid in (bench, *ranks):
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not alive(guards[0])), "the guard ends with the last rank"
    assert machine_is_back(machine)
    run, _ = last_run(on_machine)
    assert is_whole(run)
    assert len(run.ranks) == 8
    assert run.power
    assert len(run.power[0].samples) > 0


def test_launcher_killed_with_its_emulated_server(powerccl: Powerccl, profile: Path) -> None:
    """The GPUs go with the launcher; the ranks must end and not hang."""
    options = ("--emulate", "t4x8", "--policy", "per-call", "--platform", str(profile))
    running, bench, ranks = start_long(powerccl, *options)
    agents = agents_below(running.process.pid)
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait()
    assert eventually(lambda: not any(alive(pid) for pid in (bench, *ranks, *agents)))
    run = read_run(powerccl.runs[-1])
    summarise(run)
    assert not run.problems
    assert len(run.ranks) == 8


def test_launcher_told_to_end(on_machine: Powerccl, machine: EmulatedMachine, profile: Path) -> None:
    running, bench, ranks = start_long(on_machine, "--policy", "per-call", "--platform", str(profile))
    os.kill(running.process.pid, signal.SIGTERM)
    done = running.wait()
    assert done.code == 128 + signal.SIGTERM
    assert not any(alive(pid) for pid in (bench, *ranks))
    assert machine_is_back(machine)
    run, _ = last_run(on_machine)
    assert is_whole(run)


def test_agent_killed(on_machine: Powerccl, machine: EmulatedMachine, profile: Path) -> None:
    """A job that has lost its agent, and then a rank in a collective: powerccld restores the clocks."""
    running, _, ranks = start_long(on_machine, "--policy", "per-call", "--platform", str(profile))
    assert eventually(lambda: LOCK_MHZ in machine.clocks_mhz())
    os.kill(agents_below(running.process.pid)[0], signal.SIGKILL)
    os.kill(ranks[5], signal.SIGKILL)
    done = running.wait()
    assert done.code == 4, done.err
    assert machine_is_back(machine)
    run, _ = last_run(on_machine)
    assert is_whole(run)


def test_job_that_leaves_a_process_behind(on_machine: Powerccl, machine: EmulatedMachine, profile: Path) -> None:
    """The command ends, its ranks do not: the launcher ends too and powerccld stays with them."""
    script = f"{on_machine.bench} {' '.join(LONG)} > /dev/null 2>&1 & echo $!; sleep 5; exit 3"
    options = ("--policy", "per-call", "--platform", str(profile))
    done = on_machine("run", *options, "--", "sh", "-c", script)
    assert done.code == 3, done.err
    bench = int(done.out)
    ranks = descendants(bench)
    assert len(ranks) == 8
    assert "until they end" in done.err
    for pid in (bench, *ranks):
        os.kill(pid, signal.SIGKILL)
    assert machine_is_back(machine)
    run, _ = last_run(on_machine)
    run.problems = [each for each in run.problems if "after the end in run.json" not in each]
    assert is_whole(run)


# ---- Jobs in each other's way, and odd collectives.


def test_two_jobs_at_once(on_machine: Powerccl, machine: EmulatedMachine, profile: Path) -> None:
    arguments = ("run", "--policy", "per-call", "--platform", str(profile), "--", on_machine.bench)
    both = [on_machine.start(*arguments, *MANAGED) for _ in range(2)]
    for running in both:
        done = running.wait()
        assert done.code == 0, done.err
        assert points_are_right(done.out)
    assert len(on_machine.runs) == 2
    for folder in on_machine.runs:
        run = read_run(folder)
        summarise(run)
        assert is_whole(run)
        assert len(run.ranks) == 8
    assert machine_is_back(machine)


def test_two_emulated_jobs_at_once(powerccl: Powerccl) -> None:
    both = [powerccl.start("run", *OBSERVED, "--", powerccl.bench, *SHORT) for _ in range(2)]
    for running in both:
        done = running.wait()
        assert done.code == 0, done.err
        assert points_are_right(done.out)
    assert len(powerccl.runs) == 2


def test_more_ranks_than_gpus(powerccl: Powerccl) -> None:
    done = powerccl("run", *OBSERVED, "--", powerccl.bench, "all_reduce", "-g", "9")
    assert done.code == 3
    assert "9" in done.err
    assert advised(done)
    run, _ = last_run(powerccl)
    assert not run.problems


@pytest.mark.parametrize("what", ["abort", "zero"])
def test_odd_communicators(on_machine: Powerccl, machine: EmulatedMachine, profile: Path, what: str) -> None:
    """An aborted communicator, and collectives of no bytes."""
    arguments = ("run", "--policy", "per-call", "--platform", str(profile))
    done = on_machine(*arguments, "--", sys.executable, COMMUNICATORS, what)
    assert (done.code, done.out) == (0, "right\n"), done.err
    assert machine_is_back(machine)
    run, summary = last_run(on_machine)
    assert is_whole(run)
    assert summary.communication.time_s and summary.communication.time_s > 0
