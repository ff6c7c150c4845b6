# SPDX-License-Identifier: Apache-2.0
"""A run's records as polars tables, one row a record, all ranks together; times on the host's CLOCK_MONOTONIC, ns."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from powerccl import patterns
from powerccl.traces import records

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from powerccl.traces.folder import RunData
    from powerccl.traces.rank import RankTrace

# Words are kept as numbers with a dictionary: a million rows of Python strings take seconds and hundreds of megabytes.
PATTERN = pl.Enum([*patterns.PATTERNS, patterns.UNKNOWN])
ALGORITHM, PROTOCOL = pl.Enum(records.ALGORITHMS), pl.Enum(records.PROTOCOLS)
_CLASSES = np.array([1 << bit for bit in range(63)], dtype=np.int64)


Schema = dict[str, "pl.DataType | type[pl.DataType]"]
GPU = "gpu"
RANK = "rank"  # the column that tells the ranks of a run apart
_OWNER: Schema = {RANK: pl.Int64, GPU: pl.Categorical}
_CALL_FLAGS = {
    "captured": records.FLAG_CAPTURED,
    "grouped": records.FLAG_GROUPED,
    "managed": records.FLAG_MANAGED,
    "kernel_asked": records.FLAG_KERNEL_ASKED,
    "symmetric": records.FLAG_SYMMETRIC,
    "copy_engine": records.FLAG_COPY_ENGINE,
}


def frame(schema: Schema, parts: list[dict[str, Any]]) -> pl.DataFrame:
    """A table of these parts, one below the other. Of a column of an Enum, they have the numbers of its words.

    Columns are put together before polars sees them. A table for each of a thousand ranks takes seconds to make. All
    that is done with a table of a thousand pieces takes far longer.
    """
    if not parts:
        return pl.DataFrame(schema=schema)
    columns = {name: _joined(kind, [part[name] for part in parts]) for name, kind in schema.items()}
    return pl.DataFrame(columns, schema=schema)


def _joined(kind: pl.DataType | type[pl.DataType], columns: list[Any]) -> object:
    if not isinstance(columns[0], np.ndarray):
        return list(chain.from_iterable(columns))
    values = columns[0] if len(columns) == 1 else np.concatenate(columns)
    return pl.Series(kind.categories, dtype=kind).gather(values) if isinstance(kind, pl.Enum) else values


def by_rank(table: pl.DataFrame, *columns: str) -> dict[int, pl.DataFrame]:
    """The rows of each rank, in order; with `columns`, only these. One pass, where filters take one each."""
    return {int(rank): rows for (rank,), rows in _parts(table, RANK, columns).items()}


def by_gpu(table: pl.DataFrame, *columns: str) -> dict[str, pl.DataFrame]:
    """The same of each GPU."""
    return {str(gpu): rows for (gpu,), rows in _parts(table, GPU, columns).items()}


def _parts(table: pl.DataFrame, key: str, columns: tuple[str, ...]) -> dict[tuple[Any, ...], pl.DataFrame]:
    chosen = table.select(key, *columns) if columns else table
    return chosen.partition_by(key, as_dict=True, maintain_order=True)


def _ints(*names: str) -> Schema:
    return dict.fromkeys(names, pl.Int64)


def _table(
    run: RunData,
    kind: int,
    schema: Schema,
    columns: Callable[[RankTrace, npt.NDArray[np.void]], Mapping[str, object]] = lambda rank, rows: {},
    rows_of: slice = slice(None),
) -> pl.DataFrame:
    """The records of a kind. A column that `columns` does not give is the record's field of that name."""
    rank_rows = [(rank, rank.kinds[kind][rows_of]) for rank in run.ranks]
    rank_rows = [(rank, rows) for rank, rows in rank_rows if len(rows)]
    without_gpu = {name: dtype for name, dtype in schema.items() if name != GPU}
    parts: list[dict[str, Any]] = []
    for rank, rows in rank_rows:
        given = {**_owner(rank, rows), **columns(rank, rows)}
        parts.append({name: given[name] if name in given else rows[name].astype(np.int64) for name in without_gpu})
    gpus = pl.Series([rank.gpu for rank, _ in rank_rows], dtype=pl.Categorical)
    of_rows = gpus.gather(np.repeat(np.arange(len(rank_rows)), [len(rows) for _, rows in rank_rows]))
    return frame(without_gpu, parts).with_columns(of_rows.alias(GPU)).select(*schema)


