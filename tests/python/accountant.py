# SPDX-License-Identifier: Apache-2.0
"""The books of a run, from its raw records alone: totals that every output of a run must agree with.

It follows docs/reference/trace-format.md and run-folder.md, uses the standard library, and imports nothing of powerccl.
So an error of the product's readers or analysis cannot repeat here. `audit.py` compares outputs with these books.
"""

from __future__ import annotations

import json
import re
import statistics
import struct
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

HEADER = struct.Struct("<8sIIIIiiiIQQQQQ64s48s20s16s16s32s16s16sI")
COMM, CALL, KERNEL, MPI_TOTAL, PROCESS, WAIT, PAUSE = 1, 2, 3, 8, 9, 10, 12
CAPTURED, HOST_TIMES = 0x01, 0x200
LAYOUTS = {
    COMM: struct.Struct("<QQiiii24s"),
    CALL: struct.Struct("<QQQQQIiBBBBI"),
    KERNEL: struct.Struct("<QQQQQQBBBBB3s"),
    MPI_TOTAL: struct.Struct("<QQQQQQHHB"),
    PROCESS: struct.Struct("<QQQQQQII"),
    WAIT: struct.Struct("<QQQQI"),
    PAUSE: struct.Struct("<QQQI"),
}
PATTERNS = ["all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "send_receive", "scatter", "gather"]
PATTERNS += ["all_to_all"]
SHARED = {"all_gather", "reduce_scatter", "all_to_all", "scatter", "gather"}
MPI_DEFINITION = Path(__file__).parents[2] / "native/abi/mpi_functions.def"
GAP_PERIODS = 3  # docs/concepts/energy-attribution.md: a longer time without samples is a gap
EDGE_NS = 200_000_000  # run-folder.md: a reading so near to a run's start or end is of it
EDGE_SHARE = 1 / 400  # of a run: so much may be without a reading at either end

Spans = list[tuple[int, int]]
Class = tuple[str, int]


@dataclass
class Trace:
    """One file: its header's fields, and (flags, communicator, values) of each record by kind."""

    path: Path
    host: str
    rank: int
    nranks: int
    gpu: str  # its UUID
    pci: str
    start_ns: int
    run_id: str
    whole: bool  # nothing was dropped or cut off
    records: dict[int, list[tuple[int, int, tuple[Any, ...]]]]

    def kernel_spans(self) -> Spans:
        """Times of all kernels on the host's clock; on the GPU's, if the host did not learn of any.

        A host learns late of a kernel, never early: the least difference is that of the clocks. It drifts, so the least
        of the first quarter and of the last one count.
        """
        kernels = [(flags, row) for flags, _, row in self.records[KERNEL] if row[2] >= row[1] > 0]
        seen = sorted((at, told - at) for flags, row in kernels if not flags & HOST_TIMES
                      for at, told in zip(row[1:3], row[3:5], strict=True) if told)  # fmt: skip
        if not seen:
            return [(row[1], row[2]) for _, row in kernels]
        few = max(len(seen) // 4, 1)
        (t0, d0), (t1, d1) = (min(part, key=lambda each: each[1]) for part in (seen[:few], seen[-few:]))
        slope = (d1 - d0) / (t1 - t0) if t1 > t0 else 0.0

        def ahead(flags: int, at: int) -> int:
            return 0 if flags & HOST_TIMES else d0 + round(slope * (at - t0))

        return [(row[1] + ahead(flags, row[1]), row[2] + ahead(flags, row[2])) for flags, row in kernels]


@dataclass
class GpuBook:
    """One GPU: its joules from the start to the end of the run, what they are uncertain by, and whether that is all."""

    joules: float = 0.0
    uncertain_joules: float = 0.0
    whole: bool = False
    communication_s: float = 0.0
    update_joules: float = 0.0  # the most between two changes of its counter
    samples: int = 0  # power samples
    sampled_watts: float = 0.0  # their sum


@dataclass
class ClassBook:
    """One pattern and size class, all ranks."""

    calls: int = 0
    captured: int = 0
    bytes: int = 0
    kernels: int = 0
    kernel_bytes: int = 0
    time_s: float = 0.0
    median_us: float | None = None
    busbw_gbs: float | None = None


@dataclass
class Books:
    """A run."""

    wall_s: float | None
    gpus: dict[tuple[str, str], GpuBook] = field(default_factory=dict)  # by host and UUID
    classes: dict[Class, ClassBook] = field(default_factory=dict)
    ranks: dict[tuple[str, int], list[Trace]] = field(default_factory=dict)  # traces by host and rank
    mpi: dict[str, float] = field(default_factory=dict)
    mpi_functions: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)
    mpi_ranks: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)
    cpu_s: float | None = None
    whole: bool = True  # every trace could be read to its end

    @property
    def joules(self) -> float | None:
        """All GPUs; None: of a part of them or of the time it is not known."""
        known = [gpu.joules for gpu in self.gpus.values() if gpu.whole]
        return sum(known) if known and len(known) == len(self.gpus) else None

    def total(self, name: str) -> float:
        """The sum of a field over all classes."""
        return float(sum(getattr(row, name) for row in self.classes.values()))


