# SPDX-License-Identifier: Apache-2.0
"""A job recorded: folder, emulator, agent, child, and what became of it."""

from __future__ import annotations

import contextlib
import difflib
import os
import platform as machine
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from powerccl import __version__
from powerccl.errors import PowercclError
from powerccl.launch import environment as env
from powerccl.launch import mpi
from powerccl.launch.child import ChildNotStartedError, Ended, run_child
from powerccl.launch.emulation import Emulation, emulated_platform, platform_name
from powerccl.launch.folder import JobLauncher, detect_launcher, job_name, make_folder
from powerccl.launch.gpus import Gpus, may_set_clocks, query_gpus, query_gpus_in
from powerccl.launch.leases import SOCKET, SOCKET_VARIABLE
from powerccl.launch.leasing import PrivateDaemon, find_daemon, system_daemon
from powerccl.launch.native import MPI_DOOR, NCCL_DOOR, NativeFiles, find_native
from powerccl.launch.services import Service, start_agent
from powerccl.traces.run_info import RunInfo, write_run_info

if TYPE_CHECKING:
    from powerccl.platforms.schema import PlatformProfile

LEARNING = ("phase", "job", "auto")  # policies that keep a budget of slowdown
POLICIES = ("observe", "percall", *LEARNING)
ELSEWHERE = "name another place with --runs-dir DIR, or run unrecorded with --best-effort"
AGENT_READY_S = 3.0
AGENT_END_S = 8.0
NO_RIGHT = "no right to set clocks (that takes root, CAP_SYS_ADMIN or a powerccld on this machine)"


