# SPDX-License-Identifier: Apache-2.0
"""A pass over all run folders below a directory: what is new or changed is read, the rest is only looked at."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from powerccl.errors import PowercclError
from powerccl.fleet.read import Analyse, key_of, read_folder, stamp_of
from powerccl.fleet.schema import TABLES, Rows
from powerccl.fleet.store import known_runs, open_index, write_rows, writing
from powerccl.traces.run_info import ID_FILE, RUN_FILE

# Runs that are read between two writes. What is not written when a pass is killed is read again: about ten seconds. At
# half, a first pass writes the same days twice as often. At double, it takes twice as much memory, a gigabyte.
BATCH = 20_000
BATCH_ANALYSED = 50  # an analysis takes seconds
RUN_FILES = (RUN_FILE, ID_FILE)


@dataclass
class Pass:
    """What a pass did. `unreadable`: directories that could not be listed, with the reason."""

    seen: int = 0
    read: int = 0
    removed: int = 0
    failed: int = 0
    unsummarised: int = 0
    unreadable: list[str] = field(default_factory=list)
    days: int = 0


def index(root: Path, to: Path, analyse: Analyse | None, say: Callable[[str], None]) -> Pass:
    """Bring the index in `to` up to date with the run folders below `root`.

    Raises:
        PowercclError: `root` cannot be read, or another process writes the index.
        OSError: the index cannot be written.
    """
    root = root.resolve()
    try:
        os.scandir(root).close()
    except OSError as error:
        raise PowercclError(f"cannot read {root}: {error.strerror}", "name the directory of run folders") from error
    open_index(to, make=True)
    with writing(to):
        return _pass(root, to, analyse, say)


def _pass(root: Path, to: Path, analyse: Analyse | None, say: Callable[[str], None]) -> Pass:
    done, known = Pass(), known_runs(to)
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

    for folder in run_folders(str(root), done.unreadable):
        run, stamp = key_of(folder), stamp_of(folder)
        seen.add(run)
        have = known.get(run)
        if have and have.stamp == stamp and not have.removed and (have.analysed or analyse is None):
            continue
        try:
            read_folder(folder, stamp, now, analyse, rows)
        except OSError:  # it was removed just now
            seen.discard(run)
        if len(rows["runs"]) >= batch:
            write()
    if rows["runs"]:
        write()
    done.seen = len(seen)
    below = f"{root}{os.sep}"
    gone = [
        run
        for run, each in known.items()
        if run not in seen and not each.removed and each.folder.startswith(below) and _is_gone(each.folder)
    ]
    done.removed = len(gone)
    if gone:
        done.days += write_rows(to, {table: [] for table in TABLES}, known, gone)
    return done


def run_folders(root: str, unreadable: list[str]) -> Iterator[str]:
    """Run folders below a directory, those of one directory by name. Links and hidden directories are not followed."""
    below = []
    is_run = False
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                if entry.name in RUN_FILES:
                    is_run = True
                elif not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    below.append(entry.path)
    except OSError as error:
        unreadable.append(f"{root}: {error.strerror}")
    if is_run:
        yield root
        return
    for path in sorted(below):
        yield from run_folders(path, unreadable)


def _is_gone(folder: str) -> bool:
    """Whether a folder is not there, and not only out of reach."""
    try:
        Path(folder).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
