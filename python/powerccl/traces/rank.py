# SPDX-License-Identifier: Apache-2.0
"""One rank's trace file."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from powerccl.files import MOST_TRACE
from powerccl.quantities import plural
from powerccl.traces import records
from powerccl.traces.clock_domain import ClockMap, map_kernels, to_gpu_times
from powerccl.traces.header import TraceHeader, header_fault, parse_header
from powerccl.traces.run_files import opened
from powerccl.traces.sound import keep_sound, latest_ns

if TYPE_CHECKING:
    from powerccl.traces.large import Scan


# Kinds with records for each call, which a large run has millions of.
PER_CALL = (records.CALL, records.KERNEL, records.WAIT, records.CALLBACK, records.TAG)


class TraceError(ValueError):
    """A file that is not a trace this version can read. The text says why and names the file."""


@dataclass(kw_only=True)
class RankTrace(TraceHeader):
    """What one rank recorded.

    `kinds[k]` is a structured array (records.LAYOUTS[k]) of this trace's records of kind k, in file order. `rank` is
    unique in the run (identity.py): where jobs repeat numbers, the others' are counted on.
    """

    path: Path
    dropped: int
    kinds: dict[int, npt.NDArray[np.void]]
    clock_map: ClockMap
    problems: list[str] = field(default_factory=list)
    # Of a trace read in part (large.py): CALLs of each communicator before the part, and the latest time in all.
    calls_before: dict[int, int] = field(default_factory=dict)
    latest_ns: int = 0
    incomplete: bool = False  # records are missing: the file is cut off, or had no room for them
    own_ns: int = 0  # what PowerCCL's own code took of the process's threads; 0: it does not say
    # Of several traces that are one rank's (incarnations.py): how many, the time between them, and the job's ranks in
    # each.
    incarnations: int = 1
    gaps: list[tuple[int, int]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    number: int = field(init=False)  # the rank as its job counts
    job: int = 0  # of the run's jobs, counted from 0
    rank_name: str = ""  # how to print the rank of several hosts, or jobs: "0 on node2"
    records: int = 0  # in the file
    # Reads all records again, where `kinds` has those of PER_CALL from a part of the time only; None: it has all.
    load: Callable[[], dict[int, npt.NDArray[np.void]]] | None = None

    def __post_init__(self) -> None:
        self.number = self.rank

    def whole(self) -> RankTrace:
        """The trace with all of its records; they are read again where not all were kept."""
        trace = copy.copy(self)
        trace.kinds = dict(self.kinds)
        if self.load is not None:
            trace.kinds, trace.calls_before, trace.load = self.load(), {}, None
        return trace

    def last_ns(self) -> int:
        """Latest host time in any record but notes; the start if there is none."""
        latest = max(self.start_ns, self.latest_ns)
        for kind, names in records.HOST_TIMES.items():
            if names and kind != records.NOTE and len(self.kinds[kind]):
                latest = max(latest, int(self.kinds[kind][names[-1]].max()))
        return latest


def _by_kind(pieces: Iterable[npt.NDArray[np.void]], most: int) -> dict[int, npt.NDArray[np.void]]:
    """Records by their kind, `most` in all; of unknown kinds none are kept.

    Each kind has room for all that may follow. Memory that is never written to is none, and nothing is there twice.
    """
    kinds: dict[int, npt.NDArray[np.void]] = {}
    filled: dict[int, int] = {}
    seen = 0
    for piece in pieces:
        kind_of = piece["kind"].copy()
        for kind in np.flatnonzero(np.bincount(kind_of)).tolist():
            if kind not in records.LAYOUTS:
                continue
            if kind not in kinds:
                kinds[kind], filled[kind] = np.empty(most - seen, records.RECORD), 0
            rows = piece[kind_of == kind]
            kinds[kind][filled[kind] : filled[kind] + len(rows)] = rows
            filled[kind] += len(rows)
        seen += len(piece)
    empty: npt.NDArray[np.void] = np.empty(0, records.RECORD)
    kept = {kind: rows[: filled[kind]] for kind, rows in kinds.items()}
    few = {kind: rows.copy() for kind, rows in kept.items() if 2 * len(rows) < len(kinds[kind])}
    return {kind: (kept | few).get(kind, empty).view(layout) for kind, layout in records.LAYOUTS.items()}


def read_header(path: Path) -> tuple[npt.NDArray[np.void], int, list[str]]:
    """A trace's header (one record of records.HEADER), how many records it has, and what is wrong with the two.

    Raises:
        TraceError: not a trace, a version this reader does not know, or cut off inside its header.
        OSError: the file cannot be opened.
    """
    header = np.zeros(1, records.HEADER)
    with opened(path, MOST_TRACE) as file:
        size_bytes = file.size
        if file.read_into(header.view(np.uint8), 0) < records.HEADER.itemsize:
            raise TraceError(f"{path.name}: {size_bytes} bytes: cut off inside its header")
    first = header[0]
    if fault := header_fault(first):
        raise TraceError(f"{path.name}: {fault}")
    problems: list[str] = []
    present = max(0, size_bytes - int(first["header_bytes"])) // records.RECORD_BYTES
    committed = int(first["committed"])
    if committed > present:
        problems.append(f"{path.name}: {plural(committed, 'record')} committed, {present} in the file: cut off")
        committed = present
    if first["dropped"]:
        problems.append(f"{path.name}: {first['dropped']} records dropped; notes in the trace give the reason")
    return header, committed, problems


def read_rank(
    path: Path,
    scanned: Scan | None = None,
    window: tuple[int, int] | None = None,
    length_ns: int = 0,
    part: tuple[int, int] | None = None,
) -> RankTrace:
    """Read a trace up to its last whole record; with `scanned` and `window` (host ns) only what large.py takes of it.

    `length_ns`: how long the run took, 0: not known. Records far outside of it are left out.
    `part`: host ns; of the kinds of PER_CALL only records from then are kept (RankTrace.load).

    Raises:
        TraceError: not a trace, a version this reader does not know, or cut off inside its header.
        OSError: the file cannot be opened.
    """
    headers, committed, problems = read_header(path)
    header = headers[0]
    header_bytes = int(header["header_bytes"])
    calls_before: dict[int, int] = {}
    blank = 0  # records that were never written
    if scanned is not None and window is not None:
        from powerccl.traces.large import read_window

        raw, calls_before = read_window(path, header_bytes, committed, scanned, window)
        kinds = _by_kind([raw], len(raw))
        if scanned.lost_rare:
            problems.append(
                f"{path.name}: {plural(scanned.lost_rare, 'record')} of clocks, notes or sums are too many, left out"
            )
    else:
        kinds, read, blank = _read_kinds(path, header_bytes, committed)
        if read < committed:
            problems.append(f"{path.name}: cut off while it was read: {read} of {plural(committed, 'record')}")
            committed = read
    unknown = committed - (scanned.known if scanned else sum(len(rows) for rows in kinds.values()))
    if unknown > 0:
        problems.append(f"{path.name}: {plural(unknown, 'record')} of kinds this version does not know, skipped")
    header_ns = int(header["start_ns"])
    start_ns, said = keep_sound(kinds, header_ns, length_ns)
    problems += [f"{path.name}: {text}" for text in said]
    clock_map = map_kernels(kinds[records.KERNEL])
    trace = RankTrace(
        **{**vars(parse_header(header)), "start_ns": start_ns},
        path=path,
        dropped=int(header["dropped"]),
        kinds=kinds,
        clock_map=clock_map,
        problems=problems,
        calls_before=calls_before,
        incomplete=bool(header["dropped"]) or blank > 0 or committed < int(header["committed"]),
        latest_ns=latest_ns(scanned.until_ns[-1] if scanned and scanned.until_ns else 0, start_ns, length_ns),
        own_ns=int(header["own_ns"].sum()),
        records=committed,
    )
    if part is None:
        return trace

    def load() -> dict[int, npt.NDArray[np.void]]:
        kinds, *_ = _read_kinds(path, header_bytes, committed)
        keep_sound(kinds, header_ns, length_ns)
        to_gpu_times(kinds[records.KERNEL], clock_map)
        return kinds

    trace.latest_ns = trace.last_ns()
    trace.kinds, trace.calls_before = _part_of(trace, part)
    trace.load = load
    return trace


def _read_kinds(path: Path, header_bytes: int, committed: int) -> tuple[dict[int, npt.NDArray[np.void]], int, int]:
    """Records by kind, how many were read, and how many of these were never written."""
    from powerccl.traces.large import read_chunks

    read = blank = 0

    def pieces() -> Iterator[npt.NDArray[np.void]]:
        nonlocal read, blank
        for piece in read_chunks(path, header_bytes, committed):
            read += len(piece)
            blank += int((piece["kind"] == 0).sum())
            yield piece

    return _by_kind(pieces(), committed), read, blank


def _part_of(trace: RankTrace, part: tuple[int, int]) -> tuple[dict[int, npt.NDArray[np.void]], dict[int, int]]:
    """Kernels that began in the part, and the records of their calls; how many calls each communicator made before."""
    kernels, calls = trace.kinds[records.KERNEL], trace.kinds[records.CALL]
    start = trace.clock_map.to_host(kernels["gpu_start_ns"])
    inside = (start >= part[0]) & (start <= part[1])
    named = kernels["call_id"][inside]
    if not len(named):
        named = calls["call_id"][(calls["start_ns"] >= part[0]) & (calls["start_ns"] <= part[1])]
    live = named[np.isin(named, calls["call_id"][(calls["flags"] & records.FLAG_CAPTURED) == 0])]
    first, last = (int(live.min()), int(live.max())) if len(live) else (1, 0)
    kinds = dict(trace.kinds)
    for kind in PER_CALL:
        rows = kinds[kind]
        ids = rows["call_id"]
        kept = inside if kind == records.KERNEL else ((ids >= first) & (ids <= last)) | np.isin(ids, named)
        kinds[kind] = rows[kept]
    left_out = (calls["call_id"] < first) & ~np.isin(calls["call_id"], named)
    comms, counts = np.unique(calls["comm"][left_out], return_counts=True)
    return kinds, dict(zip(comms.tolist(), counts.tolist(), strict=True))
