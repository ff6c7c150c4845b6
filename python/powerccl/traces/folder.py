# SPDX-License-Identifier: Apache-2.0
"""The run folder: run.json, traces, samples and events by host (docs/reference/run-folder.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from powerccl import clean, quantities
from powerccl.files import MOST_INFO, read_bytes
from powerccl.memory import give_back
from powerccl.quantities import plural
from powerccl.traces.helpers import PREFIX as HELPERS
from powerccl.traces.helpers import SUFFIX, HelperEvent, read_helper_events
from powerccl.traces.lateness import LATENESS_FILES, lateness_problems
from powerccl.traces.run_files import NodeFolder, RunFiles, about_nodes, run_files
from powerccl.traces.run_info import RUN_FILE, SIMULATED, RunInfo, of_newer, parse_run_info

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from powerccl.traces.cpu import CpuLog
    from powerccl.traces.host_clocks import HostClocks
    from powerccl.traces.large import Census, Scan
    from powerccl.traces.power import PowerLog
    from powerccl.traces.rank import RankTrace

T = TypeVar("T")
SCANNERS = 2  # files read at a time: each takes as much memory as it has records
SAID_NS = 1_000_000  # a shorter difference shows in no figure
END_NOT_SEEN = "Nothing is recorded: the job has not ended, or `powerccl run` was killed before its end."
NOT_HERE = "Nothing is read: the traces are on the nodes of the job."
# Of NCCL's traces, that are analysed as a whole: 1 GiB of memory in a report, and half a minute. Double takes a report
# of a large run beyond what a login node grants. At half, a day of eight GPUs with a collective a second is not whole.
MOST_RECORDS = 20_000_000
# Records that are kept in memory. Of a larger run they are read again, a few ranks at a time, and only those of a part
# in its middle are kept. Double takes a report 1 GiB in itself. Half reads runs twice that were quick to analyse.
KEPT_RECORDS = 2_100_000
PART_RECORDS = 524_288  # of that part: pictures and the regression of energy need no more. Each takes some 500 bytes.


@dataclass
class RunData:
    """Everything a run folder holds; `problems` says in words what could not be read.

    `ranks` are NCCL's, `mpi` the processes that called MPI: the same process may be in both.
    """

    folder: Path
    info: RunInfo | None = None
    files: RunFiles | None = None  # None: not listed yet
    # How many records may be in memory at a time; 0: all. Else ranks keep those of a part of the run (RankTrace.whole).
    at_a_time: int = 0
    # Host ns, from and to, that CALL, KERNEL and WAIT records were read of (None: all); `census` counts all there are.
    window: tuple[int, int] | None = None
    window_host: str = ""  # whose clock the window is of, where not all is read
    census: Census | None = None
    ranks: list[RankTrace] = field(default_factory=list)
    mpi: list[RankTrace] = field(default_factory=list)
    cpu: list[CpuLog] = field(default_factory=list)
    power: list[PowerLog] = field(default_factory=list)
    helpers: list[HelperEvent] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    host_clocks: HostClocks | None = None  # which hosts' times are of one clock; None: each host has its own
    late: str = ""  # why an emulated run's times are not its platform's: all that was recorded is read nevertheless

    @property
    def in_part(self) -> bool:
        """Whether ranks keep the records of a part of the run alone."""
        return self.at_a_time > 0

    @property
    def elsewhere(self) -> list[NodeFolder]:
        """Nodes whose files cannot be read here: what they would add is not known."""
        return self.files.elsewhere if self.files else []

    @property
    def emulated(self) -> bool:
        """Whether any part of it says that the GPUs were emulated."""
        named = bool(self.info and self.info.emulated)
        return named or any(r.emulated for r in self.ranks) or any(p.emulated for p in self.power)

    @property
    def unrecorded(self) -> str:
        """Why no rank left a trace, as a sentence; empty: one did."""
        if self.ranks or self.mpi:
            return ""
        if self.elsewhere:
            return NOT_HERE
        return (self.info.unrecorded if self.info else "") or END_NOT_SEEN

    @property
    def modelled_by(self) -> str:
        """As RunInfo.modelled_by; `yes`: emulated, and no part of it says as what."""
        if self.info and self.info.modelled_by:
            return self.info.modelled_by
        if any(r.simulated for r in self.ranks) or any(p.simulated for p in self.power):
            return SIMULATED
        return "yes" if self.emulated else ""


def read_run(
    folder: Path,
    most_records: int | None = None,
    window_s: tuple[float, float] | None = None,
    kept_records: int | None = None,
) -> RunData:
    """Read a run folder, whatever state it is in.

    If NCCL traces have more than `most_records` records in all, only a window of time with as many is read. The rest is
    counted (`large.py`). `window_s`: which part is of interest, in seconds from the run's start.
    `kept_records`: if a run has more, ranks keep a part of their records (RunData.at_a_time). None: they keep all.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    from powerccl.traces.cpu import read_cpu
    from powerccl.traces.host_clocks import align_hosts
    from powerccl.traces.host_ends import about_unsampled, abrupt_ends
    from powerccl.traces.rank import read_rank

    if not folder.is_dir():
        raise FileNotFoundError(f"no run folder {folder}")
    run = RunData(folder)
    read_info(run)
    headers = _headers(run)
    # A window is read instead of all else where not everything can be kept.
    most = min(most_records, kept_records) if window_s and most_records and kept_records else most_records
    scans = _scan(run, headers, most, window_s)
    parts = _parts(headers, kept_records) if not scans else {}
    run.at_a_time = kept_records or 0 if parts else 0
    info = run.info
    length_ns = info.wall_ns if info else 0
    run.ranks = _read_each(
        run,
        "rank-*.trace",
        lambda path: read_rank(path, scans.get(path), run.window, length_ns, parts.get(path)),
        SCANNERS if parts else 1,
    )
    if parts:
        give_back()
    run.mpi = _read_each(run, "mpi-*.trace", lambda path: read_rank(path, length_ns=length_ns))
    run.cpu = _read_each(run, "cpu-*.csv", read_cpu)
    _read_power(run)
    _tell_apart(run)
    _cover_traces(run)
    run.ranks.sort(key=lambda trace: (trace.rank, trace.start_ns))
    run.mpi.sort(key=lambda trace: (trace.rank, trace.start_ns))
    run.helpers = [event for events in _read_each(run, f"{HELPERS}*{SUFFIX}", read_helper_events) for event in events]
    run.problems += [*about_unsampled(run.cpu, run.mpi), *abrupt_ends(run.cpu, [*run.ranks, *run.mpi], run.helpers)]
    reference = run.window_host or (info.host if info else "")
    run.host_clocks = align_hosts(run.ranks, run.mpi, run.power, run.cpu, run.helpers, reference)
    run.problems += [problem for rank in [*run.ranks, *run.mpi] for problem in rank.problems]
    run.problems += [problem for log in run.power for problem in log.problems]
    run.problems += [problem for log in run.cpu for problem in log.problems]
    run.late = clean.field(lateness_problems(_paths(run, LATENESS_FILES)))
    run.problems = quantities.said_once(clean.field(problem) for problem in run.problems)  # names of files are in them
    return run


