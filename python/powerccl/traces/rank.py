# SPDX-License-Identifier: Apache-2.0
"""One rank's trace file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from powerccl import clean
from powerccl.aliases import current_policy
from powerccl.files import MOST_TRACE, opened, read_into
from powerccl.quantities import plural
from powerccl.traces import records
from powerccl.traces.clock_domain import ClockMap, map_kernels
from powerccl.traces.sound import keep_sound, latest_ns

if TYPE_CHECKING:
    from powerccl.traces.large import Scan


class TraceError(ValueError):
    """A file that is not a trace this version can read. The text says why and names the file."""


@dataclass
class RankTrace:
    """What one rank recorded.

    `kinds[k]` is a structured array (records.LAYOUTS[k]) of this trace's records of kind k, in file order.
    """

    path: Path
    rank: int
    nranks: int
    local_rank: int
    pid: int
    start_ns: int
    start_realtime_ns: int
    dropped: int
    host: str
    gpu_uuid: str
    gpu_pci: str
    policy: str
    clock_client: str
    library: str
    dry: bool
    emulated: bool
    kinds: dict[int, npt.NDArray[np.void]]
    clock_map: ClockMap
    problems: list[str] = field(default_factory=list)
    # Of a trace read in part (large.py): CALLs of each communicator before the part, and the latest time in all.
    calls_before: dict[int, int] = field(default_factory=dict)
    latest_ns: int = 0
    run_id: str = ""  # of the run it belongs to; empty: it does not say
    boot_id: str = ""  # of its host: whose clocks are the same; empty: it does not say
    simulated: bool = False  # in virtual time, by powerccl-sim
    starts: int = 0  # how many times an elastic launcher had started this rank; 0: it does not say
    own_ns: int = 0  # what PowerCCL's own code took of the process's threads; 0: it does not say
    # Of several traces that are one rank's (incarnations.py): how many, the time between them, and the job's ranks in
    # each.
    incarnations: int = 1
    gaps: list[tuple[int, int]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    @property
    def gpu(self) -> str:
        """What to tell this rank's GPU by: its UUID, else its PCI address, else the rank."""
        return self.gpu_uuid or self.gpu_pci or f"rank {self.rank}"

    def last_ns(self) -> int:
        """Latest host time in any record but notes; the start if there is none."""
        latest = max(self.start_ns, self.latest_ns)
        for kind, names in records.HOST_TIMES.items():
            if names and kind != records.NOTE and len(self.kinds[kind]):
                latest = max(latest, int(self.kinds[kind][names[-1]].max()))
        return latest


def _by_kind(pieces: Iterable[npt.NDArray[np.void]]) -> dict[int, npt.NDArray[np.void]]:
    """Records by their kind; of unknown kinds none are kept."""
    parts: dict[int, list[npt.NDArray[np.void]]] = {kind: [] for kind in records.LAYOUTS}
    for piece in pieces:
        kind_of = piece["kind"].copy()
        for kind in np.flatnonzero(np.bincount(kind_of)).tolist():
            if kind in parts:
                parts[kind].append(piece[kind_of == kind])
    empty: npt.NDArray[np.void] = np.empty(0, records.RECORD)
    return {
        kind: (np.concatenate(parts.pop(kind)) if parts[kind] else empty).view(layout)
        for kind, layout in records.LAYOUTS.items()
    }


def _text(value: Any) -> str:
    return clean.field(bytes(value).split(b"\0", 1)[0].decode("utf-8", "replace"))


