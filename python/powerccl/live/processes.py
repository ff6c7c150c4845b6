# SPDX-License-Identifier: Apache-2.0
"""Jobs that run on this node under PowerCCL: found by the run folder in their processes' environment."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from powerccl.errors import PowercclError
from powerccl.leases.client import SOCKET_VARIABLE
from powerccl.live.foreign import Folders, User
from powerccl.live.run_folder import LiveRun
from powerccl.traces import job_labels
from powerccl.traces.run_info import RUN_FILE
from powerccl.users import user_name

FOLDER_VARIABLE = b"POWERCCL_RUN_FOLDER="
LEASES_VARIABLE = f"{SOCKET_VARIABLE}=".encode()
SCAN_EVERY_S = 5.0
# A process that has called exec has another environment than when it was looked at first.
FORGET_EVERY_S = 30.0
MOST_ENVIRON = 8 << 20  # the kernel takes 6 MiB of arguments and environment


@dataclass
class RunningJob:
    """One run folder and the processes that name it."""

    folder: Path
    pids: list[int] = field(default_factory=list)
    user: str = ""
    uid: int = -1
    lease_socket: Path | None = None


@dataclass
class _Seen:
    folder: str
    leases: str
    user: User
    labels: dict[str, str]


def _owner(process: Path) -> User:
    """Who started a process: its real ids. The owner of its files is root where it cannot be traced.

    Raises:
        OSError: it has ended.
    """
    try:
        status = (process / "status").read_text("utf-8", "replace")
    except FileNotFoundError:
        about = process.stat()
        return about.st_uid, about.st_gid
    ids = {line[:3]: int(line.split()[1]) for line in status.splitlines() if line.startswith(("Uid:", "Gid:"))}
    return ids["Uid"], ids["Gid"]


def owner_name(folder: Path) -> str:
    """Whose a folder is; empty: not known."""
    try:
        return user_name(folder.stat().st_uid)
    except OSError:
        return ""


class Processes:
    """Looks through /proc, at each process once."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.unreadable = 0  # processes of others, which may be jobs too
        self.others: dict[User, dict[str, list[int]]] = {}  # root's alone: processes by user and the folder they name
        self._proc = proc
        self._folders = Folders(proc)
        self._root = os.geteuid() == 0
        self._seen: dict[int, _Seen | None] = {}
        self._scanned_s = self._forgot_s = float("-inf")
        self._jobs: dict[Path, RunningJob] = {}

    def jobs(self, now_s: float | None = None) -> dict[Path, RunningJob]:
        """Jobs by folder, as of the last scan, which is at most SCAN_EVERY_S ago."""
        now_s = time.monotonic() if now_s is None else now_s
        if now_s - self._scanned_s >= SCAN_EVERY_S:
            if now_s - self._forgot_s >= FORGET_EVERY_S:
                self._seen = {pid: seen for pid, seen in self._seen.items() if seen}
                self._forgot_s = now_s
            self._scan()
            self._scanned_s = now_s
        return self._jobs

    def _scan(self) -> None:
        pids = {int(entry.name) for entry in os.scandir(self._proc) if entry.name.isdigit()}
        self._seen = {pid: seen for pid, seen in self._seen.items() if pid in pids}
        self.unreadable = 0
        jobs: dict[Path, RunningJob] = {}
        others: dict[User, dict[str, list[int]]] = {}
        for pid in sorted(pids):
            if self._seen.get(pid) is None:
                self._read(pid)
            seen = self._seen.get(pid)
            if seen is None:
                continue
            if self._root and seen.user[0]:  # not a look at what another user names: see foreign.py
                others.setdefault(seen.user, {}).setdefault(seen.folder, []).append(pid)
                continue
            folder = self._folders.of(pid, seen.folder)
            job = jobs.setdefault(folder, RunningJob(folder, user=user_name(seen.user[0]), uid=seen.user[0]))
            job.pids.append(pid)
            job.lease_socket = job.lease_socket or (Path(seen.leases) if seen.leases else None)
        self._jobs, self.others = jobs, others

    def _read(self, pid: int) -> None:
        """Remember what a process says; of one that says nothing, that."""
        if pid in self._seen:
            return
        try:
            path = self._proc / str(pid)
            with (path / "environ").open("rb", buffering=0) as file:
                words = file.read(MOST_ENVIRON).split(b"\0")
            user = _owner(path)
        except PermissionError:
            self.unreadable += 1  # not remembered: counted again in each scan
            return
        except OSError:  # it has ended
            return
        values = {
            name: next((os.fsdecode(word[len(name) :]) for word in words if word.startswith(name)), "")
            for name in (FOLDER_VARIABLE, LEASES_VARIABLE)
        }
        folder = values[FOLDER_VARIABLE]
        self._seen[pid] = _Seen(folder, values[LEASES_VARIABLE], user, _labels(path, words)) if folder else None

    def labels_of(self, pids: Iterable[int]) -> dict[str, str]:
        """What all of these processes have in common of job, pod and container."""
        return job_labels.common(seen.labels for pid in pids if (seen := self._seen.get(pid)))


def _labels(process: Path, words: Iterable[bytes]) -> dict[str, str]:
    environment = dict(os.fsdecode(word).partition("=")[::2] for word in words if b"=" in word)
    return job_labels.of_process(process, {k: v for k, v in environment.items() if job_labels.is_read(k)})


def recent_folders(runs: Path) -> list[Path]:
    """Run folders below `runs` that have not been ended and are of this node, the latest first.

    Raises:
        PowercclError: there is no such folder.
    """
    if not runs.is_dir():
        raise PowercclError(f"no runs folder {runs}", "name the folder of `powerccl run --runs-dir`")
    folders = []
    for path in sorted(runs.absolute().iterdir(), reverse=True):
        if not (path / RUN_FILE).is_file():
            continue
        run = LiveRun(path)
        run.read_info()
        if run.info and not run.info.end_ns and run.info.host in ("", socket.gethostname()):
            folders.append(path)
    return folders
