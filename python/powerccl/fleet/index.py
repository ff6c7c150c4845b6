# SPDX-License-Identifier: Apache-2.0
"""A pass over all run folders of a place: what is new or changed is read, the rest is only looked at."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from powerccl.fleet.read import Analyse, key_of, read_folder
from powerccl.fleet.schema import TABLES, Rows
from powerccl.fleet.source import Directory, ObjectStore
from powerccl.fleet.store import known_runs, open_index, write_rows, writing

# Runs that are read between two writes. What is not written when a pass is killed is read again: about ten seconds. At
# half, a first pass writes the same days twice as often. At double, it takes twice as much memory, a gigabyte.
BATCH = 20_000
BATCH_ANALYSED = 50  # an analysis takes seconds


@dataclass
class Pass:
    """What a pass did. `unreadable`: what could not be listed or fetched, with the reason."""

    seen: int = 0
    read: int = 0
    removed: int = 0
    failed: int = 0
    unsummarised: int = 0
    unreadable: list[str] = field(default_factory=list)
    days: int = 0


def index(root: Path | str, to: Path, analyse: Analyse | None, say: Callable[[str], None]) -> Pass:
    """Bring the index in `to` up to date with the run folders below `root`: a directory, or an address for fsspec.

    Raises:
        PowercclError: `root` cannot be read, or another process writes the index.
        OSError: the index cannot be written.
    """
    source = ObjectStore(str(root)) if "://" in str(root) else Directory(Path(root))
    open_index(to, make=True)
    with writing(to):
        return _pass(source, to, analyse, say)


def _pass(source: Directory | ObjectStore, to: Path, analyse: Analyse | None, say: Callable[[str], None]) -> Pass:
    done, known = Pass(unreadable=source.unreadable), known_runs(to)
    now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
    rows: Rows = {table: [] for table in TABLES}
    seen: set[int] = set()
    batch = BATCH_ANALYSED if analyse else BATCH

    def write() -> None:
        done.read += len(rows["runs"])
        done.failed += sum(bool(row.error) for row in rows["runs"])
        done.unsummarised += sum(not row.summarised for row in rows["runs"])
        done.days += write_rows(to, rows, known)
        for table in rows.values():
            table.clear()
        say(f"{done.read:,} runs are read")

    for folder, stamp in source.runs():
        run = key_of(folder)
        seen.add(run)
        have = known.get(run)
        if have and have.stamp == stamp and not have.removed and (have.analysed or analyse is None):
            continue
        try:
            with source.local(folder, analyse is not None) as copy:
                read_folder(folder, stamp, now, analyse, rows, copy)
        except OSError as error:
            seen.discard(run)
            if not isinstance(error, (FileNotFoundError, NotADirectoryError)):  # those were removed just now
                done.unreadable.append(f"{folder}: {error}")
        if len(rows["runs"]) >= batch:
            write()
    if rows["runs"]:
        write()
    done.seen = len(seen)
    gone = [
        run
        for run, each in known.items()
        if run not in seen and not each.removed and each.folder.startswith(source.below) and source.is_gone(each.folder)
    ]
    done.removed = len(gone)
    if gone:
        done.days += write_rows(to, {table: [] for table in TABLES}, known, gone)
    return done
