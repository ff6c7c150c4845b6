# SPDX-License-Identifier: Apache-2.0
"""Agents on the other hosts of `powerccl run -- mpiexec -hosts a,b ./app`, started by the same launcher.

Each has a launcher of its own with one process, whose standard input and output the launcher forwards. So an agent ends
as a local one does: when this process closes its input, or dies.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from powerccl.files import MIB, read_bytes
from powerccl.launch import native
from powerccl.launch.launcher_words import split_launcher
from powerccl.launch.native import NativeFiles
from powerccl.launch.node_agent import END_S
from powerccl.launch.program import is_launcher
from powerccl.launch.services import Service
from powerccl.quantities import plural

READY_S = 10.0  # a remote shell takes a second; at half, a busy login node may be late; at double, a job waits longer
# Each is a launcher and a remote shell on this host. At double, they could take the places of the job's own.
MOST_HOSTS = 64
# How a launcher names hosts, in a list or in a file.
HOSTS = ("-hosts", "-host", "--host", "-H")
FILES = ("-f", "-hostfile", "--hostfile", "-machinefile", "--machinefile")
# What decides how a process is started on another host.
KEPT = (
    *("-launcher", "-launcher-exec", "-bootstrap", "-bootstrap-exec", "-iface", "-localhost"),
    *("-mca", "--mca", "-gmca", "--gmca", "--prtemca", "--pmixmca"),
)


@dataclass
class Launch:
    """A launcher's command as far as it says how and where processes start."""

    words: list[str]
    hosts: list[str] = field(default_factory=list)
    option: str = "-host"  # that names a host


def launch_of(command: list[str], environment: Mapping[str, str]) -> Launch | None:
    """The launcher's words and hosts; None: the command is no launcher, or it names no hosts."""
    if not is_launcher(command):
        return None
    launch = Launch([command[0]])
    for option in split_launcher(command, environment).options:
        name, equals, attached = option[0].partition("=")
        value = attached if equals else "".join(option[1:])
        if name in HOSTS or name in FILES:
            launch.hosts += _listed(value) if name in HOSTS else _in_file(Path(value))
            launch.option = name if name in HOSTS else ("--host" if name.startswith("--") else "-host")
        elif name in KEPT:
            launch.words += option
    launch.hosts = list(dict.fromkeys(launch.hosts))
    return launch if launch.hosts else None


def _listed(text: str) -> list[str]:
    """`a:4,b` is a and b."""
    return [host.partition(":")[0] for host in text.split(",") if host]


def _in_file(path: Path) -> list[str]:
    """A host a line, with a number of processes behind it; comments begin with #."""
    try:
        lines = read_bytes(path, MIB).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    words = [line.partition("#")[0].split() for line in lines]
    return [line[0].partition(":")[0] for line in words if line]


class RemoteAgents:
    """The agents of a job's other hosts, all or as many as could be started."""

    def __init__(self, files: NativeFiles, folder: Path, interval_ms: int, launch: Launch) -> None:
        self._agent = [str(files.path(native.AGENT)), "--run-folder", str(folder), "--interval-ms", str(interval_ms)]
        self._folder = folder
        self._launch = launch
        here = platform.node().partition(".")[0]
        self.others = [host for host in launch.hosts if host.partition(".")[0] not in (here, "localhost")]
        self._services: dict[str, Service] = {}

    def start(self, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
        """Start them and wait until they sample; say which hosts are not sampled."""
        others = self.others
        # A step of Slurm shares nothing by default: the job's own step would wait until the agent's ends.
        environment = {**environment, "SLURM_OVERLAP": "1"}
        for host in others[:MOST_HOSTS]:
            place = [self._launch.option, host, "-n", "1"]
            log = self._folder / f"agent-of-{host}.log"
            try:
                self._services[host] = Service([*self._launch.words, *place, *self._agent], environment, log)
            except OSError as error:
                say(f"{host} is not sampled: {error.strerror}")
        if others[MOST_HOSTS:]:
            rest = plural(len(others) - MOST_HOSTS, "host")
            say(f"{rest} of {len(others)} are not sampled: start `powerccl run` behind {self._launch.words[0]}")
        deadline = time.monotonic() + READY_S
        for host, service in list(self._services.items()):
            if service.wait_ready(max(deadline - time.monotonic(), 0.1)):
                continue
            del self._services[host]
            ended = service.has_ended(0.5 if time.monotonic() < deadline else 0.0)
            if ended and service.process.returncode == 0:  # an agent of this run is on that host
                service.close()
                continue
            say(f"{host} is not sampled: {service.last_words() or f'no agent within {READY_S:g} s'}")
            service.stop(0)

    def ask_to_end(self) -> None:
        """Have them take their last samples and end; waits for nothing."""
        for service in self._services.values():
            service.release(0)

    def end(self, say: Callable[[str], None]) -> None:
        """Wait for their ends."""
        self.ask_to_end()
        deadline = time.monotonic() + END_S
        for host, service in self._services.items():
            if not service.release(max(deadline - time.monotonic(), 0.1)):
                say(f"the agent of {host} has not ended after {END_S:g} s: samples may be missing")
            service.close()
        self._services.clear()
