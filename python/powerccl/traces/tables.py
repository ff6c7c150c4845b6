# SPDX-License-Identifier: Apache-2.0
"""A run's records as polars tables, one row a record, all ranks together; times on the host's CLOCK_MONOTONIC, ns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from powerccl import patterns
from powerccl.traces import records

if TYPE_CHECKING:
    import numpy.typing as npt

    from powerccl.traces.folder import RunData
    from powerccl.traces.rank import RankTrace

# Words are kept as numbers with a dictionary: a million rows of Python strings take seconds and hundreds of megabytes.
PATTERN = pl.Enum([*patterns.PATTERNS, patterns.UNKNOWN])
ALGORITHM, PROTOCOL = pl.Enum(records.ALGORITHMS), pl.Enum(records.PROTOCOLS)
_CLASSES = np.array([1 << bit for bit in range(63)], dtype=np.int64)


def _frame(schema: dict[str, pl.DataType | type[pl.DataType]], parts: list[dict[str, object]]) -> pl.DataFrame:
    frames = [pl.DataFrame(part, schema=schema) for part in parts]
    return pl.concat(frames) if frames else pl.DataFrame(schema=schema)


def _owner(rank: RankTrace, rows: int) -> dict[str, object]:
    gpu = pl.Series([rank.gpu], dtype=pl.Categorical)
    return {"rank": np.full(rows, rank.rank), "gpu": gpu.new_from_index(0, rows) if rows else gpu.clear()}


def _int(column: object) -> object:
    return np.asarray(column).astype(np.int64)


def _class(size: object) -> object:
    sizes = np.asarray(size).astype(np.int64)
    index = np.searchsorted(_CLASSES, sizes, side="right")
    return np.where(index > 0, _CLASSES[np.maximum(index - 1, 0)], 0)


def comm_sizes(rank: RankTrace) -> dict[int, int]:
    """Ranks of each communicator of a trace, by its index."""
    return {int(row["comm"]): int(row["nranks"]) for row in rank.kinds[records.COMM] if int(row["nranks"]) > 0}


def _ranks(sizes: dict[int, int], rank: RankTrace, comms: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """How many ranks the communicator of each row has; as many as the trace's first where it is not known."""
    distinct, index = np.unique(comms, return_inverse=True)
    known = [sizes.get(comm, max(rank.nranks, 1)) for comm in distinct.tolist()]
    return np.array(known, dtype=np.int64)[index]


def _words(words: pl.Enum, numbers: npt.NDArray[np.uint8], unknown: int) -> pl.Series:
    """Numbers as words; those without one become the word of number `unknown`."""
    index = np.where(numbers < len(words.categories), numbers, unknown)
    return pl.Series(words.categories, dtype=words).gather(index)


def calls(run: RunData) -> pl.DataFrame:
    """Calls as made on the host.

    Columns: rank, gpu, comm, ranks, call_id, start_ns, stop_ns, bytes, size_class (bytes), pattern, group,
    received_kib (of an all-to-all put together from sends and receives; else 0), captured, grouped, managed,
    kernel_asked, symmetric, copy_engine (bool).
    """
    schema: dict[str, pl.DataType | type[pl.DataType]] = {
        "rank": pl.Int64,
        "gpu": pl.Categorical,
        "comm": pl.Int64,
        "ranks": pl.Int64,
        "call_id": pl.Int64,
        "start_ns": pl.Int64,
        "stop_ns": pl.Int64,
        "bytes": pl.Int64,
        "size_class": pl.Int64,
        "pattern": PATTERN,
        "group": pl.Int64,
        "received_kib": pl.Int64,
        "captured": pl.Boolean,
        "grouped": pl.Boolean,
        "managed": pl.Boolean,
        "kernel_asked": pl.Boolean,
        "symmetric": pl.Boolean,
        "copy_engine": pl.Boolean,
    }
    parts: list[dict[str, object]] = []
    for rank in run.ranks:
        rows = rank.kinds[records.CALL]
        sizes = comm_sizes(rank)
        flags = rows["flags"]
        parts.append(
            {
                **_owner(rank, len(rows)),
                "comm": _int(rows["comm"]),
                "ranks": _ranks(sizes, rank, rows["comm"]),
                "call_id": _int(rows["call_id"]),
                "start_ns": _int(rows["start_ns"]),
                "stop_ns": _int(rows["stop_ns"]),
                "bytes": _int(rows["bytes"]),
                "size_class": _class(rows["bytes"]),
                "pattern": _words(PATTERN, rows["pattern"], len(patterns.PATTERNS)),
                "group": _int(rows["group"]),
                "received_kib": _int(rows["received_kib"]),
                "captured": (flags & records.FLAG_CAPTURED) != 0,
                "grouped": (flags & records.FLAG_GROUPED) != 0,
                "managed": (flags & records.FLAG_MANAGED) != 0,
                "kernel_asked": (flags & records.FLAG_KERNEL_ASKED) != 0,
                "symmetric": (flags & records.FLAG_SYMMETRIC) != 0,
                "copy_engine": (flags & records.FLAG_COPY_ENGINE) != 0,
            }
        )
    return _frame(schema, parts)


