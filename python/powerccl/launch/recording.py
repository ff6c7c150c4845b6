# SPDX-License-Identifier: Apache-2.0
"""What is done around one job: the folder's first files, the helpers, the job's environment, and the last files."""

from __future__ import annotations

import contextlib
import os
import platform as machine
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from powerccl import __version__
from powerccl.errors import PowercclError, one_line
from powerccl.files import write_whole
from powerccl.host_clock import monotonic_ns
from powerccl.launch import environment as env
from powerccl.launch import mpi
from powerccl.launch.child import Ended
from powerccl.launch.emulation import platform_name
from powerccl.launch.folder import job_name
from powerccl.launch.gpus import Gpus
from powerccl.launch.launchers import JobLauncher
from powerccl.launch.native import MPI_ADAPTER, NCCL_ADAPTER, NativeFiles
from powerccl.launch.node_agent import NodeAgent
from powerccl.launch.plan import decide_clocks
from powerccl.launch.program import is_launcher, program_words, takes_preload
from powerccl.launch.request import LEARNING, NO_PROFILE, Request, recording_only, silent
from powerccl.quantities import plural
from powerccl.traces.helpers import HelperLog
from powerccl.traces.job_labels import of_this_process
from powerccl.traces.run_files import RunFiles, run_files
from powerccl.traces.run_info import RunInfo, write_run_end, write_run_info
from powerccl.users import user_name

if TYPE_CHECKING:
    from powerccl.launch.daemon import PrivateDaemon
    from powerccl.launch.local_folder import LocalFolder
    from powerccl.launch.remote_agents import RemoteAgents

ELSEWHERE = "name another folder with --runs-dir DIR"
NVIDIA_DEVICE = Path("/dev/nvidiactl")  # the driver makes it; a job on a node without it has no GPU part


@dataclass
class Job:
    """What is known before anything is written: the plan, and the environment that the job gets in any case."""

    native: NativeFiles
    base: Mapping[str, str]
    launcher: JobLauncher | None
    mpi_mode: str
    gpus: Gpus
    policy: str
    table_text: str
    folder: Path
    clock_mhz: int = 0  # that is fixed for the job; 0: none

    @property
    def leads(self) -> bool:
        """Whether this launcher writes and reports for the folder."""
        return self.launcher is None or self.launcher.leads

    @property
    def on_node(self) -> bool:
        """Whether this launcher starts what a node needs once."""
        return self.launcher is None or self.launcher.local_rank <= 0


