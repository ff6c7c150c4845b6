# SPDX-License-Identifier: Apache-2.0
"""The runs of a directory, a row each: from run.json and summary.json, or from a cache of what these files said.

Reading ten thousand folders takes seconds on a local disk and minutes on a file system of a cluster. A cache below
XDG_CACHE_HOME keeps each row, with the time and size of the two files that it is from. Reading a row again gives the
same row, so a cache that is lost, stale or cannot be written costs time only. Two lists that run together each replace
the cache as a whole.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from powerccl import clean
from powerccl.analysis.findings import SUMMARY_FILE
from powerccl.files import MOST_DOCUMENT, MOST_INFO, read_bytes, read_json, user_folder, write_whole
from powerccl.tariff import parse_time
from powerccl.traces.run_files import run_files
from powerccl.traces.run_info import ID_FILE, RUN_FILE, parse_run_info

SCHEMA = 1  # of the cache: raised where the same files give another row
# New rows from which the cache is written. They take 10 ms to read on a local disk. At half, a small directory gets a
# cache that saves nothing one would notice. At double, a list on a slow file system may read 100 runs each time.
CACHED_FROM = 50
# A run without an end in whose folder nothing was written for so long is not recording. Samples come every 19 ms, and
# an agent writes them every second. At half, a node that is busy looks dead. Double hides a dead run for longer.
SILENT_S = 60.0
RECORDING, NO_END, BROKEN = "recording", "no end", "broken"
# It has no end, and its files are on nodes, so that whether it still records cannot be seen here.
ON_NODES = "on nodes"


class RunRow(msgspec.Struct, kw_only=True):
    """One run. None: not known, such as all figures of a run without summary.json."""

    folder: str  # its name in the directory of runs
    name: str
    started_at: str = ""  # date, time and offset, as run.json has them
    started_s: float = 0.0  # the same, in seconds since 1970; without a date, as of a simulated run, as written_s
    written_s: float = 0.0  # when run.json was last written: at the run's start and at its end
    wall_s: float | None = None
    gpus: int | None = None
    joules: float | None = None
    joules_at_least: float | None = None  # where samples are missing
    iteration_s: float | None = None
    joules_per_iteration: float | None = None
    exposed_pct: float | None = None
    exposed_at_least: bool = False  # records of a rank are missing
    exit_code: int | None = None
    signal: int | None = None
    emulated: str = ""  # as RunInfo.modelled_by
    state: str = ""  # RECORDING, NO_END, ON_NODES or BROKEN; empty: the run ended
    problem: str = ""  # why it is BROKEN

    @property
    def failed(self) -> bool:
        """Whether it ended with another exit code than 0, or had no end, or cannot be read."""
        return self.state in (NO_END, BROKEN) or self.exit_code not in (None, 0)


class _Energy(msgspec.Struct):
    joules: float | None = None
    joules_at_least: float | None = None


class _Shares(msgspec.Struct):
    exposed_pct: float | None = None
    uncovered_pct: float | None = None


class _Gpu(msgspec.Struct):
    pass


class _Summary(msgspec.Struct):
    """The part of RunSummary that a row shows: the rest is skipped, not decoded."""

    energy: _Energy = msgspec.field(default_factory=_Energy)
    shares: _Shares = msgspec.field(default_factory=_Shares)
    gpus: list[_Gpu] = []
    iteration_s: float | None = None
    joules_per_iteration: float | None = None


Stamp = tuple[int, int, int, int]  # mtime in ns and size of run.json, and of summary.json; 0: there is none
NOT_KEPT: Stamp = (0, 0, 0, 0)


class _Cache(msgspec.Struct):
    rows: dict[str, tuple[Stamp, RunRow]] = {}
    schema: int = 0


def run_rows(runs_dir: Path) -> list[RunRow]:
    """The runs of a directory, the one that started last first; empty: it has none or cannot be read."""
    kept = _read_cache(runs_dir)
    stamped: dict[str, tuple[Stamp, RunRow]] = {}
    new = 0
    for folder in _folders(runs_dir):
        path = runs_dir / folder
        try:
            stamp = _stamp(path)
        except FileNotFoundError:
            with contextlib.suppress(OSError):  # else `powerccl run` did not make the folder
                made_s = (path / ID_FILE).stat().st_mtime
                stamped[folder] = (NOT_KEPT, _broken(folder, f"no {RUN_FILE}", made_s))
            continue
        except OSError as error:
            stamped[folder] = (NOT_KEPT, _broken(folder, str(error.strerror)))
            continue
        known = kept.get(folder)
        if known is None or known[0] != stamp:
            new += 1
            known = (stamp, _read_row(path, stamp))
        stamped[folder] = known
    if new >= CACHED_FROM:
        _write_cache(runs_dir, stamped)
    rows = [row for _, row in stamped.values()]
    for row in rows:
        if row.state == NO_END:
            row.state = _without_end(runs_dir / row.folder)
    return sorted(rows, key=lambda row: (row.started_s, row.written_s, row.folder), reverse=True)


def _folders(runs_dir: Path) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(runs_dir) as entries:
        here = runs_dir.resolve()
        return [entry.name for entry in entries if entry.name[0] != "." and _is_folder(entry, here)]
    return []


def _is_folder(entry: os.DirEntry[str], here: Path) -> bool:
    """Whether it is a folder. A link to a run beside it, such as one that a user calls `best`, is no other run."""
    try:
        return entry.is_dir() and not (entry.is_symlink() and Path(entry.path).resolve().parent == here)
    except (OSError, RuntimeError):  # a link to itself
        return False


def _stamp(path: Path) -> Stamp:
    """What tells whether the row of a folder is still that of the cache.

    Raises:
        FileNotFoundError: the folder has no run.json.
        OSError: the folder cannot be read.
    """
    about = os.stat(f"{path}/{RUN_FILE}")  # noqa: PTH116 - twenty thousand of them, and pathlib is slower
    try:
        summary = os.stat(f"{path}/{SUMMARY_FILE}")  # noqa: PTH116
    except OSError:
        return about.st_mtime_ns, about.st_size, 0, 0
    return about.st_mtime_ns, about.st_size, summary.st_mtime_ns, summary.st_size


def _broken(folder: str, problem: str, written_s: float = 0.0) -> RunRow:
    row = RunRow(folder=folder, name=clean.field(folder), state=BROKEN, problem=clean.field(problem))
    row.started_s = row.written_s = written_s
    return row


def _read_row(path: Path, stamp: Stamp) -> RunRow:
    written_s = stamp[0] / 1e9
    try:
        info = parse_run_info(read_bytes(path / RUN_FILE, MOST_INFO))
    except (OSError, ValueError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        return _broken(path.name, f"{RUN_FILE}: {why}", written_s)
    row = RunRow(
        folder=path.name,
        name=info.name or clean.field(path.name),
        started_at=info.started_at,
        started_s=written_s if (started_s := parse_time(info.started_at)) is None else started_s,
        written_s=written_s,
        wall_s=info.wall_ns / 1e9 or None,
        exit_code=info.exit_code,
        signal=info.signal,
        emulated=info.modelled_by,
        state="" if info.end_ns else NO_END,
    )
    if stamp[3]:
        with contextlib.suppress(OSError, msgspec.MsgspecError):  # `powerccl report` makes it again
            summary = read_json(path / SUMMARY_FILE, _Summary)
            row.gpus = len(summary.gpus) or None
            row.joules, row.joules_at_least = summary.energy.joules, summary.energy.joules_at_least
            row.iteration_s, row.joules_per_iteration = summary.iteration_s, summary.joules_per_iteration
            row.exposed_pct = summary.shares.exposed_pct
            row.exposed_at_least = summary.shares.uncovered_pct is not None
    return row


def _without_end(path: Path) -> str:
    """The state of a run without an end, by whether something was written within SILENT_S."""
    with contextlib.suppress(OSError):
        listing = run_files(path)
        places = {path, *(Path(node.folder) for node in listing.here)}
        if any(_writes(place) for place in places):
            return RECORDING
        return ON_NODES if listing.elsewhere else NO_END
    return NO_END


def _writes(path: Path) -> bool:
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return any(time.time() - entry.stat().st_mtime < SILENT_S for entry in entries)
    return False


def _cache_file(runs_dir: Path) -> Path | None:
    import hashlib

    caches = user_folder("XDG_CACHE_HOME", ".cache")
    key = hashlib.sha1(os.fsencode(runs_dir.resolve()), usedforsecurity=False).hexdigest()[:16]
    return caches / "powerccl" / f"runs-{key}.json" if caches else None


def _read_cache(runs_dir: Path) -> dict[str, tuple[Stamp, RunRow]]:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        if file := _cache_file(runs_dir):
            cache = read_json(file, _Cache, MOST_DOCUMENT)
            return cache.rows if cache.schema == SCHEMA else {}
    return {}


def _write_cache(runs_dir: Path, stamped: dict[str, tuple[Stamp, RunRow]]) -> None:
    # A folder whose name is not UTF-8 has no place in JSON, and is read each time.
    rows = {folder: each for folder, each in stamped.items() if each[0][1] and clean.field(folder) == folder}
    with contextlib.suppress(OSError, UnicodeError):
        if file := _cache_file(runs_dir):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(file, msgspec.json.encode(_Cache(rows, SCHEMA)))
