# SPDX-License-Identifier: Apache-2.0
"""packaging/slurm/ under a Slurm that runs: one node, on emulated GPUs.

It needs root and Debian's `slurm-wlm` and `munge` (or the like); nothing of it is read from or written to /etc.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from daemon_process import NOBODY, Daemon
from harness import IDLE_MHZ, EmulatedMachine, alive, eventually, points_are_right, profile_of
from test_daemon import SET_MHZ

from powerccl.launch.native import NativeFiles

SCRIPTS = Path(__file__).parents[2] / "packaging/slurm"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "scontrol", "scancel", "setpriv")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
KillWait=1
Prolog={folder}/prolog
Epilog={folder}/epilog
NodeName={host} NodeAddr=127.0.0.1 CPUs=8
PartitionName=main Nodes=ALL Default=YES
"""
# A process that its job cannot end: another session's, and a child of nobody's.
LEAVE = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import lease_client as wire
reading, writing = os.pipe()
if sys.argv[6:] != ["stay"]:
    if os.fork():
        sys.exit(0 if os.read(reading, 1) == b"x" else 1)
    os.setsid()
    if os.fork():
        os._exit(0)
client = wire.Client(Path(sys.argv[2]))
lease = client.lease(sys.argv[3])
assert client.set(lease, int(sys.argv[4])).status == wire.OK
Path(sys.argv[5]).write_text(str(os.getpid()))
os.write(writing, b"x")
for stream in range(3):
    os.close(stream)
while True:
    client.ask(wire.HEARTBEAT)
    time.sleep(0.5)
