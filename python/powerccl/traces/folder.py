# SPDX-License-Identifier: Apache-2.0
"""The run folder: `run.json`, `rank-*.trace`, `mpi-*.trace`, `power-` and `cpu-<host>.csv`, `clocks-<host>.journal`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from powerccl.traces.run_info import RUN_FILE, RunInfo

if TYPE_CHECKING:
    from powerccl.traces.cpu import CpuLog
    from powerccl.traces.power import PowerLog
    from powerccl.traces.rank import RankTrace

T = TypeVar("T")


class JournalSlot(msgspec.Struct):
    """One GPU, or core ("cpu3@2800000"), in a clock journal: whether its clock is ours, as last known."""

    host: str
    device: str
    locked: bool
    pid: int
    changed_ns: int
    restored_by_agent: int


@dataclass
class RunData:
    """Everything a run folder holds; `problems` says in words what could not be read.

    `ranks` are NCCL's, `mpi` the processes that called MPI: the same process may be in both.
    """

    folder: Path
    info: RunInfo | None = None
    ranks: list[RankTrace] = field(default_factory=list)
    mpi: list[RankTrace] = field(default_factory=list)
    cpu: list[CpuLog] = field(default_factory=list)
    power: list[PowerLog] = field(default_factory=list)
    journal: list[JournalSlot] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def emulated(self) -> bool:
        """Whether any part of it says that the GPUs were emulated."""
        named = bool(self.info and self.info.emulated)
        return named or any(r.emulated for r in self.ranks) or any(p.emulated for p in self.power)


def read_run(folder: Path) -> RunData:
    """Read a run folder, whatever state it is in.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    from powerccl.traces.cpu import read_cpu
    from powerccl.traces.power import read_power
    from powerccl.traces.rank import read_rank

    if not folder.is_dir():
        raise FileNotFoundError(f"no run folder {folder}")
    run = RunData(folder)
    try:
        run.info = msgspec.json.decode((folder / RUN_FILE).read_bytes(), type=RunInfo)
    except FileNotFoundError:
        run.problems.append(f"{RUN_FILE} is missing: command and times are not known")
    except (OSError, msgspec.MsgspecError) as error:
        run.problems.append(f"{RUN_FILE}: {error}")

    run.ranks = _read_each(run, "rank-*.trace", read_rank)
    run.ranks.sort(key=lambda trace: (trace.rank, trace.start_ns))
    run.mpi = _read_each(run, "mpi-*.trace", read_rank)
    run.mpi.sort(key=lambda trace: (trace.rank, trace.start_ns))
    run.cpu = _read_each(run, "cpu-*.csv", read_cpu)
    run.power = _read_each(run, "power-*.csv", read_power)
    run.journal = [slot for slots in _read_each(run, "clocks-*.journal", read_journal) for slot in slots]
    run.problems += [problem for rank in [*run.ranks, *run.mpi] for problem in rank.problems]
    run.problems += [problem for log in run.power for problem in log.problems]
    run.problems += [problem for log in run.cpu for problem in log.problems]
    return run


def _read_each(run: RunData, pattern: str, read: Callable[[Path], T]) -> list[T]:
    """Everything of one kind that can be read; what cannot becomes a problem of the run."""
    found: list[T] = []
    for path in sorted(run.folder.glob(pattern)):
        try:
            found.append(read(path))
        except (OSError, ValueError) as error:  # noqa: PERF203 - one bad file must not hide the others
            text = str(error)
            run.problems.append(text if path.name in text else f"{path.name}: {text}")
    return found


def read_journal(path: Path) -> list[JournalSlot]:
    """Used slots of a clock journal (native/wire/journal.h).

    Raises:
        ValueError: not a journal of this version, or cut off.
        OSError: the file cannot be read.
    """
    import numpy as np

    from powerccl.traces import records

    data = path.read_bytes()
    if len(data) < records.JOURNAL_HEADER.itemsize:
        raise ValueError("cut off inside its header")
    header = np.frombuffer(data, records.JOURNAL_HEADER, 1)[0]
    if bytes(header["magic"]) != records.JOURNAL_MAGIC or int(header["version"]) != records.JOURNAL_VERSION:
        raise ValueError("not a clock journal of this version")
    body = data[records.JOURNAL_HEADER.itemsize :]
    count = min(int(header["slots"]), len(body) // records.JOURNAL_SLOT.itemsize)
    slots = np.frombuffer(body, records.JOURNAL_SLOT, count)
    host = path.stem.removeprefix("clocks-")
    return [
        JournalSlot(
            host,
            bytes(slot["device"]).split(b"\0", 1)[0].decode("utf-8", "replace"),
            int(slot["state"]) == 1,
            int(slot["pid"]),
            int(slot["changed_ns"]),
            int(slot["restored_by_agent"]),
        )
        for slot in slots
        if slot["device"] and (slot["changed_ns"] or slot["pid"])
    ]