def text_of(raw: bytes) -> str:
    """A field that is padded with zeros."""
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


def read_trace(path: Path) -> Trace | None:
    """A trace; None: it is none of version 1."""
    data = path.read_bytes()
    if len(data) < 4096 or data[:8] != b"PWRCCLTR":
        return None
    head = HEADER.unpack_from(data)
    version, header_bytes, record_bytes = head[1:4]
    if (version, record_bytes) != (1, 64):
        return None
    committed, dropped = head[11], head[12]
    there = (len(data) - header_bytes) // 64
    records: dict[int, list[tuple[int, int, tuple[Any, ...]]]] = defaultdict(list)
    end = header_bytes + min(committed, there) * 64
    for at in range(header_bytes, end, 64):
        kind, flags, comm = struct.unpack_from("<HHI", data, at)
        if kind in LAYOUTS:
            records[kind].append((flags, comm, LAYOUTS[kind].unpack_from(data, at + 8)))
    whole = committed <= there and not dropped
    names = (text_of(head[14]), head[5], head[6], text_of(head[15]), text_of(head[16]), head[9], head[20].hex())
    return Trace(path, *names, whole, records)


def union(spans: Iterable[tuple[int, int]]) -> Spans:
    """Spans without their overlaps, in order."""
    found: Spans = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


def length_s(spans: Spans, begin: int = 0, end: int = 1 << 63) -> float:
    """Seconds of spans, of the part that is inside [begin, end)."""
    return sum(max(0, min(stop, end) - max(start, begin)) for start, stop in spans) / 1e9


def both(first: Spans, second: Spans) -> Spans:
    """Where two sets of spans, each without overlaps and in order, overlap."""
    found: Spans = []
    at = 0
    for start, stop in first:
        while at < len(second) and second[at][1] <= start:
            at += 1
        for other in second[at:]:
            if other[0] >= stop:
                break
            found.append((max(start, other[0]), min(stop, other[1])))
    return found


def size_class(size: int) -> int:
    """The largest power of two that is not above the size."""
    return 1 << (size.bit_length() - 1) if size else 0


def bus_factor(pattern: str, ranks: int) -> float:
    """docs/concepts/patterns.md."""
    return 2 * (ranks - 1) / ranks if pattern == "all_reduce" else (ranks - 1) / ranks if pattern in SHARED else 1.0


def book_classes(traces: Sequence[Trace]) -> dict[Class, ClassBook]:
    """Calls and kernels of all ranks."""
    found: dict[Class, ClassBook] = defaultdict(ClassBook)
    lengths: dict[Class, list[int]] = defaultdict(list)
    moved: dict[Class, list[float]] = defaultdict(list)
    for trace in traces:
        ranks = {comm: row[2] for _, comm, row in trace.records[COMM] if row[2] > 0}
        for flags, _, row in trace.records[CALL]:
            book = found[name_of(row[7]), size_class(row[3])]
            book.captured += bool(flags & CAPTURED)
            book.calls += not flags & CAPTURED
            book.bytes += row[3]
        for _, comm, row in trace.records[KERNEL]:
            key, length = (name_of(row[6]), size_class(row[5])), row[2] - row[1]
            if length < 0 or not row[1]:
                continue
            found[key].kernels += 1
            found[key].kernel_bytes += row[5]
            found[key].time_s += length / 1e9
            lengths[key].append(length)
            moved[key].append(row[5] * bus_factor(key[0], ranks.get(comm, max(trace.nranks, 1))))
    for key, values in lengths.items():
        found[key].median_us = statistics.median(values) / 1e3
        if median := statistics.median(values):
            found[key].busbw_gbs = statistics.median(moved[key]) / median
    return dict(found)


