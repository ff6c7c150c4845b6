# SPDX-License-Identifier: Apache-2.0
"""Jobs in PID namespaces, as containers are: what is left of a killed one. bench/harm/namespaces.py has all cases."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.harm.namespaces import GPUS, IDLE_MHZ, Job, Machine, kill_in_namespace, wait_for
from harness import Powerccl

from powerccl.launch.native import NativeFiles


@pytest.fixture(scope="module")
def gpus(native: NativeFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Emulated GPUs outside every namespace."""
    machine = Machine(native, tmp_path_factory.mktemp("gpus"))
    yield machine
    machine.stop()


@pytest.mark.parametrize(
    ("member", "inside", "mount", "clocks"),
    [
        ("job", "job", False, "nvml"),
        ("job", "job", True, "nvml"),
        ("job", "all", False, "nvml"),
        ("agent and job", "all", True, "nvml"),
        ("job", "job", True, "lease"),
    ],
)
def test_killed_job_leaves_no_clock(
    gpus: Machine, tmp_path: Path, member: str, inside: str, mount: bool, clocks: str
) -> None:
    assert kill_in_namespace(gpus, tmp_path / "runs", member, inside, mount, clocks) == []


def test_living_job_is_never_undone(gpus: Machine, tmp_path: Path) -> None:
    job = Job(gpus, tmp_path / "runs", "job", True, "nvml")
    try:
        done = job.restore_all()
        assert done.returncode == 1
        assert done.stderr.count("is left alone: process ") == GPUS
        job.kill(job.named("powerccl") + job.named("powerccl-agent") + job.named("powerccl-bench"))
        assert max(gpus.clocks_mhz()) > IDLE_MHZ
        done = job.restore_all()
        assert (done.returncode, done.stdout.count(": reset\n")) == (0, GPUS), done.stderr
        assert job.locked() == []
    finally:
        job.end()


def test_cut_journal_kills_nobody_and_locks_nothing(gpus: Machine, tmp_path: Path) -> None:
    """Somebody cuts the journal short under a living job: no clock is set any more, and those that were are undone."""
    job = Job(gpus, tmp_path / "runs", "job", False, "nvml")
    try:
        (journal,) = job.folder.glob("clocks-*.journal")
        os.truncate(journal, 100)
        said = job.place / "err"
        assert wait_for(lambda: "was cut short" in said.read_text())
        assert all(Path(f"/proc/{pid}").exists() for pid in job.named("powerccl-bench"))
        assert journal.stat().st_size == 100
        job.kill(job.named("powerccl-bench"))
        assert job.locked() == []
    finally:
        job.end()


def test_every_step_in_a_namespace_of_its_own_is_recorded(powerccl: Powerccl) -> None:
    """Each is rank 0 and process 1 or so of its namespace."""
    step = f"unshare -p -f --mount-proc {powerccl.bench} all_reduce -b 1M -e 1M -n 2 -g 1"
    script = f"for step in 1 2 3 4; do {step} || exit 1; done"
    done = powerccl("run", "--emulate", "t4x8", "--", "sh", "-c", script)
    assert done.code == 0, done.err
    assert "is not recorded" not in done.err
    assert len(list(powerccl.runs[0].glob("rank-*.trace"))) == 4


def test_container_with_a_host_name_of_its_own_is_the_same_node(gpus: Machine, tmp_path: Path) -> None:
    """The node's agent guards what runs under another host name: journal and lock are the kernel's."""
    native = gpus.native
    place = tmp_path / "run"
    place.mkdir()
    agent = subprocess.Popen(
        [str(native.path("bin/powerccl-agent")), "--run-folder", str(place), "--no-sample"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=gpus.environment,
    )
    assert agent.stdout
    assert agent.stdout.readline() == b"ready\n"
    agent.stdout.close()
    assert agent.stdin
    agent_in_container = f"exec {native.path('bin/powerccl-agent')} --run-folder {place}"
    done = subprocess.run(
        ["unshare", "--uts", "sh", "-c", f"hostname other && {agent_in_container}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=gpus.environment,
        timeout=30,
    )
    assert "another agent attends this node" in done.stderr
    agent.stdin.close()
    assert agent.wait(30) == 0
