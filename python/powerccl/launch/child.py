# SPDX-License-Identifier: Apache-2.0
"""The job itself: in the same terminal, with our signals passed on and its exit code handed back."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGCONT,
)
# si_code of a signal the kernel sent, as it does for Ctrl-C: the child is in the same process group and has got it too.
_SI_KERNEL = 0x80


@dataclass(frozen=True)
class Ended:
    """How the child ended: its exit code as a shell would give it, and the signal that ended it, if one did."""

    code: int
    signal: int | None


class ChildNotStartedError(Exception):
    """The command could not be executed; `code` is what a shell would exit with: 127 not found, 126 not executable."""

    def __init__(self, command: str, error: OSError) -> None:
        super().__init__(f"cannot run {command}: {error.strerror}")
        self.code = 127 if error.errno == errno.ENOENT else 126


def run_child(command: list[str], environment: Mapping[str, str], output: Path | None = None) -> Ended:
    """Run the command to its end, passing signals on. `output` takes its stdout and stderr, if given.

    Raises:
        ChildNotStartedError: it could not be executed.
    """
    watched = {*FORWARDED, signal.SIGCHLD}
    ignored = {number for number in FORWARDED if signal.getsignal(number) is signal.SIG_IGN}
    watched -= ignored  # nohup's and `&`'s wishes hold for the child as well
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would reap the child before we see how it ended
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        try:
            # Python ignores these two; a job expects the system's defaults.
            defaults = [signal.SIGPIPE, signal.SIGXFSZ]
            child = os.posix_spawnp(
                shutil.which(command[0], path=environment.get("PATH")) or command[0],  # by the child's PATH
                command,
                dict(environment),
                setsigmask=before,
                setsigdef=defaults,
                file_actions=_redirect(output),
            )
        except OSError as error:
            raise ChildNotStartedError(command[0], _cause(command[0], error)) from error
        return _wait(child, watched)
    finally:
        # What arrived between the child's end and now was meant for it.
        while signal.sigtimedwait(watched, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _redirect(output: Path | None) -> list[tuple[int, int, str, int, int] | tuple[int, int, int]]:
    if output is None:
        return []
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return [(os.POSIX_SPAWN_OPEN, 1, str(output), flags, 0o644), (os.POSIX_SPAWN_DUP2, 1, 2)]


def _cause(program: str, error: OSError) -> OSError:
    """A script whose interpreter is missing also reports ENOENT: say so."""
    if error.errno == errno.ENOENT and "/" in program and Path(program).exists():
        return OSError(errno.ENOEXEC, "its interpreter or loader is missing")
    return error


def _wait(child: int, watched: set[signal.Signals]) -> Ended:
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return Ended(code, None) if code >= 0 else Ended(128 - code, -code)
        info = signal.sigwaitinfo(watched)
        if info.si_signo != signal.SIGCHLD and info.si_code != _SI_KERNEL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, info.si_signo)
