# SPDX-License-Identifier: Apache-2.0
"""The job itself: in the same terminal, with our signals passed on and its exit code handed back."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ContextDecorator, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from powerccl.errors import one_line
from powerccl.launch.witness import Witness, disposition, restore_disposition, signal_within

# A fault of this process raises these: a handler would return to the fault for ever.
FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
# Python ignores these two; a job expects the system's defaults.
PYTHON_IGNORES = {signal.SIGPIPE, signal.SIGXFSZ}
_STOPPING = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
_TIMERS = {signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF}
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
# These end a program as well unless it expects them. A job does: batch systems announce a time limit by them.
_ANNOUNCING = {
    number
    for number in signal.valid_signals()
    if number >= signal.SIGRTMIN
    or number
    in {
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGALRM,
        signal.SIGVTALRM,
        signal.SIGPROF,
        signal.SIGIO,
        signal.SIGPWR,
        signal.SIGXCPU,
    }
}
# The child's end is looked for this often even if its signal was lost to another thread.
_LOOK_S = 0.5
# A program that is asked to stop may set its terminal right first; later stops have other causes.
_STOP_S = 5.0
_SHELL = "/bin/sh"  # runs scripts that name no interpreter, as execvp(3) has it


@dataclass(frozen=True)
class Ended:
    """How the child ended: its exit code as a shell would give it, and the signal that ended it, if one did."""

    code: int
    signal: int | None


@dataclass
class Child:
    """A child of `run_child`: its process once it exists, and its wait status once it has ended."""

    pid: int = 0
    status: int | None = None

    def ended(self) -> Ended | None:
        """How it ended, if it has."""
        if self.status is None:
            return None
        code = os.waitstatus_to_exitcode(self.status)
        return Ended(code, None) if code >= 0 else Ended(128 - code, -code)


class ChildNotStartedError(Exception):
    """The command could not be executed; `code` is what a shell would exit with: 127 not found, 126 not executable."""

    def __init__(self, command: str, error: OSError) -> None:
        super().__init__(f"cannot run {command}: {error.strerror}")
        self.code = 127 if error.errno == errno.ENOENT else 126
        self.too_long = error.errno == errno.E2BIG  # arguments and environment together
        self.no_place = error.errno == errno.EAGAIN  # a limit on processes


class InterruptionError(KeyboardInterrupt):
    """A signal that ends a program, while no child runs that it could be passed to."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.strsignal(number) or str(number))
        self.number = number


@contextmanager
def interruptible(child: Child) -> Iterator[None]:
    """Raise InterruptionError at signals that end a program, so that what was started for the child can be ended.

    Once `child` has ended, what announced its end to it comes too late to end the report.
    """

    def interrupt(number: int, _: FrameType | None) -> None:
        if number in _ENDING or child.status is None:
            raise InterruptionError(number)

    ending = {number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN}  # nohup's wish
    # One that a preloaded library expects is the library's.
    announcing = {number for number in _ANNOUNCING if signal.getsignal(number) is signal.SIG_DFL}
    with _handled(dict.fromkeys(ending | announcing, interrupt)):
        yield


@contextmanager
def _handled(handlers: Mapping[int, Callable[[int, FrameType | None], None] | signal.Handlers]) -> Iterator[None]:
    """Handle signals so for as long as the `with` lasts.

    A preloaded library, such as a profiler, may have installed handlers before Python began. Python cannot name those:
    the kernel's own record of them is put back. Until then they do not run, since the signals are the job's.
    """
    foreign: dict[int, Any] = {}
    before = {}
    try:
        for number, handler in handlers.items():
            if signal.getsignal(number) is None:
                foreign[number] = disposition(number)
            before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)
            if number in foreign:
                restore_disposition(number, foreign[number])


class _Quiet(suppress, ContextDecorator):
    """Keeps exceptions of a function to itself."""


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread that no signal is delivered to: signals are the main thread's, which passes them to the job."""
    with signals_blocked(signal.valid_signals()):
        thread = threading.Thread(target=_Quiet(Exception)(target), name=name, daemon=True)
        thread.start()
        return thread


@contextmanager
def signals_blocked(mask: Iterable[int]) -> Iterator[None]:
    """Block these signals in this thread, and no others, for as long as the `with` lasts; children inherit that."""
    before = signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_child(
    command: list[str],
    environment: Mapping[str, str],
    output: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
    child: Child | None = None,
) -> Ended:
    """Run the command to its end, passing signals on. `output` takes its stdout and stderr, if given.

    `child` is filled in as it goes. Whatever fails around it, its exit code counts, and it is not started again.

    The child gets each signal as if it ran without us: what was sent to our process group has reached it already.
    A fault of ours costs this, which `say` tells.

    Raises:
        ChildNotStartedError: it could not be executed.
    """
    child = child or Child()
    try:
        _run_with_signals(child, command, environment, output)
    except ChildNotStartedError:
        raise
    except Exception as error:
        say(f"cannot pass signals on to the job: {one_line(error)}")
    if not child.pid:
        _spawn(child, command, environment, (), output)
    while (ended := child.ended()) is None:
        _wait_plainly(child)
    return ended


def _wait_plainly(child: Child) -> None:
    """Wait for its end, or for a signal to us. The relay is gone, so every signal is passed on."""
    try:
        child.status = os.waitpid(child.pid, 0)[1]
    except InterruptionError as interruption:
        with suppress(ProcessLookupError):
            os.kill(child.pid, interruption.number)


