# SPDX-License-Identifier: Apache-2.0
"""A job recorded: folder, emulator, agent, child, and what became of it."""

from __future__ import annotations

import contextlib
import difflib
import os
import platform as machine
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from powerccl import __version__, aliases
from powerccl.errors import PowercclError, one_line
from powerccl.files import write_whole
from powerccl.launch import child, mpi
from powerccl.launch import environment as env
from powerccl.launch.child import ChildNotStartedError, Ended, run_child
from powerccl.launch.daemon import PrivateDaemon, find_daemon, system_daemon
from powerccl.launch.emulation import EmulatedServer, platform_name
from powerccl.launch.folder import job_name, make_folder
from powerccl.launch.gpus import Gpus, may_set_clocks, query_gpus, query_gpus_in
from powerccl.launch.launchers import JobLauncher, detect_launcher, in_leader
from powerccl.launch.native import MPI_ADAPTER, NCCL_ADAPTER, NativeFiles, find_native
from powerccl.launch.program import is_launcher, program_behind, takes_preload
from powerccl.launch.services import Service, start_agent
from powerccl.leases.client import SOCKET, SOCKET_VARIABLE
from powerccl.traces.run_info import RunInfo, write_run_info

if TYPE_CHECKING:
    from powerccl.platforms.schema import PlatformProfile

LEARNING = "auto"  # the policy that learns a clock: it keeps within --max-slowdown, and needs no platform profile
POLICIES = ("observe", "per-call", LEARNING)
NO_PROFILE = "none"  # --platform
ELSEWHERE = "name another folder with --runs-dir DIR"
AGENT_READY_S = 3.0
AGENT_END_S = 8.0
NO_RIGHT = "cannot set clocks: that needs root, CAP_SYS_ADMIN or a powerccld on this host"


@dataclass
class Request:
    """What to run and how; the options of `powerccl run`."""

    command: list[str]
    policy: str = "observe"  # empty: auto where clocks will be set, else observe
    platform: str = ""  # a profile's name or file; NO_PROFILE: none at all; empty: that of these GPUs
    emulate: str = ""
    set_clocks: bool = False
    overhead: str = "measured"
    name: str = ""
    runs: Path = Path("runs")
    interval_ms: int = 19
    mpi: str = ""  # one of mpi.MODES; empty: what the environment says, else auto
    max_delay_pct: float | None = None  # of waits in MPI; None: what the environment says, else 1
    max_slowdown_pct: float | None = None  # None: what the environment says, else 1
    best_effort: bool = False  # a job that cannot be recorded runs all the same
    preload: bool = True
    table_text: str = ""  # a policy table as it is, instead of one made from a profile
    environment: Mapping[str, str] = field(default_factory=dict)  # added to the child's
    tuned: str = ""  # a tuned profile, NAME, NAME@DIGEST or a file
    ways: str = ""  # auto, or a table of ways, NAME or file; empty: collectives stay as NCCL carries them out
    output: str = ""  # file in the run folder that takes the child's output, instead of the terminal


@dataclass
class Recorded:
    """A job that has ended. `folder` is None if nothing was recorded; `leads`: this launcher reports for its folder.

    `mpi_unseen`: why a job that looks like one of MPI left no MPI trace; else empty.
    """

    ended: Ended
    folder: Path | None
    leads: bool
    mpi_unseen: str = ""


def choose(kind: str, value: str, options: Iterable[str]) -> str:
    """The value, if it is one of the options.

    Raises:
        PowercclError: it is not; the nearest is suggested and all are listed.
    """
    options = list(options)
    if value in options:
        return value
    close = difflib.get_close_matches(value, options, 1)
    meant = f"did you mean '{close[0]}'? " if close else ""
    raise PowercclError(f"unknown {kind} '{value}'", f"{meant}known: {', '.join(options)}")


