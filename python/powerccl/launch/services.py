# SPDX-License-Identifier: Apache-2.0
"""The processes beside a job: powerccl-agent, the emulated GPU server, a private powerccld. All live by their stdin."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from powerccl.errors import PowercclError
from powerccl.launch.child import signals_blocked
from powerccl.launch.native import DAEMON, EMULATOR, NativeFiles

ENDING_S = 2.0  # from the end of a helper's output to its own
DAEMON_READY_S = 10.0  # the driver's start, where nothing keeps it loaded, takes seconds


def _open_log(path: Path) -> BinaryIO:
    """The log to append to; where it cannot be made (a full disk), nothing: a helper matters more than its words."""
    try:
        return path.open("ab")
    except OSError:
        return Path(os.devnull).open("ab")


class Service:
    """A helper process. It ends when its stdin does: at `stop`, or when this process dies however it dies.

    It starts with all signals blocked: what is sent to every process of a job is meant for the job
    (native/abi/helper.h). It has a session of its own, so that it is no part of the terminal's job either.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        with _open_log(log) as errors, signals_blocked(signal.valid_signals()):
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def output(self) -> int:
        """The descriptor of its standard output, which hangs up when it ends."""
        assert self.process.stdout
        return self.process.stdout.fileno()

    def wait_ready(self, seconds: float) -> bool:
        """Wait for the line `ready`; False if it ends or takes longer."""
        deadline = time.monotonic() + seconds
        seen = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.output, selectors.EVENT_READ)
            while b"ready" not in seen:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return False
                chunk = os.read(self.output, 4096)
                if not chunk:
                    return False
                seen += chunk
        return True

    def has_ended(self, seconds: float) -> bool:
        """Whether it has ended, or does so within that time."""
        if seconds > 0 and self.process.poll() is None:
            _wait_for_end(self.process.pid, seconds)
        return self.process.poll() is not None

    def stop(self, seconds: float) -> bool:
        """End its stdin, give it time to finish, then kill it. True if it ended without a signal."""
        by_itself = self.release(seconds)
        if not by_itself:
            self.process.kill()
            self.process.wait()
        self.close()
        return by_itself

    def close(self) -> None:
        """Close our ends of its pipes. For a service that has ended, or is on its own from here on."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()

    def release(self, seconds: float) -> bool:
        """End its stdin and give it time to finish; after that it is on its own. True if it has ended."""
        if self.process.stdin:
            self.process.stdin.close()
        return self.has_ended(seconds)

    @property
    def released(self) -> bool:
        """Whether its stdin has ended."""
        return self.process.stdin is None or self.process.stdin.closed

    def printed(self) -> list[str]:
        """What it has printed since `wait_ready`, line by line. For a service that has ended."""
        assert self.process.stdout
        with self.process.stdout as output:
            return output.read().decode("utf-8", "replace").splitlines()

    def how_it_ended(self) -> str:
        """How it ended, in words. Its output has ended, and it does so within moments."""
        if not self.has_ended(ENDING_S):
            return "closed its output"
        code = self.process.returncode
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def words(self) -> list[str]:
        """What it has written to its log so far, line by line."""
        return log_lines(self.log)

    def last_words(self) -> str:
        """The last line it wrote to its log, for messages."""
        return last_line(self.log)


def _wait_for_end(pid: int, seconds: float) -> None:
    """Wait until a child ends. `Popen.wait` with a limit sleeps between its looks, up to 50 ms at a time."""
    try:
        watched = os.pidfd_open(pid)
    except OSError:  # a kernel before 5.3, or no descriptor left
        deadline = time.monotonic() + seconds
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and time.monotonic() < deadline:
            time.sleep(0.005)
        return
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(watched, selectors.EVENT_READ)
            selector.select(seconds)
    finally:
        os.close(watched)


def log_lines(log: Path) -> list[str]:
    """What a program has written to its log so far, line by line."""
    try:
        return log.read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        return []


def last_line(log: Path) -> str:
    """The last line of a log that says what happened: neither a hint nor a comment nor blank. For messages."""
    said = [line for line in log_lines(log) if line.strip() and not line.startswith(("hint:", "#"))]
    return said[-1] if said else ""


def start_emulator(
    native: NativeFiles,
    platform: Path,
    listening: Path,
    log: Path,
    environment: Mapping[str, str],
    lateness: Path | None,
) -> Service:
    """Start the emulated GPU server and wait until it listens.

    `lateness`: where it is to write, when it ends, how well this machine kept up with the platform.

    Raises:
        PowercclError: it is not installed, or did not come up; its last words are in the message.
    """
    listening.unlink(missing_ok=True)
    command = [str(native.path(EMULATOR)), "--platform", str(platform), "--socket", str(listening)]
    if lateness is not None:
        command += ["--lateness", str(lateness)]
    service = Service(command, environment, log)
    if not wait_for_socket(listening, 10.0, service):
        words = service.last_words()
        service.stop(0)
        raise PowercclError(f"the emulated GPU server did not start: {words or 'no message'}", f"read its log: {log}")
    return service


def start_daemon(
    native: NativeFiles, listening: Path, state: Path, log: Path, environment: Mapping[str, str]
) -> Service:
    """Start a clock daemon for this user's jobs alone, and wait until it listens.

    It is for those who may set clocks themselves, where there is no daemon of the system. It outlives its stdin until
    the last session has ended: `release` it rather than `stop` it while a job may still hold a clock.

    Raises:
        PowercclError: it is not installed, or did not come up; its last words are in the message.
    """
    command = [str(native.path(DAEMON)), "--private", "--socket", str(listening), "--state", str(state)]
    service = Service(command, environment, log)
    if not service.wait_ready(DAEMON_READY_S):
        service.stop(1)
        raise PowercclError(f"powerccld did not start: {service.last_words() or 'no message'}", f"read its log: {log}")
    return service


def wait_for_socket(path: Path, seconds: float, service: Service | None = None) -> bool:
    """Wait until something listens at path; False after `seconds` or when the service has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and _listens(path):
            return True
        if service and service.process.poll() is not None:
            return False
        time.sleep(0.005)
    return False


def _listens(path: Path) -> bool:
    import socket  # of 3 ms: most jobs have no such service

    for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
        with socket.socket(socket.AF_UNIX, kind) as probe:
            try:
                probe.connect(str(path))
                return True
            except OSError:
                continue
    return False