def tags(run: RunData) -> pl.DataFrame:
    """Tags that the job has given its calls. Columns: rank, call_id, tag (never 0)."""
    schema: dict[str, pl.DataType | type[pl.DataType]] = {"rank": pl.Int64, "call_id": pl.Int64, "tag": pl.UInt64}
    parts: list[dict[str, object]] = []
    for rank in run.ranks:
        rows = rank.kinds[records.TAG]
        parts.append(
            {
                "rank": np.full(len(rows), rank.rank),
                "call_id": _int(rows["call_id"]),
                "tag": rows["tag"].astype(np.uint64),
            }
        )
    return _frame(schema, parts)


def kernels(run: RunData) -> pl.DataFrame:
    """Communication kernels as run on the GPU, mapped onto the host's clock.

    Columns: rank, gpu, comm, ranks, call_id, start_ns, stop_ns, duration_ns (GPU clock, undistorted by the map), bytes,
    size_class (bytes), pattern, algorithm, protocol, channels, grouped; of a send-receive, ranks of the communicator:
    sends_to, receives_from (-1: none, several, or an older trace).
    """
    schema: dict[str, pl.DataType | type[pl.DataType]] = {
        "rank": pl.Int64,
        "gpu": pl.Categorical,
        "comm": pl.Int64,
        "ranks": pl.Int64,
        "call_id": pl.Int64,
        "start_ns": pl.Int64,
        "stop_ns": pl.Int64,
        "duration_ns": pl.Int64,
        "bytes": pl.Int64,
        "size_class": pl.Int64,
        "pattern": PATTERN,
        "algorithm": ALGORITHM,
        "protocol": PROTOCOL,
        "channels": pl.Int64,
        "grouped": pl.Boolean,
        "sends_to": pl.Int64,
        "receives_from": pl.Int64,
    }
    parts: list[dict[str, object]] = []
    for rank in run.ranks:
        rows = rank.kinds[records.KERNEL]
        sizes = comm_sizes(rank)
        peers = rows["peers"].astype(np.int64)
        parts.append(
            {
                **_owner(rank, len(rows)),
                "comm": _int(rows["comm"]),
                "ranks": _ranks(sizes, rank, rows["comm"]),
                "call_id": _int(rows["call_id"]),
                "start_ns": rank.clock_map.to_host(rows["gpu_start_ns"]),
                "stop_ns": rank.clock_map.to_host(rows["gpu_stop_ns"]),
                "duration_ns": _int(rows["gpu_stop_ns"] - rows["gpu_start_ns"]),
                "bytes": _int(rows["bytes"]),
                "size_class": _class(rows["bytes"]),
                "pattern": _words(PATTERN, rows["pattern"], len(patterns.PATTERNS)),
                "algorithm": _words(ALGORITHM, rows["algorithm"], 0),
                "protocol": _words(PROTOCOL, rows["protocol"], 0),
                "channels": _int(rows["channels"]),
                "grouped": (rows["flags"] & records.FLAG_GROUPED) != 0,
                "sends_to": (peers[:, 0] | (peers[:, 1] & 15) << 8) - 1,
                "receives_from": (peers[:, 1] >> 4 | peers[:, 2] << 4) - 1,
            }
        )
    return _frame(schema, parts)


