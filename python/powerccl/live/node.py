# SPDX-License-Identifier: Apache-2.0
"""All jobs of this node at one moment: what `powerccl top` shows and `powerccl export` exports."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from powerccl.host_clock import monotonic_ns
from powerccl.leases.client import SOCKET, Device, Totals
from powerccl.live import processes
from powerccl.live.devices import LeaseTable, NvmlReadings
from powerccl.live.foreign import ForeignRuns, User
from powerccl.live.job import Watcher, add_up
from powerccl.live.labels import in_container, labels_here
from powerccl.live.processes import Processes, RunningJob, owner_name, recent_folders
from powerccl.live.snapshot import HeldDevice, LiveJob, NodeView
from powerccl.live.totals import JobCounts
from powerccl.users import user_name


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
        `counts` has them by folder. `say` is called once for each folder of another user that cannot be read.
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
        self._labels: dict[str, dict[str, str]] = {}  # by folder, of the last processes that were seen
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
            job = watcher.look(monotonic_ns(), self.host)
            known = running.get(folder)
            # A series' labels are fixed for its life: the user stays the one of the first look, processes or not.
            job.user = self._users.setdefault(folder, known.user if known else owner_name(folder))
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
        view.jobs = _once(view.jobs)
        self._add_labels(view.jobs)
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
        looked = self._foreign.look(others, now_s)
        view.problems += looked.problems
        self.waiting |= looked.waiting
        known = {job.folder for job in view.jobs}
        for user, answer, running in sorted(looked.answers, key=lambda each: each[0][0] != each[1].owner):
            job = answer.job
            if job is None or job.folder in known:
                continue
            known.add(job.folder)
            job.user, job.pids = user_name(user[0]), answer.pids
            job.ended |= not running
            view.jobs.append(job)
            if answer.counts is not None:
                self.counts[Path(job.folder)] = answer.counts

    def _add_labels(self, jobs: list[LiveJob]) -> None:
        """Say which job and pod each run is of here; a run whose processes have ended keeps what they said."""
        self._labels = {job.folder: self._labels.get(job.folder, {}) for job in jobs}
        for job in jobs:
            if of_processes := self._processes.labels_of(job.pids):
                self._labels[job.folder] = of_processes
            # A run with nothing on this machine is shown as it was recorded.
            host_here = not job.hosts_here or job.host in job.hosts_here
            job.labels = labels_here(job.labels, self._labels[job.folder], host_here)

    def _wanted(self, running: dict[Path, RunningJob], now_s: float) -> list[Path]:
        if self._folders:
            return self._folders
        if self._runs and now_s - self._listed_s >= processes.SCAN_EVERY_S:
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

    @property
    def daemon(self) -> tuple[list[Device], Totals] | None:
        """What the machine's powerccld answered last; None: nothing, or the user asks for certain runs alone."""
        return None if self._folders else self._leases.daemon

    def _add_leases(self, view: NodeView, running: dict[Path, RunningJob], now_s: float) -> None:
        sockets = {job.lease_socket for job in running.values() if job.lease_socket and job.uid == os.getuid()}
        by_socket = self._leases.devices(sockets, now_s)
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
            for devices in by_socket.values()
            for each in devices.values()
            if not self._folders or each.device in {gpu.gpu for job in view.jobs for gpu in job.gpus}
        ]
        for job in view.jobs:
            known = running.get(Path(job.folder))
            named = known.lease_socket if known else None
            devices = by_socket.get(named or Path(SOCKET), {}) if named or not job.emulated else {}
            for gpu in job.gpus:
                held = devices.get(gpu.gpu)
                if held and held.held and gpu.host in job.hosts_here and not job.ended:
                    clock = f"{held.max_mhz} MHz" if held.max_mhz else "default"
                    own = held.holder_pid in job.pids
                    gpu.lease = clock if own else f"{clock}, {held.user} {held.holder_pid}"

    def _add_nvml(self, view: NodeView) -> None:
        """GPUs of ranks here that no agent samples."""
        for job in view.jobs:
            sampled = {gpu.gpu for gpu in job.gpus}
            for rank in job.ranks:
                if rank.gpu in sampled or rank.host not in job.hosts_here or job.ended or job.emulated:
                    continue
                sampled.add(rank.gpu)
                gpu = self._nvml.read(rank.gpu)
                if gpu:
                    gpu.host = rank.host
                    gpu.ranks = [each.rank for each in job.ranks if each.gpu == rank.gpu]
                    job.gpus.append(gpu)
                    add_up(job)


def _once(jobs: list[LiveJob]) -> list[LiveJob]:
    """Without jobs that are seen twice: through a process of their container that has ended, and another one."""
    chosen: dict[str, LiveJob] = {}
    for job in sorted(jobs, key=lambda job: job.ended):
        chosen.setdefault(job.run_id, job)
    return [job for job in jobs if not (job.run_id and in_container(job.folder)) or chosen[job.run_id] is job]