"""


class Cluster:
    """munged, slurmctld and slurmd in a folder, and powerccld beside them."""

    def __init__(self, native: NativeFiles) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="powerccl-slurm-", dir="/dev/shm"))
        self.folder.chmod(0o755)
        (self.folder / "gpus").mkdir()
        self.machine = EmulatedMachine(native, self.folder / "gpus")
        (self.folder / "gpus/gpus.sock").chmod(0o666)
        self.daemon = Daemon(native, self.machine)
        self.environment = {
            "PATH": PATH,
            "HOME": str(self.folder / "home"),
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "POWERCCL_LEASE_SOCKET": str(self.daemon.socket),
            "POWERCCL_NATIVE": str(native.root),
            **self.machine.environment,
        }
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """All of it, until the node is idle."""
        self.daemon.start()
        powerccl = Path(sys.executable).parent / "powerccl"
        (self.folder / "home").mkdir()
        shutil.chown(self.folder / "home", NOBODY, NOBODY)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        (self.folder / "home/t4.json").write_bytes(profile_of("Tesla T4", 8))
        for name in ("prolog", "epilog"):
            script = self.folder / name
            script.write_text(
                f"#!/bin/sh\nexport POWERCCL={powerccl} POWERCCL_LEASE_SOCKET={self.daemon.socket}\n"
                f"{SCRIPTS / name}\ncode=$?\necho $code >> {self.folder}/{name}.codes\nexit $code\n"
            )
            script.chmod(0o755)
        self.daemon_of("munged", *self._munge())
        assert eventually((self.folder / "munge.sock").exists, 10)
        with socket.socket() as first, socket.socket() as second:
            for probe in (first, second):
                probe.bind(("127.0.0.1", 0))
            ports = [probe.getsockname()[1] for probe in (first, second)]
        host = socket.gethostname().split(".")[0]
        (self.folder / "slurm.conf").write_text(CONF.format(folder=self.folder, ports=ports, host=host))
        self.daemon_of("slurmctld", "-D")
        self.daemon_of("slurmd", "-D", "-N", host)
        self.host = host
        assert eventually(lambda: self.node_is("IDLE"), 30), self.logs()

    def _munge(self) -> list[str]:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {"key": key.name, "socket": "munge.sock", "pid": "munge.pid", "log": "munge.log", "seed": "munge.seed"}
        named = {name: self.folder / file for name, file in files.items()}
        options = [f"--{name}-file={path}" for name, path in named.items() if name != "socket"]
        return ["--foreground", "--force", f"--socket={named['socket']}", *options]

    def daemon_of(self, *command: str) -> None:
        """Start one of Slurm's."""
        with (self.folder / f"{command[0]}.out").open("wb") as out:
            self.started.append(subprocess.Popen(command, env=self.environment, stdout=out, stderr=out))

    def logs(self) -> str:
        """What Slurm's daemons said."""
        return "".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("slurm*.[lo]*")))

    def node_is(self, state: str) -> bool:
        """Whether the node is in that state, and in no other besides."""
        done = subprocess.run(
            ["scontrol", "show", "node", self.host, "--oneliner"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return f" State={state} " in done.stdout

    def job(self, *command: str) -> list[str]:
        """A command that has somebody without rights do that in a job."""
        become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        return [*become, "srun", "-n1", "-c1", *command]

    def srun(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Such a job, to its end and its epilog's."""
        before = self.count("epilog")
        done = subprocess.run(
            self.job(*command),
            cwd=self.folder / "home",
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert eventually(lambda: self.count("epilog") > before, 30), self.logs()
        return done

    def count(self, script: str) -> int:
        """How often that script has ended; always well."""
        file = self.folder / f"{script}.codes"
        codes = file.read_text().split() if file.exists() else []
        assert set(codes) <= {"0"}
        return len(codes)

    def end(self) -> None:
        """All of it."""

        def ended(process: subprocess.Popen[bytes]) -> bool:
            return process.poll() is not None

        for process in reversed(self.started):
            process.terminate()
            if not eventually(partial(ended, process), 10):
                process.kill()
                process.wait()
        self.daemon.end()
        self.machine.stop()
        shutil.rmtree(self.folder)


@pytest.fixture(scope="module")
def cluster(native: NativeFiles) -> Iterator[Cluster]:
    """A Slurm of one node."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
    if os.getuid() != 0 or missing:
        pytest.skip(f"needs root and {', '.join(missing) or 'nothing else'}")
    made = Cluster(native)
    try:
        made.start()
        yield made
    finally:
        made.end()


def test_a_job_of_slurms_gets_clocks(cluster: Cluster) -> None:
    powerccl = str(Path(sys.executable).parent / "powerccl")
    if cluster.srun(powerccl, "--version").returncode:
        pytest.skip(f"only root may run {powerccl} here")
    options = ["--policy", "per-call", "--platform", "t4.json", "--set-clocks"]
    bench = str(Path(cluster.environment["POWERCCL_NATIVE"]) / "bin/powerccl-bench")
    job = [bench, "all_reduce", "-b", "16M", "-e", "16M", "-w", "1", "-n", "10", "-c", "1", "-g", "2"]
    done = cluster.srun(powerccl, "run", *options, "--", *job)
    assert done.returncode == 0, done.stderr
    assert points_are_right(done.stdout)
    log = cluster.daemon.log.read_text()
    assert log.count(f"of user {NOBODY}, run ") == 2, log
    assert log.count("ended (released)") == 2
    assert eventually(lambda: cluster.machine.clocks_mhz() == [IDLE_MHZ] * 8, 5)


def test_the_epilog_ends_what_a_job_has_left_and_nothing_else(cluster: Cluster) -> None:
    """Another job of the same user goes on with its lease."""
    left, other = cluster.folder / "home/left", cluster.folder / "home/other"
    python = ["/usr/bin/python3", "-c", LEAVE, str(Path(__file__).parent), str(cluster.daemon.socket)]
    ours, theirs = cluster.daemon.devices[:2]
    staying = [*python, theirs, str(SET_MHZ), str(other), "stay"]
    running = subprocess.Popen(cluster.job(*staying), env=cluster.environment, cwd=cluster.folder / "home")
    try:
        assert eventually(other.exists, 20), cluster.logs()
        cluster.srun(*python, ours, str(SET_MHZ), str(left))
        pid = int(left.read_text())
        assert alive(pid), "Slurm did not find it"
        assert eventually(lambda: cluster.machine.clocks_mhz()[:2] == [IDLE_MHZ, SET_MHZ], 5)
        os.kill(pid, signal.SIGKILL)
        log = cluster.daemon.log.read_text()
        assert [line.split(":")[1].strip() for line in log.splitlines() if "ended (revoked)" in line] == [ours]
        subprocess.run(["scancel", f"--user={NOBODY}"], env=cluster.environment, check=True)
        assert eventually(lambda: cluster.machine.clocks_mhz() == [IDLE_MHZ] * 8, 20)
    finally:
        running.kill()
        running.wait()


def test_jobs_run_where_no_daemon_is(cluster: Cluster) -> None:
    cluster.daemon.kill(signal.SIGTERM)
    try:
        begin = time.monotonic()
        assert cluster.srun("true").returncode == 0
        assert time.monotonic() - begin < 20
        assert eventually(lambda: cluster.node_is("IDLE"), 30), "not drained"
    finally:
        cluster.daemon.restart()