def record(request: Request, say: Callable[[str], None]) -> Recorded:
    """Run the command with everything around it and wait for its end; `say` tells the user what matters meanwhile.

    With `best_effort`, whatever fails in recording costs one line, and the job runs without a record.

    Raises:
        PowercclError: something to mend before the job can start; nothing was started.
        ChildNotStartedError: the command could not be executed.
    """
    say = _never_failing(say)
    plain: Mapping[str, str] = {**os.environ, **request.environment}
    plain = aliases.variables(plain, _never_failing(in_leader(plain, say)))
    with _ending(contextlib.ExitStack(), say) as stack:
        server = EmulatedServer(request.emulate, stack)
        recording: _Recording | None = None
        environment: Mapping[str, str] = plain
        output = None
        try:
            recording = _Recording(request, _prepare(request, plain, server, say), say)
            environment = recording.begin()
            output = recording.folder / request.output if request.output else None
        except (PowercclError, ChildNotStartedError):
            raise  # what the user asked for cannot be had: the job has not begun
        except Exception as error:
            cause = error.error if isinstance(error, _UnrecordableError) else error
            if recording:
                recording.leave()
            if not request.best_effort:
                raise cause from None
            say(f"{one_line(cause)}; the job runs unrecorded")
            recording, environment = None, server.environment(_unrecorded(request, plain))
        try:
            ended = run_child(request.command, environment, output, say)
        except Exception as error:
            if recording:
                recording.leave()
            cannot = isinstance(error, ChildNotStartedError) and not error.too_long
            if cannot or child.last.pid or not request.best_effort:
                raise
            say(f"{one_line(error)}; the job runs unrecorded")
            recording = None
            ended = run_child(request.command, server.environment(_unrecorded(request, plain)), say=say)
        if recording is None:
            return Recorded(ended, None, True)
        unseen = ""
        try:
            unseen = recording.end(ended, environment)
        except Exception as error:
            say(f"cannot record the end of the run: {one_line(error)}")
        return Recorded(ended, recording.folder, recording.job.leads, unseen)


class _UnrecordableError(Exception):
    """A job cannot be recorded, and that is nothing that the user has asked for in so many words."""

    def __init__(self, error: PowercclError) -> None:
        super().__init__(str(error))
        self.error = error


@contextlib.contextmanager
def _recording_only() -> Iterator[None]:
    """An error in here is one of recording: the job can do without."""
    try:
        yield
    except PowercclError as error:
        raise _UnrecordableError(error) from error


@dataclass
class _Job:
    """What is known before anything is written: the plan, and the environment that the job gets in any case."""

    native: NativeFiles
    base: Mapping[str, str]
    launcher: JobLauncher | None
    mpi_mode: str
    gpus: Gpus
    policy: str
    table_text: str
    folder: Path

    @property
    def leads(self) -> bool:
        """Whether this launcher writes and reports for the folder."""
        return self.launcher is None or self.launcher.leads

    @property
    def on_node(self) -> bool:
        """Whether this launcher starts what a node needs once."""
        return self.launcher is None or self.launcher.local_rank <= 0


def _prepare(request: Request, plain: Mapping[str, str], server: EmulatedServer, say: Callable[[str], None]) -> _Job:
    """Check what the user asked for, make the run folder, and bring up the emulated server.

    Raises:
        PowercclError: what was asked for cannot be had.
        ChildNotStartedError: there is no such command.
        _UnrecordableError: the job cannot be recorded.
    """
    if request.policy:
        choose("policy", request.policy, POLICIES)
    base = dict(plain)
    if not _is_there(request.command[0], base) and not _is_ours(request.command[0]):
        raise ChildNotStartedError(request.command[0], FileNotFoundError(2, "no such command"))
    server.check()
    with _recording_only():
        mode = mpi.choose_mode(request.mpi, base)
        native = find_native()
    if "PATH" in base or _is_ours(request.command[0]):
        # Last, so that it hides nothing: powerccl-bench is found, by launchers as well.
        base["PATH"] = os.pathsep.join([base.get("PATH", os.defpath), str(native.root / "bin")])
    launcher = detect_launcher(base)
    leads = launcher is None or launcher.leads
    on_node = launcher is None or launcher.local_rank <= 0
    say_once = say if leads else _silent
    gpus, policy, table_text, profile = _plan(request, base, say_once)
    with _recording_only():
        folder = make_folder(request.runs, request.name or _job_name(request.command, base), launcher)
    base = dict(server.environment(base, folder, on_node))
    if request.emulate and profile is not None and request.platform:
        _check_emulated(profile, base)
    if request.tuned:
        from powerccl.launch.tuned import load_for_job, tuned_environment

        tuned = load_for_job(request.tuned, base, emulated=bool(request.emulate))
        base = dict(tuned_environment(base, native, tuned, say_once))
        if tuned.ways and not request.ways:
            from powerccl.launch.ways import tuned_ways_environment

            base = tuned_ways_environment(base, tuned)
    if request.ways:
        from powerccl.launch import ways

        here = gpus if gpus.names else (query_gpus_in(base) if request.emulate else query_gpus())
        base = ways.ways_environment(base, ways.choose_tables(request.ways, here), say_once)
    return _Job(native, base, launcher, mode, gpus, policy, table_text, folder)