class Recording:
    """What is done around one job; `begin` before it and `end` after it, or `leave` where `begin` failed."""

    def __init__(self, request: Request, job: Job, say: Callable[[str], None]) -> None:
        self.request = request
        self.job = job
        self.say = say
        self.folder = job.folder
        self._agent: NodeAgent | None = None
        self._remote: RemoteAgents | None = None
        self._daemon: PrivateDaemon | None = None
        self._local: LocalFolder | None = None
        self.not_packed: Path | None = None  # what says where this node's files are, if this launcher cannot pack them
        self._info = RunInfo(request.command)
        self._no_preload = ""
        self._seen: list[str] | None = None  # the agent's lines about the job's processes
        self._unsampled: list[str] = []  # why the agent samples no GPU, until it is said

    def begin(self) -> dict[str, str]:
        """Write the folder's first files, start the helpers, and give the job's environment.

        Raises:
            UnrecordableError: that cannot be done.
        """
        with recording_only():
            return self._begin()

    def _begin(self) -> dict[str, str]:
        request, job, say = self.request, self.job, self.say
        say_once = say if job.leads else silent
        policy, base = job.policy, job.base
        emulated = bool(request.emulate) or job.gpus.emulated
        consent = request.set_clocks and not request.clock  # --clock says itself what it sets
        clocks, about_clocks = decide_clocks(policy, emulated, consent, base)
        if about_clocks and (request.policy or policy != "observe"):  # else the plan has said it
            say_once(about_clocks)
        if request.max_slowdown_pct is not None and request.policy and policy != LEARNING:
            say_once(f"policy {policy} ignores --max-slowdown, which is for {LEARNING}")
        name = request.name or name_of(request.command, base)
        self._info = _describe(request, name, policy, clocks, job.gpus, job.launcher, base)
        self._info.clock_mhz = job.clock_mhz
        if policy == LEARNING:
            asked = request.max_slowdown_pct
            self._info.slowdown_pct = env.slowdown_budget_pct(base) if asked is None else asked
        table = self._write_first_files()
        if clocks == "lease":
            clocks, base, self._daemon = _arrange_leases(job.native, self.folder, base, emulated, job.on_node, say)
        self._info.clocks = "lease" if job.clock_mhz else clocks
        self._enter_local()
        environment = env.job_environment(
            base, job.native, self.folder, policy, table, clocks, request.max_slowdown_pct, self._local_folder
        )
        preload = env.preload_wanted(base, request.preload)
        for_mpi, no_mpi = mpi.mpi_environment(base, job.native, job.mpi_mode, request.max_delay_pct, preload)
        environment.update(for_mpi)
        adapters = [job.native.root / NCCL_ADAPTER, job.native.root / MPI_ADAPTER]
        with_mpi = job.mpi_mode != "off" and not no_mpi
        wanted = (adapters if with_mpi else adapters[:1]) if preload else []
        if wanted and not takes_preload(request.command, base, adapters[0]):
            self._no_preload = f"{request.command[0]} is for another processor or word size"
            say_once(f"no library is preloaded: {self._no_preload}")
            wanted = []
        self._no_preload = self._no_preload or no_mpi
        environment = env.with_sanitizers(env.with_preload(environment, adapters, wanted), base)
        if no_mpi and request.mpi:
            say_once(f"MPI is not recorded: {no_mpi}")
        self._start_agent()
        self._info.start_ns = monotonic_ns()
        if job.leads:  # `powerccl top` needs the time at which the job starts while it runs
            with contextlib.suppress(OSError):
                write_run_info(self.folder, self._info)
        return environment

    def _enter_local(self) -> None:
        """Keep this node's files on it while the job runs, where that was asked for; else in the run folder."""
        if self.request.local_dir is None:
            return
        from powerccl.launch.local_folder import enter

        try:
            self._local = enter(self.request.local_dir, self.folder)
        except PowercclError as error:
            if self.job.on_node:
                self.say(f"{error.message}; traces and samples go to the run folder while the job runs; {error.hint}")

    @property
    def _local_folder(self) -> Path | None:
        return self._local.folder if self._local else None

    def _start_agent(self) -> None:
        """Start the node's sampler. It comes last: its first readings are the energy counters' at the job's start."""
        request, job = self.request, self.job
        if job.on_node:
            records = self._local_folder or self.folder
            events = HelperLog(records, machine.node())
            several = job.launcher is not None and not job.launcher.alone_on_node(job.base)
            self._agent = NodeAgent(job.native, records, request.interval_ms, job.base, events, several)
            self._unsampled += self._agent.start(self.say)
        if job.launcher is None and request.interval_ms > 0 and is_launcher(request.command):
            self._start_remote_agents()
        if request.emulate or NVIDIA_DEVICE.exists():
            self._tell_unsampled()

    def _start_remote_agents(self) -> None:
        from powerccl.launch.remote_agents import RemoteAgents, launch_of

        if launch := launch_of(self.request.command, self.job.base):
            self._remote = RemoteAgents(self.job.native, self.folder, self.request.interval_ms, launch)
            if self._local and self._remote.others:
                self.say(
                    f"--local-dir is for this host: {plural(len(self._remote.others), 'other host')} record in the run "
                    f"folder; to keep their records on them, start `powerccl run` behind {launch.words[0]}"
                )
            self._remote.start(self.job.base, self.say)

    def run_by(self, command: list[str]) -> None:
        """State the job's command where it is known only once the job runs; empty: it is not known."""
        self._info.command = command
        if self.job.leads:
            with contextlib.suppress(OSError):
                write_run_info(self.folder, self._info)

    def end(self, ended: Ended | None, environment: Mapping[str, str]) -> None:
        """Let the helpers go and write how the job ended, and why no rank left a trace, if so.

        `ended`: None where this process cannot know the job's exit code.

        Raises:
            OSError: the folder cannot be written.
        """
        self._info.end_ns = monotonic_ns()
        if self._agent:
            self._agent.ask_to_end(self.say)  # first: its last readings are the energy counters' at the job's end
        if self._remote:
            self._remote.ask_to_end()
        self._end_helpers()
        try:
            self._write_end(ended, environment)
        finally:
            self._leave_local()

    def _write_end(self, ended: Ended | None, environment: Mapping[str, str]) -> None:
        listing = RunFiles()
        with contextlib.suppress(OSError):
            listing = run_files(self.folder)
        traces = [path.name for _, path in listing.files if path.suffix == ".trace"]
        if any(name.startswith("rank-") for name in traces):
            self._tell_unsampled()
        if ended:
            self._info.exit_code, self._info.signal = ended.code, ended.signal
        if not self.job.leads:
            return
        if not traces and not listing.elsewhere:
            self._info.unrecorded = self._cause(ended or Ended(0, None), environment)
        if not self.folder.is_dir():
            self.say(self._info.unrecorded)
            return
        write_run_end(self.folder, self._info)

    def _cause(self, ended: Ended, environment: Mapping[str, str]) -> str:
        """Why no rank left a trace."""
        from powerccl.launch.cause import Evidence, find_cause, read_seen

        launcher = self.job.launcher
        return find_cause(
            Evidence(
                command=self._info.command or self.request.command,
                environment=environment,
                folder=self.folder,
                code=ended.code,
                signal=ended.signal,
                took_s=self._info.wall_ns / 1e9,
                mpi_off=self.job.mpi_mode == "off",
                among_ranks=launcher is not None and launcher.speaks_mpi,
                no_preload=self._no_preload,
                has_gpu=bool(self.request.emulate) or NVIDIA_DEVICE.exists(),
                seen=None if self._seen is None else read_seen(self._seen),
                local=self._local_folder,
            )
        )

    def leave(self) -> None:
        """End the helpers, and bring home what this node has kept."""
        self._end_helpers()
        self._leave_local()

    def _leave_local(self) -> None:
        local, self._local = self._local, None
        try:
            if local and not local.leave(self.say):
                self.not_packed = local.pointer
        except Exception as error:
            self.say(f"cannot pack the files of this node: {one_line(error)}")

    def _end_helpers(self) -> None:
        """A fault with one leaves the other to be ended."""
        daemon, agent, remote = self._daemon, self._agent, self._remote
        self._daemon = self._agent = self._remote = None
        try:
            if daemon:
                daemon.end(self.say)
        except Exception as error:
            self.say(f"cannot end powerccld: {one_line(error)}")
        try:
            if agent:
                self._seen = agent.end(self.say)
        except Exception as error:
            self.say(f"cannot end powerccl-agent: {one_line(error)}")
        try:
            if remote:
                remote.end(self.say)
        except Exception as error:
            self.say(f"cannot end the agents of other hosts: {one_line(error)}")

    def _tell_unsampled(self) -> None:
        """Say why no GPU is sampled. Where this node has none, only a job that used GPUs misses it."""
        for line in self._unsampled:
            self.say(line)
        self._unsampled.clear()

    def _write_first_files(self) -> Path | None:
        """Write the policy table and run.json; where the first goes."""
        table = self.folder / "policy.table" if self.job.table_text else None
        try:
            if table:
                write_whole(table, self.job.table_text)
            if self.job.leads:
                write_run_info(self.folder, self._info)
        except OSError as error:
            raise PowercclError(f"cannot write in {self.folder}: {error.strerror}", ELSEWHERE) from error
        return table


