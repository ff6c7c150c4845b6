# SPDX-License-Identifier: Apache-2.0
"""A run's MPI records as polars tables, all processes together; times on the host's CLOCK_MONOTONIC, ns.

`trace` counts the run's MPI traces: a command that starts two MPI jobs has two processes of each rank. Jobs that run
beside each other have ranks of their own (identity.py); `job` counts them, since their communicators have equal ids.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from powerccl.traces import records
from powerccl.traces.mpi_functions import function_name
from powerccl.traces.tables import Schema, frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from powerccl.traces.folder import RunData
    from powerccl.traces.rank import RankTrace

# The adapter names its choice in a note as it starts (native/job/adapters/mpi/wait_methods.cpp).
_METHOD = re.compile(r"(umwait|mwaitx|wfe|sleep|spin)\b")
_OWNER: Schema = {"trace": pl.Int64, "job": pl.Int64, "rank": pl.Int64, "host": pl.String}
_COMM: Schema = {"comm_id": pl.UInt64, "comm_name": pl.String, "nranks": pl.Int64}


def _owner(index: int, trace: RankTrace, rows: int) -> dict[str, object]:
    numbers = {"trace": index, "job": trace.job, "rank": trace.rank}
    return {**{name: np.full(rows, number) for name, number in numbers.items()}, "host": [trace.host] * rows}


def _numbers(rows: npt.NDArray[np.void], names: Sequence[str]) -> dict[str, object]:
    return {name: rows[name].astype(np.int64) for name in names}


def _comms(trace: RankTrace, rows: npt.NDArray[np.void]) -> dict[str, object]:
    """Id (the same on all its ranks; 0: none, as for MPI_Wait), name and size of each row's communicator."""
    known: dict[int, tuple[int, str, int]] = {}
    for comm in trace.kinds[records.COMM]:
        name = bytes(comm["name"]).split(b"\0", 1)[0].decode("utf-8", "replace")
        known[int(comm["comm"])] = (int(comm["comm_id"]), name, max(int(comm["nranks"]), 0))
    named = [known.get(index, (0, "", 0)) for index in rows["comm"].tolist()]
    return {
        "comm_id": [comm_id for comm_id, _, _ in named],
        "comm_name": [name for _, name, _ in named],
        "nranks": [size for _, _, size in named],
    }


def _functions(rows: npt.NDArray[np.void]) -> list[str]:
    return [function_name(number) for number in rows["function"].tolist()]


def mpi_totals(run: RunData) -> pl.DataFrame:
    """What each process did in MPI: the latest sums of each thread, function, communicator and size class.

    Columns: trace, job, rank, host, comm_id, comm_name, nranks, function, thread, size_class_bytes (0: no bytes, else
    the power of two at or below), time_ns, calls, bytes, call_ns, wait_ns (at most call_ns), sleep_ns.
    """
    numbers = ("time_ns", "calls", "bytes", "call_ns", "wait_ns", "sleep_ns")
    schema: Schema = {**_OWNER, **_COMM, "function": pl.String, "thread": pl.Int64, "size_class_bytes": pl.Int64}
    schema.update(dict.fromkeys(numbers, pl.Int64))
    parts: list[dict[str, object]] = []
    for index, trace in enumerate(run.mpi):
        rows = _latest(trace.kinds[records.MPI_TOTAL], ("thread", "function", "comm", "size_class"))
        size_class = rows["size_class"].astype(np.int64)
        parts.append(
            {
                **_owner(index, trace, len(rows)),
                **_comms(trace, rows),
                "function": _functions(rows),
                "thread": rows["thread"].astype(np.int64),
                "size_class_bytes": np.where(size_class > 0, np.int64(1) << np.maximum(size_class - 1, 0), 0),
                **_numbers(rows, numbers),
            }
        )
    return frame(schema, parts).with_columns(pl.min_horizontal("wait_ns", "call_ns").alias("wait_ns"))


def mpi_calls(run: RunData) -> pl.DataFrame:
    """Calls that are recorded alone: long ones, and some of those that synchronise all ranks. `mpi_totals` has all.

    Columns: trace, job, rank, host, comm_id, comm_name, nranks, function, thread, start_ns, stop_ns, wait_ns, sleep_ns,
    bytes.
    """
    numbers = ("start_ns", "stop_ns", "wait_ns", "sleep_ns", "bytes")
    schema: Schema = {**_OWNER, **_COMM, "function": pl.String, "thread": pl.Int64, **dict.fromkeys(numbers, pl.Int64)}
    parts: list[dict[str, object]] = []
    for index, trace in enumerate(run.mpi):
        rows = trace.kinds[records.MPI_CALL]
        functions = {"function": _functions(rows), "thread": rows["thread"].astype(np.int64)}
        owner = _owner(index, trace, len(rows))
        parts.append({**owner, **_comms(trace, rows), **functions, **_numbers(rows, numbers)})
    return frame(schema, parts)


def _latest(rows: npt.NDArray[np.void], key: tuple[str, ...]) -> npt.NDArray[np.void]:
    """The latest row of each key; of two at the same time, the one written last."""
    if not len(rows):
        return rows
    columns = [rows[name] for name in key]
    order = np.lexsort((np.arange(len(rows)), rows["time_ns"], *columns))  # the last column is the first to sort by
    ends = np.zeros(len(rows), bool)
    ends[-1] = True
    for column in columns:
        ends[:-1] |= column[order[1:]] != column[order[:-1]]
    return rows[np.sort(order[ends])]


def mpi_process(run: RunData) -> pl.DataFrame:
    """What each process has used, as last recorded.

    Columns: trace, job, rank, host, time_ns, user_ns, system_ns (CPU time), sleeps, sleep_ns, asked_ns (what those
    sleeps were meant to last), threads (that made blocking MPI calls), thread_level (MPI_THREAD_SINGLE..MULTIPLE:
    0..3).
    """
    numbers = ("time_ns", "user_ns", "system_ns", "sleeps", "sleep_ns", "asked_ns", "threads", "thread_level")
    schema: Schema = {**_OWNER, **dict.fromkeys(numbers, pl.Int64)}
    parts: list[dict[str, object]] = []
    for index, trace in enumerate(run.mpi):
        rows = _latest(trace.kinds[records.PROCESS], ())
        parts.append({**_owner(index, trace, len(rows)), **_numbers(rows, numbers)})
    return frame(schema, parts)


def mpi_notes(run: RunData) -> list[str]:
    """What the adapter had to say, each sentence once, without how it waits."""
    return list(dict.fromkeys(text for text in _notes(run) if not _METHOD.match(text)))


def wait_method(run: RunData) -> str:
    """How the first process waited, as its adapter chose: `umwait, sleep (16 us late)`; empty if it said nothing."""
    return next((text for text in _notes(run) if _METHOD.match(text)), "")


def _notes(run: RunData) -> list[str]:
    return [
        bytes(text).split(b"\0", 1)[0].decode("utf-8", "replace")
        for trace in run.mpi
        for text in trace.kinds[records.NOTE]["text"].tolist()
    ]