def name_of(pattern: int) -> str:
    """A pattern's name."""
    return PATTERNS[pattern] if pattern < len(PATTERNS) else "unknown"


class Meter:
    """One GPU's samples: power and counter readings, each with its time."""

    def __init__(self) -> None:
        self.power: list[tuple[int, float]] = []
        self.counter: list[tuple[int, int]] = []
        self.period_ns = 0

    def edges(self, begin: int, end: int) -> tuple[int, int, bool, bool]:
        """Which readings are of a run's start and end, as indices, and whether they are near enough to be that."""
        times = [time for time, _ in (self.counter if self.counts else self.power)]
        first, last = bisect_right(times, begin) - 1, bisect_left(times, end)
        at_start = first >= 0 and begin - times[first] <= EDGE_NS
        at_end = last < len(times) and times[last] - end <= EDGE_NS
        return (first if at_start else first + 1), (last if at_end else last - 1), at_start, at_end

    @property
    def counts(self) -> bool:
        """Whether there is a counter that moves."""
        return len({value for _, value in self.counter}) > 1

    def joules(self, begin: int, end: int) -> tuple[float, float]:
        """Joules from begin to end, and what they are uncertain by: what lies beyond the first and last reading.

        By the counter (run-folder.md): its reading at the end less that at the start, less what was used between these
        readings and the start and end, by the power of the same rows, but no further than the next reading within. By
        power: a straight line between two samples.
        """
        first, last, at_start, at_end = self.edges(begin, end)
        if self.counts:
            watts_at, values = dict(self.power), [value for _, value in self.counter]
            reach = self.counter[first][0], self.counter[last][0]
            start, stop = float(values[first]), float(values[last])
            if at_start:
                start = min(start + (begin - reach[0]) * watts_at.get(reach[0], 0.0) / 1e3, values[first + 1])
            if at_end:
                stop = max(stop - (reach[1] - end) * watts_at.get(reach[1], 0.0) / 1e3, values[last - 1])
            found = (stop - start) / 1e6
        else:
            points = self.power[first : last + 1]
            reach = points[0][0], points[-1][0]
            dated = [(min(max(time, begin), end), watts) for time, watts in points]
            found = sum((t1 - t0) * (p0 + p1) / 2e9 for (t0, p0), (t1, p1) in pairwise(dated))
        beyond = (0 if at_start else reach[0] - begin) + (0 if at_end else end - reach[1])
        return found, beyond / 1e9 * max(watts for _, watts in self.power)

    def whole(self, begin: int, end: int) -> bool:
        """Whether nothing is missing: no gap without a counter reading on both sides, none at the ends."""
        times = [time for time, _ in self.power]
        if len(times) < 2:
            return False
        period = max(self.period_ns, statistics.median(b - a for a, b in pairwise(times)))
        first, last, at_start, at_end = self.edges(begin, end)
        read = [time for time, _ in (self.counter if self.counts else self.power)]
        sliver = EDGE_SHARE * (end - begin)
        edges = (at_start or read[first] - begin <= sliver) and (at_end or end - read[last] <= sliver)
        gaps = [(a, b) for a, b in pairwise(times) if b - a > GAP_PERIODS * period]
        counted = self.counts and all(read[0] <= a and b <= read[-1] for a, b in gaps)
        return edges and (not gaps or counted)


def read_samples(path: Path) -> tuple[str, dict[str, Meter], dict[str, str]]:
    """The host, each GPU's meter by UUID, and UUIDs by PCI bus id."""
    about: dict[str, str] = {}
    columns: list[str] = []
    meters: dict[str, Meter] = defaultdict(Meter)
    for line in path.read_text(errors="replace").split("\n")[:-1]:  # a line without its end was cut off
        if line.startswith("#"):
            key, _, value = line[1:].partition(":")
            about[key.strip()] = value.strip()
        elif not columns:
            columns = line.split(",")
        elif len(cells := line.split(",")) == len(columns):
            row = dict(zip(columns, cells, strict=True))
            meter = meters[row["uuid"]]
            meter.period_ns = int(about.get("read_every_ns_power_mw") or about.get("interval_ns") or 0)
            if (power := row["power_mw"]) and 0 <= float(power) < 4e6:
                meter.power.append((int(row["time_ns"]), float(power) / 1e3))
            if int(row["energy_uj"]) >= 0:
                meter.counter.append((int(row["time_ns"]), int(row["energy_uj"])))
    uuids = {value: about[f"{key[:-4]}_uuid"] for key, value in about.items() if re.fullmatch(r"gpu\d+_pci", key)}
    return about.get("host", path.stem.removeprefix("power-")), dict(meters), uuids


