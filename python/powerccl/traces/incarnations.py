# SPDX-License-Identifier: Apache-2.0
"""Which traces of a folder are one rank's: an elastic launcher restarts all workers when one of them fails.

Traces of one rank whose lives do not overlap are incarnations of it. They become one trace, with communicators and
calls counted on, so that sums are over all and collectives are matched within one incarnation.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from powerccl.traces import records
from powerccl.traces.clock_domain import ClockMap

if TYPE_CHECKING:
    from powerccl.traces.rank import RankTrace

Life = list["RankTrace"]  # one rank's incarnations in order
Deaths = dict[tuple[str, int, int], int]  # host ns, by host, incarnation and communicator
_NO_COMM = 0xFFFFFFFF
# A survivor's kernel that ends so long after its peer's last record waited for the dead. Ends of one collective are
# microseconds apart; an aborted one takes NCCL's watchdog seconds to minutes.
AFTER_DEATH_NS = 100_000_000
# Fields that count up in a trace and restart in the next one; 0 is "none".
_COUNTED = {
    records.CALL: ("call_id", "group"),
    records.KERNEL: ("call_id",),
    records.CLOCK: ("call_id",),
    records.CALLBACK: ("call_id",),
    records.WAIT: ("call_id", "burst"),
    records.PAUSE: ("burst",),
    records.TAG: ("call_id",),
}


def of_run(traces: list[RankTrace], run_id: str) -> tuple[list[RankTrace], list[str]]:
    """The traces of that run, and what to say about others in its folder.

    Where run.json names no run, it is the earliest trace's.
    """
    named = sorted((trace for trace in traces if trace.run_id), key=lambda trace: trace.start_realtime_ns)
    run_id = run_id or (named[0].run_id if named else "")
    of_this_run = [trace for trace in traces if trace.run_id in ("", run_id)]
    others = [trace.path.name for trace in traces if trace.run_id not in ("", run_id)]
    if not others:
        return of_this_run, []
    names = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return of_this_run, [f"{names}: of another run, left out"]


def join_incarnations(traces: list[RankTrace]) -> list[RankTrace]:
    """One trace for each rank of each GPU, from all its incarnations."""
    lives: dict[tuple[int, str, str], list[Life]] = {}
    for trace in sorted(traces, key=lambda trace: trace.start_realtime_ns or trace.start_ns):
        of_rank = lives.setdefault((trace.rank, trace.host, trace.gpu), [])
        ended = [life for life in of_rank if _follows(life[-1], trace)]
        if ended:
            ended[0].append(trace)
        else:
            of_rank.append([trace])
    all_lives = [life for of_rank in lives.values() for life in of_rank]
    deaths = _deaths(all_lives)
    return [life[0] if len(life) == 1 else _join(life, deaths) for life in all_lives]


def _join(life: Life, deaths: Deaths) -> RankTrace:
    """One trace of them; where they keep records of a part of the run, `load` reads and joins all of them again."""

    def load() -> dict[int, npt.NDArray[np.void]]:
        return _joined(_without_waiting_for_the_dead([trace.whole() for trace in life], deaths)).kinds

    joined = _joined(_without_waiting_for_the_dead(life, deaths))
    joined.load = load if any(trace.load for trace in life) else None
    return joined


def _follows(earlier: RankTrace, later: RankTrace) -> bool:
    if earlier.starts and later.starts:
        return later.starts > earlier.starts
    return later.start_ns >= earlier.last_ns()


def restarts(traces: list[RankTrace]) -> int:
    """How many times the ranks were started again."""
    return max((max(trace.incarnations, trace.starts) - 1 for trace in traces), default=0)


def _deaths(lives: list[Life]) -> Deaths:
    """Ranks that were killed leave communicators that were never ended: when the first rank of each died."""
    deaths: Deaths = {}
    for life in lives:
        for place, trace in enumerate(life[:-1]):
            # The last record of a trace that ran full is not the rank's last sign of life.
            for comm_id in _open_comms(trace) if not trace.dropped else ():
                key = (trace.host, _incarnation(trace, place), comm_id)
                deaths[key] = min(deaths.get(key, 1 << 62), trace.last_ns())
    return deaths


def _without_waiting_for_the_dead(life: Life, deaths: Deaths) -> Life:
    """Leave out kernels and waits that ended only because the job was ended: they last as long as that took.

    What another rank of a communicator has there after a killed rank's last record was waiting for it.
    """
    left = []
    for place, trace in enumerate(life):
        kinds = dict(trace.kinds)
        for comm in trace.kinds[records.COMM] if place + 1 < len(life) else ():
            died = deaths.get((trace.host, _incarnation(trace, place), int(comm["comm_id"])))
            if died is None:
                continue
            until = died + AFTER_DEATH_NS
            kernels, waits = kinds[records.KERNEL], kinds[records.WAIT]
            late = trace.clock_map.to_host(kernels["gpu_stop_ns"]) > until
            kinds[records.KERNEL] = kernels[~(late & (kernels["comm"] == comm["comm"]))]
            late = waits["resume_ns"] > until
            kinds[records.WAIT] = waits[~(late & (waits["comm"] == comm["comm"]))]
        left.append(dataclasses.replace(trace, kinds=kinds))
    return left


def _incarnation(trace: RankTrace, place: int) -> int:
    return trace.starts or place + 1


def _open_comms(trace: RankTrace) -> set[int]:
    ups = trace.kinds[records.COMM]
    ended = (ups["flags"] & records.FLAG_ENDED) != 0
    return set(ups["comm_id"][~ended].tolist()) - set(ups["comm_id"][ended].tolist())


def _joined(life: Life) -> RankTrace:
    """One trace of a rank's incarnations. Its GPU times are the host's: each incarnation had a map of its own."""
    last = life[-1]
    parts: dict[int, list[npt.NDArray[np.void]]] = {kind: [] for kind in records.LAYOUTS}
    base: dict[str, int] = {}
    comms, known, calls_before = 0, set[int](), dict[int, int]()
    for place, trace in enumerate(life):
        names: dict[str, int] = {}
        most_comm = 0
        for kind, rows in trace.kinds.items():
            rows = rows.copy()
            of_comm = rows["comm"] != _NO_COMM
            if kind in (records.CALL, records.KERNEL, records.WAIT, records.COMM, records.MPI_CALL, records.MPI_TOTAL):
                most_comm = max(most_comm, int(rows["comm"][of_comm].max(initial=0)))
                rows["comm"][of_comm] += comms
            for name in _COUNTED.get(kind, ()):
                names[name] = max(names.get(name, 0), int(rows[name].max(initial=0)))
                rows[name][rows[name] > 0] += base.get(name, 0)
            if kind == records.COMM:
                _name_anew(rows, known, place)
            if kind == records.KERNEL:
                _to_host(rows, trace.clock_map)
            parts[kind].append(rows)
        known |= set(parts[records.COMM][-1]["comm_id"].tolist())
        calls_before.update({comm + comms: count for comm, count in trace.calls_before.items()})
        comms += most_comm + 1
        base = {name: base.get(name, 0) + most for name, most in names.items()}
    maps = [trace.clock_map for trace in life]
    return dataclasses.replace(
        last,
        path=life[0].path,
        start_ns=life[0].start_ns,
        start_realtime_ns=life[0].start_realtime_ns,
        dropped=sum(trace.dropped for trace in life),
        own_ns=sum(trace.own_ns for trace in life),
        kinds={kind: np.concatenate(rows) for kind, rows in parts.items()},
        clock_map=ClockMap(spread_ns=max(one.spread_ns for one in maps), pairs=sum(one.pairs for one in maps)),
        problems=[problem for trace in life for problem in trace.problems],
        calls_before=calls_before,
        latest_ns=max(trace.latest_ns for trace in life),
        incarnations=len(life),
        gaps=[(earlier.last_ns(), later.start_ns) for earlier, later in itertools.pairwise(life)],
        sizes=[trace.nranks for trace in life],
        records=sum(trace.records for trace in life),
    )


def _name_anew(comms: npt.NDArray[Any], known: set[int], place: int) -> None:
    """Communicators whose id an earlier incarnation had are others all the same."""
    for row in comms:
        if int(row["comm_id"]) in known:
            row["comm_id"] = int(row["comm_id"]) ^ (place * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)


def _to_host(kernels: npt.NDArray[Any], clock_map: ClockMap) -> None:
    length = kernels["gpu_stop_ns"] - kernels["gpu_start_ns"]
    kernels["gpu_start_ns"] = np.maximum(clock_map.to_host(kernels["gpu_start_ns"]), 0).astype(np.uint64)
    kernels["gpu_stop_ns"] = kernels["gpu_start_ns"] + length