def _run_with_signals(child: Child, command: list[str], environment: Mapping[str, str], output: Path | None) -> None:
    handled = {*PYTHON_IGNORES, signal.SIGCHLD}  # ignored, SIGCHLD would reap the child before we see how it ended
    ignored = {n for n in signal.valid_signals() - handled if signal.getsignal(n) is signal.SIG_IGN}
    # A profiler that is preloaded into this process has a timer of its own, which is not the job's.
    timers = {n for n in _TIMERS if signal.getsignal(n) is None}
    watched = {int(n) for n in signal.valid_signals()} - ignored - timers - {signal.SIGKILL, signal.SIGSTOP}
    with _taking(watched) as (before, elsewhere), Witness() as witness:
        _spawn(child, command, environment, before, output)
        _Relay(child, watched, witness, elsewhere).wait()


@contextmanager
def _taking(watched: set[int]) -> Iterator[tuple[set[int], list[int]]]:
    """Take signals for as long as the `with` lasts. Gives the mask before, and a list that others' threads fill.

    The main thread blocks them and waits for them. A thread of a library that does not block them may be chosen by the
    kernel instead. Then a handler notes the signal, where the default would end this process.
    """
    elsewhere: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        elsewhere.append(number)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        with _handled({n: signal.SIG_DFL if n == signal.SIGCHLD else note for n in watched - FAULTS}):
            try:
                yield {*before}, elsewhere
            finally:
                # What arrived between the child's end and now was meant for it.
                while signal.sigtimedwait(watched, 0):
                    pass
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _spawn(
    child: Child,
    command: list[str],
    environment: Mapping[str, str],
    mask: Iterable[int],
    output: Path | None,
) -> None:
    actions = _redirect(output) if output else []
    start = partial(os.posix_spawnp, setsigmask=mask, setsigdef=PYTHON_IGNORES, file_actions=actions)
    child.pid = _execute(command, environment, start)


def become(command: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Run the command in place of this process, which takes no place of the job's then.

    Raises:
        ChildNotStartedError: it could not be executed.
    """
    for number in PYTHON_IGNORES:
        signal.signal(number, signal.SIG_DFL)
    _execute(command, environment, os.execvpe)
    raise AssertionError("unreachable")  # for mypy


def _execute(
    command: list[str], environment: Mapping[str, str], start: Callable[[str, list[str], dict[str, str]], int]
) -> int:
    """Start the command as execvp(3) does, by the PATH of that environment; what `start` gives."""
    # Environments may hold a variable without a name, which Python passes to no child.
    passed = {name: value for name, value in environment.items() if name}
    program = shutil.which(command[0], path=environment.get("PATH")) or command[0]
    try:
        if not program:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        for file, arguments in ((program, command), (_SHELL, [_SHELL, program, *command[1:]])):
            try:
                return start(file, arguments, passed)
            except OSError as error:  # noqa: PERF203 - twice at most
                if error.errno != errno.ENOEXEC or file == _SHELL:
                    raise
    except OSError as error:
        raise ChildNotStartedError(command[0], _cause(command[0], error)) from error
    raise AssertionError("unreachable")  # for mypy


def _redirect(output: Path) -> list[tuple[int, int, str, int, int] | tuple[int, int, int]]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return [(os.POSIX_SPAWN_OPEN, 1, str(output), flags, 0o644), (os.POSIX_SPAWN_DUP2, 1, 2)]


def _cause(program: str, error: OSError) -> OSError:
    """A script whose interpreter is missing also reports ENOENT: say so."""
    if error.errno == errno.ENOENT and "/" in program and Path(program).exists():
        return OSError(errno.ENOEXEC, "its interpreter or loader is missing")
    return error


class _Relay:
    """Waits for the child and passes on what was sent to us alone."""

    def __init__(self, child: Child, watched: set[int], witness: Witness, elsewhere: list[int]) -> None:
        self._child = child
        self._watched = watched
        self._witness = witness
        self._elsewhere = elsewhere
        # Both together, in whichever order they come: stop as the child has. The sender of the signal continues us
        # as well. A child that was stopped behind our back is continued behind it.
        self._child_stopped = False
        self._stop_asked_s = -_STOP_S

    def wait(self) -> None:
        """Wait for the child's end."""
        while True:
            pid, status = os.waitpid(self._child.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if not pid:
                self._take_signal()
            elif os.WIFSTOPPED(status):
                self._child_stopped = True
            elif os.WIFCONTINUED(status):
                self._child_stopped = False  # a newer request to stop may have come already, but not to the child
            else:
                self._child.status = status
                return

    def _take_signal(self) -> None:
        self._witness.keep()
        asked = time.monotonic() < self._stop_asked_s + _STOP_S
        if self._child_stopped and asked and signal.SIGCONT not in signal.sigpending():
            self._forget_stop()
            os.kill(os.getpid(), signal.SIGSTOP)
        info = signal_within(self._watched, _LOOK_S)
        while self._elsewhere:
            self._pass_on(self._elsewhere.pop(0))
        if info is None:
            return
        about_a_child = info.si_signo == signal.SIGCHLD and info.si_code > 0
        if not about_a_child and info.si_pid != os.getpid():  # ours: a write to a closed pipe
            self._pass_on(info.si_signo)

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGCONT:
            self._forget_stop()
        elif number in _STOPPING:
            self._stop_asked_s = time.monotonic()
        if not self._witness.saw(number) and not self._is_overtaken(number):
            with suppress(ProcessLookupError):
                os.kill(self._child.pid, number)

    def _is_overtaken(self, number: int) -> bool:
        """Whether it is void: stopping and continuing cancel each other while pending, with the witness as well."""
        opposite = _STOPPING if number == signal.SIGCONT else {signal.SIGCONT} if number in _STOPPING else set()
        return not opposite.isdisjoint(signal.sigpending())

    def _forget_stop(self) -> None:
        self._child_stopped = False
        self._stop_asked_s = -_STOP_S
