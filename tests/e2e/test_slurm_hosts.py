# SPDX-License-Identifier: Apache-2.0
"""Jobs of a Slurm of two nodes, which are namespaces: whose ranks and energy reports have in each layout.

It needs root, iproute2 and Debian's `slurmctld slurmd slurm-client munge`. tests/harm/hosts.py has all layouts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harm.hosts import faults
from harm.layouts import Expected
from harness import FOREIGN, eventually
from support.hosts import Node, hosts

from powerccl.launch.native import NativeFiles

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo", "squeue", "ip", "unshare", "setpriv")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
NAMES = ("node1", "node2")
# Each host has a /dev/shm of its own.
CONF = """ClusterName=lab
SlurmctldHost=node1({addresses[0]})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/dev/shm/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile=/dev/shm/slurmctld.pid
SlurmdPidFile=/dev/shm/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_min_interval=100000
MpiDefault=none
NodeName=node1 NodeAddr={addresses[0]} CPUs=4
NodeName=node2 NodeAddr={addresses[1]} CPUs=4
PartitionName=main Nodes=ALL Default=YES
"""


class Cluster:
    """Slurm's daemons on two hosts; they end with their hosts."""

    def __init__(self, native: NativeFiles, folder: Path, nodes: list[Node]) -> None:
        self.folder = folder
        self.nodes = nodes
        self.powerccl = str(Path(sys.executable).parent / "powerccl")
        self.bench = [str(native.path("bin/powerccl-bench")), "all_reduce", "-b", "8M", "-e", "8M", "-n", "20", "-g"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        self.environment = {**kept, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}
        self.environment["POWERCCL_NATIVE"] = str(native.root)

    def start(self) -> None:
        """All of it, until both nodes are idle."""
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        conf = CONF.format(folder=self.folder, addresses=[node.address for node in self.nodes])
        (self.folder / "slurm.conf").write_text(conf)
        files = [f"--{name}=/dev/shm/munge.{name[:4]}" for name in ("pid-file", "log-file", "seed-file", "socket")]
        for node in self.nodes:
            self._daemon(node, "munged", "--foreground", "--force", f"--key-file={key}", *files)
        self._daemon(self.nodes[0], "slurmctld", "-D")
        for node in self.nodes:
            self._daemon(node, "slurmd", "-D")
        assert eventually(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").stdout == "2\n", 30), self.logs()

    def _daemon(self, node: Node, *command: str) -> None:
        with (self.folder / f"{command[0]}-{node.name}.out").open("wb") as out:
            subprocess.Popen(node.enter(*command), env=self.environment, stdout=out, stderr=out, cwd=self.folder)

    def logs(self) -> str:
        """What Slurm's daemons said."""
        paths = [*self.folder.glob("*.log"), *self.folder.glob("*.out")]
        return "".join(path.read_text(errors="replace")[-2000:] for path in sorted(paths))

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command on the first host."""
        entered = self.nodes[0].enter(*command)
        return subprocess.run(
            entered, env=self.environment, cwd=self.folder, capture_output=True, text=True, check=False, timeout=120
        )

    def job(self, runs: str, gpus: int) -> list[str]:
        """A sweep on so many emulated GPUs, recorded."""
        recorded = [self.powerccl, "run", "-q", "--emulate", "t4x8", "--runs-dir", str(self.folder / runs)]
        return [*recorded, "--", *self.bench, str(gpus)]


@pytest.fixture(scope="module")
def cluster(native: NativeFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Slurm of two nodes."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
    if os.getuid() != 0 or missing:
        pytest.skip(f"needs root and {', '.join(missing) or 'nothing else'}")
    folder = tmp_path_factory.mktemp("slurm")
    with hosts(NAMES, folder) as nodes:
        made = Cluster(native, folder, nodes)
        made.start()
        yield made


def folders(cluster: Cluster, runs: str) -> list[Path]:
    """Run folders that were made."""
    return sorted((cluster.folder / runs).glob("[!.]*/"))


def test_a_job_on_each_node_of_a_step(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.run("srun", "-N2", "-n2", *cluster.job("step", 2))
    assert done.returncode == 0, done.stderr
    (folder,) = folders(cluster, "step")
    assert faults(folder, tmp_path / "read", Expected(4, {"node1": 2, "node2": 2}, watts=0)) == []


def test_a_heterogeneous_job(cluster: Cluster, tmp_path: Path) -> None:
    parts = (cluster.job("parts", 1), cluster.job("parts", 2))
    done = cluster.run("srun", "-N1", "-n1", "-c3", *parts[0], ":", "-N1", "-n1", "-c3", *parts[1])
    assert done.returncode == 0, done.stderr
    (folder,) = folders(cluster, "parts")
    assert faults(folder, tmp_path / "read", Expected(3, {"node1": 1, "node2": 2}, watts=0)) == []


def test_an_array(cluster: Cluster, tmp_path: Path) -> None:
    script = cluster.folder / "array.sh"
    script.write_text(f"#!/bin/sh\nexec srun -n1 {' '.join(cluster.job('array', 2))}\n")
    options = [f"--chdir={cluster.folder}", "--output=array-%a.out", "--array=0-1"]
    done = cluster.run("sbatch", *options, "-N1", "-n1", "-c3", str(script))
    assert done.returncode == 0, done.stderr + cluster.logs()
    assert eventually(lambda: cluster.run("squeue", "-h").stdout == ""), cluster.logs()
    made = folders(cluster, "array")
    assert len(made) == 2
    known = []
    for number, folder in enumerate(made):
        (power,) = folder.glob("power-*.csv")
        known.append(power.stem.removeprefix("power-"))
        assert faults(folder, tmp_path / str(number), Expected(2, {known[-1]: 2}, watts=0)) == []
    assert sorted(known) == ["node1", "node2"]
