# SPDX-License-Identifier: Apache-2.0
"""One job over two hosts, which are namespaces with clocks a day apart: alignment, stragglers, agents, a killed host.

It needs root and iproute2. evidence/scripts/figures-hosts.py measures the same with more hosts and kills.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import EmulatedMachine, eventually
from support.hosts import Node, hosts
from support.remote_shell import remote_shell
from support.several_hosts import MPIEXEC, OVER_TCP, error_us, finished, injected_us, mpiexec, put_apart, start

from powerccl.analysis.report import report
from powerccl.launch.native import NativeFiles
from powerccl.traces.folder import read_run

NAMES = ("node1", "node2")
AHEAD = {"node2": 100_000}  # seconds
# Rank 3 computes for about 30 ms where the others do for 20.
LATE = "rank 3 x1.5\ncompute 20\nall_reduce 8M\n"
# Most true errors are below 15 us. A machine that is busy with other work delays what a rank sees.
MOST_US = 100.0


@pytest.fixture(scope="module")
def machine(native: NativeFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedMachine]:
    """The GPUs of all hosts."""
    server = EmulatedMachine(native, tmp_path_factory.mktemp("gpus"), "h200x4.conf")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    """Two hosts."""
    if os.getuid() != 0 or not shutil.which("ip"):
        pytest.skip("needs root and iproute2")
    with hosts(NAMES, tmp_path_factory.mktemp("hosts"), AHEAD) as made:
        yield made


@pytest.fixture(scope="module")
def folder(
    native: NativeFiles, machine: EmulatedMachine, nodes: list[Node], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A job of four ranks on both hosts."""
    place = tmp_path_factory.mktemp("job")
    return finished(start(native, nodes, place, machine.environment, LATE, 100), place)


def test_hosts_clocks_are_aligned(folder: Path, tmp_path: Path) -> None:
    """PowerCCL takes a namespace's own shift of the clock out, so that the offset is 0; then both are put in."""
    assert error_us(read_run(folder), folder, 0, 0.0) <= MOST_US
    apart = tmp_path / "apart"
    shutil.copytree(folder, apart)
    put_apart(apart, "node2", 200_000_000, 50e-6)
    run = read_run(apart)
    assert error_us(run, folder, 200_000_000, 50e-6) <= MOST_US
    assert run.problems == []


def test_straggler_on_the_other_host_is_named(folder: Path) -> None:
    peers = report(folder).findings.peers
    (late,) = [row for row in peers.ranks if row.steady]
    assert late.host == "node2"
    assert late.behind_us == pytest.approx(injected_us(folder), rel=0.05)


def test_a_killed_host_is_named(
    native: NativeFiles, machine: EmulatedMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with hosts(NAMES, tmp_path, AHEAD) as nodes:
        started = start(native, nodes, tmp_path, machine.environment, "compute 10\nall_reduce 1M\n", 100_000)
        assert eventually(lambda: len(list(tmp_path.glob("runs/*/rank-*.trace"))) == 4)
        assert eventually(lambda: all(path.stat().st_size > 20_000 for path in tmp_path.glob("runs/*/rank-*.trace")))
        os.kill(nodes[1].pid, signal.SIGKILL)
        for launcher in started:  # emulated NCCL ends ranks that wait for a dead one, powerccl-bench in LOST_S
            launcher.wait(60)
    (made,) = tmp_path.glob("runs/[!.]*/")
    assert eventually(lambda: any("killed" in text for text in read_run(made).problems), 20)
    run = read_run(made)
    assert len(run.ranks) == 4
    assert [text.partition(":")[0] for text in run.problems if "killed" in text] == [
        "node2 was killed, lost power or could not write"
    ]


def test_mpiexec_samples_each_host_or_says_which_not(
    native: NativeFiles,
    clean_environment: dict[str, str],
    nodes: list[Node],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not MPIEXEC.exists():
        pytest.skip("needs the MPICH beside this Python")
    monkeypatch.chdir(tmp_path)
    environment = {**clean_environment, **OVER_TCP}
    bench = [str(native.path("bin/powerccl-bench-mpi")), "allreduce", "-b", "8", "-e", "8", "-n", "200", "-w", "2"]
    with remote_shell(tmp_path, [node.enter() for node in nodes], NAMES) as shell:
        job = [*mpiexec(shell, [*NAMES, "node9"], 2), *bench]
        powerccl = [str(Path(sys.executable).parent / "powerccl"), "run", "--quiet", "--"]
        done = subprocess.run(
            nodes[0].enter(*powerccl, *job),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
    assert done.returncode == 0, done.stderr
    assert "node9 is not sampled: " in done.stderr
    (made,) = tmp_path.glob("runs/[!.]*/")
    run = read_run(made)
    assert {log.host for log in run.cpu} == set(NAMES)
    assert run.problems == []
    assert run.host_clocks
    (clock,) = run.host_clocks.clocks
    assert not clock.reason
    assert abs(clock.offset_ns) <= clock.bound_ns
