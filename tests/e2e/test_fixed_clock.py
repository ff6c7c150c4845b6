# SPDX-License-Identifier: Apache-2.0
"""`powerccl run --clock`: the clock is set on the job's GPUs alone, and restored however the job ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import lease_client as wire
import pytest
from daemon_process import Daemon
from harness import (
    IDLE_MHZ,
    EmulatedMachine,
    Powerccl,
    Running,
    alive,
    descendants,
    eventually,
    last_run,
    machine_is_back,
    name_of,
)
from lease_client import Client

MHZ = 600
SET = [IDLE_MHZ, IDLE_MHZ, MHZ, MHZ] + [IDLE_MHZ] * 4  # as CUDA_VISIBLE_DEVICES=2,3 has it
OF_SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_GPUS": "2-3",
}


def start(on_machine: Powerccl, machine: EmulatedMachine, seconds: str = "60", **environment: str) -> Running:
    """A job on GPUs 2 and 3 whose clock is set."""
    environment.setdefault("CUDA_VISIBLE_DEVICES", "2,3")
    running = on_machine.start("run", "--clock", str(MHZ), "-q", "--", "sleep", seconds, **environment)
    assert eventually(lambda: machine.clocks_mhz() == SET and bool(job_of(running))), running.err.read_text()
    return running


def job_of(running: Running) -> int:
    """The pid of its `sleep`; 0: it does not run."""
    return next((pid for pid in descendants(running.process.pid) if name_of(pid) == "sleep"), 0)


def test_the_jobs_gpus_have_the_clock_until_it_ends(on_machine: Powerccl, machine: EmulatedMachine) -> None:
    running = start(on_machine, machine, "2")
    refused = on_machine("run", "--clock", "900", "--", "touch", "begun", CUDA_VISIBLE_DEVICES="3")
    assert refused.code == 125
    assert f"process {running.process.pid} has the lease" in refused.err
    assert not (on_machine.folder / "begun").exists()
    assert running.wait().code == 0
    assert machine_is_back(machine)
    run, summary = last_run(on_machine)
    assert run.info and run.info.clock_mhz == summary.clock_mhz == MHZ
    assert run.info.policy == "observe" and run.info.clocks == "lease"


@pytest.mark.parametrize("killed", ["launcher", "job", "both", "terminated", "daemon"])
def test_whatever_is_killed_the_clock_is_restored(killed: str, on_machine: Powerccl, machine: EmulatedMachine) -> None:
    running = start(on_machine, machine)
    launcher, job = running.process.pid, job_of(running)
    if killed == "daemon":
        (guard,) = [pid for pid in descendants(launcher) if name_of(pid) == "powerccld"]
        os.kill(guard, signal.SIGKILL)
        assert eventually(lambda: "is not set any more" in running.err.read_text())
        assert eventually(lambda: machine.clocks_mhz() == SET), "powerccld and the clock are there again"
        os.kill(job, signal.SIGKILL)
    for pid, number, kinds in (
        (launcher, signal.SIGKILL, ("launcher", "both")),
        (job, signal.SIGKILL, ("job", "both")),
        (launcher, signal.SIGTERM, ("terminated",)),
    ):
        if killed in kinds:
            os.kill(pid, number)
    assert machine_is_back(machine)
    if killed == "launcher":
        assert alive(job), "the job goes on"
        os.kill(job, signal.SIGKILL)
    running.wait()
    if killed == "daemon":
        notes = last_run(on_machine)[1].notes
        assert [note for note in notes if "the fixed clock was lost" in note and note.endswith("it was set again")]


def test_a_revoked_lease_is_said_once(on_machine: Powerccl, machine: EmulatedMachine, daemon: Daemon) -> None:
    daemon.start()
    running = start(on_machine, machine, "3", POWERCCL_LEASE_SOCKET=str(daemon.socket))
    assert Client(daemon.socket).ask(wire.REVOKE, b"".ljust(56, b"\0")).status == wire.OK
    assert machine_is_back(machine)
    done = running.wait()
    assert done.code == 0
    assert done.err.count("the clock of 600 MHz is not set any more") == 1
    assert any("the fixed clock was lost" in note for note in last_run(on_machine)[1].notes)


def test_the_first_launcher_of_a_node_sets_the_clock(on_machine: Powerccl, machine: EmulatedMachine) -> None:
    """Two tasks of one step: the second begins when the first has set the clock of the step's GPUs."""
    step = {**OF_SLURM, "CUDA_VISIBLE_DEVICES": "3"}
    second = on_machine.start(
        "run", "--clock", str(MHZ), "-q", "--", "touch", "begun", **step, SLURM_PROCID="1", SLURM_LOCALID="1"
    )
    with pytest.raises(AssertionError):
        assert eventually(lambda: (on_machine.folder / "begun").exists(), 1.0)
    first = start(on_machine, machine, "2", **step, SLURM_PROCID="0", SLURM_LOCALID="0")
    assert second.wait().code == 0
    assert (on_machine.folder / "begun").exists()
    assert first.wait().code == 0
    assert machine_is_back(machine)


def test_what_cannot_be_had_is_an_error_before_the_job(
    on_machine: Powerccl, machine: EmulatedMachine, tmp_path: Path
) -> None:
    for options, environment, words in (
        (("--clock", "100"), {}, "300 to 1590 MHz"),
        (("--clock", "900", "--policy", "auto"), {}, "--clock fixes one clock, and policy auto chooses clocks"),
        (("--clock", "900"), {"POWERCCL_EMULATOR_MAY_SET_CLOCKS": "0"}, "cannot set the clock"),
        (("--clock", "900"), {"CUDA_VISIBLE_DEVICES": ""}, "CUDA finds no GPU"),
    ):
        done = on_machine("run", *options, "--", "touch", "begun", **environment)
        assert done.code in (2, 125), done.err
        assert words in done.err and "hint: " in done.err
        assert not (tmp_path / "begun").exists()
    assert machine_is_back(machine)


def test_an_environment_that_forbids_clocks_wins(on_machine: Powerccl, machine: EmulatedMachine) -> None:
    done = on_machine("run", "--clock", "900", "-q", "--", "sleep", "0.5", POWERCCL_CLOCKS="dry")
    assert done.code == 0
    assert done.err.count("POWERCCL_CLOCKS=dry: no clock is set, so --clock 900 has no effect") == 1
    run, _ = last_run(on_machine)
    assert run.info and run.info.clock_mhz == 0 and run.info.clocks == "dry"
    assert machine.clocks_mhz() == [IDLE_MHZ] * 8
