# SPDX-License-Identifier: Apache-2.0
"""A job recorded: folder, emulator, agent, child, and what became of it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from powerccl.errors import PowercclError, choose, one_line
from powerccl.launch import mpi
from powerccl.launch.child import Child, ChildNotStartedError, Ended, become, run_child
from powerccl.launch.emulation import EmulatedServer
from powerccl.launch.folder import make_folder
from powerccl.launch.gpus import query_gpus, query_gpus_in
from powerccl.launch.launchers import detect_launcher
from powerccl.launch.native import find_native
from powerccl.launch.places import Scarcity, scarcity
from powerccl.launch.plan import plan_job
from powerccl.launch.recording import Job, Recording, name_of
from powerccl.launch.request import POLICIES, Request, UnrecordableError, recording_only, silent
from powerccl.traces.job_labels import slurm_name

if TYPE_CHECKING:
    from powerccl.launch.fixed_clock import FixedClock
    from powerccl.platforms.schema import PlatformProfile


@dataclass
class Recorded:
    """A job that has ended. `folder` is None if there is no record; `leads`: this launcher reports for its folder.

    `not_packed`: as Recording's.
    """

    ended: Ended
    folder: Path | None
    leads: bool
    not_packed: Path | None = None


def record(request: Request, say: Callable[[str], None], child: Child | None = None) -> Recorded:
    """Run the command with everything around it and wait for its end; `say` tells the user what matters meanwhile.

    `child` is the job's process, filled in as run_child has it.

    With `best_effort`, whatever fails in recording costs one line, and the job runs without a record. Where a limit on
    processes leaves no place for ours, the job takes this process's own, and this function does not return.

    Raises:
        PowercclError: something to mend before the job can start; nothing was started.
        ChildNotStartedError: the command could not be executed.
    """
    say, child = _never_failing(say), child or Child()
    plain: Mapping[str, str] = {**os.environ, **request.environment}
    if request.policy:
        choose("policy", request.policy, POLICIES)
    if scarce := _scarcity(request):
        _give_way(request, plain, say, str(scarce))
    with _ending(contextlib.ExitStack(), say) as stack:
        server = EmulatedServer(request.emulate, stack)
        clock = _fixed_clock(request, stack, say)
        recording: Recording | None = None
        environment: Mapping[str, str] = plain
        output = None
        try:
            recording = Recording(request, prepare(request, plain, server, clock, say), say)
            stack.callback(recording.leave)  # a signal may come at any moment
            environment = recording.begin()
            output = recording.folder / request.output if request.output else None
        except (PowercclError, ChildNotStartedError):
            raise  # what the user asked for cannot be had: the job has not begun
        except Exception as error:
            cause = error.error if isinstance(error, UnrecordableError) else error
            if recording:
                recording.leave()
            if not request.best_effort:
                raise cause from None
            if isinstance(cause, BlockingIOError) and not request.needs_us:
                _give_way(request, plain, say, f"cannot start a helper: {cause.strerror}")
            say(f"{one_line(cause)}; the job runs unrecorded")
            recording, environment = None, server.environment(_unrecorded(request, plain))
        try:
            ended = run_child(request.command, environment, output, say, child)
        except Exception as error:
            if recording:
                recording.leave()
            our_fault = not isinstance(error, ChildNotStartedError) or error.too_long or error.no_place
            if not our_fault or child.pid or not request.best_effort:
                raise
            if isinstance(error, ChildNotStartedError) and error.no_place and not request.needs_us:
                _give_way(request, plain, say, str(error))
            say(f"{one_line(error)}; the job runs unrecorded")
            recording = None
            ended = run_child(request.command, server.environment(_unrecorded(request, plain)), say=say, child=child)
        if clock:
            clock.let_go()
        if recording is None:
            return Recorded(ended, None, True)
        try:
            recording.end(ended, environment)
        except Exception as error:
            say(f"cannot record the end of the run: {one_line(error)}")
        folder = recording.folder if recording.folder.is_dir() else None
        return Recorded(ended, folder, recording.job.leads, recording.not_packed)


def _scarcity(request: Request) -> Scarcity | None:
    """Why this process should not be beside the job: a limit on processes."""
    if not request.best_effort or request.needs_us:
        return None
    with contextlib.suppress(Exception):
        return scarcity()
    return None


def _give_way(request: Request, plain: Mapping[str, str], say: Callable[[str], None], why: str) -> NoReturn:
    """Run the job in place of this process, with nothing of ours in it.

    Raises:
        ChildNotStartedError: the command could not be executed.
    """
    launcher = detect_launcher(plain)
    if launcher is None or launcher.local_rank <= 0:  # one line a node
        say(f"{why}; the job runs unrecorded, in the place of PowerCCL")
    become(request.command, _unrecorded(request, plain))


def prepare(
    request: Request,
    plain: Mapping[str, str],
    server: EmulatedServer,
    clock: FixedClock | None,
    say: Callable[[str], None],
) -> Job:
    """Check what the user asked for, make the run folder, bring up the emulated server, and set the fixed clock.

    Raises:
        PowercclError: what was asked for cannot be had.
        ChildNotStartedError: there is no such command.
        UnrecordableError: the job cannot be recorded.
    """
    base = dict(plain)
    if not _is_there(request.command[0], base) and not _is_ours(request.command[0]):
        raise ChildNotStartedError(request.command[0], FileNotFoundError(2, "no such command"))
    server.check()
    with recording_only():
        mode = mpi.choose_mode(request.mpi, base)
        native = find_native()
    if "PATH" in base or _is_ours(request.command[0]):
        # Last, so that it hides nothing: powerccl-bench is found, by launchers as well.
        base["PATH"] = os.pathsep.join([base.get("PATH", os.defpath), str(native.root / "bin")])
    launcher = detect_launcher(base)
    leads = launcher is None or launcher.leads
    on_node = launcher is None or launcher.local_rank <= 0
    say_once = say if leads else silent
    emulated = bool(request.emulate or base.get("POWERCCL_EMULATOR_SOCKET"))
    if clock:
        clock.check(base, emulated, say_once)
    gpus, policy, table_text, profile = plan_job(request, base, say_once)
    with recording_only():
        name = request.name or name_of(request.command, base)
        folder = make_folder(request.runs, name, launcher, slurm_name(base))
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
    job = Job(native, base, launcher, mode, gpus, policy, table_text, folder)
    if clock:
        clock.set(native, folder, base, launcher, emulated)
        job.clock_mhz = clock.mhz
    return job


def _fixed_clock(request: Request, stack: contextlib.ExitStack, say: Callable[[str], None]) -> FixedClock | None:
    """The clock of `--clock`. Only a job that has one waits for the imports."""
    if not request.clock:
        return None
    from powerccl.launch.fixed_clock import FixedClock

    return FixedClock(request.clock, stack, say)


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
    """`say`, where standard error may be closed or full: the message is lost then."""

    def say_or_not(text: str) -> None:
        with contextlib.suppress(Exception):
            say(text)

    return say_or_not


def _check_emulated(profile: PlatformProfile, environment: Mapping[str, str]) -> None:
    from powerccl.platforms.store import check_machine

    check_machine(profile, query_gpus_in(environment).names)
