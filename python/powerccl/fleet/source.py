# SPDX-License-Identifier: Apache-2.0
"""Where run folders are: below a directory, or in an object store, from which what an index needs is copied."""

from __future__ import annotations

import contextlib
import datetime
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from powerccl.analysis.findings import SUMMARY_FILE
from powerccl.errors import PowercclError, one_line
from powerccl.files import MOST_DOCUMENT
from powerccl.fleet.read import has_ended, read_info, stamp_of
from powerccl.traces.run_info import ID_FILE, RUN_FILE

RUN_FILES = (RUN_FILE, ID_FILE)
TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")  # as file systems of fsspec call them


class Directory:
    """Run folders below a directory of a file system."""

    def __init__(self, root: Path) -> None:
        """Raises PowercclError: it cannot be read."""
        self.name = str(root.resolve())
        self.below = f"{self.name}{os.sep}"
        self.unreadable: list[str] = []
        try:
            os.scandir(self.name).close()
        except OSError as error:
            raise PowercclError(
                f"cannot read {self.name}: {error.strerror}", "name the directory of run folders"
            ) from error

    def runs(self) -> Iterator[tuple[str, str]]:
        """Each run folder, and the stamp of what a row is made from."""
        return ((folder, stamp_of(folder)) for folder in run_folders(self.name, self.unreadable))

    @contextlib.contextmanager
    def local(self, folder: str, _: bool) -> Iterator[Path | None]:
        """Where its files are; None: where its name says."""
        yield None

    def is_gone(self, folder: str) -> bool:
        """Whether a folder is not there, and not only out of reach."""
        try:
            Path(folder).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        return False


class ObjectStore:
    """Run folders in an object store, or whatever else fsspec opens by an address such as s3://bucket/runs."""

    def __init__(self, url: str) -> None:
        """Raises PowercclError: it cannot be read."""
        import fsspec

        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
            listed: dict[str, dict[str, Any]] = self._files.find(self._root, detail=True)
            if not listed and not self._files.exists(self._root):
                raise PowercclError(f"{url} does not exist", "name the address of run folders")
        except ImportError as error:
            raise PowercclError(f"cannot read {url}: {one_line(error)}", _PACKAGE) from error
        except PowercclError:
            raise
        except Exception as error:  # each store has errors of its own
            raise PowercclError(
                f"cannot read {url}: {one_line(error)}", "check the address and its credentials"
            ) from error
        self.name = self._address(self._root)
        self.below = f"{self.name.rstrip('/')}/"
        self.unreadable: list[str] = []
        self._runs = self._group(listed)

    def _address(self, path: str) -> str:
        return str(self._files.unstrip_protocol(path)).rstrip("/")

    def _group(self, listed: dict[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
        """Entries by run folder and name. Hidden folders, and folders in a run folder, are left out."""
        folders: dict[str, dict[str, dict[str, Any]]] = {}
        for path, entry in listed.items():
            folder, _, name = path.rpartition("/")
            folders.setdefault(folder, {})[name] = entry
        runs: dict[str, dict[str, dict[str, Any]]] = {}
        above = ""
        for folder in sorted(folders, key=lambda path: path.split("/")):
            below = folder.removeprefix(self._root)
            hidden = any(part.startswith(".") for part in below.split("/"))
            if hidden or (above and folder.startswith(f"{above}/")) or not folders[folder].keys() & set(RUN_FILES):
                continue
            above = folder
            runs[self._address(folder)] = folders[folder]
        return runs

    def runs(self) -> Iterator[tuple[str, str]]:
        """Each run folder, and the stamp of what a row is made from."""
        for folder, entries in self._runs.items():
            yield folder, f"{_stamp(entries.get(RUN_FILE))} {_stamp(entries.get(SUMMARY_FILE))}"

    @contextlib.contextmanager
    def local(self, folder: str, whole: bool) -> Iterator[Path | None]:
        """A copy of what a row needs; `whole`: of all files too, if the run has ended.

        Raises:
            OSError: the store does not give it.
        """
        entries = self._runs[folder]
        with tempfile.TemporaryDirectory(prefix="powerccl-index-") as made:
            copy = Path(made)
            small = [name for name in (*RUN_FILES, SUMMARY_FILE) if name in entries]
            self._fetch(entries, small, copy, MOST_DOCUMENT)
            newest_s = max(_time_s(entry) for entry in entries.values())
            info = read_info(copy)[0]
            if whole and info is not None and has_ended(info, newest_s):
                self._fetch(entries, [name for name in entries if name not in small], copy)
            os.utime(copy, (newest_s, newest_s))
            yield copy

    def _fetch(self, entries: dict[str, dict[str, Any]], names: list[str], to: Path, most: int = 0) -> None:
        for name in names:
            if most and entries[name]["size"] > most:
                raise OSError(f"{name} has {entries[name]['size']:,} bytes, more than {most:,}")
            try:
                self._files.get_file(entries[name]["name"], str(to / name))
            except FileNotFoundError:  # it was removed just now
                raise
            except Exception as error:
                raise OSError(f"{name}: {one_line(error)}") from error
            time_s = _time_s(entries[name])
            os.utime(to / name, (time_s, time_s))

    def is_gone(self, folder: str) -> bool:
        """Whether the store lists it no longer."""
        return folder not in self._runs


_PACKAGE = "pip install 'powerccl[s3]' for S3; for another store the package that the message names"


def _stamp(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "-"
    return f"{entry.get('ETag') or _time_s(entry)}:{entry['size']}"


def _time_s(entry: dict[str, Any]) -> float:
    """When it was written, Unix time; 0: the store does not say."""
    value = next((entry[name] for name in TIMES if entry.get(name)), 0)
    with contextlib.suppress(ValueError, TypeError):
        if isinstance(value, str):
            value = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
        return float(value.timestamp() if hasattr(value, "timestamp") else value)
    return 0.0


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
