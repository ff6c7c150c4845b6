# SPDX-License-Identifier: Apache-2.0
"""What became of the processes beside a job, where they did not last as long as it (`helpers-<host>.jsonl`).

Each line is one event. `powerccl run` appends it when it happens, so that a killed launcher leaves what it knew.
Written with the standard library alone: it is on the way to the job's start.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from powerccl import clean
from powerccl.files import MIB
from powerccl.host_clock import monotonic_ns
from powerccl.traces.run_files import read_bytes

PREFIX, SUFFIX = "helpers-", ".jsonl"
AGENT = "powerccl-agent"
EMULATOR = "the emulated GPU server"
STARTED_AGAIN = "was started again"
FIXED_CLOCK = "the fixed clock"
SET_AGAIN = "was set again"
LATEST_NS = 1 << 62
MOST_EVENTS = 1000  # of a file: a helper that ends again and again is started at most once a minute


@dataclass
class HelperEvent:
    """That a helper ended, was not started, or was started again.

    `time_ns` is CLOCK_MONOTONIC of the host; `after_s` is since the launcher of that host began to record.
    """

    helper: str
    what: str  # behind the helper's name, as in `powerccl-agent was killed by signal 9`
    host: str = ""
    time_ns: int = 0
    after_s: float = 0.0


@dataclass
class HelperLog:
    """Where a launcher notes the events of its host; nowhere without a folder."""

    folder: Path | None
    host: str
    begun_ns: int = field(default_factory=monotonic_ns)

    def note(self, helper: str, what: str) -> None:
        """Append one event. Where that fails, the report does not name the cause of missing samples."""
        if self.folder is None:
            return
        now_ns = monotonic_ns()
        event = HelperEvent(helper, what, self.host, now_ns, round((now_ns - self.begun_ns) / 1e9, 3))
        try:
            with (self.folder / f"{PREFIX}{self.host}{SUFFIX}").open("ab") as file:
                file.write(json.dumps(asdict(event)).encode() + b"\n")
        except OSError:
            return


def read_helper_events(path: Path) -> list[HelperEvent]:
    """The events of one host, in their order; lines that are none are left out.

    Raises:
        OSError: the file cannot be read.
    """
    import msgspec

    events = []
    for line in read_bytes(path, MIB).split(b"\n")[:MOST_EVENTS]:
        try:
            event = msgspec.json.decode(line, type=HelperEvent)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue
        event.helper, event.what, event.host = map(clean.field, (event.helper, event.what, event.host))
        if 0 <= event.time_ns < LATEST_NS and 0 <= event.after_s < LATEST_NS / 1e9:
            events.append(event)
    return events
