# SPDX-License-Identifier: Apache-2.0
"""The index on the disk: TABLE/day=YYYY-MM-DD/part.parquet, one file a table and day, each replaced whole.

The table `runs` is the manifest. Its file of a day is written after the details of that day. A pass that was killed
leaves at most details of runs that the next pass reads again. Readers take no lock: a file that they have open stays
as it was.

One process writes at a time. A lock on `.lock` tells the processes of one host apart on every file system. Locks
between hosts are not reliable everywhere, so `.writer`, which only one process can create, names the host. A writer
that was killed leaves `.writer`. Its own host, which has the lock, removes it. No other host does, since none can know.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from powerccl.errors import PowercclError
from powerccl.files import read_json, write_whole, written_whole
from powerccl.fleet.schema import SCHEMA, TABLES, Rows, polars_schema
from powerccl.launch.launchers import boot_id

if TYPE_CHECKING:
    import polars as pl

INDEX_FILE = "index.json"
FOLDER = ".fleet"  # of an index, in the directory of runs
PART = "part.parquet"


class About(msgspec.Struct, kw_only=True):
    """index.json: what made the index."""

    schema: int = SCHEMA


@dataclass(frozen=True)
class Known:
    """What an index has of a run."""

    folder: str
    stamp: str
    day: datetime.date
    analysed: bool
    removed: bool


def open_index(folder: Path, make: bool = False) -> None:
    """Check that a folder is an index of this version; make one of an empty folder.

    Raises:
        PowercclError: it is none, or another version's.
    """
    file = folder / INDEX_FILE
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
            if os.geteuid() == 0 and folder.lstat().st_uid != 0:  # a user could make it a link to anywhere
                raise PowercclError(f"{folder} belongs to a user: root writes no index there", "name another: --to DIR")
        if make and not file.exists():
            if any((folder / table).exists() for table in TABLES):
                raise PowercclError(f"{folder} has tables but no {INDEX_FILE}", "name another folder: --to DIR")
            write_whole(file, msgspec.json.encode(About()) + b"\n")
        about = read_json(file, About)
    except FileNotFoundError as error:
        raise PowercclError(f"{folder} is no index", "make one: powerccl index ROOT") from error
    except (OSError, msgspec.MsgspecError) as error:
        raise PowercclError(f"{file}: {getattr(error, 'strerror', None) or error}", "name another folder") from error
    if about.schema != SCHEMA:
        raise PowercclError(
            f"{folder} was made by another powerccl (schema {about.schema}, here {SCHEMA})",
            "remove it and index again, or name another folder: --to DIR",
        )


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Be the only writer of an index.

    Raises:
        PowercclError: another process writes it.
        OSError: the folder cannot be written.
    """
    writer, here = folder / ".writer", f"{os.uname().nodename} {boot_id()}"
    with (folder / ".lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PowercclError(f"another process writes {folder}", "let it end; it indexes the same runs") from error
        try:
            with writer.open("x") as file:
                file.write(here)
        except FileExistsError as error:
            there = _read(writer)
            if there != here:
                raise PowercclError(
                    f"{there.split(' ')[0] or 'another host'} writes {folder}, or was stopped there",
                    f"if no `powerccl index` runs on it: rm {writer}",
                ) from error
            for half in folder.glob(f"*/day=*/.{PART}.*"):  # of a writer of this host that was killed
                half.unlink(missing_ok=True)
        try:
            yield
        finally:
            writer.unlink(missing_ok=True)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def known_runs(folder: Path) -> dict[int, Known]:
    """All runs of an index, by their numbers."""
    import polars as pl

    names = ["run", "folder", "stamp", "day", "analysed", "removed"]
    known: dict[int, Known] = {}
    for file in sorted((folder / "runs").glob(f"day=*/{PART}")):
        for row in pl.read_parquet(file, columns=names).select(names).iter_rows():
            known[row[0]] = Known(*row[1:])
    return known


def write_rows(folder: Path, rows: Rows, known: dict[int, Known], removed: Iterable[int] = ()) -> int:
    """Put rows of runs in the place of what the index has of these runs, and mark the runs that were removed.

    `known` is brought up to date. Only the days that change are written. Returns how many those are.

    Raises:
        OSError: the folder cannot be written.
    """
    import polars as pl

    new = {row.run: row for row in rows["runs"]}
    gone = set(removed)
    days = {row.day for row in new.values()} | {known[run].day for run in [*new, *gone] if run in known}
    replaced = pl.Series("run", list(new), dtype=pl.Int64).implode()
    frames = {
        table: pl.DataFrame(rows[table], schema=polars_schema(table), orient="row").partition_by("day", as_dict=True)
        for table in TABLES
    }
    for day in sorted(days):
        for table in TABLES:
            path = folder / table / f"day={day.isoformat()}" / PART
            frame = _read_part(path, table).filter(~pl.col("run").is_in(replaced))
            if table == "runs" and gone:
                marked = pl.col("removed") | pl.col("run").is_in(pl.Series(sorted(gone), dtype=pl.Int64).implode())
                frame = frame.with_columns(removed=marked)
            if (day,) in frames[table]:
                frame = pl.concat([frame, frames[table][day,]])
            path.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(path) as file:
                frame.sort("run").write_parquet(file)
    for run, row in new.items():
        known[run] = Known(row.folder, row.stamp, row.day, row.analysed, row.removed)
    for run in gone:
        known[run] = Known(known[run].folder, known[run].stamp, known[run].day, known[run].analysed, True)
    return len(days)


def _read_part(path: Path, table: str) -> pl.DataFrame:
    import polars as pl

    schema = polars_schema(table)
    if not path.exists():
        return pl.DataFrame(schema=schema)
    return pl.read_parquet(path, hive_partitioning=False).select(list(schema))