def _unrecorded(request: Request, plain: Mapping[str, str]) -> Mapping[str, str]:
    """The environment of a job that is not recorded: as it is, or with a PATH by which one of our programs is found."""
    if _is_there(request.command[0], plain) or not _is_ours(request.command[0]):
        return plain
    return {**plain, "PATH": os.pathsep.join([plain.get("PATH", os.defpath), str(find_native().root / "bin")])}


def _is_there(command: str, environment: Mapping[str, str]) -> bool:
    return shutil.which(command, path=environment.get("PATH")) is not None or os.path.lexists(command)


def _is_ours(command: str) -> bool:
    """Whether it is a program of the native part, which need not be in PATH."""
    try:
        return bool(command) and (find_native().root / "bin" / command).exists()
    except PowercclError:
        return False


NVIDIA_DEVICE = Path("/dev/nvidiactl")  # the driver makes it; a job on a node without it has no GPU part


class _Recording:
    """What is done around one job; `begin` before it and `end` after it, or `leave` where `begin` failed."""

    def __init__(self, request: Request, job: _Job, say: Callable[[str], None]) -> None:
        self.request = request
        self.job = job
        self.say = say
        self.folder = job.folder
        self._agent: Service | None = None
        self._daemon: PrivateDaemon | None = None
        self._info = RunInfo(request.command)
        self._no_mpi = ""
        self._unsampled: list[str] = []  # why the agent samples no GPU, until it is said

    def begin(self) -> dict[str, str]:
        """Write the folder's first files, start the helpers, and give the job's environment.

        Raises:
            _UnrecordableError: that cannot be done.
        """
        with _recording_only():
            return self._begin()

    def _begin(self) -> dict[str, str]:
        request, job, say = self.request, self.job, self.say
        say_once = say if job.leads else _silent
        policy, base = job.policy, job.base
        emulated = bool(request.emulate) or job.gpus.emulated
        clocks, about_clocks = decide_clocks(policy, emulated, request.set_clocks, base)
        if about_clocks and (request.policy or policy != "observe"):  # else the plan has said it
            say_once(about_clocks)
        if request.max_slowdown_pct is not None and request.policy and policy != LEARNING:
            say_once(f"policy {policy} ignores --max-slowdown, which is for {LEARNING}")
        name = request.name or _job_name(request.command, base)
        self._info = _describe(request, name, policy, clocks, job.gpus, job.launcher, base)
        if policy == LEARNING:
            asked = request.max_slowdown_pct
            self._info.slowdown_pct = env.slowdown_budget_pct(base) if asked is None else asked
        table = self._write_first_files()
        if job.on_node:
            self._agent = _start_agent(job.native, self.folder, request, base, say, self._unsampled.append)
        if request.emulate or NVIDIA_DEVICE.exists():
            self._tell_unsampled()
        if clocks == "lease":
            clocks, leases, self._daemon = _arrange_leases(job.native, self.folder, base, emulated, job.on_node, say)
            base = {**base, SOCKET_VARIABLE: str(leases)}
        self._info.clocks = clocks
        environment = env.job_environment(
            base, job.native, self.folder, policy, table, clocks, request.max_slowdown_pct
        )
        preload = env.preload_wanted(base, request.preload)
        for_mpi, self._no_mpi = mpi.mpi_environment(base, job.native, job.mpi_mode, request.max_delay_pct, preload)
        environment.update(for_mpi)
        ours = [job.native.root / NCCL_ADAPTER, job.native.root / MPI_ADAPTER]
        with_mpi = job.mpi_mode != "off" and not self._no_mpi
        wanted = (ours if with_mpi else ours[:1]) if preload else []
        if wanted and not takes_preload(request.command, base, ours[0]):
            say_once(f"no library is preloaded: {request.command[0]} is for another processor or word size")
            wanted = []
        environment = env.with_sanitizers(env.with_preload(environment, ours, wanted), base)
        if self._no_mpi and request.mpi:
            say_once(self._no_mpi)
        self._info.start_ns = time.monotonic_ns()
        return environment

    def end(self, ended: Ended, environment: Mapping[str, str]) -> str:
        """Let the helpers go and write how the job ended. Gives why MPI was not seen, if so."""
        self._info.end_ns = time.monotonic_ns()
        self.leave()
        if any(self.folder.glob("rank-*.trace")):
            self._tell_unsampled()
        self._info.exit_code, self._info.signal = ended.code, ended.signal
        if not self.job.leads:
            return ""
        write_run_info(self.folder, self._info)
        if self._no_mpi:
            return ""
        launcher = self.job.launcher
        among_ranks = launcher is not None and launcher.speaks_mpi
        return mpi.why_unseen(self.request.command, environment, self.folder, self.job.mpi_mode, among_ranks)

    def leave(self) -> None:
        """End the helpers; a fault with one leaves the other to be ended."""
        daemon, agent = self._daemon, self._agent
        self._daemon = self._agent = None
        try:
            if daemon:
                daemon.end(self.say)
        except Exception as error:
            self.say(f"cannot end powerccld: {one_line(error)}")
        try:
            if agent:
                _release_agent(agent, self.job.native, self.folder, self.job.base, self.say)
        except Exception as error:
            self.say(f"cannot end powerccl-agent: {one_line(error)}")

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


