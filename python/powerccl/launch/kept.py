# SPDX-License-Identifier: Apache-2.0
"""Helpers that last as long as their job: one that ends before is noted, and started again.

Signals cannot end a helper (services.Service) but SIGKILL, and nothing protects it from a lack of memory. A thread
waits for its end. No signal is delivered to this thread, so that all of them reach the job as without it.
"""

from __future__ import annotations

import os
import select
import threading
import time
from functools import partial

from powerccl.errors import one_line
from powerccl.launch.child import start_thread
from powerccl.traces.helpers import STARTED_AGAIN, HelperLog

# A helper that lasted this long is started again immediately. One that did not waits, twice as long each time, since
# what ended it may do so again. With a first pause of 0.1 s, five kills within a minute leave samples missing for less
# than 1.5 s each. At half, it is six; at double, four.
LASTED_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 60.0


class Kept:
    """A helper that is watched between `keep` and `let_go`."""

    name = ""

    def __init__(self, events: HelperLog) -> None:
        self.events = events
        self._stop = -1  # a pipe's write end: closing it ends the watch
        self._done = threading.Event()

    # ---- What a kind of helper has to say

    def descriptor(self) -> int:
        """What hangs up when the helper ends."""
        raise NotImplementedError

    def how_it_ended(self) -> str:
        """How it ended, in words."""
        raise NotImplementedError

    def start_again(self) -> bool:
        """Start another one. False: there is nothing more to keep."""
        raise NotImplementedError

    # ---- The watch

    def keep(self) -> None:
        """Watch the helper. Where no thread can be started, it is not watched, and the job goes on."""
        try:
            stopped, self._stop = os.pipe()
            start_thread(partial(self._watch, stopped), self.name)
        except (OSError, RuntimeError):
            self._done.set()

    def let_go(self, seconds: float) -> None:
        """Watch no longer. A start that is under way is waited for, so that the helper's state is known."""
        if self._stop >= 0:
            os.close(self._stop)
            self._stop = -1
            self._done.wait(seconds)

    def _watch(self, stopped: int) -> None:
        try:
            pause_s = 0.0
            begun_s = time.monotonic()
            while not _closed(stopped, self.descriptor()):
                self.events.note(self.name, self.how_it_ended())
                pause_s = 0.0 if time.monotonic() - begun_s > LASTED_S else pause_s
                if (pause_s and _closed(stopped, seconds=pause_s)) or not self._start_again(stopped):
                    return
                pause_s = min(max(2 * pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
                begun_s = time.monotonic()
        finally:
            os.close(stopped)
            self._done.set()

    def _start_again(self, stopped: int) -> bool:
        """Try until there is another one, or nothing to keep."""
        pause_s, said = FIRST_PAUSE_S, False
        while True:
            try:
                if not self.start_again():
                    return False
            except Exception as error:
                if not said:
                    self.events.note(self.name, f"cannot be started again: {one_line(error)}")
                said = True
            else:
                self.events.note(self.name, STARTED_AGAIN)
                return True
            if _closed(stopped, seconds=pause_s):
                return False
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _closed(stopped: int, descriptor: int = -1, seconds: float | None = None) -> bool:
    """Wait until the other end of one of the two is closed; whether it is that of `stopped`."""
    watched = select.poll()
    for each in (stopped, descriptor):
        if each >= 0:
            watched.register(each, 0)  # that the other end is closed is reported in any case
    ready = dict(watched.poll(None if seconds is None else seconds * 1e3))
    return stopped in ready
