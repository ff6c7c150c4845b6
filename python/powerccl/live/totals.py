# SPDX-License-Identifier: Apache-2.0
"""What a job has come to since it began, counted record by record while it runs: for counters that only rise."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from powerccl.live.run_folder import LiveTrace, Records, select
from powerccl.patterns import PATTERNS
from powerccl.traces import records
from powerccl.traces.mpi_functions import function_name

KINDS = len(PATTERNS) + 1  # the last one: patterns that this version does not know
NO_LEASE = -100
Counts = npt.NDArray[np.float64]


def _none() -> Counts:
    return np.zeros(KINDS)


@dataclass
class RankTotals:
    """One rank of NCCL's; arrays have a place a pattern, in the order of PATTERNS, and one for others."""

    trace: LiveTrace
    calls: Counts = field(default_factory=_none)
    bytes: Counts = field(default_factory=_none)
    captured: Counts = field(default_factory=_none)  # calls recorded into CUDA graphs, not among `calls`
    timed: Counts = field(default_factory=_none)  # kernels
    seconds: Counts = field(default_factory=_none)  # of those
    clocks: dict[str, int] = field(default_factory=dict)  # requests by how they ended: done, failed, no_lease, dry

    def take(self, rows: Records) -> None:
        """New records."""
        calls = select(rows, records.CALL)
        captured = calls["flags"] & records.FLAG_CAPTURED != 0
        kinds = np.minimum(calls["pattern"], KINDS - 1).astype(np.int64)
        self.captured += np.bincount(kinds[captured], minlength=KINDS)
        self.calls += np.bincount(kinds[~captured], minlength=KINDS)
        self.bytes += np.bincount(kinds[~captured], calls["bytes"][~captured].astype(np.float64), minlength=KINDS)
        kernels = select(rows, records.KERNEL)
        start, stop = kernels["gpu_start_ns"], kernels["gpu_stop_ns"]
        kernels = kernels[(start > 0) & (stop >= start) & (stop - start < 3_600_000_000_000)]
        kinds = np.minimum(kernels["pattern"], KINDS - 1).astype(np.int64)
        lengths_ns = (kernels["gpu_stop_ns"] - kernels["gpu_start_ns"]).astype(np.float64)
        self.timed += np.bincount(kinds, minlength=KINDS)
        self.seconds += np.bincount(kinds, lengths_ns / 1e9, minlength=KINDS)
        clocks = select(rows, records.CLOCK)
        if len(clocks):
            result, dry = clocks["result"], clocks["flags"] & records.FLAG_DRY != 0
            counted = (
                ("done", ~dry & (result == 0)),
                ("no_lease", ~dry & (result == NO_LEASE)),
                ("failed", ~dry & (result != 0) & (result != NO_LEASE)),
                ("dry", dry),
            )
            for how, chosen in counted:
                if chosen.any():
                    self.clocks[how] = self.clocks.get(how, 0) + int(chosen.sum())


@dataclass
class MpiTotals:
    """One MPI process: the latest sums of each thread, function, communicator and size class."""

    trace: LiveTrace
    sums: dict[tuple[int, int, int, int], tuple[int, int, int, int, int]] = field(default_factory=dict)
    cpu_s: float = 0.0

    def take(self, rows: Records) -> None:
        """New records."""
        for row in select(rows, records.MPI_TOTAL).tolist():
            _, _, comm, _, calls, size, call_ns, wait_ns, sleep_ns, function, thread, size_class, _ = row
            self.sums[thread, function, comm, size_class] = (calls, size, call_ns, wait_ns, sleep_ns)
        used = select(rows, records.PROCESS)
        if len(used):
            self.cpu_s = (int(used[-1]["user_ns"]) + int(used[-1]["system_ns"])) / 1e9

    def total(self) -> tuple[int, int, int, int, int]:
        """Calls, bytes, call_ns, wait_ns, sleep_ns over everything."""
        parts = np.array(list(self.sums.values()), np.int64).reshape(-1, 5).sum(axis=0)
        return tuple(int(part) for part in parts)  # type: ignore[return-value]

    def threads(self) -> int:
        """How many threads have called MPI at a time."""
        return max((thread for thread, _, _, _ in self.sums), default=0) + 1

    def by_function(self) -> dict[str, tuple[int, int]]:
        """Calls and call_ns of each function."""
        sums: dict[str, tuple[int, int]] = {}
        for (_, function, _, _), (calls, _, call_ns, _, _) in self.sums.items():
            before = sums.get(function_name(function), (0, 0))
            sums[function_name(function)] = (before[0] + calls, before[1] + call_ns)
        return sums


class RankCounts(msgspec.Struct):
    """One rank of a host; its processes are added up.

    `kinds`: calls, captured, bytes, timed and seconds, each by pattern. `mpi`: calls, then seconds in calls, waiting,
    asleep and of CPU time. Either is empty without traces of its kind. `mpi_threads`: that called MPI, at a time.
    """

    host: str
    rank: int
    kinds: list[list[float]] = []
    dropped: int = 0
    clocks: dict[str, int] = {}
    mpi: list[float] = []
    mpi_threads: int = 0


class JobCounts(msgspec.Struct):
    """A job's counts. `functions`: calls and seconds, by host and function."""

    ranks: list[RankCounts] = []
    functions: dict[str, dict[str, list[float]]] = {}


class Totals:
    """All ranks of a job that this node can see."""

    def __init__(self) -> None:
        self.ranks: dict[Path, RankTotals] = {}
        self.mpi: dict[Path, MpiTotals] = {}

    def take(self, trace: LiveTrace, rows: Records) -> None:
        """New records of a rank of NCCL's."""
        if trace.about is not None:
            self.ranks.setdefault(trace.path, RankTotals(trace)).take(rows)

    def take_mpi(self, trace: LiveTrace, rows: Records) -> None:
        """New records of an MPI process."""
        if trace.about is not None:
            self.mpi.setdefault(trace.path, MpiTotals(trace)).take(rows)

    def counts(self) -> JobCounts:
        """What it comes to."""
        counts = JobCounts()
        ranks: dict[tuple[str, int], RankCounts] = {}

        def rank_of(trace: LiveTrace) -> RankCounts:
            assert trace.about is not None
            key = (trace.about.host, trace.about.rank)
            return ranks.setdefault(key, RankCounts(*key))

        for each in self.ranks.values():
            rank = rank_of(each.trace)
            rank.kinds = rank.kinds or [[0.0] * KINDS for _ in range(5)]
            parts = (each.calls, each.captured, each.bytes, each.timed, each.seconds)
            for total, part in zip(rank.kinds, parts, strict=True):
                for kind in range(KINDS):
                    total[kind] += float(part[kind])
            for result, count in each.clocks.items():
                rank.clocks[result] = rank.clocks.get(result, 0) + count
            rank.dropped += each.trace.dropped
        for process in self.mpi.values():
            rank = rank_of(process.trace)
            rank.mpi = rank.mpi or [0.0] * 5
            calls, _, call_ns, wait_ns, sleep_ns = process.total()
            for index, value in enumerate((calls, call_ns / 1e9, wait_ns / 1e9, sleep_ns / 1e9, process.cpu_s)):
                rank.mpi[index] += value
            rank.mpi_threads = max(rank.mpi_threads, process.threads())
            for function, (count, time_ns) in process.by_function().items():
                times = counts.functions.setdefault(rank.host, {}).setdefault(function, [0.0, 0.0])
                times[0] += count
                times[1] += time_ns / 1e9
        counts.ranks = [rank for _, rank in sorted(ranks.items())]
        return counts