@contextlib.contextmanager
def _ending(stack: contextlib.ExitStack, say: Callable[[str], None]) -> Iterator[contextlib.ExitStack]:
    """End what was entered on the stack; where that fails, the job's own end still counts."""
    try:
        yield stack
    finally:
        try:
            stack.close()
        except Exception as error:
            say(f"cannot end the emulated server: {one_line(error)}")


def _never_failing(say: Callable[[str], None]) -> Callable[[str], None]:
    """`say`, where standard error may be closed or full: nobody hears it then."""

    def say_or_not(text: str) -> None:
        with contextlib.suppress(Exception):
            say(text)

    return say_or_not


def _silent(_: str) -> None:
    """The other ranks' launchers keep quiet."""


def _check_emulated(profile: PlatformProfile, environment: Mapping[str, str]) -> None:
    from powerccl.platforms.store import check_machine

    check_machine(profile, query_gpus_in(environment).names)


Plan = tuple[Gpus, str, str, "PlatformProfile | None"]


def _plan(request: Request, environment: Mapping[str, str], say: Callable[[str], None]) -> Plan:
    """GPUs, the policy that can really be followed, its table, and the profile that was made from.

    Profiles are read before anything is started.
    """
    if request.policy == "observe" or request.table_text:
        return Gpus(), request.policy, request.table_text, None
    if request.policy:
        return _plan_policy(request, request.policy, say)
    return _plan_default(request, environment, say)


def _plan_default(request: Request, environment: Mapping[str, str], say: Callable[[str], None]) -> Plan:
    """`auto` where clocks may be set, else `observe`. Silent, but for a user who asked for clocks (--set-clocks)."""
    emulated = bool(request.emulate or environment.get("POWERCCL_EMULATOR_SOCKET"))
    # Asked before NVML is: a run that only records stays quick to start.
    clocks, _ = decide_clocks(LEARNING, emulated, request.set_clocks, environment)
    if clocks not in ("lease", "nvml") and not request.set_clocks:
        return Gpus(), "observe", "", None
    return _plan_policy(request, LEARNING, say if request.set_clocks else _silent)


def _plan_policy(request: Request, policy: str, say: Callable[[str], None]) -> Plan:
    from powerccl.platforms.policy_table import policy_table
    from powerccl.platforms.store import check_machine

    gpus = Gpus() if request.emulate else query_gpus()
    if not request.emulate and not gpus.names:
        say(f"recording only: policy {policy} has no GPU to manage ({gpus.describe()})")
        return gpus, "observe", "", None
    if policy == LEARNING:
        if request.platform not in ("", NO_PROFILE):
            say(f"policy {policy} ignores --platform, which is for per-call")
        return gpus, policy, "", None
    profile = _profile(request, gpus)
    if profile is None:
        where = f"the emulated platform {platform_name(request.emulate)}" if request.emulate else gpus.describe()
        emulated = f" --emulate {request.emulate}" if request.emulate else ""
        raise PowercclError(
            f"no platform profile for {where}, which policy {policy} needs",
            f"make one with `powerccl profile{emulated}`, choose one with --platform, or use --policy {LEARNING}",
        )
    if not request.emulate:
        check_machine(profile, gpus.names)
    return gpus, policy, policy_table(profile, request.overhead), profile


