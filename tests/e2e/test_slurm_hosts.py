# SPDX-License-Identifier: Apache-2.0
"""Jobs of a Slurm of two nodes, which are namespaces: whose ranks and energy reports have in each layout.

It needs root, iproute2 and Debian's `slurmctld slurmd slurm-client munge`. tests/harm/hosts.py has all layouts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harm.hosts import faults
from harm.layouts import Expected
from harness import FOREIGN
from support.hosts import Node, hosts
from support.slurm import Cluster, missing_programs, until

from powerccl.launch.native import NativeFiles

NAMES = ("node1", "node2")


class Recorded(Cluster):
    """A cluster whose jobs are sweeps on emulated GPUs."""

    def __init__(self, native: NativeFiles, folder: Path, nodes: list[Node]) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        super().__init__(folder, nodes, {**kept, "POWERCCL_NATIVE": str(native.root)})
        self.powerccl = str(Path(sys.executable).parent / "powerccl")
        self.bench = [str(native.path("bin/powerccl-bench")), "all_reduce", "-b", "8M", "-e", "8M", "-n", "20", "-g"]

    def job(self, runs: str, gpus: int) -> list[str]:
        """A sweep on so many emulated GPUs, recorded."""
        recorded = [self.powerccl, "run", "-q", "--emulate", "t4x8", "--runs-dir", str(self.folder / runs)]
        return [*recorded, "--", *self.bench, str(gpus)]


@pytest.fixture(scope="module")
def cluster(native: NativeFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """A Slurm of two nodes."""
    missing = missing_programs()
    if os.getuid() != 0 or missing:
        pytest.skip(f"needs root and {', '.join(missing) or 'nothing else'}")
    folder = tmp_path_factory.mktemp("slurm")
    with hosts(NAMES, folder) as nodes:
        made = Recorded(native, folder, nodes)
        made.start()
        yield made


def folders(cluster: Recorded, runs: str) -> list[Path]:
    """Run folders that were made."""
    return sorted((cluster.folder / runs).glob("[!.]*/"))


def test_a_job_on_each_node_of_a_step(cluster: Recorded, tmp_path: Path) -> None:
    done = cluster.run("srun", "-N2", "-n2", *cluster.job("step", 2))
    assert done.returncode == 0, done.stderr
    (folder,) = folders(cluster, "step")
    assert faults(folder, tmp_path / "read", Expected(4, {"node1": 2, "node2": 2}, watts=0)) == []


def test_a_heterogeneous_job(cluster: Recorded, tmp_path: Path) -> None:
    parts = (cluster.job("parts", 1), cluster.job("parts", 2))
    done = cluster.run("srun", "-N1", "-n1", "-c3", *parts[0], ":", "-N1", "-n1", "-c3", *parts[1])
    assert done.returncode == 0, done.stderr
    (folder,) = folders(cluster, "parts")
    assert faults(folder, tmp_path / "read", Expected(3, {"node1": 1, "node2": 2}, watts=0)) == []


def test_an_array(cluster: Recorded, tmp_path: Path) -> None:
    script = cluster.folder / "array.sh"
    script.write_text(f"#!/bin/sh\nexec srun -n1 {' '.join(cluster.job('array', 2))}\n")
    options = [f"--chdir={cluster.folder}", "--output=array-%a.out", "--array=0-1"]
    done = cluster.run("sbatch", *options, "-N1", "-n1", "-c3", str(script))
    assert done.returncode == 0, done.stderr + cluster.logs()
    assert until(cluster.is_idle), cluster.logs()
    made = folders(cluster, "array")
    assert len(made) == 2
    known = []
    for number, folder in enumerate(made):
        (power,) = folder.glob("power-*.csv")
        known.append(power.stem.removeprefix("power-"))
        assert faults(folder, tmp_path / str(number), Expected(2, {known[-1]: 2}, watts=0)) == []
    assert sorted(known) == ["node1", "node2"]
