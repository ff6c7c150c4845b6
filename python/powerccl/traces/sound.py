# SPDX-License-Identifier: Apache-2.0
"""Which records of a trace can be. A record that cannot is left out, and the run's problems say how many."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from powerccl.quantities import plural
from powerccl.traces import records
from powerccl.traces.plausible import FAR_NS

Rows = npt.NDArray[np.void]

_HOUR_NS = np.uint64(3_600_000_000_000)
_LATEST_NS = np.uint64(1 << 62)
_MOST = np.uint64(1 << 58)  # nine years in ns: sums of a few of these still fit 64 bits
_OVERLAP_NS = 20_000  # what two kernels may overlap by: a stop is the last channel's, a start the first's
# Bytes of one operation: no GPU holds a hundredth of these 16 TiB, and half a million of them still fit 64 bits.
_MOST_BYTES = np.uint64(1 << 44)

MPI_TIMES = {
    records.MPI_CALL: ("start_ns", "stop_ns", "wait_ns", "sleep_ns", "bytes"),
    records.MPI_TOTAL: ("time_ns", "calls", "bytes", "call_ns", "wait_ns", "sleep_ns"),
    records.PROCESS: ("time_ns", "user_ns", "system_ns", "sleeps", "sleep_ns", "asked_ns"),
}


def _mpi(rows: npt.NDArray[np.void], kind: int) -> tuple[npt.NDArray[np.void], int]:
    """Records of an MPI kind whose numbers can be, and how many cannot: beyond years, or ending before they began."""
    sound = np.ones(len(rows), bool)
    for name in MPI_TIMES[kind]:
        sound &= rows[name] < _MOST
    if kind == records.MPI_CALL:
        sound &= rows["stop_ns"] >= rows["start_ns"]
    if kind == records.MPI_TOTAL:
        sound &= rows["size_class"] <= 63
    return _chosen(rows, sound)


def _waits(waits: npt.NDArray[np.void]) -> tuple[npt.NDArray[np.void], int]:
    """Waits with credible times, and how many had none: over within an hour, and not before they began."""
    stall, resume = waits["stall_ns"], waits["resume_ns"]
    sound = (stall > 0) & (resume >= stall) & (resume < _LATEST_NS)
    sound &= np.where(sound, resume - stall, _HOUR_NS) < _HOUR_NS
    return _chosen(waits, sound)


def _pauses(pauses: npt.NDArray[np.void]) -> tuple[npt.NDArray[np.void], int]:
    """Pauses that can be, and how many cannot: bursts count from 1."""
    sound = (pauses["time_ns"] < _LATEST_NS) & (pauses["burst"] > 0)
    return _chosen(pauses, sound)


def _budgets(budgets: npt.NDArray[np.void]) -> tuple[npt.NDArray[np.void], int]:
    """What policies came to, as far as it can be, and how many records cannot: an estimate is in its interval."""
    sound = budgets["time_ns"] < _LATEST_NS
    sound &= (budgets["low_ppm"] <= budgets["slowdown_ppm"]) & (budgets["slowdown_ppm"] <= budgets["high_ppm"])
    return _chosen(budgets, sound)


def _kernels(kernels: npt.NDArray[np.void]) -> tuple[npt.NDArray[np.void], int]:
    """Kernels that can be, and how many cannot: stop after start, within an hour, before the next; a size as calls'.

    NCCL keeps the times of a channel's last 64 operations and reads them from a thread of its own. When that thread
    falls behind, it finds the times of a later operation in an earlier one's place. The kernels of a communicator run
    one after the other, so such a kernel seems to run into its successor.
    """
    start, stop = kernels["gpu_start_ns"].copy(), kernels["gpu_stop_ns"].copy()
    seen = kernels["seen_stop_ns"]
    sound = (start > 0) & (stop >= start) & (stop < _LATEST_NS) & (seen < _LATEST_NS)
    sound &= (np.where(sound, stop - start, _HOUR_NS) < _HOUR_NS) & (kernels["bytes"] < _MOST_BYTES)
    kept = np.flatnonzero(sound)
    start, stop, comm = start[kept], stop[kept], kernels["comm"][kept]
    order = np.lexsort((start, comm))
    start, stop, comm = start[order], stop[order], comm[order]
    overlap = (stop[:-1] - start[1:]).view(np.int64)
    length = (stop - start)[:-1].astype(np.int64)
    misread = (comm[1:] == comm[:-1]) & (overlap > np.maximum(_OVERLAP_NS, length // 4))
    sound[kept[order[:-1][misread]]] = False
    return _chosen(kernels, sound)


def _chosen(rows: Rows, sound: npt.NDArray[np.bool_]) -> tuple[Rows, int]:
    """The rows that are sound, and how many are not."""
    bad = int(len(rows) - sound.sum())
    return (rows[sound] if bad else rows), bad


def _calls(calls: Rows) -> tuple[Rows, int]:
    """Calls that end after they began, of a size that a GPU can hold, and how many records are not."""
    sound = (calls["stop_ns"] >= calls["start_ns"]) & (calls["stop_ns"] < _LATEST_NS) & (calls["bytes"] < _MOST_BYTES)
    return _chosen(calls, sound)


def _near(rows: Rows, kind: int, start_ns: int, length_ns: int) -> Rows:
    """Records that are not far (FAR_NS) outside of a run that began at `start_ns` and took `length_ns` (0: not known).

    Where most of them are far, the run's own times are the ones that are wrong, and all are kept.
    """
    first = np.uint64(max(start_ns - FAR_NS, 0))
    last = np.uint64(start_ns + length_ns + FAR_NS) if length_ns else _LATEST_NS
    near, can_be = np.ones(len(rows), bool), np.ones(len(rows), bool)
    for name in records.HOST_TIMES[kind]:
        times = rows[name].copy()  # side by side: each comparison would step over whole records
        can_be &= times < _LATEST_NS
        near &= (times == 0) | ((times >= first) & (times <= last))  # 0: it did not come to that
    kept = can_be if 2 * near.sum() < len(rows) else near & can_be
    return rows if kept.all() else rows[kept]


# What each kind is checked for, and what a record that fails has impossible.
_CHECKS: dict[int, tuple[Callable[[Rows], tuple[Rows, int]], str]] = {
    records.CALL: (_calls, "times or sizes"),
    records.KERNEL: (_kernels, "times or sizes"),
    records.WAIT: (_waits, "times"),
    records.PAUSE: (_pauses, "times"),
    records.BUDGET: (_budgets, "numbers"),
    **{kind: (partial(_mpi, kind=kind), "numbers") for kind in MPI_TIMES},
}


def _start(kinds: dict[int, Rows], start_ns: int, length_ns: int) -> int:
    """The trace's start: its header's, or the first record's where the header's is far from most records."""
    first = [rows[name] for kind, rows in kinds.items() if len(rows) for name in records.HOST_TIMES[kind][:1]]
    times = np.concatenate([*first, np.empty(0, np.uint64)])
    times = times[times > 0].astype(np.int64)
    if not length_ns or not len(times):
        return start_ns
    usual, most = int(np.median(times)), length_ns + FAR_NS
    return start_ns if abs(start_ns - usual) <= most else int(times[np.abs(times - usual) <= most].min())


def keep_sound(kinds: dict[int, Rows], start_ns: int, length_ns: int) -> tuple[int, list[str]]:
    """Leave out of `kinds` (records.LAYOUTS) what cannot be; the trace's start, and what was left out, a line a kind.

    `start_ns`: of the trace's header, host ns. `length_ns`: how long the run took, 0: not known.
    """
    said = []
    for kind, (check, what) in _CHECKS.items():
        if not len(kinds[kind]):  # of most kinds a trace has none, and a run has thousands of traces
            continue
        kinds[kind], bad = check(kinds[kind])
        if bad:
            said.append(f"{plural(bad, f'{records.KINDS[kind]} record')} with impossible {what}, skipped")
    began = _start(kinds, start_ns if start_ns < _LATEST_NS else 0, length_ns)
    if began != start_ns:
        said.append("its header has a start far from its records: the time of the first record is used")
    far = 0
    for kind, rows in [(kind, rows) for kind, rows in kinds.items() if len(rows)]:
        kinds[kind] = _near(rows, kind, began, length_ns)
        far += len(rows) - len(kinds[kind])
    if far:
        said.append(f"{plural(far, 'record')} more than an hour before or after the run, skipped")
    return began, said


def latest_ns(time_ns: int, start_ns: int, length_ns: int) -> int:
    """The latest time in a trace of which only a part is read, 0 where that is far outside of the run."""
    return 0 if length_ns and time_ns > start_ns + length_ns + FAR_NS else time_ns
