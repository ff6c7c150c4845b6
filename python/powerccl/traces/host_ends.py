# SPDX-License-Identifier: Apache-2.0
"""Hosts of a run that ended in the middle of it: killed, or without power.

An agent writes `ended_ns` as its last line. Where one host has that line and another does not, all processes of the
other one ended before they could, unless they still run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from powerccl import quantities
from powerccl.traces.helpers import AGENT, STARTED_AGAIN
from powerccl.traces.sample_file import number_of

if TYPE_CHECKING:
    from powerccl.traces.cpu import CpuLog
    from powerccl.traces.helpers import HelperEvent
    from powerccl.traces.rank import RankTrace

AGAIN_NS = 1_000_000_000  # rows later than that behind the line are those of another agent
# Rows wait for a second in an agent, and it ends within seconds of its job. A host that was silent for this long has
# ended. At half, a host that ends last could be taken for a killed one. At double, a killed one is named later.
SILENT_NS = 4_000_000_000
# Ranks that recorded for longer than that behind the last sample outlived their agent. A killed agent loses up to a
# second of samples. At half, ranks of a killed host would seem to go on. At double, the end of a run hides more.
OUTLIVED_NS = 2_000_000_000
APART_NS = 1_000_000_000  # between wall clocks of hosts, and between an agent's looks at its two clocks


@dataclass(frozen=True)
class _End:
    """When the samples of a host end and when all that it recorded; wall clock: hosts agree on that at least."""

    host: str
    sampled_ns: int
    last_ns: int
    in_order: bool  # its agent ended so


def abrupt_ends(cpu: Sequence[CpuLog], traces: Sequence[RankTrace], helpers: Sequence[HelperEvent] = ()) -> list[str]:
    """A sentence of each host whose agent ended before it could say so, while others went on to their end.

    Where its ranks went on, or its launcher saw the agent's end, the agent alone was killed.
    """
    ends = [_end(log, traces) for log in cpu if len(log.samples)]
    finished = [end.last_ns for end in ends if end.in_order]
    if not finished:
        return []
    origin = min(_wall_ns(log, int(log.samples["time_ns"].to_numpy()[0])) for log in cpu if len(log.samples))
    latest = {event.host: event.what for event in helpers if event.helper == AGENT}
    silent_ns = time.time_ns() - SILENT_NS
    said = []
    for end in ends:
        if end.in_order or end.sampled_ns > silent_ns:
            continue
        launcher_lived = latest.get(end.host.partition("~")[0], STARTED_AGAIN) != STARTED_AGAIN
        ends_s = (end.last_ns - origin) / 1e9
        if end.last_ns - end.sampled_ns > OUTLIVED_NS:
            sampled_s = (end.sampled_ns - origin) / 1e9
            said.append(
                f"samples of {end.host} end at second {sampled_s:.1f}; its ranks went on to second {ends_s:.1f}"
            )
        elif end.last_ns <= min(max(finished) + APART_NS, silent_ns) and not launcher_lived:
            before = quantities.seconds(max(max(finished) - end.last_ns, 0) / 1e9)
            said.append(
                f"{end.host} was killed, lost power or could not write: its record ends at second"
                f" {ends_s:.1f}, {before} before the last host's"
            )
    return said


def unsampled_hosts(cpu: Sequence[CpuLog], mpi: Sequence[RankTrace]) -> list[str]:
    """Hosts whose processes called MPI where no agent sampled the processors."""
    sampled = {log.host for log in cpu} | {log.boot_id for log in cpu if log.boot_id}
    return list(dict.fromkeys(trace.host for trace in mpi if sampled.isdisjoint((trace.host, trace.boot_id))))


def about_unsampled(cpu: Sequence[CpuLog], mpi: Sequence[RankTrace]) -> list[str]:
    """A sentence on these hosts, if others were sampled; GPUs without samples are named as such."""
    hosts = unsampled_hosts(cpu, mpi)
    if not cpu or not hosts:
        return []
    return [
        f"no powerccl-agent ran on {', '.join(hosts)}: `mpiexec powerccl run -- PROGRAM` samples each host of a job"
    ]


def _end(log: CpuLog, traces: Sequence[RankTrace]) -> _End:
    ended_ns = number_of(log.about, "ended_ns")
    sampled_ns = int(log.samples["time_ns"].to_numpy().max())
    latest = (trace.last_ns() for trace in traces if trace.host == log.host)
    in_order = ended_ns > 0 and sampled_ns <= ended_ns + AGAIN_NS
    last_ns = max(sampled_ns, *latest, ended_ns if in_order else 0)
    return _End(log.host, _wall_ns(log, sampled_ns), _wall_ns(log, last_ns), in_order)


def _wall_ns(log: CpuLog, time_ns: int) -> int:
    wall = log.about.get("start_realtime_ns", "")
    return time_ns - number_of(log.about, "start_ns") + (int(wall) if wall.isdecimal() and len(wall) < 20 else 0)