def book_mpi(books: Books, traces: Sequence[Trace]) -> None:
    """Sums of MPI calls: the latest record of each thread, function, communicator and size class of a process."""
    functions = re.findall(r"^POWERCCL_MPI(?:_C)?\((\w+),", MPI_DEFINITION.read_text(), re.MULTILINE)
    names = ("calls", "bytes", "time_s", "wait_s", "sleep_s")
    scales = (1, 1, 1e-9, 1e-9, 1e-9)
    for trace in traces:
        latest: dict[tuple[int, ...], tuple[int, ...]] = {}
        for _, comm, row in trace.records[MPI_TOTAL]:
            key = (row[7], row[6], comm, row[8])
            if key not in latest or row[0] >= latest[key][0]:
                latest[key] = row
        for (_, function, _, size), row in latest.items():
            name = functions[function] if function < len(functions) else "?"
            values = (row[1], row[2], row[3], min(row[4], row[3]), row[5])
            for book in (
                books.mpi,
                books.mpi_functions.setdefault((f"MPI_{name}", 1 << (size - 1) if size else 0), {}),
                books.mpi_ranks.setdefault((trace.host, trace.rank), {}),
            ):
                for field_, value, scale in zip(names, values, scales, strict=True):
                    book[field_] = book.get(field_, 0) + value * scale
        if used := trace.records[PROCESS]:
            row = max((row for _, _, row in used), key=lambda each: each[0])
            books.cpu_s = (books.cpu_s or 0.0) + (row[1] + row[2]) / 1e9


def keep_books(folder: Path) -> Books:
    """The books of a run folder that is not damaged."""
    info = json.loads((folder / "run.json").read_text())
    read = [(path, read_trace(path)) for path in sorted(folder.glob("*.trace"))]
    own = str(info.get("run_id") or "")
    traces = [each for _, each in read if each and (not own or not int(each.run_id, 16) or each.run_id == own)]
    nccl = [trace for trace in traces if trace.path.name.startswith("rank-")]
    begin, end = int(info.get("start_ns") or 0), int(info.get("end_ns") or 0)
    books = Books((end - begin) / 1e9 if end > begin > 0 else None, classes=book_classes(nccl))
    books.whole = all(each and each.whole for _, each in read)
    book_mpi(books, [trace for trace in traces if trace.path.name.startswith("mpi-")])
    for trace in nccl:
        books.ranks.setdefault((trace.host, trace.rank), []).append(trace)
    meters: dict[tuple[str, str], Meter] = {}
    for path in sorted(folder.glob("power-*.csv")):
        host, found, uuids = read_samples(path)
        meters.update({(host, uuid): meter for uuid, meter in found.items()})
        for trace in nccl:  # one that does not know its UUID knows its bus id, which is its host's
            if trace.host == host and not trace.gpu:
                trace.gpu = uuids.get(trace.pci, "")
    kernels: dict[tuple[str, str], Spans] = defaultdict(list)
    for trace in nccl:
        kernels[trace.host, trace.gpu] += trace.kernel_spans()
    for key in kernels if nccl else meters:
        book = books.gpus[key] = GpuBook(communication_s=length_s(union(kernels[key]) if nccl else []))
        if (meter := meters.get(key)) is None or not meter.power:
            continue
        here = key[0] == info.get("host") and books.wall_s is not None
        span = (begin, end) if here else (meter.power[0][0], meter.power[-1][0])
        book.joules, book.uncertain_joules = meter.joules(*span)
        book.whole = meter.whole(*span)
        book.update_joules = max((b - a for (_, a), (_, b) in pairwise(meter.counter)), default=0) / 1e6
        book.samples, book.sampled_watts = len(meter.power), sum(watts for _, watts in meter.power)
    return books
