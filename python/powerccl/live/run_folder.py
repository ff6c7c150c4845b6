# SPDX-License-Identifier: Apache-2.0
"""A run folder read while its job runs: each look takes only what was written since the last one.

Traces are mapped by their ranks and read here with pread. On one node both see the same pages, so nothing has to be
flushed and the job notices nothing. A rank counts a record when it is whole; what is past the count is not read. From
another node of a network file system records may be seen late.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from powerccl import clean
from powerccl.files import (
    MOST_INFO,
    MOST_SAMPLES,
    MOST_TRACE,
    read_bytes,
)
from powerccl.quantities import plural
from powerccl.traces import records
from powerccl.traces.header import TraceHeader, header_fault, parse_header
from powerccl.traces.run_files import Listed, NodeFolder, RunFile, open_file, opened, run_files
from powerccl.traces.run_info import RUN_FILE, RunInfo, of_newer, parse_run_info
from powerccl.traces.sample_file import LONGEST, MOST_COLUMNS, SampleHead, take_about

MOST_RECORDS = 1 << 16  # of one trace in one read: 4 MiB
TAIL_RECORDS = 1 << 16  # of what was there before the first look, when only the present matters
HEAD_RECORDS = 1 << 10  # read in any case: communicators come up at the beginning
HEAD_BYTES = 1 << 15
TAIL_BYTES = 1 << 18  # of samples that were there before the first look
MOST_BYTES = 1 << 20  # of samples in one read: rows take a hundred times as much
MOST_TRACES = 4096  # followed together; each takes a descriptor

Records = npt.NDArray[np.void]
_NOTHING: Records = np.empty(0, records.RECORD)


class LiveTrace:
    """One rank's trace, followed.

    `about` is None until the rank has begun it. `behind` is how many records wait for the next look, `dropped` how many
    the rank had no room for.
    """

    def __init__(self, path: Path, tail: bool = False) -> None:
        """Follow `path`; `tail`: of what is there already take the beginning and the end only."""
        self.path = path
        self.about: TraceHeader | None = None
        self.behind = self.dropped = 0
        self.problem = ""
        self._tail = tail
        self._file: RunFile | None = None
        self._header_bytes = records.HEADER_BYTES
        self._next = self._unknown = 0

    def close(self) -> None:
        """Let go of the file."""
        if self._file:
            self._file.close()
        self._file = None

    def read(self, most: int = MOST_RECORDS) -> Records:
        """Records since the last look, at most so many, as records.RECORD; see `select`.

        What cannot be read is in `problem`, in words; nothing is raised.
        """
        try:
            header = self._header()
            if header is None:
                return _NOTHING
            committed = int(header["committed"])
            self.dropped = int(header["dropped"])
            first = self._pass_over(committed) if self._tail else _NOTHING
            self._tail = False
            wanted = max(0, min(committed - self._next, most))
            fresh = self._records(self._next, wanted)
        except OSError as error:
            self.problem = f"{self.path.name}: {error.strerror}"
            return _NOTHING
        self._next += len(fresh)
        unknown = int((~np.isin(fresh["kind"], list(records.LAYOUTS))).sum())
        if unknown:
            self._unknown += unknown
            self.problem = f"{self.path.name}: {plural(self._unknown, 'record')} of unknown kinds, skipped"
        if len(fresh) < wanted:
            self.problem = f"{self.path.name}: cut off: it counts {plural(committed, 'record')} and has {self._next}"
            self.behind = 0
        else:
            self.behind = max(committed - self._next, 0)
        return np.concatenate([first, fresh]) if len(first) else fresh

    def _header(self) -> Any:
        """The header as it is now; None where there is none to go by."""
        if self._file is None:
            self._file = open_file(self.path, MOST_TRACE)
        data = self._file.read(records.HEADER.itemsize, 0)
        if len(data) < records.HEADER.itemsize or data[:8] == bytes(8):
            return None  # just made: the magic comes last
        header = np.frombuffer(data, records.HEADER, 1)[0]
        if fault := header_fault(header):
            self.problem = f"{self.path.name}: {fault}"
            return None
        self._header_bytes = int(header["header_bytes"])
        if self.about is None or not self.about.gpu_uuid:  # filled in when the first communicator comes up
            self.about = parse_header(header)
        return header

    def _pass_over(self, committed: int) -> Records:
        """Of a long file, its beginning, and from then on the end."""
        start = committed - TAIL_RECORDS
        if start <= HEAD_RECORDS:
            return _NOTHING
        head = self._records(0, HEAD_RECORDS)
        self._next = start
        communicators: Records = head[head["kind"] == records.COMM]
        return communicators

    def _records(self, begin: int, count: int) -> Records:
        if count <= 0 or self._file is None:
            return _NOTHING
        data = self._file.read(count * records.RECORD_BYTES, self._header_bytes + begin * records.RECORD_BYTES)
        return np.frombuffer(data, records.RECORD, len(data) // records.RECORD_BYTES)


def select(rows: Records, kind: int) -> Records:
    """The records of one kind, as records.LAYOUTS[kind]."""
    return np.ascontiguousarray(rows[rows["kind"] == kind]).view(records.LAYOUTS[kind])


class LiveSamples(SampleHead):
    """A file of samples (`power-` or `cpu-<host>.csv`), followed.

    `about` is its `# key: value` lines. Of a file that is long already the beginning and the end are read: sums go by
    the first and the last counter.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.about: dict[str, str] = {}
        self.columns: list[str] = []
        self.problem = ""
        self.behind = 0  # bytes that wait for the next look
        self._offset = 0
        self._rest = b""
        self._begun = False

    def read(self) -> list[dict[str, str]]:
        """Rows since the last look, by column; half a line waits for its other half."""
        try:
            with opened(self.path, MOST_SAMPLES) as file:
                data = self._new_bytes(file)
        except OSError as error:
            self.problem = f"{self.path.name}: {error.strerror}"
            return []
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > LONGEST:
            self.problem = f"{self.path.name}: a line of more than {LONGEST:,} bytes, skipped"
            self._rest = b"#"  # its end is of no interest either
        rows = []
        for line in lines:
            text = line.decode("utf-8", "replace")
            if text.startswith("#"):
                take_about(text, self.about)
            elif text and not self.columns:
                self.columns = [name.strip() for name in text.split(",")][: MOST_COLUMNS + 1]
            elif text:
                fields = text.split(",")
                if len(fields) == len(self.columns):
                    rows.append(dict(zip(self.columns, map(clean.field, fields), strict=True)))
        return rows

    def _new_bytes(self, file: RunFile) -> bytes:
        size = file.size
        if size < self._offset:  # an agent that goes on cuts off half a row that another left
            self._offset, self._rest = size, b""
        if self._begun or size <= HEAD_BYTES + TAIL_BYTES:
            self._begun = self._begun or size > 0
            data = file.read(min(size - self._offset, MOST_BYTES), self._offset)
            self._offset += len(data)
            self.behind = size - self._offset if data else 0
            return data
        self._begun = True
        head = file.read(HEAD_BYTES, 0)
        tail = file.read(TAIL_BYTES, size - TAIL_BYTES)
        self._offset = size - TAIL_BYTES + len(tail)
        # Whole lines of the head, then from the first whole line of the tail on.
        return head[: head.rfind(b"\n") + 1] + tail[tail.find(b"\n") + 1 :]


