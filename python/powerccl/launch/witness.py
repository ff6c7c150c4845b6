# SPDX-License-Identifier: Apache-2.0
"""Tells a signal to our whole process group from one to us alone, which look the same to who gets them.

The witness is a process of the same group and session as this one and the job. It does nothing but report signals. What
it has got too was sent to all of us, and so to the job.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from types import TracebackType

# A sender that goes from process to process is done with all of us after this, as a rule.
_GRACE_S = 0.03
# Two signals of a kind can reach us as one and the witness as two: what it saw is not kept for a later one.
_MEMORY_S = 0.25
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


class Witness:
    """Lives for as long as the `with` lasts. Where there is none, every signal counts as sent to us alone."""

    def __init__(self) -> None:
        self._pid = 0
        self._reports = -1
        self._seen: list[tuple[int, float]] = []

    def __enter__(self) -> Witness:
        with suppress(OSError):
            reports, writes = os.pipe()
            os.set_blocking(reports, False)
            try:
                us = os.getpid()
                self._pid = os.fork()
            except OSError:
                os.close(reports)
                os.close(writes)
                return self
            if self._pid == 0:
                _testify(writes, us)
            os.close(writes)
            self._reports = reports
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pid > 0:
            with suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            os.close(self._reports)

    def saw(self, number: int, since_s: float) -> bool:
        """Whether it got that signal about when we did. Waits a little for a sender that has not come to it yet."""
        while self._pid > 0:
            now_s = time.monotonic()
            self._read(now_s)
            self._seen = [(each, at_s) for each, at_s in self._seen if at_s > since_s - _MEMORY_S]
            found = next((entry for entry in self._seen if entry[0] == number), None)
            if found:
                self._seen.remove(found)
                return True
            if now_s > since_s + _GRACE_S:
                return False
            time.sleep(0.002)
        return False

    def _read(self, now_s: float) -> None:
        with suppress(BlockingIOError):
            self._seen += [(number, now_s) for number in os.read(self._reports, 4096)]


def _testify(writes: int, parent: int) -> None:
    """Be the witness: report signals until the process that asked for it ends. Never returns."""
    try:
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        prctl(_PR_SET_NAME, b"powerccl-signal")
        every = signal.valid_signals()
        signal.pthread_sigmask(signal.SIG_BLOCK, every)
        os.dup2(writes, 0)
        os.closerange(1, os.sysconf("SC_OPEN_MAX"))
        while os.getppid() == parent:
            info = signal.sigtimedwait(every, 5.0)
            if info is not None:
                os.write(0, bytes([info.si_signo]))
    finally:
        os._exit(0)
