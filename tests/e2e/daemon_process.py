# SPDX-License-Identifier: Apache-2.0
"""powerccld as tests start it, and processes of other users."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import lease_client as wire
import pytest
from harness import EmulatedMachine, eventually
from lease_client import Client

from powerccl.launch.native import NativeFiles

NOBODY = 65534
PATIENT = "[access]\nheartbeat_ms = 120000\n"  # tests' clients send no heartbeats


class Daemon:
    """powerccld as a service manager runs it: with a configuration, restarted on the same files when it is killed."""

    def __init__(self, native: NativeFiles, machine: EmulatedMachine | None = None) -> None:
        self.native = native
        self.machine = machine.environment if machine else {}
        self.folder = Path(tempfile.mkdtemp(prefix="powerccld-", dir="/dev/shm"))
        self.folder.chmod(0o755)
        self.socket = self.folder / "d.sock"
        self.log = self.folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.environment: Mapping[str, str] = {}
        self.devices = [f"GPU-{index}" for index in range(8)]
        self.holders: list[int] = []

    def start(self, config: str = PATIENT, **environment: str) -> None:
        """Start it and wait until it listens."""
        (self.folder / "config").write_text(
            f'[socket]\npath = "{self.socket}"\nmode = "0666"\n[state]\nfile = "{self.folder}/leases"\n{config}'
        )
        self.environment = {**os.environ, **self.machine, **environment}
        self.restart()
        with Client(self.socket).socket:
            pass
        self.devices = self.names()

    @property
    def command(self) -> list[str]:
        """As restart() calls it."""
        return [str(self.native.path("bin/powerccld")), "--config", str(self.folder / "config")]

    def restart(self, before: Callable[[], None] | None = None) -> None:
        """Start it again as before; `before`: what its process does first."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, env=dict(self.environment), stderr=log, preexec_fn=before)
        assert eventually(self.listens), self.log.read_text()

    def listens(self) -> bool:
        """Whether it takes connections."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe, contextlib.suppress(OSError):
            probe.connect(str(self.socket))
            return True
        return False

    def status(self) -> list[bytes]:
        """What it says of each device."""
        client = Client(self.socket)
        serial = client.send(wire.STATUS)
        found: list[bytes] = []
        while True:
            message = client.socket.recv(8192)
            if len(message) == 200 and struct.unpack_from("=Q", message, 16)[0] == serial:
                return found
            if struct.unpack_from("=H", message, 6)[0] == wire.DEVICE:  # and not what the daemon did in all
                found.append(message)

    def names(self) -> list[str]:
        """UUIDs of the GPUs in NVML's order."""
        return [message[24:72].split(b"\0")[0].decode() for message in self.status()]

    def leaseholders(self) -> list[int]:
        """Processes that have a lease."""
        pids = [struct.unpack_from("=I", message, 140)[0] for message in self.status()]
        return [pid for pid in pids if pid]

    def kill(self, number: int = signal.SIGKILL) -> int:
        """End it; its exit code."""
        assert self.process
        self.process.send_signal(number)
        return self.process.wait(30)

    def end(self) -> None:
        """Stop it if it runs, and the holders that a test which failed has left."""
        for pid in self.holders:
            with contextlib.suppress(ChildProcessError):  # waited for by the test
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    killed(pid)
        if self.process and self.process.poll() is None:
            self.kill(signal.SIGTERM)
        shutil.rmtree(self.folder)


def forked(work: Callable[[], None], uid: int = 0) -> int:
    """Do that in a process of its own, as that user. Its pid; its exit code is 0 if nothing was raised."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if uid:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        work()
        code = 0
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        os._exit(code)


def succeeded(pid: int) -> bool:
    """Whether that process ended well."""
    return os.waitpid(pid, 0)[1] == 0


def killed(pid: int) -> None:
    """Kill that process, and wait for its end."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def as_nobody(work: Callable[[], None]) -> bool:
    """Do that as a user without rights."""
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    return succeeded(forked(work, NOBODY))