@dataclass
class Look:
    """What is new of a run since the last look; `traces` and `mpi` pair each trace with its new records."""

    traces: list[tuple[LiveTrace, Records]] = field(default_factory=list)
    mpi: list[tuple[LiveTrace, Records]] = field(default_factory=list)
    power: list[tuple[LiveSamples, list[dict[str, str]]]] = field(default_factory=list)
    cpu: list[tuple[LiveSamples, list[dict[str, str]]]] = field(default_factory=list)


class LiveRun:
    """A run folder, followed. `info` is run.json as last read, `problems` says in words what cannot be read."""

    def __init__(self, folder: Path, tail: bool = False) -> None:
        """Follow `folder`; `tail` as in LiveTrace."""
        self.folder = folder
        self.info: RunInfo | None = None
        self._tail = tail
        self.elsewhere: list[NodeFolder] = []  # nodes that keep their files until the job ends
        self._traces: dict[str, LiveTrace] = {}  # by run_files' key, which outlives the move into the run folder
        self._samples: dict[str, LiveSamples] = {}
        self._info_ns = -1
        self._info_problem = ""
        self._gone = ""

    @property
    def problems(self) -> list[str]:
        """What could not be read at the last look."""
        of_traces = [trace.problem for trace in self._traces.values()]
        of_samples = [samples.problem for samples in self._samples.values()]
        return [clean.field(text) for text in (self._gone, self._info_problem, *of_traces, *of_samples) if text]

    @property
    def behind(self) -> int:
        """Records of all traces that wait for the next look."""
        return sum(trace.behind for trace in self._traces.values())

    @property
    def waiting(self) -> bool:
        """Whether anything waits for the next look."""
        return self.behind > 0 or any(samples.behind for samples in self._samples.values())

    def abouts(self) -> list[TraceHeader]:
        """Headers of the run's traces that have one."""
        traces = (trace for trace in self._traces.values() if not self._is_another_runs(trace))
        return [trace.about for trace in traces if trace.about is not None]

    def close(self) -> None:
        """Let go of all files."""
        for trace in self._traces.values():
            trace.close()
        self._traces.clear()

    def look(self, most: int = MOST_RECORDS) -> Look:
        """What was written since the last look, at most so many records a trace."""
        self.read_info()
        look = Look()
        try:
            listing = run_files(self.folder)
            files, self.elsewhere = listing.files, listing.elsewhere
            self._gone = "; ".join(listing.problems)
        except OSError as error:
            self._gone = f"{self.folder}: {error.strerror}"
            known = {key: each.path for key, each in self._traces.items()}
            known |= {key: each.path for key, each in self._samples.items()}
            files = [Listed(key, path) for key, path in sorted(known.items())]
        for key, path in files:
            name = path.name
            if name.endswith(".trace") and name.startswith(("rank-", "mpi-")):
                trace = self._traces.get(key)
                if trace is None:
                    if len(self._traces) >= MOST_TRACES:
                        self._gone = f"{self.folder}: only {MOST_TRACES} traces are read"
                        continue
                    trace = self._traces[key] = LiveTrace(path, self._tail)
                rows = trace.read(most)
                if self._is_another_runs(trace):
                    continue
                into = look.traces if name.startswith("rank-") else look.mpi
                into.append((trace, rows))
            elif name.endswith(".csv") and name.startswith(("power-", "cpu-")):
                samples = self._samples.get(key)
                if samples is None:
                    if len(self._samples) >= MOST_TRACES:
                        continue
                    samples = self._samples[key] = LiveSamples(path)
                samples.path = path
                (look.power if name.startswith("power-") else look.cpu).append((samples, samples.read()))
        return look

    def _is_another_runs(self, trace: LiveTrace) -> bool:
        """Whether a trace is left out as another run's, which two jobs with one POWERCCL_RUN_FOLDER leave."""
        run_id = self.info.run_id if self.info else ""
        if trace.about is None or not trace.about.run_id or not run_id or trace.about.run_id == run_id:
            return False
        trace.problem = f"{trace.path.name}: of another run, left out"
        trace.behind = 0
        return True

    def read_info(self) -> None:
        """Read run.json if it has changed."""
        path = self.folder / RUN_FILE
        try:
            changed_ns = path.stat().st_mtime_ns
            if changed_ns == self._info_ns:
                return
            self.info = parse_run_info(read_bytes(path, MOST_INFO))
            newer = of_newer(self.info.schema)
            self._info_ns, self._info_problem = changed_ns, f"{RUN_FILE}: {newer}" if newer else ""
        except FileNotFoundError:
            self._info_problem = "" if self.info else f"{RUN_FILE} is missing: command and start are not known"
        except (OSError, ValueError) as error:
            self._info_problem = f"{RUN_FILE}: {getattr(error, 'strerror', None) or error}"
