# SPDX-License-Identifier: Apache-2.0
"""A Slurm of several nodes, which are namespaces (hosts.py): munged, slurmctld and slurmd, until the hosts end.

It takes root and Debian's `slurmctld slurmd slurm-client munge`. Nothing of it is read from or written to /etc.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from support.hosts import Node

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo", "squeue", "ip", "unshare", "setpriv")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
START_S = 60.0
CPUS = 4
# Each host has a /dev/shm of its own.
CONF = """ClusterName=lab
SlurmctldHost={names[0]}({addresses[0]})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/dev/shm/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile=/dev/shm/slurmctld.pid
SlurmdPidFile=/dev/shm/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_min_interval=100000
MpiDefault=none
KillWait=2
"""
PLAIN = "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n"
CGROUPS = "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup\nJobAcctGatherType=jobacct_gather/cgroup\n"
CGROUP_CONF = "CgroupAutomount=no\nCgroupPlugin=cgroup/v1\nConstrainCores=no\nConstrainRAMSpace=yes\n"


def missing_programs() -> list[str]:
    """Programs that this machine lacks."""
    return [name for name in PROGRAMS if not shutil.which(name, path=PATH)]


def has_cgroups() -> bool:
    """Whether there are control groups of the kind that this configuration names, and they can be made."""
    return os.access("/sys/fs/cgroup/freezer/tasks", os.W_OK)


class Cluster:
    """Slurm's daemons on hosts; they end with their hosts."""

    def __init__(self, folder: Path, nodes: Sequence[Node], environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.nodes = list(nodes)
        self.environment = {**environment, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self, conf: str = "", cgroups: bool = False, gpus: int = 0) -> None:
        """All of it, until every node is idle. `conf`: more lines of slurm.conf; `gpus`: of each node.

        Raises:
            RuntimeError: it did not come up; the text has the logs.
        """
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        names, addresses = [node.name for node in self.nodes], [node.address for node in self.nodes]
        lines = CONF.format(folder=self.folder, names=names, addresses=addresses)
        lines += (CGROUPS if cgroups else PLAIN) + conf
        (self.folder / "cgroup.conf").write_text(CGROUP_CONF)
        gres = f" Gres=gpu:{gpus}" if gpus else ""
        if gpus:
            lines += "GresTypes=gpu\n"
            for number in range(gpus):  # Slurm looks whether they exist, and nothing opens them
                (self.folder / f"gpu{number}").touch()
            (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-{gpus - 1}]\n")
        lines += "".join(f"NodeName={node.name} NodeAddr={node.address} CPUs={CPUS}{gres}\n" for node in self.nodes)
        (self.folder / "slurm.conf").write_text(f"{lines}PartitionName=main Nodes=ALL Default=YES\n")
        files = [f"--{name}=/dev/shm/munge.{name[:4]}" for name in ("pid-file", "log-file", "seed-file", "socket")]
        for node in self.nodes:
            self._daemon(node, "munged", "--foreground", "--force", f"--key-file={key}", *files)
        self._daemon(self.nodes[0], "slurmctld", "-D")
        for node in self.nodes:
            self._daemon(node, "slurmd", "-D")
        if not until(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").stdout == f"{len(self.nodes)}\n"):
            raise RuntimeError(f"Slurm did not start: {self.logs()}")

    def _daemon(self, node: Node, *command: str) -> None:
        with (self.folder / f"{command[0]}-{node.name}.out").open("wb") as out:
            subprocess.Popen(node.enter(*command), env=self.environment, stdout=out, stderr=out, cwd=self.folder)

    def logs(self) -> str:
        """What Slurm's daemons said."""
        paths = [*self.folder.glob("*.log"), *self.folder.glob("*.out")]
        return "".join(path.read_text(errors="replace")[-2000:] for path in sorted(paths))

    def run(self, *command: str, folder: Path | None = None, limit_s: float = 120) -> subprocess.CompletedProcess[str]:
        """A command on the first host, in a folder."""
        entered = self.nodes[0].enter("env", f"--chdir={folder or self.folder}", *command)
        return subprocess.run(
            entered, env=self.environment, capture_output=True, text=True, check=False, timeout=limit_s
        )

    def is_idle(self) -> bool:
        """Whether no job is left."""
        return self.run("squeue", "-h").stdout == ""


def until(condition: Callable[[], bool], seconds: float = START_S) -> bool:
    """Look until the condition holds; False when time ran out."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