def read_header(path: Path) -> tuple[npt.NDArray[np.void], int, list[str]]:
    """A trace's header (one record of records.HEADER), how many records it has, and what is wrong with the two.

    Raises:
        TraceError: not a trace, a version this reader does not know, or cut off inside its header.
        OSError: the file cannot be opened.
    """
    header = np.zeros(1, records.HEADER)
    with opened(path, MOST_TRACE) as file:
        size_bytes = os.fstat(file).st_size
        if read_into(file, header.view(np.uint8), 0) < records.HEADER.itemsize:
            raise TraceError(f"{path.name}: {size_bytes} bytes: cut off inside its header")
    first = header[0]
    if bytes(first["magic"]) != records.MAGIC:
        raise TraceError(f"{path.name}: not a PowerCCL trace")
    if int(first["version"]) != records.VERSION:
        raise TraceError(f"{path.name}: trace version {first['version']}; this powerccl reads {records.VERSION}")
    if int(first["record_bytes"]) != records.RECORD_BYTES or not (
        records.HEADER.itemsize <= int(first["header_bytes"]) <= 1 << 20
    ):
        raise TraceError(f"{path.name}: header names records of {first['record_bytes']} bytes: damaged")
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
    path: Path, scanned: Scan | None = None, window: tuple[int, int] | None = None, length_ns: int = 0
) -> RankTrace:
    """Read a trace up to its last whole record; with `scanned` and `window` (host ns) only what large.py takes of it.

    `length_ns`: how long the run took, 0: not known. Records far outside of it are left out.

    Raises:
        TraceError: not a trace, a version this reader does not know, or cut off inside its header.
        OSError: the file cannot be opened.
    """
    headers, committed, problems = read_header(path)
    header = headers[0]
    header_bytes = int(header["header_bytes"])
    calls_before: dict[int, int] = {}
    if scanned is not None and window is not None:
        from powerccl.traces.large import read_window

        raw, calls_before = read_window(path, header_bytes, committed, scanned, window)
        kinds = _by_kind([raw])
        if scanned.lost_rare:
            problems.append(
                f"{path.name}: {plural(scanned.lost_rare, 'record')} of clocks, notes or sums are too many, left out"
            )
    else:
        from powerccl.traces.large import read_chunks

        read = 0

        def pieces() -> Iterator[npt.NDArray[np.void]]:
            nonlocal read
            for piece in read_chunks(path, header_bytes, committed):
                read += len(piece)
                yield piece

        kinds = _by_kind(pieces())
        if read < committed:
            problems.append(f"{path.name}: cut off while it was read: {read} of {plural(committed, 'record')}")
            committed = read
    unknown = committed - (scanned.known if scanned else sum(len(rows) for rows in kinds.values()))
    if unknown > 0:
        problems.append(f"{path.name}: {plural(unknown, 'record')} of kinds this version does not know, skipped")
    start_ns, said = keep_sound(kinds, int(header["start_ns"]), length_ns)
    problems += [f"{path.name}: {text}" for text in said]

    return RankTrace(
        path=path,
        rank=int(header["rank"]),
        nranks=int(header["nranks"]),
        local_rank=int(header["local_rank"]),
        pid=int(header["pid"]),
        start_ns=start_ns,
        start_realtime_ns=int(header["start_realtime_ns"]),
        dropped=int(header["dropped"]),
        host=_text(header["host"]),
        gpu_uuid=_text(header["gpu_uuid"]),
        gpu_pci=_text(header["gpu_pci"]),
        policy=current_policy(_text(header["policy"])),
        clock_client=_text(header["clock_client"]),
        library=_text(header["library"]),
        dry=bool(int(header["flags"]) & records.HEADER_FLAG_DRY),
        emulated=bool(int(header["flags"]) & records.HEADER_FLAG_EMULATED),
        kinds=kinds,
        clock_map=map_kernels(kinds[records.KERNEL]),
        problems=problems,
        calls_before=calls_before,
        latest_ns=latest_ns(scanned.until_ns[-1] if scanned and scanned.until_ns else 0, start_ns, length_ns),
        run_id=records.id_text(header["run_id"]),
        boot_id=records.id_text(header["boot_id"]),
        simulated=bool(int(header["flags"]) & records.HEADER_FLAG_SIMULATED),
        starts=int(header["starts"]),
        own_ns=int(header["own_ns"].sum()),
    )
