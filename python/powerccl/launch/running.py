# SPDX-License-Identifier: Apache-2.0
"""Jobs that run on this node under PowerCCL: found by the run folder in their processes' environment."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from powerccl.analysis.live.findings import HeldDevice, LiveGpu, NodeView
from powerccl.analysis.live.node import Watcher, add_up
from powerccl.analysis.live.totals import JobCounts
from powerccl.errors import PowercclError
from powerccl.launch.foreign import ForeignRuns, User, folder_of
from powerccl.launch.leases import SOCKET, SOCKET_VARIABLE, Device, connect, user_name
from powerccl.traces.plausible import MOST_WATTS
from powerccl.traces.run_info import RUN_FILE

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


def _owner_name(folder: Path) -> str:
    """Whose a folder is; empty: it cannot be told."""
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
        found: dict[Path, RunningJob] = {}
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
            folder = folder_of(pid, seen.folder, self._proc)
            job = found.setdefault(folder, RunningJob(folder, user=user_name(seen.user[0]), uid=seen.user[0]))
            job.pids.append(pid)
            job.lease_socket = job.lease_socket or (Path(seen.leases) if seen.leases else None)
        self._jobs, self.others = found, others

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
            self.unreadable += 1  # not remembered: counted anew in each scan
            return
        except OSError:  # it has ended
            return
        told = {
            name: next((os.fsdecode(word[len(name) :]) for word in words if word.startswith(name)), "")
            for name in (FOLDER_VARIABLE, LEASES_VARIABLE)
        }
        folder = told[FOLDER_VARIABLE]
        self._seen[pid] = _Seen(folder, told[LEASES_VARIABLE], user) if folder else None


def recent_folders(runs: Path) -> list[Path]:
    """Run folders below `runs` that have not been ended and are of this node, the latest first.

    Raises:
        PowercclError: there is no such folder.
    """
    from powerccl.traces.live import LiveRun

    if not runs.is_dir():
        raise PowercclError(f"no runs folder {runs}", "name the folder of `powerccl run --runs-dir`")
    found = []
    for path in sorted(runs.absolute().iterdir(), reverse=True):
        if not (path / RUN_FILE).is_file():
            continue
        run = LiveRun(path)
        run.read_info()
        if run.info and not run.info.end_ns and run.info.host in ("", socket.gethostname()):
            found.append(path)
    return found


class LeaseTable:
    """Who holds the clocks of this node's devices, asked of the daemons that jobs name and of the system's."""

    def __init__(self) -> None:
        self.problem = ""
        self._asked_s = float("-inf")
        self._devices: dict[Path, dict[str, Device]] = {}

    def devices(self, sockets: set[Path], now_s: float | None = None) -> dict[Path, dict[str, Device]]:
        """By socket, the devices that are held or wait to be put back, at most SCAN_EVERY_S ago.

        Two daemons may speak of the same GPU: of emulated servers, each has its own.
        """
        now_s = time.monotonic() if now_s is None else now_s
        if now_s - self._asked_s < SCAN_EVERY_S:
            return self._devices
        self._asked_s, self._devices, self.problem = now_s, {}, ""
        for path in {*sockets, Path(SOCKET)}:
            if not path.exists():
                continue
            try:
                with connect(path, "powerccl top") as leases:
                    self._devices[path] = {d.device: d for d in leases.status() if d.held or d.pending}
            except (PowercclError, OSError) as error:
                self.problem = f"leases: {error}"
        return self._devices


class NvmlReadings:
    """GPUs of this machine as NVML tells of them now: for jobs that have no agent. NVML is loaded when first asked."""

    def __init__(self) -> None:
        self._handles: dict[str, Any] | None = None
        self._names: dict[str, str] = {}

    def read(self, uuid: str) -> LiveGpu | None:
        """One GPU; None where NVML does not know it."""
        import pynvml

        if self._handles is None:
            self._handles = {}
            try:
                pynvml.nvmlInit()
                for index in range(pynvml.nvmlDeviceGetCount()):
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    self._handles[str(pynvml.nvmlDeviceGetUUID(handle))] = (index, handle)
            except pynvml.NVMLError:
                return None
        if uuid not in self._handles:
            return None
        index, handle = self._handles[uuid]

        def asked(call: Callable[..., Any], *arguments: object) -> Any:
            try:
                return call(handle, *arguments)
            except pynvml.NVMLError:
                return None

        power_mw = asked(pynvml.nvmlDeviceGetPowerUsage)
        used = asked(pynvml.nvmlDeviceGetUtilizationRates)
        return LiveGpu(
            gpu=uuid,
            index=index,
            host=socket.gethostname(),
            name=str(asked(pynvml.nvmlDeviceGetName) or ""),
            power_w=None if power_mw is None or power_mw > MOST_WATTS * 1e3 else power_mw / 1e3,
            clock_mhz=asked(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            temperature_c=asked(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
            utilization_pct=None if used is None else int(used.gpu),
            age_s=0.0,
            source="nvml",
        )


class LiveNode:
    """Follows the jobs of this node, or the run folders that it is given."""

    def __init__(
        self,
        folders: Sequence[Path] = (),
        runs: Path | None = None,
        window_s: float = 5.0,
        keep_s: float = 30.0,
        totals: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Follow `folders` if there are any, else jobs found by their processes and, in `runs`, by their folders.

        A job that has ended is kept for `keep_s`. With `totals` records are read from the beginning and counted; then
        `counts` has them by folder. `say` is told once of each folder of another user that cannot be read.
        """
        self.watchers: dict[Path, Watcher] = {}
        self.counts: dict[Path, JobCounts] = {}
        self.waiting = False  # there is more to be read than one look takes
        self.host = socket.gethostname()
        self._folders, self._runs = [folder.absolute() for folder in folders], runs
        self._window_s, self._keep_s, self._totals = window_s, keep_s, totals
        self._processes, self._leases, self._nvml = Processes(), LeaseTable(), NvmlReadings()
        self._last_s: dict[Path, float] = {}
        self._known: set[Path] = set()  # their processes were seen
        self._users: dict[Path, str] = {}
        self._listed_s = float("-inf")
        self._listed: list[Path] = []
        self._foreign = ForeignRuns(window_s, totals, self.host, keep_s, say)

    def close(self) -> None:
        """Let go of all files."""
        for watcher in self.watchers.values():
            watcher.close()
        self.watchers.clear()
        self._foreign.close()

    def look(self) -> NodeView:
        """What is there now. Reads only what is new since the last look."""
        begin_s = time.monotonic()
        view = NodeView(host=self.host, unix_s=time.time())
        try:
            running = self._processes.jobs(begin_s)
        except OSError as error:  # no /proc
            running = {}
            view.problems.append(f"cannot find jobs by their processes: {error}; name their folders")
        view.unreadable_processes = self._processes.unreadable
        others = {} if self._folders else {user: dict(names) for user, names in self._processes.others.items()}
        self.counts, self.waiting = {}, False
        for folder in self._wanted(running, begin_s):
            user = self._user_of(folder) if folder not in running else None
            if user:
                others.setdefault(user, {}).setdefault(str(folder), [])
                continue
            watcher = self.watchers.get(folder)
            if watcher is None:
                watcher = self.watchers[folder] = Watcher(folder, self._window_s, self._totals)
            job = watcher.look(time.monotonic_ns(), self.host)
            known = running.get(folder)
            # A series' labels are fixed for its life: the user stays the one of the first look, processes or not.
            job.user = self._users.setdefault(folder, known.user if known else _owner_name(folder))
            if known:
                job.pids = known.pids
                self._known.add(folder)
            elif folder in self._known:  # whatever run.json says: its launcher may have been killed too
                job.ended = True
            view.jobs.append(job)
            if watcher.totals:
                self.counts[Path(job.folder)] = watcher.totals.counts()
            self.waiting |= watcher.run.waiting
        self._add_others(view, others, begin_s)
        view.jobs.sort(key=lambda job: (job.ended, job.started_at, job.run))
        self._add_leases(view, running, begin_s)
        self._add_nvml(view)
        view.look_ms = (time.monotonic() - begin_s) * 1e3
        return view

    @staticmethod
    def _user_of(folder: Path) -> User | None:
        """Whose helper reads this folder; None: this process itself does."""
        if os.geteuid():
            return None
        try:
            about = folder.stat()
        except OSError:
            return None
        return (about.st_uid, about.st_gid) if about.st_uid else None

    def _add_others(self, view: NodeView, others: dict[User, dict[str, list[int]]], now_s: float) -> None:
        """Jobs of other users. A folder that two name is of the one whom it belongs to."""
        found = self._foreign.look(others, now_s)
        view.problems += found.problems
        self.waiting |= found.waiting
        known = {job.folder for job in view.jobs}
        for user, answer, running in sorted(found.answers, key=lambda each: each[0][0] != each[1].owner):
            job = answer.job
            if job is None or job.folder in known:
                continue
            known.add(job.folder)
            job.user, job.pids = user_name(user[0]), answer.pids
            job.ended |= not running
            view.jobs.append(job)
            if answer.counts is not None:
                self.counts[Path(job.folder)] = answer.counts

    def _wanted(self, running: dict[Path, RunningJob], now_s: float) -> list[Path]:
        if self._folders:
            return self._folders
        if self._runs and now_s - self._listed_s >= SCAN_EVERY_S:
            self._listed, self._listed_s = recent_folders(self._runs), now_s
        current = dict.fromkeys([*running, *self._listed])
        self._last_s.update(dict.fromkeys(current, now_s))
        for folder in [each for each, last_s in self._last_s.items() if now_s - last_s > self._keep_s]:
            del self._last_s[folder]
            self._known.discard(folder)
            self._users.pop(folder, None)
            watcher = self.watchers.pop(folder, None)
            if watcher:
                watcher.close()
        return list(self._last_s)

    def _add_leases(self, view: NodeView, running: dict[Path, RunningJob], now_s: float) -> None:
        mine = {job.lease_socket for job in running.values() if job.lease_socket and job.uid == os.getuid()}
        found = self._leases.devices(mine, now_s)
        if self._leases.problem:
            view.problems.append(self._leases.problem)
        view.leases = [
            HeldDevice(
                device=each.device,
                user=each.user,
                pid=each.holder_pid,
                run=each.run,
                min_mhz=each.min_mhz,
                max_mhz=each.max_mhz,
                held_s=each.held_ms / 1e3,
                pending=each.pending,
            )
            for devices in found.values()
            for each in devices.values()
            if not self._folders or each.device in {gpu.gpu for job in view.jobs for gpu in job.gpus}
        ]
        for job in view.jobs:
            known = running.get(Path(job.folder))
            named = known.lease_socket if known else None
            devices = found.get(named or Path(SOCKET), {}) if named or not job.emulated else {}
            for gpu in job.gpus:
                held = devices.get(gpu.gpu)
                if held and held.held and gpu.host == self.host and not job.ended:
                    clock = f"{held.max_mhz} MHz" if held.max_mhz else "usual"
                    own = held.holder_pid in job.pids
                    gpu.lease = clock if own else f"{clock}, {held.user} {held.holder_pid}"

    def _add_nvml(self, view: NodeView) -> None:
        """GPUs of ranks here that no agent samples."""
        for job in view.jobs:
            sampled = {gpu.gpu for gpu in job.gpus}
            for rank in job.ranks:
                if rank.gpu in sampled or rank.host != self.host or job.ended or job.emulated:
                    continue
                sampled.add(rank.gpu)
                gpu = self._nvml.read(rank.gpu)
                if gpu:
                    gpu.ranks = [each.rank for each in job.ranks if each.gpu == rank.gpu]
                    job.gpus.append(gpu)
                    add_up(job)