def _profile(request: Request, gpus: Gpus) -> PlatformProfile | None:
    """The profile that was chosen, else that of these GPUs; None: there is none, or none is wanted."""
    from powerccl.platforms.store import known_profiles, load_profile, profile_for

    if request.platform == NO_PROFILE:
        return None
    if request.platform:
        return load_profile(request.platform)
    with _recording_only():
        if not request.emulate:
            return profile_for(gpus.names)
        name = platform_name(request.emulate)
        return load_profile(name) if name in known_profiles() else None


def decide_clocks(
    policy: str, emulated: bool, set_clocks: bool, environment: Mapping[str, str]
) -> tuple[str, str | None]:
    """POWERCCL_CLOCKS for the job, and what the user should hear about it."""
    wish = environment.get("POWERCCL_CLOCKS", "")
    if wish in ("dry", "none"):
        hint = f"POWERCCL_CLOCKS={wish}: no clock is set" if policy != "observe" or set_clocks else None
        return wish, hint
    if policy == "observe":
        return "none", "policy observe sets no clocks" if set_clocks else None
    if not set_clocks and not emulated:
        return "dry", "dry run: the policy decides clocks but sets none; add --set-clocks to set them"
    may = emulated or may_set_clocks()
    if wish == "nvml" and may:
        return "nvml", None
    if may:
        return "lease", None
    asked = ""
    if wish == "nvml":
        asked = "POWERCCL_CLOCKS=nvml needs root or CAP_SYS_ADMIN: "
    if system_daemon(environment):
        return "lease", f"{asked}powerccld sets clocks instead; unset the variable, or run as root" if asked else None
    if asked:
        return "dry", f"{asked}dry run, no clock is set; run as root, or have powerccld installed"
    return "dry", f"{NO_RIGHT}; this is a dry run"


def _arrange_leases(
    native: NativeFiles,
    folder: Path,
    base: Mapping[str, str],
    emulated: bool,
    on_node: bool,
    say: Callable[[str], None],
) -> tuple[str, Path, PrivateDaemon | None]:
    """Who grants the job's clocks: POWERCCL_CLOCKS, the socket to ask at, and the daemon that was started for it."""
    try:
        listening, daemon = find_daemon(native, folder, base, emulated, start=on_node)
    except (PowercclError, OSError) as error:
        say(f"dry run, no clock is set: {error}")
        return "dry", Path(SOCKET), None
    return "lease", listening, daemon


def _job_name(command: list[str], environment: Mapping[str, str]) -> str:
    """A short name for a command; an MPI launcher's is its program's."""
    behind = program_behind(command, environment) if is_launcher(command) else None
    return job_name([str(behind), *command[1:]] if behind else command)


def _start_agent(
    native: NativeFiles,
    folder: Path,
    request: Request,
    base: Mapping[str, str],
    say: Callable[[str], None],
    quote: Callable[[str], None],
) -> Service | None:
    agent = start_agent(native, folder, request.interval_ms, base, machine.node())
    if not agent.wait_ready(AGENT_READY_S) and agent.has_ended(0.5):
        if agent.process.returncode != 0:  # 0: another launcher's agent has this node
            say(f"cannot sample power and clocks: {agent.last_words() or 'powerccl-agent ended at once'}")
        agent.stop(0)
        return None
    for line in agent.words():
        quote(line.removeprefix("powerccl-agent: "))
    return agent


def _release_agent(
    agent: Service, native: NativeFiles, folder: Path, base: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Let the agent end once no process lives that may lock a clock. It is never killed: it is the guard."""
    if agent.has_ended(0):  # somebody killed it: another one undoes what it would have undone
        try:
            agent = start_agent(native, folder, 0, base, machine.node())
        except (PowercclError, OSError) as error:
            say(f"powerccl-agent ended too soon and cannot be restarted ({error}): clocks may still be locked")
            return
        agent.wait_ready(AGENT_READY_S)
    if not agent.release(AGENT_END_S):
        say(
            f"processes of this job still run and may set clocks; powerccl-agent (pid {agent.process.pid}) "
            "runs until they end"
        )


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
        start_ns=time.monotonic_ns(),
        policy=policy,
        clocks=clocks,
        platform=platform_name(_platform(request)),
        emulated=platform_name(request.emulate),
        interval_ms=request.interval_ms,
        gpus=gpus.names,
        launcher=launcher.name if launcher else "",
        versions=versions,
        environment=env.recorded(base),
    )
