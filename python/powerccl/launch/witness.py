# SPDX-License-Identifier: Apache-2.0
"""Tells a signal to our whole process group from one to us alone, which look the same to who gets them.

The witness is a process of the same group and session as this one and the job. It does nothing but report signals. What
it has got too was sent to all of us, and so to the job.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

# A sender that goes from process to process is done with all of us after this, as a rule.
_GRACE_S = 0.03
# Two signals of a kind can reach us as one and the witness as two: what it saw is not kept for a later one.
_MEMORY_S = 0.25
# The witness answers within a scheduler's turn. On a machine that is overloaded for longer, a signal counts as ours.
_ANSWER_S = 2.0
# We ask by this signal, since pending ones are taken by their number: all others are reported before the answer.
_QUESTION = signal.SIGRTMAX
_ANSWER = 0
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


class Witness:
    """Lives for as long as the `with` lasts; `keep` replaces one that was killed.

    Where there is none, every signal counts as sent to us alone.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._reports = -1
        self._seen: list[tuple[int, float]] = []

    def __enter__(self) -> Witness:
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            if self._pid > 0:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
        with suppress(OSError):
            os.close(self._reports)

    def keep(self) -> None:
        """Start another one where it has ended."""
        with suppress(OSError):
            if self._pid > 0 and os.waitpid(self._pid, os.WNOHANG)[0]:
                os.close(self._reports)
                self._start()

    def _start(self) -> None:
        self._pid, self._reports = 0, -1
        try:
            self._reports, writes = os.pipe()
        except OSError:
            return
        us = os.getpid()
        try:
            self._pid = os.fork()
        except OSError:
            pass
        else:
            if self._pid == 0:
                try:
                    _testify(writes, us)
                finally:
                    os._exit(0)
        os.close(writes)

    def saw(self, number: int) -> bool:
        """Whether it got that signal about when we did. Waits a little for a sender that has not come to it yet."""
        since_s = time.monotonic()
        while self._pid > 0:
            self._ask()
            self._seen = [(each, at_s) for each, at_s in self._seen if at_s > since_s - _MEMORY_S]
            entry_seen = next((entry for entry in self._seen if entry[0] == number), None)
            if entry_seen:
                self._seen.remove(entry_seen)
                return True
            if time.monotonic() > since_s + _GRACE_S:
                return False
            time.sleep(0.005)
        return False

    def _ask(self) -> None:
        """Take what it has got until now, however late it is scheduled."""
        deadline_s = time.monotonic() + _ANSWER_S
        try:
            os.kill(self._pid, _QUESTION)
            answered, reports = False, select.poll()
            reports.register(self._reports, select.POLLIN)
            while not answered and reports.poll(max(0.0, deadline_s - time.monotonic()) * 1e3):
                reported = os.read(self._reports, 4096)
                self._seen += [(number, time.monotonic()) for number in reported if number != _ANSWER]
                answered = _ANSWER in reported or not reported
        except OSError:
            return


@dataclass(frozen=True)
class Received:
    """A signal, as in `siginfo_t`: its cause and its sender."""

    si_signo: int
    si_code: int
    si_pid: int


class _SigInfo(ctypes.Structure):
    """The beginning of Linux's `siginfo_t`, of which every 64-bit architecture has the process at byte 16."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("error", ctypes.c_int),
        ("code", ctypes.c_int),
        ("gap", ctypes.c_int),
        ("pid", ctypes.c_int),
        ("rest", ctypes.c_char * 108),
    )


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("ns", ctypes.c_long))


_libc = ctypes.CDLL(None, use_errno=True)


def signal_within(watched: Collection[int], seconds: float) -> Received | None:
    """The next of these signals, which are blocked, or None after so many seconds at the latest.

    The C library's own. If a stop lasts longer than that, Python's `sigtimedwait` up to 3.12 answers with arbitrary
    memory, and we would pass that on to the job.
    """
    signals = ctypes.create_string_buffer(128)  # sigset_t
    _libc.sigemptyset(signals)
    for number in watched:
        _libc.sigaddset(signals, int(number))
    info = _SigInfo()
    whole = int(seconds)
    until = _TimeSpec(whole, int((seconds - whole) * 1e9))
    if _libc.sigtimedwait(signals, ctypes.byref(info), ctypes.byref(until)) <= 0:
        return None
    return Received(info.number, info.code, info.pid)


def disposition(number: int) -> ctypes.Array[ctypes.c_char]:
    """What a signal does now, as the C library's `struct sigaction`."""
    action = ctypes.create_string_buffer(256)  # glibc's has 152 bytes
    _libc.sigaction(number, None, action)
    return action


def restore_disposition(number: int, earlier: ctypes.Array[ctypes.c_char]) -> None:
    """Have a signal do again what it did when `disposition` was asked."""
    _libc.sigaction(number, earlier, None)


def _testify(writes: int, parent: int) -> None:
    """Be the witness: report signals until the process that asked for it ends."""
    prctl = _libc.prctl
    prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    prctl(_PR_SET_NAME, b"powerccl-signal")
    every = signal.valid_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, every)
    os.dup2(writes, 0)
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):  # the listing's own is closed already
            os.closerange(max(descriptor, 1), descriptor + 1)
    while os.getppid() == parent:
        info = signal_within(every, 5.0)
        if info is not None:
            asked = info.si_signo == _QUESTION and info.si_pid == parent
            os.write(0, bytes([_ANSWER if asked else info.si_signo]))