def name_of(command: list[str], environment: Mapping[str, str]) -> str:
    """A short name for a command; a launcher's is its program's."""
    return job_name(program_words(command, environment) or command)


def _arrange_leases(
    native: NativeFiles,
    folder: Path,
    base: Mapping[str, str],
    emulated: bool,
    on_node: bool,
    say: Callable[[str], None],
) -> tuple[str, Mapping[str, str], PrivateDaemon | None]:
    """Who grants the job's clocks: POWERCCL_CLOCKS, the environment with the socket to ask at, and a daemon for it."""
    from powerccl.launch.daemon import find_daemon
    from powerccl.leases.client import SOCKET, SOCKET_VARIABLE

    try:
        listening, daemon = find_daemon(native, folder, base, emulated, start=on_node)
    except (PowercclError, OSError) as error:
        say(f"dry run, no clock is set: {error}")
        return "dry", {**base, SOCKET_VARIABLE: SOCKET}, None
    return "lease", {**base, SOCKET_VARIABLE: str(listening)}, daemon


def _working_directory() -> str:
    """Where we are; empty if that has been removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _platform(request: Request) -> str:
    return request.emulate if request.platform in ("", NO_PROFILE) else request.platform


def _describe(
    request: Request,
    name: str,
    policy: str,
    clocks: str,
    gpus: Gpus,
    launcher: JobLauncher | None,
    base: Mapping[str, str],
) -> RunInfo:
    versions = {"powerccl": __version__, "python": machine.python_version(), "kernel": machine.release()}
    if gpus.driver:
        versions["driver"] = gpus.driver
    return RunInfo(
        command=request.command,
        name=name,
        host=machine.node(),
        working_directory=_working_directory(),
        started_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        start_ns=monotonic_ns(),
        policy=policy,
        clocks=clocks,
        platform=platform_name(_platform(request)),
        emulated=platform_name(request.emulate),
        interval_ms=request.interval_ms,
        gpus=gpus.names,
        launcher=launcher.name if launcher else "",
        user=user_name(os.geteuid()),
        labels=of_this_process(base),
        versions=versions,
        environment=env.recorded(base),
    )