def read_samples(folder: Path) -> RunData:
    """Power samples and run.json of a run folder, without its traces."""
    run = RunData(folder)
    read_info(run)
    _read_power(run)
    _tell_apart(run)
    return run


def _read_power(run: RunData) -> None:
    from powerccl.traces.power import MOST_ROWS, read_power

    info = run.info
    clock = (info.host, info.start_ns, info.end_ns) if info else None
    most_rows = max(MOST_ROWS // max(len(_paths(run, "power-*.csv")), 1), 1)
    run.power = _read_each(run, "power-*.csv", lambda path: read_power(path, clock, most_rows), SCANNERS)
    for log in run.power:
        if info and not info.launcher and log.host == info.host:
            log.environment = info.environment


def _cover_traces(run: RunData) -> None:
    """Where traces of the launcher's host reach beyond run.json's times, these are theirs: a part exceeds no whole."""
    info = run.info
    if info is None or not info.span:
        return
    here = [trace for trace in [*run.ranks, *run.mpi] if trace.host == info.host]
    first = min((trace.start_ns for trace in here if trace.start_ns), default=info.start_ns)
    last = max((trace.last_ns() for trace in here), default=info.end_ns)
    for beyond_ns, where in ((last - info.end_ns, "after the end"), (info.start_ns - first, "before the start")):
        if beyond_ns >= SAID_NS:
            took = quantities.seconds(beyond_ns / 1e9)
            run.problems.append(f"ranks recorded for {took} {where} in {RUN_FILE}: the report includes that time")
    info.start_ns, info.end_ns = min(info.start_ns, first), max(info.end_ns, last)


def _tell_apart(run: RunData) -> None:
    """Leave out traces of other runs, make one trace of each rank's incarnations, and tell apart what has one name."""
    from powerccl.traces.identity import (
        Names,
        missing_ranks,
        ranks_of,
        tell_gpus_apart,
        tell_hosts_apart,
        tell_ranks_apart,
    )
    from powerccl.traces.incarnations import join_incarnations, of_run

    of_this_run, said = of_run([*run.ranks, *run.mpi], run.info.run_id if run.info else "")
    run.problems += said
    names = Names()
    tell_hosts_apart(of_this_run, [*run.cpu, *run.power], names)
    kept = {trace.path for trace in of_this_run}
    run.ranks = join_incarnations([trace for trace in run.ranks if trace.path in kept])
    run.mpi = [trace for trace in run.mpi if trace.path in kept]
    tell_ranks_apart(run.ranks, of_processes=False)
    tell_ranks_apart(run.mpi, of_processes=True)
    tell_gpus_apart(run.ranks, run.power, names)
    run.problems += [lost for each in (run.ranks, run.mpi) if (lost := missing_ranks(*ranks_of(each)))]


def read_info(run: RunData) -> None:
    """Read run.json into `run.info`, or say in `run.problems` why not."""
    try:
        run.info = parse_run_info(read_bytes(run.folder / RUN_FILE, MOST_INFO))
        if newer := of_newer(run.info.schema):
            run.problems.append(f"{RUN_FILE}: {newer}")
    except FileNotFoundError:
        run.problems.append(f"{RUN_FILE} is missing: command and times are not known")
    except (OSError, ValueError) as error:
        run.problems.append(f"{RUN_FILE}: {getattr(error, 'strerror', None) or error}")


Headers = dict[Path, tuple["npt.NDArray[np.void]", int]]  # of each trace, and how many records it has


def _headers(run: RunData) -> Headers:
    from powerccl.traces.rank import read_header

    headers: Headers = {}
    for path in _paths(run, "rank-*.trace"):
        with contextlib.suppress(OSError, ValueError):  # said where it is read
            header, committed, _ = read_header(path)
            headers[path] = (header[0], committed)
    return headers


def _host(header: npt.NDArray[np.void]) -> str:
    return bytes(header["host"]).decode("utf-8", "replace")


def _parts(headers: Headers, kept_records: int | None) -> dict[Path, tuple[int, int]]:
    """Of each trace, the part of time in the middle (host ns) whose records are kept; empty: all of them are.

    Ranks of a host have one: they are compared with each other.
    """
    from powerccl.traces.large import middle_of

    total = sum(committed for _, committed in headers.values())
    if kept_records is None or total <= kept_records:
        return {}
    kept = min(PART_RECORDS, total)
    of_starts: dict[int, int] = {}  # records of all ranks, by which start of theirs it is
    for header, committed in headers.values():
        of_starts[int(header["starts"])] = of_starts.get(int(header["starts"]), 0) + committed
    of_hosts: dict[str, tuple[int, int]] = {}
    # Of a rank that was started again, the trace with the most records has the part.
    for path, (header, committed) in sorted(headers.items(), key=lambda each: -each[1][1]):
        if committed and _host(header) not in of_hosts:
            most = committed if kept == total else committed - 1  # all of it would be all of the run
            count = max(min(committed * kept // of_starts[int(header["starts"])], most), 1)
            of_hosts[_host(header)] = middle_of(path, int(header["header_bytes"]), committed, count)
    return {path: of_hosts.get(_host(header), (0, 0)) for path, (header, _) in headers.items()}


def _scan(
    run: RunData, headers: Headers, most_records: int | None, window_s: tuple[float, float] | None
) -> dict[Path, Scan]:
    """Passes over the NCCL traces where they are too large, and the window that is read of them then."""
    from concurrent.futures import ThreadPoolExecutor

    from powerccl.traces.large import Census, choose_window, scan

    total = sum(committed for _, committed in headers.values())
    info = run.info
    starts = [int(header["start_ns"]) for header, _ in headers.values()]
    begin = info.start_ns if info and info.start_ns else min(starts, default=0)
    wanted = (begin + int(window_s[0] * 1e9), begin + int(window_s[1] * 1e9)) if window_s else None
    if most_records is None or total <= most_records:
        run.window = wanted
        return {}
    with ThreadPoolExecutor(SCANNERS) as pool:  # numpy counts and reads without holding the interpreter
        jobs = [
            pool.submit(scan, path, int(header["header_bytes"]), committed)
            for path, (header, committed) in headers.items()
        ]
        scans = {path: job.result() for path, job in zip(headers, jobs, strict=True)}
    hosts = {path: _host(header) for path, (header, _) in headers.items()}
    host = run.window_host = info.host if info and info.host in hosts.values() else next(iter(hosts.values()))
    here = [scans[path] for path, name in hosts.items() if name == host and scans[path].first_ns]
    run.census = Census()
    for scanned in scans.values():
        run.census.add(scanned.census)
    run.window = choose_window(here, min(most_records, KEPT_RECORDS), wanted) if here else (0, 0)
    seconds = (run.window[1] - run.window[0]) / 1e9
    run.problems.append(
        f"{total:,} trace records are too many to read together: counts by pattern and size are of the whole run,"
        f" the rest of {quantities.seconds(seconds)} from second {(run.window[0] - begin) / 1e9:.1f} on"
        " (--window chooses others)"
    )
    if len(set(hosts.values())) > 1:
        run.problems.append(f"hosts' clocks differ: the window is in {host}'s time and may miss other hosts")
    return scans


def _read_each(run: RunData, pattern: str, read: Callable[[Path], T], at_once: int = 1) -> list[T]:
    """Everything of one kind that can be read; what cannot becomes a problem of the run."""
    from concurrent.futures import ThreadPoolExecutor

    def attempt(path: Path) -> T | str:
        try:
            return read(path)
        except (OSError, ValueError) as error:
            text = str(getattr(error, "strerror", None) or error)
            return text if path.name in text else f"{path.name}: {text}"

    with ThreadPoolExecutor(at_once) as pool:  # numpy reads and compares without holding the interpreter
        read_or_said = list((pool.map if at_once > 1 else map)(attempt, _paths(run, pattern)))
    run.problems += [each for each in read_or_said if isinstance(each, str)]
    return [each for each in read_or_said if not isinstance(each, str)]


def _paths(run: RunData, pattern: str) -> list[Path]:
    prefix, _, suffix = pattern.partition("*")
    listing = run.files = run.files or _listed(run)
    return [path for _, path in listing.files if path.name.startswith(prefix) and path.name.endswith(suffix)]


def _listed(run: RunData) -> RunFiles:
    try:
        listing = run_files(run.folder)
    except OSError as error:
        run.problems.append(f"{run.folder}: {error.strerror}")
        return RunFiles()
    if listing.more:
        count = len(listing.files)
        run.problems.append(f"{plural(count + listing.more, 'file')}: a random {count:,} of them are read")
    run.problems += [*listing.problems, *about_nodes(listing, run.folder)]
    return listing
