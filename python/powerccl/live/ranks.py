# SPDX-License-Identifier: Apache-2.0
"""One rank of NCCL's in the last seconds, from its new records."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from powerccl import patterns
from powerccl.analysis import intervals as iv
from powerccl.live.run_folder import Records, select
from powerccl.traces import records

MOST_KEPT = 1 << 17  # records of one kind and rank in the window
MOST_PENDING = 1 << 16
Kinds = dict[tuple[str, int], list[float]]  # of a pattern and size class, what `count` adds up


class RankState:
    """What is kept of a rank between looks."""

    def __init__(self) -> None:
        self.calls = np.empty(0, records.LAYOUTS[records.CALL])
        self.kernels = np.empty(0, records.LAYOUTS[records.KERNEL])
        self.clocks = np.empty(0, records.LAYOUTS[records.CLOCK])
        self.sizes: dict[int, int] = {}
        self.last: npt.NDArray[np.void] | None = None
        self.last_kernel: npt.NDArray[np.void] | None = None
        self.clock: npt.NDArray[np.void] | None = None
        self.budget: npt.NDArray[np.void] | None = None
        self.pending: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self.offset_ns: int | None = None  # None: no kernel with GPU times yet
        self.timed = False  # there has been a kernel
        self.notes: list[str] = []
        self.newest_ns = 0

    def take(self, rows: Records) -> None:
        """New records."""
        for comm in select(rows, records.COMM):
            if int(comm["nranks"]) > 0:
                self.sizes[int(comm["comm"])] = int(comm["nranks"])
        calls, kernels = select(rows, records.CALL), select(rows, records.KERNEL)
        stop, start = kernels["gpu_stop_ns"], kernels["gpu_start_ns"]
        kernels = kernels[(start > 0) & (stop >= start) & (stop - start < 3_600_000_000_000)]
        if len(calls):
            self.last = calls[-1]
            self.newest_ns = max(self.newest_ns, int(calls["stop_ns"].max()))
            asked = (calls["flags"] & records.FLAG_KERNEL_ASKED != 0) & (calls["flags"] & records.FLAG_CAPTURED == 0)
            self.pending = np.concatenate([self.pending, calls["call_id"][asked & (calls["group"] == 0)]])
        if len(kernels):
            self.newest_ns = max(self.newest_ns, int(kernels["seen_stop_ns"].max()))
            on_host = (kernels["flags"] & records.FLAG_HOST_TIMES) != 0
            delays = kernels["seen_stop_ns"].astype(np.int64) - kernels["gpu_stop_ns"].astype(np.int64)
            known = (kernels["seen_stop_ns"] > 0) & ~on_host
            if known.any():
                least = int(delays[known].min())
                self.offset_ns = least if self.offset_ns is None else min(self.offset_ns, least)
            self.timed = True
            self.pending = self.pending[self.pending > kernels["call_id"].max()]
            self.last_kernel = kernels[-1]
        self.pending = self.pending[-MOST_PENDING:]
        clocks = select(rows, records.CLOCK)
        if len(clocks):
            self.clock = clocks[-1]
            self.clocks = np.concatenate([self.clocks, clocks])[-MOST_KEPT:]
        budgets = select(rows, records.BUDGET)
        if len(budgets):
            self.budget = budgets[-1]
        for note in select(rows, records.NOTE):
            text = bytes(note["text"]).split(b"\0", 1)[0].decode("utf-8", "replace")
            if not text.startswith("gpu clock offset_ns"):
                self.notes = [*self.notes, text][-3:]
        calls = calls[calls["flags"] & records.FLAG_CAPTURED == 0]
        self.calls = np.concatenate([self.calls, calls])[-MOST_KEPT:]
        self.kernels = np.concatenate([self.kernels, kernels])[-MOST_KEPT:]

    def host_ns(self, name: str) -> npt.NDArray[np.int64]:
        """Times of the kernels on the host's clock, ns."""
        on_host = (self.kernels["flags"] & records.FLAG_HOST_TIMES) != 0
        times: npt.NDArray[np.int64] = self.kernels[name].astype(np.int64)
        return times + np.where(on_host, 0, self.offset_ns or 0)

    def trim(self, from_ns: int) -> None:
        """Forget what was over before the window."""
        self.calls = self.calls[self.calls["start_ns"].astype(np.int64) >= from_ns]
        self.clocks = self.clocks[self.clocks["asked_ns"].astype(np.int64) >= from_ns]
        if self.timed:
            stops = self.host_ns("gpu_stop_ns")
            self.kernels = self.kernels[stops > from_ns]


