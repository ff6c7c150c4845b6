# SPDX-License-Identifier: Apache-2.0
"""The clock daemon of those who may set clocks themselves, where the machine has no powerccld.

It is the same program as the system's. The first job that needs it starts it, and the user's other jobs on this machine
share it, since a GPU has one writer. Each job's launcher stays connected to it. It ends when the last launcher is gone,
and has restored every clock by then. One that is killed is started again, and finds in its state file what to restore.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform as machine
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from powerccl.errors import PowercclError
from powerccl.launch.kept import Kept
from powerccl.launch.native import NativeFiles
from powerccl.launch.services import DAEMON_READY_S, ENDING_S, Service, start_daemon
from powerccl.leases.client import SOCKET, SOCKET_VARIABLE, Leases, connect
from powerccl.leases.protocol import run_bytes, text_of
from powerccl.traces.helpers import HelperLog

END_S = 8.0
_ARRIVAL_S = 5.0
_TAKEN = "another powerccld"  # its words when another daemon serves already
_MEMORY = Path("/dev/shm")  # its files need no disk, and end with the machine as locked clocks do


class PrivateDaemon(Kept):
    """A job's share in this user's powerccld. Each launcher keeps it, whichever of them started it."""

    name = "powerccld"

    def __init__(self, native: NativeFiles, folder: Path, environment: Mapping[str, str], host: str) -> None:
        super().__init__(HelperLog(folder, host))
        self.native = native
        self.run = folder.name
        self.environment = environment
        self.listening = listening_path(environment)
        self.log = folder / f"powerccld-{host}.log"
        self.service: Service | None = None  # if it is this launcher that started it
        self.session: Leases | None = None

    def start(self) -> None:
        """Connect to the daemon, starting it if there is none.

        Raises:
            PowercclError: it is not installed, did not come up, or another user owns its folder.
        """
        self._join()
        self.keep()

    def end(self, say: Callable[[str], None]) -> None:
        """Leave the daemon. It ends with the last process of any job that is connected."""
        left = self._wait_for_own()
        self.let_go(DAEMON_READY_S)
        if self.session:
            with contextlib.suppress(PowercclError):
                self.session.close()
        service = self.service
        if left:
            who = f"powerccld (pid {service.process.pid})" if service else "powerccld"
            say(f"processes of this job still run and have leases; {who} runs until they end")
        if service is None:
            return
        service.close()
        if left or self._others() or not service.has_ended(END_S):
            return
        if "POWERCCL_EMULATOR_SOCKET" in self.environment:
            self.listening.with_suffix(".state").unlink(missing_ok=True)  # that machine may be gone, clocks and all
        elif service.process.returncode != 0:
            say(f"clocks may still be set: {service.last_words()}")

    def _join(self) -> None:
        """Connect; start a daemon if none serves. Of two launchers together the state file's lock lets one serve."""
        deadline = time.monotonic() + _ARRIVAL_S
        while not self._connected():
            failure = self._serve()
            if failure is None:
                continue
            if _TAKEN not in str(failure) or time.monotonic() > deadline:
                raise failure
            time.sleep(0.05)

    def _serve(self) -> PowercclError | None:
        state = self.listening.with_suffix(".state")
        try:
            self.service = start_daemon(self.native, self.listening, state, self.log, self.environment)
        except PowercclError as error:
            return error
        return None

    def _connected(self) -> bool:
        try:
            self.session = connect(self.listening, self.run)
        except PowercclError:
            return False
        return True

    def descriptor(self) -> int:
        """The connection of this launcher to it."""
        return self.session.fileno() if self.session else -1

    def how_it_ended(self) -> str:
        """See Kept; how another launcher's daemon ended is not known."""
        service = self.service
        return service.how_it_ended() if service and service.has_ended(ENDING_S) else "closed its connection"

    def start_again(self) -> bool:
        """See Kept; its state file says what to restore."""
        if self.service:
            self.service.close()
        self.service = None
        self._join()
        return True

    def _wait_for_own(self) -> bool:
        """Give this job's processes time to leave; whether some still hold a clock."""
        deadline = time.monotonic() + END_S
        own = text_of(run_bytes(self.run))
        while True:
            try:
                holding = self.session is not None and any(
                    device.held and device.run == own for device in self.session.status()
                )
            except PowercclError:
                return False  # it was killed this moment, and is started again or gone
            if not holding or time.monotonic() > deadline:
                return holding
            time.sleep(0.02)

    def _others(self) -> bool:
        """Whether another process is connected: another job's launcher, as a rule."""
        try:
            with connect(self.listening) as session:
                return session.status_and_totals()[1].sessions > 1
        except PowercclError:
            return False


def find_daemon(
    native: NativeFiles, folder: Path, environment: Mapping[str, str], emulated: bool, start: bool = True
) -> tuple[Path, PrivateDaemon | None]:
    """The socket at which a job asks for clocks: the system's daemon, else this user's own.

    The latter is started with `start`, and then returned too: it is to be ended when the job is over. Emulated GPUs are
    not the system daemon's, unless one is named.

    Raises:
        PowercclError, OSError: it could not be started.
    """
    system = system_daemon(environment)
    if system is not None and (environment.get(SOCKET_VARIABLE) or not emulated):
        return system, None
    daemon = PrivateDaemon(native, folder, environment, machine.node())
    if not start:
        return daemon.listening, None
    daemon.start()
    return daemon.listening, daemon


def listening_path(environment: Mapping[str, str]) -> Path:
    """Where this user's own daemon of this machine listens; its state file is beside it. An emulated machine is one.

    Raises:
        PowercclError: another user owns the folder.
    """
    base = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    folder = base / f"powerccl-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise PowercclError(
            f"{folder} belongs to another user", "ask the administrator to remove it; your powerccld needs this folder"
        )
    emulated = environment.get("POWERCCL_EMULATOR_SOCKET", "")
    name = hashlib.sha1(os.fsencode(emulated), usedforsecurity=False).hexdigest()[:12] if emulated else "machine"
    return folder / f"{name}.leases"


def system_daemon(environment: Mapping[str, str]) -> Path | None:
    """The socket of the daemon to ask: as the environment names it, else the system's; None: no socket."""
    named = environment.get(SOCKET_VARIABLE, "")
    if named:
        return Path(named)
    system = Path(SOCKET)
    try:
        return system if stat.S_ISSOCK(system.stat().st_mode) else None
    except OSError:
        return None
