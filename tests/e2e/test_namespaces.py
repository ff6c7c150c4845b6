# SPDX-License-Identifier: Apache-2.0
"""Jobs in PID namespaces, as containers are: what is left of a killed one. tests/harm/namespaces.py has all cases."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harm.namespaces import Machine, kill_in_namespace
from harness import Powerccl

from powerccl.launch.native import NativeFiles
from powerccl.traces.folder import read_run


@pytest.fixture(scope="module")
def gpus(native: NativeFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Emulated GPUs outside every namespace."""
    machine = Machine(native, tmp_path_factory.mktemp("gpus"))
    yield machine
    machine.stop()


@pytest.mark.parametrize(
    ("member", "inside", "mount"),
    [("job", "job", False), ("job", "all", True), ("rank", "job", True), ("wrapper", "all", True)],
)
def test_killed_job_leaves_no_clock(gpus: Machine, tmp_path: Path, member: str, inside: str, mount: bool) -> None:
    assert kill_in_namespace(gpus, tmp_path / "runs", member, inside, mount) == []


def test_every_step_in_a_namespace_of_its_own_is_recorded(powerccl: Powerccl) -> None:
    """Each is rank 0 and process 1 or so of its namespace."""
    step = f"unshare -p -f --mount-proc {powerccl.bench} all_reduce -b 1M -e 1M -n 2 -g 1"
    script = f"for step in 1 2 3 4; do {step} || exit 1; done"
    done = powerccl("run", "--emulate", "t4x8", "--", "sh", "-c", script)
    assert done.code == 0, done.err
    assert "is not recorded" not in done.err
    assert len(list(powerccl.runs[0].glob("rank-*.trace"))) == 4


class Agent:
    """powerccl-agent on a run folder, entered through a command, until its input ends."""

    def __init__(self, gpus: Machine, folder: Path, enter: str) -> None:
        agent = f"exec {gpus.native.path('bin/powerccl-agent')} --run-folder {folder}"
        self.process = subprocess.Popen(
            ["unshare", "--uts", "--mount", "sh", "-c", f"{enter} && {agent}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=gpus.environment,
        )
        assert self.process.stdout
        self.first = self.process.stdout.readline()

    def end(self) -> str:
        """What it said."""
        return self.process.communicate(timeout=30)[1].decode()


def test_node_is_its_kernel_whatever_its_name(gpus: Machine, tmp_path: Path) -> None:
    """A container's host name makes no other node of it, and two nodes of one name keep files of their own."""
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("0123abcd-4567-4000-8000-0123456789ab\n")
    folder = tmp_path / "run"
    folder.mkdir()
    node = Agent(gpus, folder, "hostname node1")
    container = Agent(gpus, folder, "hostname other")
    other = Agent(gpus, folder, f"hostname node1 && mount --bind {boot_id} /proc/sys/kernel/random/boot_id")
    again = Agent(gpus, folder, f"hostname node1 && mount --bind {boot_id} /proc/sys/kernel/random/boot_id")
    said = [agent.end() for agent in (again, other, container, node)]
    assert [agent.first for agent in (node, container, other, again)] == [b"ready\n", b"", b"ready\n", b""]
    assert ["another agent already serves this node" in text for text in said] == [True, False, True, False], said
    assert sorted(path.name for path in folder.glob("power-*")) == ["power-node1-0123abcd4567.csv", "power-node1.csv"]
    run = read_run(folder)
    assert sorted(log.host for log in run.power) == ["node1", "node1~2"]