def share_of(rank: RankState, from_ns: int, now_ns: int) -> tuple[float | None, bool]:
    """Percent of the window with communication on the GPU, and whether calls that were not timed are in it.

    Timed kernels count once where they overlap; each call that was not timed is taken to last as its kind does.
    """
    if not rank.timed:
        return None, False
    start, stop = rank.host_ns("gpu_start_ns"), rank.host_ns("gpu_stop_ns")
    busy_ns = float(iv.length_ns(iv.clip(iv.union(start, stop), from_ns, now_ns)))
    flags = rank.calls["flags"]
    silent = rank.calls[(flags & records.FLAG_KERNEL_ASKED) == 0]
    unknown = False
    if len(silent):
        kernels = rank.kernels
        for pattern in np.unique(silent["pattern"]).tolist():
            of_kind = kernels[kernels["pattern"] == pattern]
            of_pattern = silent[silent["pattern"] == pattern]
            classes, counts = np.unique(_classes(of_pattern["bytes"]), return_counts=True)
            timed = _classes(of_kind["bytes"])
            lengths = (of_kind["gpu_stop_ns"] - of_kind["gpu_start_ns"]).astype(np.float64)
            for size, count in zip(classes.tolist(), counts.tolist(), strict=True):
                same = timed == size
                if same.any():
                    busy_ns += float(lengths[same].mean()) * count
        unknown = True
    return min(busy_ns / max(now_ns - from_ns, 1) * 100, 100.0), unknown


def replayed(kernels: Any) -> Any:
    """Which kernels are of a graph's replay."""
    return kernels["flags"] & records.FLAG_CAPTURED != 0


def _classes(sizes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Power of two at or below each size; 0 for 0."""
    whole = sizes.astype(np.int64)
    exponents = np.frexp(np.maximum(whole, 1).astype(np.float64))[1] - 1
    return np.where(whole > 0, np.left_shift(1, exponents.astype(np.int64)), 0)


def count_kinds(rank: RankState, length_s: float, kinds: Kinds) -> None:
    """Add a rank's window to the job's kinds.

    Calls, timed kernels, their time in us, calls/s, and of kernels with a known bus bandwidth: bytes on the bus, ns.
    """
    for rows, timed in ((rank.calls, False), (rank.kernels, True)):
        if not len(rows):
            continue
        classes = _classes(rows["bytes"])
        keys = classes * 256 + rows["pattern"]
        for key in np.unique(keys).tolist():
            chosen = rows[keys == key]
            pattern, size = patterns.pattern_name(key % 256), key // 256
            sums = kinds.setdefault((pattern, size), [0.0] * 6)
            if not timed:
                sums[0] += len(chosen)
                sums[3] += len(chosen) / length_s
                continue
            lengths_ns = (chosen["gpu_stop_ns"] - chosen["gpu_start_ns"]).astype(np.float64)
            comms, each = np.unique(chosen["comm"], return_inverse=True)
            of_comm = [patterns.bus_factor(pattern, rank.sizes.get(comm, 0)) for comm in comms.tolist()]
            factors = np.array(of_comm)[each]
            replays = int(replayed(chosen).sum())  # those are not calls
            sums[0] += replays
            sums[3] += replays / length_s
            sums[1] += len(chosen)
            sums[2] += float(lengths_ns.sum()) / 1e3
            known = (lengths_ns > 0) & np.isfinite(factors)
            sums[4] += float((chosen["bytes"][known] * factors[known]).sum())
            sums[5] += float(lengths_ns[known].sum())
