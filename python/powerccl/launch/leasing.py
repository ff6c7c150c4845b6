# SPDX-License-Identifier: Apache-2.0
"""The clock daemon beside one job: for those who may set clocks themselves, where the machine has no powerccld.

It is the same program as the system's, holds the job's leases, and outlives launcher and ranks until every clock is
back. What a killed one left is put back by the next.
"""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from powerccl.errors import PowercclError
from powerccl.launch.folder import socket_path
from powerccl.launch.leases import SOCKET, SOCKET_VARIABLE
from powerccl.launch.native import DAEMON, NativeFiles
from powerccl.launch.services import Service, start_daemon

END_S = 8.0
_RESTORE_S = 15.0
_YOUNG_S = 10.0  # a state file that may just be being opened by its daemon
_MEMORY = Path("/dev/shm")  # its files need no disk, and end with the machine as locked clocks do


class PrivateDaemon:
    """One job's powerccld on this node. Launchers that share a node name the same socket; the first of them serves."""

    def __init__(self, native: NativeFiles, folder: Path, environment: Mapping[str, str], host: str, emulated: bool):
        self.native = native
        self.environment = environment
        self.listening = listening_path(folder)
        states = state_folder()
        self.state = states / f"{self.listening.stem}{'.emulated' if emulated else ''}.state"
        self.log = folder / f"powerccld-{host}.log"
        self.emulated = emulated
        self.service: Service | None = None

    def start(self) -> None:
        """Put back what killed daemons left, and serve.

        Raises:
            PowercclError: it is not installed, or did not come up.
        """
        for left in sorted(self.state.parent.glob("*.state")):
            _clean_up(left, self.native, self.environment)
        self.service = start_daemon(self.native, self.listening, self.state, self.log, self.environment)

    def end(self, say: Callable[[str], None]) -> None:
        """Let it end once nobody is connected; if it was killed, put back what it left."""
        service = self.service
        if service is None:
            return
        if service.has_ended(0):
            if not restore(self.native, self.state, self.environment):
                say(f"powerccld was killed; clocks may be left set. As root: powerccld --restore --state {self.state}")
            return
        if not service.release(END_S):
            say(f"processes of this job still live and may set clocks; powerccld (pid {service.process.pid}) stays on")
            return
        self.listening.unlink(missing_ok=True)
        if service.process.returncode != 0:
            say(f"clocks may be left set: {service.last_words()}")


def listening_path(folder: Path) -> Path:
    """Where the private daemon of this run folder listens: the same for all of a job's launchers on a node."""
    return socket_path(folder).with_suffix(".leases")


def state_folder() -> Path:
    """The user's folder for the state files of private daemons, in memory where there is a place for it.

    Raises:
        PowercclError: somebody else owns it.
    """
    base = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    folder = base / f"powerccl-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise PowercclError(f"{folder} belongs to somebody else", "have it removed; it is for your state files")
    return folder


def restore(native: NativeFiles, state: Path, environment: Mapping[str, str]) -> bool:
    """Have every clock that the state file marks put back; whether all were."""
    if not state.exists():
        return True
    command = [str(native.path(DAEMON)), "--restore", "--state", str(state), "--log", "error"]
    try:
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, timeout=_RESTORE_S, check=False, start_new_session=True
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    if done.returncode == 0:
        state.unlink(missing_ok=True)
    return done.returncode == 0


def _clean_up(state: Path, native: NativeFiles, environment: Mapping[str, str]) -> None:
    """Deal with the state file of a daemon that was killed; an emulated machine has ended with its run."""
    try:
        if time.time() - state.stat().st_mtime < _YOUNG_S:
            return
        with state.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # its daemon's, while that lives
    except OSError:
        return
    if ".emulated" in state.name:
        state.unlink(missing_ok=True)
    elif "POWERCCL_EMULATOR_SOCKET" not in environment:
        restore(native, state, environment)


def system_daemon(environment: Mapping[str, str]) -> Path | None:
    """The socket of the daemon to ask, if there is one: as the environment names it, else the system's."""
    named = environment.get(SOCKET_VARIABLE, "")
    if named:
        return Path(named)
    system = Path(SOCKET)
    try:
        return system if stat.S_ISSOCK(system.stat().st_mode) else None
    except OSError:
        return None