def waits(run: RunData) -> pl.DataFrame:
    """Where computation had nothing left to do but wait for a call's communication, one row a stream that waited.

    Columns: rank, gpu, comm, ranks, call_id, stall_ns, resume_ns (the host's clock; equal where the communication was
    over first), stream (that waited), burst (of recorded waits, counting up; 0: an older trace), pauses (bool: behind
    this burst waits were not recorded for a while).
    """
    schema: dict[str, pl.DataType | type[pl.DataType]] = {
        "rank": pl.Int64,
        "gpu": pl.Categorical,
        "comm": pl.Int64,
        "ranks": pl.Int64,
        "call_id": pl.Int64,
        "stall_ns": pl.Int64,
        "resume_ns": pl.Int64,
        "stream": pl.Int64,
        "burst": pl.Int64,
        "pauses": pl.Boolean,
    }
    parts: list[dict[str, object]] = []
    for rank in run.ranks:
        rows = rank.kinds[records.WAIT]
        sizes = comm_sizes(rank)
        parts.append(
            {
                **_owner(rank, len(rows)),
                "comm": _int(rows["comm"]),
                "ranks": _ranks(sizes, rank, rows["comm"]),
                **{name: _int(rows[name]) for name in ("call_id", "stall_ns", "resume_ns", "stream", "burst")},
                "pauses": np.isin(rows["burst"], rank.kinds[records.PAUSE]["burst"]),
            }
        )
    return _frame(schema, parts)


def budgets(run: RunData) -> pl.DataFrame:
    """What a policy that learns had come to, the latest of each trace: it counts from the start.

    Columns: rank, gpu, host, time_ns, calls (of an iteration; 0: none was found), iterations (seen), managed (of them),
    length_us (of an iteration), slowdown_ppm, low_ppm, high_ppm (99 % interval; null where it was not judged),
    clock_mhz (of managed iterations; 0: the default), dry (bool).
    """
    schema: dict[str, pl.DataType | type[pl.DataType]] = {"rank": pl.Int64, "gpu": pl.Categorical, "host": pl.String}
    numbers = ("time_ns", "calls", "iterations", "managed", "length_us")
    judged = ("slowdown_ppm", "low_ppm", "high_ppm")
    schema.update(dict.fromkeys((*numbers, *judged, "clock_mhz"), pl.Int64))
    schema["dry"] = pl.Boolean
    parts: list[dict[str, object]] = []
    for rank in run.ranks:
        rows = rank.kinds[records.BUDGET]
        if not len(rows):
            continue
        row = rows[-1:]
        parts.append(
            {
                **_owner(rank, 1),
                "host": rank.host,
                **{name: _int(row[name]) for name in (*numbers, "clock_mhz")},
                **{name: [int(row[name][0]) if row["judged"][0] else None] for name in judged},
                "dry": [rank.dry],
            }
        )
    return _frame(schema, parts)


def clocks(run: RunData) -> pl.DataFrame:
    """Clock requests.

    Columns: rank, gpu, call_id, asked_ns, begin_ns, end_ns, min_mhz, max_mhz (0: reset), result (0 or the driver's
    error), read_back_mhz (0: not read), coalesced, dry.
    """
    schema: dict[str, pl.DataType | type[pl.DataType]] = {"rank": pl.Int64, "gpu": pl.Categorical}
    names = (
        "call_id",
        "asked_ns",
        "begin_ns",
        "end_ns",
        "min_mhz",
        "max_mhz",
        "result",
        "read_back_mhz",
        "coalesced",
    )
    schema.update(dict.fromkeys(names, pl.Int64))
    schema["dry"] = pl.Boolean
    parts: list[dict[str, object]] = []
    for rank in run.ranks:
        rows = rank.kinds[records.CLOCK]
        parts.append(
            {
                **_owner(rank, len(rows)),
                **{name: _int(rows[name]) for name in names},
                "dry": (rows["flags"] & records.FLAG_DRY) != 0,
            }
        )
    return _frame(schema, parts)


def notes(run: RunData) -> pl.DataFrame:
    """What the runtime had to say. Columns: rank, gpu, time_ns, text."""
    schema: dict[str, pl.DataType | type[pl.DataType]] = {
        "rank": pl.Int64,
        "gpu": pl.Categorical,
        "time_ns": pl.Int64,
        "text": pl.String,
    }
    parts: list[dict[str, object]] = []
    for rank in run.ranks:
        rows = rank.kinds[records.NOTE]
        parts.append(
            {
                **_owner(rank, len(rows)),
                "time_ns": _int(rows["time_ns"]),
                "text": [bytes(text).decode("utf-8", "replace") for text in rows["text"].tolist()],
            }
        )
    return _frame(schema, parts)