def _owner(rank: RankTrace, rows: npt.NDArray[np.void]) -> dict[str, object]:
    """Columns of every table: whose the rows are, and how many ranks their communicators have."""
    columns: dict[str, object] = {RANK: np.full(len(rows), rank.rank)}
    if "comm" in (rows.dtype.names or ()):
        columns["ranks"] = _ranks(comm_sizes(rank), rank, rows["comm"])
    return columns


def _class(size: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    sizes = size.astype(np.int64)
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


def _words(words: pl.Enum, numbers: npt.NDArray[np.uint8], unknown: int) -> npt.NDArray[np.uint8]:
    """Numbers of words; those without one become `unknown`."""
    return np.where(numbers < len(words.categories), numbers, np.uint8(unknown))


def calls(run: RunData) -> pl.DataFrame:
    """Calls as made on the host.

    Columns: rank, gpu, comm, ranks, call_id, start_ns, stop_ns, bytes, size_class (bytes), pattern, group,
    received_kib (of an all-to-all put together from sends and receives; else 0), captured, grouped, managed,
    kernel_asked, symmetric, copy_engine (bool).
    """
    schema: Schema = {
        **_OWNER,
        **_ints("comm", "ranks", "call_id", "start_ns", "stop_ns", "bytes", "size_class"),
        "pattern": PATTERN,
        **_ints("group", "received_kib"),
        **dict.fromkeys(_CALL_FLAGS, pl.Boolean),
    }
    return _table(
        run,
        records.CALL,
        schema,
        lambda rank, rows: {
            "size_class": _class(rows["bytes"]),
            "pattern": _words(PATTERN, rows["pattern"], len(patterns.PATTERNS)),
            **{name: (rows["flags"] & flag) != 0 for name, flag in _CALL_FLAGS.items()},
        },
    )


def tags(run: RunData) -> pl.DataFrame:
    """Tags that the job has given its calls. Columns: rank, call_id, tag (never 0)."""
    schema: Schema = {**_ints("rank", "call_id"), "tag": pl.UInt64}
    return _table(run, records.TAG, schema, lambda rank, rows: {"tag": rows["tag"].astype(np.uint64)})


def kernels(run: RunData) -> pl.DataFrame:
    """Communication kernels as run on the GPU, mapped onto the host's clock.

    Columns: rank, gpu, comm, ranks, call_id, start_ns, stop_ns, duration_ns (GPU clock, undistorted by the map), bytes,
    size_class (bytes), pattern, algorithm, protocol, channels, grouped; of a send-receive, ranks of the communicator:
    sends_to, receives_from (-1: none, several, or an older trace).
    """
    schema: Schema = {
        **_OWNER,
        **_ints("comm", "ranks", "call_id", "start_ns", "stop_ns", "duration_ns", "bytes", "size_class"),
        "pattern": PATTERN,
        "algorithm": ALGORITHM,
        "protocol": PROTOCOL,
        "channels": pl.Int64,
        "grouped": pl.Boolean,
        **_ints("sends_to", "receives_from"),
    }

    def columns(rank: RankTrace, rows: npt.NDArray[np.void]) -> dict[str, object]:
        peers = rows["peers"].astype(np.int64)
        return {
            "start_ns": rank.clock_map.to_host(rows["gpu_start_ns"]),
            "stop_ns": rank.clock_map.to_host(rows["gpu_stop_ns"]),
            "duration_ns": (rows["gpu_stop_ns"] - rows["gpu_start_ns"]).astype(np.int64),
            "size_class": _class(rows["bytes"]),
            "pattern": _words(PATTERN, rows["pattern"], len(patterns.PATTERNS)),
            "algorithm": _words(ALGORITHM, rows["algorithm"], 0),
            "protocol": _words(PROTOCOL, rows["protocol"], 0),
            "grouped": (rows["flags"] & records.FLAG_GROUPED) != 0,
            "sends_to": (peers[:, 0] | (peers[:, 1] & 15) << 8) - 1,
            "receives_from": (peers[:, 1] >> 4 | peers[:, 2] << 4) - 1,
        }

    return _table(run, records.KERNEL, schema, columns)


def waits(run: RunData) -> pl.DataFrame:
    """Where computation had nothing left to do but wait for a call's communication, one row a stream that waited.

    Columns: rank, gpu, comm, ranks, call_id, stall_ns, resume_ns (the host's clock; equal where the communication was
    over first), stream (that waited), burst (of recorded waits, counting up; 0: an older trace), pauses (bool: behind
    this burst waits were not recorded for a while).
    """
    names = ("comm", "ranks", "call_id", "stall_ns", "resume_ns", "stream", "burst")
    return _table(
        run,
        records.WAIT,
        {**_OWNER, **_ints(*names), "pauses": pl.Boolean},
        lambda rank, rows: {"pauses": np.isin(rows["burst"], rank.kinds[records.PAUSE]["burst"])},
    )


def budgets(run: RunData) -> pl.DataFrame:
    """What a policy that learns had come to, the latest of each trace: it counts from the start.

    Columns: rank, gpu, host, time_ns, calls (of an iteration; 0: none was found), iterations (seen), managed (of them),
    length_us (of an iteration), slowdown_ppm, low_ppm, high_ppm (99 % interval; null where it was not judged),
    clock_mhz (of managed iterations; 0: the default), dry (bool).
    """
    numbers = ("time_ns", "calls", "iterations", "managed", "length_us")
    judged = ("slowdown_ppm", "low_ppm", "high_ppm")
    schema: Schema = {**_OWNER, "host": pl.String, **_ints(*numbers, *judged, "clock_mhz"), "dry": pl.Boolean}

    def columns(rank: RankTrace, rows: npt.NDArray[np.void]) -> dict[str, object]:
        return {
            "host": [rank.host] * len(rows),
            **{name: [int(row[name]) if row["judged"] else None for row in rows] for name in judged},
            "dry": [rank.dry] * len(rows),
        }

    return _table(run, records.BUDGET, schema, columns, slice(-1, None))


def clocks(run: RunData) -> pl.DataFrame:
    """Clock requests.

    Columns: rank, gpu, call_id, asked_ns, begin_ns, end_ns, min_mhz, max_mhz (0: reset), result (0 or the driver's
    error), read_back_mhz (0: not read), coalesced, dry.
    """
    times, bounds = ("call_id", "asked_ns", "begin_ns", "end_ns"), ("min_mhz", "max_mhz")
    schema: Schema = {**_OWNER, **_ints(*times, *bounds, "result", "read_back_mhz", "coalesced"), "dry": pl.Boolean}
    return _table(run, records.CLOCK, schema, lambda rank, rows: {"dry": (rows["flags"] & records.FLAG_DRY) != 0})


def notes(run: RunData) -> pl.DataFrame:
    """What the runtime had to say. Columns: rank, gpu, time_ns, text."""
    schema: Schema = {**_OWNER, "time_ns": pl.Int64, "text": pl.String}

    def columns(rank: RankTrace, rows: npt.NDArray[np.void]) -> dict[str, object]:
        return {"text": [bytes(text).decode("utf-8", "replace") for text in rows["text"].tolist()]}

    return _table(run, records.NOTE, schema, columns)