@dataclass
class Request:
    """What to run and how; the options of `powerccl run`."""

    command: list[str]
    policy: str = "observe"  # empty: auto where clocks will be set and a profile is known, else observe
    platform: str = ""
    emulate: str = ""
    set_clocks: bool = False
    overhead: str = "measured"
    name: str = ""
    runs: Path = Path("runs")
    interval_ms: int = 19
    mpi: str = ""  # one of mpi.MODES; empty: what the environment says, else auto
    budget_pct: float | None = None  # None: what the environment says, else 1
    slowdown_pct: float | None = None  # None: what the environment says, else 1
    best_effort: bool = False
    preload: bool = True
    table_text: str = ""  # a policy table as it is, instead of one made from a profile
    environment: Mapping[str, str] = field(default_factory=dict)  # added to the child's
    tuned: str = ""  # a tuned profile, NAME, NAME@DIGEST or a file
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

    Raises:
        PowercclError: something to mend before the job can start; nothing was started.
        ChildNotStartedError: the command could not be executed.
    """
    if request.policy:
        choose("policy", request.policy, POLICIES)
    base = {**os.environ, **request.environment}
    native = find_native()
    # Last, so that it hides nothing: powerccl-bench is found, by launchers as well.
    base["PATH"] = os.pathsep.join([base.get("PATH", os.defpath), str(native.root / "bin")])
    if shutil.which(request.command[0], path=base.get("PATH")) is None and not Path(request.command[0]).exists():
        raise ChildNotStartedError(request.command[0], FileNotFoundError(2, "no such command"))
    mode = mpi.choose_mode(request.mpi, base)
    platform_file = emulated_platform(native, request.emulate) if request.emulate else None
    launcher = detect_launcher(base)
    leads = launcher is None or launcher.leads
    on_node = launcher is None or launcher.local_rank <= 0
    say_once = say if leads else _silent

    with contextlib.ExitStack() as stack:
        gpus, policy, table_text, profile = _plan(request, base, say_once)
        name = request.name or _job_name(request.command, base)
        folder = _folder(request, name, launcher, say_once)
        emulation = None
        if platform_file:
            emulation = stack.enter_context(Emulation(native, platform_file, folder, serve=on_node))
            base = emulation.environment(base)
            if profile is not None and request.platform:
                _check_emulated(profile, base)
        if request.tuned:
            from powerccl.launch.tuned import load_for_job, tuned_environment

            tuned = load_for_job(request.tuned, base, emulated=bool(request.emulate))
            base = tuned_environment(base, native, tuned, say_once)
        if folder is None:
            return Recorded(run_child(request.command, base), None, leads)

        emulated = bool(request.emulate) or gpus.emulated
        clocks, about_clocks = decide_clocks(policy, emulated, request.set_clocks, base)
        if about_clocks and (request.policy or policy != "observe"):  # else the plan has said it
            say_once(about_clocks)
        if request.slowdown_pct is not None and request.policy and policy not in LEARNING:
            say_once(f"policy {policy} keeps no budget of slowdown: --slowdown is for {', '.join(LEARNING)}")
        table = folder / "policy.table" if table_text else None
        info = _describe(request, name, policy, clocks, gpus, launcher, base)
        if policy in LEARNING:
            asked = request.slowdown_pct
            info.slowdown_pct = env.slowdown_budget_pct(base) if asked is None else asked
        try:
            if table:
                table.write_text(table_text)
            if leads:
                write_run_info(folder, info)
        except OSError as error:
            _unrecorded(request, PowercclError(f"cannot write in {folder}: {error.strerror}", ELSEWHERE), say)
            return Recorded(run_child(request.command, base), None, leads)
        among_ranks = launcher is not None and launcher.speaks_mpi
        for_processors = among_ranks or mpi.is_launcher(request.command)  # most likely: GPUs are not missed aloud
        about_agent = _silent if for_processors and not request.emulate else say
        agent = _start_agent(native, folder, request, base, say, about_agent) if on_node else None
        daemon: PrivateDaemon | None = None
        if clocks == "lease":
            clocks, leases, daemon = _arrange_leases(native, folder, base, emulated, on_node, say)
            base = {**base, SOCKET_VARIABLE: str(leases)}
        info.clocks = clocks
        info.start_ns = time.monotonic_ns()
        child_environment = env.job_environment(base, native, folder, policy, table, clocks, request.slowdown_pct)
        preload = env.preload_wanted(base, request.preload)
        for_mpi, no_mpi = mpi.mpi_environment(base, native, mode, request.budget_pct, preload)
        child_environment.update(for_mpi)
        ours = [native.root / NCCL_DOOR, native.root / MPI_DOOR]
        with_mpi = mode != "off" and not no_mpi
        wanted = (ours if with_mpi else ours[:1]) if preload else []
        child_environment = env.with_preload(child_environment, ours, wanted)
        if no_mpi and request.mpi:
            say_once(no_mpi)
        if "NCCL_PROFILER_PLUGIN" in base:
            say_once("NCCL loads one profiler: NCCL_PROFILER_PLUGIN is PowerCCL's for this run")
        try:
            ended = run_child(request.command, child_environment, folder / request.output if request.output else None)
        finally:
            info.end_ns = time.monotonic_ns()
            if daemon:
                daemon.end(say)
            if agent:
                _release_agent(agent, native, folder, base, say)
        info.exit_code, info.signal = ended.code, ended.signal
        if leads:
            try:
                write_run_info(folder, info)
            except OSError as error:
                say(f"the run's end could not be recorded in {folder}: {error.strerror}")
        unseen = ""
        if leads and not no_mpi:
            unseen = mpi.why_unseen(request.command, child_environment, folder, mode, among_ranks)
        return Recorded(ended, folder, leads, unseen)


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
    """`auto` where clocks may be set and a platform profile is known, else `observe`.

    Silent, but for a user who asked for clocks (--set-clocks) or for a profile (--platform) that is not to be had.
    """
    nothing: Plan = (Gpus(), "observe", "", None)
    emulated = bool(request.emulate or environment.get("POWERCCL_EMULATOR_SOCKET"))
    # Asked before NVML is: a run that only records stays quick to start.
    clocks, _ = decide_clocks("auto", emulated, request.set_clocks, environment)
    if clocks not in ("lease", "nvml") and not request.set_clocks:
        return nothing
    about = say if request.set_clocks else _silent
    try:
        return _plan_policy(request, "auto", about)
    except PowercclError as error:
        if request.platform:
            raise
        about(f"{error.message}: no clock is set, recording only; {error.hint}")
        return nothing


def _plan_policy(request: Request, policy: str, say: Callable[[str], None]) -> Plan:
    from powerccl.platforms.policy_table import policy_table
    from powerccl.platforms.store import check_machine, known_profiles, load_profile, profile_for

    gpus = Gpus() if request.emulate else query_gpus()
    if not request.emulate and not gpus.names:
        say(f"{gpus.describe()}: nothing for policy {policy} to manage, recording only")
        return gpus, "observe", "", None
    if request.platform:
        profile = load_profile(request.platform)
    elif request.emulate:
        name = platform_name(request.emulate)
        if name not in known_profiles():
            raise PowercclError(
                f"no platform profile for the emulated {name}",
                f"make one: powerccl profile --emulate {request.emulate}",
            )
        profile = load_profile(name)
    else:
        found = profile_for(gpus.names)
        if found is None:
            raise PowercclError(
                f"no platform profile for {gpus.describe()}",
                "make one with `powerccl profile`, name one with --platform, or use --policy observe",
            )
        profile = found
    if not request.emulate:
        check_machine(profile, gpus.names)
    return gpus, policy, policy_table(profile, request.overhead), profile


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
        return "dry", "dry run: clocks are decided but not set; add --set-clocks to set them"
    may = emulated or may_set_clocks()
    if wish == "nvml" and may:
        return "nvml", None
    if may:
        return "lease", None
    asked = ""
    if wish == "nvml":
        asked = "POWERCCL_CLOCKS=nvml sets clocks without powerccld, which takes root or CAP_SYS_ADMIN: "
    if system_daemon(environment):
        return "lease", f"{asked}powerccld is asked instead; unset the variable, or run as root" if asked else None
    if asked:
        return "dry", f"{asked}dry run, decided but not set; run as root, or have powerccld installed here"
    return "dry", f"{NO_RIGHT}: dry run, decided but not set"


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
        say(f"{error}: dry run, clocks are decided but not set")
        return "dry", Path(SOCKET), None
    return "lease", listening, daemon


def _job_name(command: list[str], environment: Mapping[str, str]) -> str:
    """A short name for a command; an MPI launcher's is its program's."""
    program = mpi.program_behind(command, environment) if mpi.is_launcher(command) else None
    return job_name([str(program), *command[1:]] if program else command)


def _folder(request: Request, name: str, launcher: JobLauncher | None, say: Callable[[str], None]) -> Path | None:
    try:
        return make_folder(request.runs, name, launcher)
    except PowercclError as error:
        _unrecorded(request, error, say)
        return None


def _unrecorded(request: Request, error: PowercclError, say: Callable[[str], None]) -> None:
    """Go on without a record, if the user wants that."""
    if not request.best_effort:
        raise error
    say(f"{error.message}; running unrecorded")


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
            say(f"power and clocks are not sampled: {agent.last_words() or 'powerccl-agent ended at once'}")
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
            say(f"powerccl-agent has ended too soon and cannot be started again ({error}): clocks may be left locked")
            return
        agent.wait_ready(AGENT_READY_S)
    if not agent.release(AGENT_END_S):
        say(f"processes of this job still live and may set clocks; powerccl-agent (pid {agent.process.pid}) stays on")


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
        working_directory=str(Path.cwd()),
        started_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        start_ns=time.monotonic_ns(),
        policy=policy,
        clocks=clocks,
        platform=platform_name(request.platform or request.emulate),
        emulated=platform_name(request.emulate),
        interval_ms=request.interval_ms,
        gpus=gpus.names,
        launcher=launcher.name if launcher else "",
        versions=versions,
        environment=env.recorded(base),
    )
