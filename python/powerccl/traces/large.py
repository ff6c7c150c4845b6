# SPDX-License-Identifier: Apache-2.0
"""Traces that are too large to be held in memory: one streamed pass counts everything, and says where to read.

Totals by pattern and size class are of the whole run. Everything else comes from a window of time, as long as its
records fit; `RunData.window` and `RunData.problems` say which.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerccl import patterns
from powerccl.files import MOST_TRACE
from powerccl.traces import records
from powerccl.traces.run_files import opened

CHUNK = 1 << 16  # records read at a time: 4 MiB
BULKY = (records.CALL, records.KERNEL, records.WAIT, records.CALLBACK, records.MPI_CALL)
MOST_RARE = 1 << 20  # of the other kinds, so many are kept in all
KINDS = len(patterns.PATTERNS) + 1
CLASSES = 64

Ints = npt.NDArray[np.int64]
_HOUR_NS = np.uint64(3_600_000_000_000)
_LATEST_NS = 1 << 62


def _table() -> Ints:
    return np.zeros((KINDS, CLASSES), dtype=np.int64)


@dataclass
class Census:
    """Counts by pattern (row; the last: unknown) and size class (column: 1 + floor(log2(bytes)), 0 for none).

    Bytes and durations (ns, the GPU's clock) are sums. `records` counts all there are, of whatever kind.
    """

    records: int = 0
    calls: Ints = field(default_factory=_table)
    captured: Ints = field(default_factory=_table)
    call_bytes: Ints = field(default_factory=_table)
    kernels: Ints = field(default_factory=_table)
    kernel_bytes: Ints = field(default_factory=_table)
    duration_ns: Ints = field(default_factory=_table)

    def add(self, other: Census) -> None:
        """Add another's counts to these."""
        self.records += other.records
        for name in ("calls", "captured", "call_bytes", "kernels", "kernel_bytes", "duration_ns"):
            getattr(self, name).__iadd__(getattr(other, name))


@dataclass
class Scan:
    """What a pass over a trace found. `until_ns[i]`: the latest host time up to chunk i; `rows[i]`: its bulky records.

    `comm_calls[i]` counts the CALL records of each communicator before chunk i.
    """

    census: Census = field(default_factory=Census)
    until_ns: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    comm_calls: list[dict[int, int]] = field(default_factory=list)
    rare: list[npt.NDArray[np.void]] = field(default_factory=list)
    lost_rare: int = 0
    first_ns: int = 0
    known: int = 0


def read_chunk(path: Path, header_bytes: int, first: int, count: int) -> npt.NDArray[np.void]:
    """`count` records from `first` on, fewer where the file ends.

    Read, not mapped: mapped pages would count as this process's memory, and end it if the file is cut short.
    """
    chunk = np.empty(count, records.RECORD)
    with opened(path, MOST_TRACE) as file:
        got = file.read_into(chunk.view(np.uint8), header_bytes + first * records.RECORD_BYTES)
    return chunk[: got // records.RECORD_BYTES]


def read_chunks(path: Path, header_bytes: int, committed: int) -> Iterator[npt.NDArray[np.void]]:
    """All records, CHUNK at a time, as far as the file has them."""
    for first in range(0, committed, CHUNK):
        wanted = min(CHUNK, committed - first)
        chunk = read_chunk(path, header_bytes, first, wanted)
        yield chunk
        if len(chunk) < wanted:
            return


def scan(path: Path, header_bytes: int, committed: int) -> Scan:
    """One pass over a trace.

    Raises:
        OSError: the file cannot be read.
    """
    scanned = Scan()
    scanned.census.records = committed
    latest, kept = 0, 0
    comm_calls: dict[int, int] = {}
    for chunk in read_chunks(path, header_bytes, committed):
        kind = chunk["kind"].copy()
        calls = chunk[kind == records.CALL].view(records.LAYOUTS[records.CALL])
        kernels = chunk[kind == records.KERNEL].view(records.LAYOUTS[records.KERNEL])
        bulky = np.isin(kind, BULKY)
        rare = chunk[(kind > 0) & (kind <= max(records.KINDS)) & ~bulky]
        scanned.known += int(bulky.sum()) + len(rare)
        scanned.comm_calls.append(dict(comm_calls))
        scanned.rows.append(int(bulky.sum()))
        if kept + len(rare) <= MOST_RARE:
            kept += len(rare)
            scanned.rare.append(rare)
        else:
            scanned.lost_rare += len(rare)
        if len(calls):
            _count_calls(scanned.census, calls)
            comms, number = np.unique(calls["comm"], return_counts=True)
            for comm, calls_of in zip(comms.tolist(), number.tolist(), strict=True):
                comm_calls[comm] = comm_calls.get(comm, 0) + calls_of
            times = calls["start_ns"]
            scanned.first_ns = scanned.first_ns or int(times.min())
            latest = max(latest, _sane(times))
        if len(kernels):
            _count_kernels(scanned.census, kernels)
            latest = max(latest, _sane(kernels["seen_stop_ns"]))
        scanned.until_ns.append(latest)
    return scanned


def _sane(times: npt.NDArray[np.uint64]) -> int:
    credible = times[times < _LATEST_NS]
    return int(credible.max()) if len(credible) else 0


def _cells(pattern: npt.NDArray[np.uint8], size: npt.NDArray[np.uint64]) -> Ints:
    # frexp's exponent of a size is the number of its bits, for sizes below 2^53.
    bits = np.minimum(np.frexp(size.astype(np.float64))[1], CLASSES - 1)
    cells: Ints = np.minimum(pattern, KINDS - 1).astype(np.int64) * CLASSES + bits
    return cells


def _sum(cells: Ints, weights: npt.NDArray[np.uint64] | None = None) -> Ints:
    values = None if weights is None else weights.astype(np.float64)
    return np.bincount(cells, values, KINDS * CLASSES).astype(np.int64).reshape(KINDS, CLASSES)


def _count_calls(census: Census, calls: npt.NDArray[np.void]) -> None:
    size = calls["bytes"].copy()
    cells = _cells(calls["pattern"], size)
    captured = (calls["flags"] & records.FLAG_CAPTURED) != 0
    census.calls += _sum(cells)
    census.captured += _sum(cells[captured])
    census.call_bytes += _sum(cells, size)


def _count_kernels(census: Census, kernels: npt.NDArray[np.void]) -> None:
    start, stop = kernels["gpu_start_ns"], kernels["gpu_stop_ns"]
    sound = (start > 0) & (stop >= start)
    sound &= np.where(sound, stop - start, _HOUR_NS) < _HOUR_NS
    kernels = kernels[sound]
    size = kernels["bytes"].copy()
    cells = _cells(kernels["pattern"], size)
    census.kernels += _sum(cells)
    census.kernel_bytes += _sum(cells, size)
    census.duration_ns += _sum(cells, kernels["gpu_stop_ns"] - kernels["gpu_start_ns"])


def middle_of(path: Path, header_bytes: int, committed: int, count: int) -> tuple[int, int]:
    """When the records in a trace's middle, `count` of them, were made (host ns); (0, 0): none of them is a call."""
    if count >= committed:
        return 0, _LATEST_NS
    chunk = read_chunk(path, header_bytes, (committed - count) // 2, count)
    calls = chunk[chunk["kind"] == records.CALL].view(records.LAYOUTS[records.CALL])["start_ns"]
    kernels = chunk[chunk["kind"] == records.KERNEL].view(records.LAYOUTS[records.KERNEL])["seen_start_ns"]
    times = np.concatenate([calls, kernels])
    times = times[(times > 0) & (times < _LATEST_NS)]
    return (int(times.min()), int(times.max())) if len(times) else (0, 0)


def choose_window(scans: list[Scan], most_records: int, wanted: tuple[int, int] | None) -> tuple[int, int]:
    """From when until when (host ns) `most_records` bulky records fit: about the run's middle, or inside `wanted`."""
    grid = np.unique(np.concatenate([[scanned.first_ns, *scanned.until_ns] for scanned in scans]))
    counts = np.zeros(len(grid))
    for scanned in scans:
        times = np.array([scanned.first_ns, *scanned.until_ns], dtype=np.int64)
        counts += np.interp(grid - grid[0], times - grid[0], np.concatenate([[0], np.cumsum(scanned.rows)]))
    start, stop = 0.0, float(counts[-1])
    if wanted:
        start, stop = (float(v) for v in np.interp(np.array(wanted) - grid[0], grid - grid[0], counts))
        stop = min(stop, start + most_records)
    elif stop > most_records:
        start = (stop - most_records) / 2
        stop = start + most_records
    # Equal counts would leave it open when: stretches in which nothing was recorded are of no interest here.
    steps = np.maximum.accumulate(counts + np.arange(len(counts)) * 1e-9)
    begin, end = (int(v) + int(grid[0]) for v in np.interp([start, stop], steps, (grid - grid[0]).astype(np.float64)))
    return (max(begin, wanted[0]), min(end, wanted[1])) if wanted else (begin, end)


def read_window(
    path: Path, header_bytes: int, committed: int, scanned: Scan, window: tuple[int, int]
) -> tuple[npt.NDArray[np.void], dict[int, int]]:
    """The bulky records of a trace in about a window (host ns), all rare ones; and how many CALLs went before, by comm.

    Chunks are taken whole: consumers cut at the window's edges.
    """
    until = np.array(scanned.until_ns, dtype=np.int64)
    first = int(np.searchsorted(until, window[0]))
    last = min(int(np.searchsorted(until, window[1])), len(until) - 1)
    parts = list(scanned.rare)
    for index in range(first, last + 1):
        chunk = read_chunk(path, header_bytes, index * CHUNK, min(CHUNK, committed - index * CHUNK))
        parts.append(chunk[np.isin(chunk["kind"], BULKY)])
    before = scanned.comm_calls[first] if first < len(scanned.comm_calls) else {}
    return (np.concatenate(parts) if parts else np.empty(0, records.RECORD)), before
