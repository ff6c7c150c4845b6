# SPDX-License-Identifier: Apache-2.0
"""Processes beside the job that did not last as long as it: what that cost, and why samples are missing."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from powerccl.analysis import intervals as iv
from powerccl.quantities import plural, seconds
from powerccl.traces.folder import RunData
from powerccl.traces.helpers import AGENT, EMULATOR, SET_AGAIN, STARTED_AGAIN, HelperEvent

if TYPE_CHECKING:
    from powerccl.traces.cpu import CpuLog
    from powerccl.traces.power import PowerLog

AGAIN = (STARTED_AGAIN, SET_AGAIN)
SAMPLERS = (AGENT, EMULATOR)  # without which there are no samples
SAID = 3  # of one helper's ends; a helper that is killed again and again says little new


def helper_notes(run: RunData) -> list[str]:
    """What to say of each end, such as `powerccl-agent was killed by signal 9 at 12.3 s; no samples for 400 ms`."""
    notes: list[str] = []
    ends = [event for event in run.helpers if event.what not in AGAIN]
    several = len({event.host for event in run.helpers}) > 1
    for (host, helper), group in itertools.groupby(
        sorted(ends, key=lambda event: (event.host, event.helper)), lambda event: (event.host, event.helper)
    ):
        events = list(group)
        of_host = f"{host}: " if several else ""
        notes += [f"{of_host}{_when(run, event)}{_cost(run, event)}" for event in events[:SAID]]
        if len(events) > SAID:
            notes.append(f"{of_host}{helper} ended {plural(len(events) - SAID, 'more time')}")
    return notes


def why_unsampled(run: RunData, host: str, lost: iv.Intervals | None = None) -> str:
    """Why a host's samples are missing, as far as a helper's end tells: `: powerccl-agent …`; else empty.

    `lost`: when they are; None: to the end.
    """
    events = [event for event in run.helpers if event.helper in SAMPLERS and event.host == _own_name(host)]
    if lost is None:
        events = events[-1:]
    else:
        events = [event for event in events if ((lost[:, 0] <= event.time_ns) & (event.time_ns <= lost[:, 1])).any()]
    causes = [event for event in events if event.what != STARTED_AGAIN]
    return f": {_when(run, causes[-1])}" if causes else ""


def _when(run: RunData, event: HelperEvent) -> str:
    if ":" in event.what:  # a start that failed: its cause counts
        return f"{event.helper} {event.what}"
    info = run.info
    after_s = event.after_s
    if info and info.host == event.host and event.time_ns > info.start_ns > 0:
        after_s = (event.time_ns - info.start_ns) / 1e9
    return f"{event.helper} {event.what} at {seconds(after_s)}"


def _cost(run: RunData, event: HelperEvent) -> str:
    """What was lost with it."""
    later = [each for each in run.helpers if each.host == event.host and each.helper == event.helper]
    again = next((each.what for each in later if each.what in AGAIN and each.time_ns >= event.time_ns), "")
    if event.helper != AGENT or (run.info and not run.info.interval_ms):  # 0: without samples
        return f"; it {again}" if again else ""
    logs: list[PowerLog | CpuLog] = [*run.power, *run.cpu]
    for time in (log.samples["time_ns"] for log in logs if _own_name(log.host) == event.host):
        before = time.filter(time <= event.time_ns).max()
        after = time.filter(time > event.time_ns).min()
        if isinstance(before, int) and isinstance(after, int):
            return f"; no samples for {seconds((after - before) / 1e9)}"
    return "" if again else "; no samples after that"


def _own_name(host: str) -> str:
    """A host's name, without what tells it apart from another of this name (traces/incarnations.py)."""
    return host.partition("~")[0]
