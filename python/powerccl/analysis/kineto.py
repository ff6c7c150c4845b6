# SPDX-License-Identifier: Apache-2.0
"""Computation from a PyTorch profiler's trace (chrome's JSON, as torch.profiler exports it), on the run's clock.

The profiler counts time from an origin of its own. NCCL's kernels are in its trace and in ours. The difference of their
starts that most of them agree on ties the two clocks together.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.files import MOST_PROFILE, read_bytes
from powerccl.quantities import percent

COMPUTING = {"kernel", "gpu_memset", "gpu_memcpy"}
_NCCL = re.compile(r"nccl", re.IGNORECASE)
MOST_PAIRED = 512  # of the profiler's NCCL kernels, for finding the offset
BIN_NS = 100_000
MOST_US = 3e15  # a century, and since 1970 it is half of one
CLOSE_NS = 50_000
AGREE = 0.5  # of the profiler's NCCL kernels must be found in the run

Ints = npt.NDArray[np.int64]


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float | str = 0.0
    dur: float = 0.0


class _Distributed(msgspec.Struct):
    rank: int | None = None


class _Trace(msgspec.Struct):
    traceEvents: list[_Event] = []  # noqa: N815 - the format's own name
    distributedInfo: _Distributed | None = None  # noqa: N815


@dataclass
class Profiled:
    """One rank's profile on the run's clock (host ns). `matched_pct`: of its NCCL kernels, found in the run."""

    rank: int
    computation: iv.Intervals
    start_ns: int
    stop_ns: int
    matched_pct: float
    off_us: float


def read_kineto(path: Path, rank: int | None, kernels: pl.DataFrame, numbers: Mapping[int, int]) -> Profiled:
    """Read a profiler's trace of `rank` (None: as the trace says) and put it on the clock of traces.tables.kernels.

    `numbers`: of the run's ranks, what their jobs count them as. Where jobs repeat numbers, the rank with most of the
    profiler's kernels is taken.

    Raises:
        ValueError: no such trace, no computation or no NCCL kernel in it, or not of this run; the text says which.
        OSError: the file cannot be read.
    """
    data = read_bytes(path, MOST_PROFILE)
    if data[:2] == b"\x1f\x8b":
        try:
            data = _unpacked(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path.name}: damaged: {error}") from error
    try:
        trace = msgspec.json.decode(data, type=_Trace, strict=False)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise ValueError(f"{path.name} is no trace of torch.profiler: {error}") from error
    del data
    if rank is None:
        rank = trace.distributedInfo.rank if trace.distributedInfo else None
    if rank is None:
        raise ValueError(f"{path.name} names no rank: add the rank to the file name, {path.name}:0")
    events = [event for event in trace.traceEvents if event.ph == "X" and event.cat in COMPUTING]
    is_nccl = [bool(_NCCL.search(event.name)) and event.cat == "kernel" for event in events]
    # Microseconds since 1970 with three decimals are at the end of what a double holds: take the origin off first.
    try:
        start = np.array([float(event.ts) for event in events])
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
    if not all(0 <= event.dur < MOST_US for event in events) or not (np.abs(start) < MOST_US).all():
        raise ValueError(f"{path.name}: damaged: times beyond a hundred years")
    if not len(start):
        raise ValueError(f"{path.name} has no kernel: profile with ProfilerActivity.CUDA")
    origin = float(np.floor(start.min()))
    begin = np.rint((start - origin) * 1e3).astype(np.int64)
    end = begin + np.rint([event.dur * 1e3 for event in events]).astype(np.int64)
    nccl = np.array(is_nccl)
    if not nccl.any():
        raise ValueError(f"{path.name} has no NCCL kernel: nothing ties its clock to the run's")
    candidates: list[tuple[int, int, float, float]] = []
    for each in (each for each, number in numbers.items() if number == rank):
        rank_kernels = kernels.filter(pl.col("rank") == each).sort("start_ns")
        if len(rank_kernels):
            times = rank_kernels["start_ns"].to_numpy(), rank_kernels["duration_ns"].to_numpy()
            candidates.append((each, *align(begin[nccl], (end - begin)[nccl], *times)))
    if not candidates:
        raise ValueError(f"{path.name}: the run has no timed kernel of rank {rank}")
    each, offset, matched, off = max(candidates, key=lambda one: one[2])
    if matched < AGREE:
        raise ValueError(
            f"{path.name}: only {percent(100 * matched)} of its NCCL kernels are in the run's trace of rank {rank}:"
            " another run or rank, or too few kernels were timed (POWERCCL_KERNEL_EVENTS=all times them all)"
        )
    computing = iv.union(begin[~nccl] + offset, end[~nccl] + offset)
    return Profiled(each, computing, int(begin.min()) + offset, int(end.max()) + offset, 100 * matched, off / 1e3)


def _unpacked(data: bytes) -> bytes:
    """What is in a gzip file, up to MOST_PROFILE: a few MiB may hold very much."""
    with gzip.open(io.BytesIO(data)) as file:
        unpacked = file.read(MOST_PROFILE + 1)
    if len(unpacked) > MOST_PROFILE:
        raise OSError(f"more than {MOST_PROFILE:,} bytes when unpacked")
    return unpacked


def align(torch_ns: Ints, their_lengths: Ints, nccl_ns: Ints, our_lengths: Ints) -> tuple[int, float, float]:
    """The offset from `torch_ns` to `nccl_ns` (starts, ns, ascending or not). Then the share of torch's that have
    a counterpart within CLOSE_NS, and the median distance, ns. Kernels of one another are as long as each other.
    """
    order = np.argsort(torch_ns)
    torch_ns, their_lengths = torch_ns[order], their_lengths[order]
    picked = np.linspace(0, len(torch_ns) - 1, min(len(torch_ns), MOST_PAIRED)).astype(np.int64)
    apart: list[Ints] = []
    for start, length in zip(torch_ns[picked].tolist(), their_lengths[picked].tolist(), strict=True):
        alike = np.abs(our_lengths - length) < 0.1 * length + 5_000
        apart.append(nccl_ns[alike] - start)
    differences = np.concatenate(apart)
    if not len(differences):
        return 0, 0.0, 0.0
    bins, counts = np.unique(differences // BIN_NS, return_counts=True)
    # A peak may be across the edge of two bins; of several as high, as in a periodic job, the closest fit counts.
    both = counts + np.where(np.append(np.diff(bins) == 1, False), np.append(counts[1:], 0), 0)
    best = (0, 0.0, 0.0)
    for at in np.argsort(-both, kind="stable")[:16].tolist():
        near = differences[(differences >= bins[at] * BIN_NS) & (differences < (bins[at] + 2) * BIN_NS)]
        offset = int(np.median(near))
        index = np.clip(np.searchsorted(nccl_ns, torch_ns + offset), 1, max(len(nccl_ns) - 1, 1))
        last = len(nccl_ns) - 1
        distance = np.minimum(
            np.abs(nccl_ns[np.minimum(index, last)] - torch_ns - offset), np.abs(nccl_ns[index - 1] - torch_ns - offset)
        )
        close = distance < CLOSE_NS
        share = float(close.mean())
        off = float(np.median(distance[close])) if close.any() else 0.0
        if share > best[1] + 1e-9 or (share == best[1] and share > 0 and off < best[2]):
            best = (offset, share, off)
    return best
