# SPDX-License-Identifier: Apache-2.0
"""`powerccl run`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerccl.commandline import config
from powerccl.commandline.extras import extra_of, not_installed
from powerccl.commandline.options import json_option, max_slowdown_option, overhead_option
from powerccl.commandline.output import fail, flush_output, say, write_out
from powerccl.commandline.runs import complete_file, given_runs_dir_option
from powerccl.errors import JobBegunError, PowercclError, UsageError, choose, one_line
from powerccl.launch.child import Child, ChildNotStartedError, InterruptionError, interruptible
from powerccl.launch.mpi import DEFAULT_MAX_DELAY_PCT, MAX_DELAY_RANGE_PCT, MODES
from powerccl.launch.record import record
from powerccl.launch.request import POLICIES, Request

if TYPE_CHECKING:
    from powerccl.analysis.cost import Cost
    from powerccl.analysis.findings import RunSummary
    from powerccl.traces.folder import RunData


@click.command("run", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option(
    "--policy",
    default="",
    metavar=f"[{'|'.join(POLICIES)}]",
    help="When to lower GPU clocks. With observe, never. With per-call, during each collective (PCCL as published). "
    "With auto, to one clock for each GPU, which it learns from the job's iterations.  "
    "[default: auto if clocks can be set, else observe]",
)
@click.option(
    "--platform",
    default="",
    metavar="NAME|FILE",
    help="Platform profile from which per-call takes its clocks.  [default: that of these GPUs]",
)
@max_slowdown_option
@click.option("--emulate", default="", metavar="NAME", help="Run on an emulated GPU server such as t4x8; needs no GPU.")
@click.option("--set-clocks", is_flag=True, help="Set the clocks of real GPUs. Without it, policies run dry on them.")
@click.option(
    "--clock",
    default="",
    metavar="MHZ|PERCENT",
    help="Set one clock for the GPUs of this job, such as 1200, or 70% of the highest one. It is restored when the job "
    "ends, crashes or is killed. Needs no --set-clocks, and goes with policy observe alone.",
)
@overhead_option
@click.option(
    "--mpi",
    default="",
    metavar=f"[{'|'.join(MODES)}]",
    help="How ranks wait in MPI. With auto, they sleep. With published, each collective waits in a barrier "
    "request first. With observe, PowerCCL only records. With off, it leaves MPI alone.  [default: auto]",
)
@click.option(
    "--mpi-max-delay",
    type=click.FloatRange(*MAX_DELAY_RANGE_PCT),
    metavar="PERCENT",
    help=f"How late a wait in MPI may end, in percent of its length.  [default: {DEFAULT_MAX_DELAY_PCT:g}]",
)
@click.option("--tuned", default="", metavar="NAME|FILE", help="Apply NCCL parameters that `powerccl tune` found.")
@click.option(
    "--ways",
    default="",
    metavar="auto|NAME|FILE",
    help="Carry the all-gathers of PyTorch's FSDP2 out by copy engines where that is never slower, by a table that "
    "`powerccl profile --ways` measured. Needs NCCL 2.29 and memory for two layers.",
)
@click.option("--name", default="", metavar="NAME", help="Name of the run folder.  [default: the command's name]")
@given_runs_dir_option
@click.option(
    "--local-dir",
    metavar="DIR",
    help="Keep the traces and samples of each node in DIR on that node while the job runs, such as /tmp. At its end, "
    "they become one file in the run folder.  [default: POWERCCL_LOCAL_DIR, else that of `powerccl config`, else none]",
)
@click.option(
    "--interval-ms",
    type=click.IntRange(0, 10_000),
    # Counters that change every 100 ms would stay in step with 20 ms, and hide when they change.
    default=19,
    show_default=True,
    metavar="N",
    help="Time between samples of power and clocks, in ms; 0 takes none.",
)
@click.option(
    "--no-preload",
    is_flag=True,
    help="Add nothing to LD_PRELOAD. The run then lacks MPI, NCCL before 2.27, and where computation waits.",
)
@json_option("the summary")
@click.option(
    "--quiet",
    "-q",
    is_flag=True,
    help="Print no summary, and analyse nothing: `powerccl report` makes summary.json then.",
)
@click.argument(
    "arguments", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARGS]...", shell_complete=complete_file
)
def command(
    policy: str,
    platform: str,
    max_slowdown: float | None,
    emulate: str,
    set_clocks: bool,
    clock: str,
    overhead: str,
    mpi: str,
    mpi_max_delay: float | None,
    tuned: str,
    ways: str,
    name: str,
    runs_dir: Path | None,
    local_dir: str | None,
    interval_ms: int,
    no_preload: bool,
    json_file: str,
    quiet: bool,
    arguments: tuple[str, ...],
) -> int:
    """Run a job, and record its communication, power and clocks.

    PowerCCL changes one thing in a job by default: ranks that wait in MPI sleep (--mpi). The job's stdout, signals
    and exit code stay as they are (128 + N if signal N ended it). A summary follows on stderr and in the run folder's
    summary.json.

    \b
    powerccl run -- torchrun --nproc-per-node 8 train.py
    powerccl run --set-clocks --max-slowdown 0.5 -- ./app
    powerccl run --clock 70% -- torchrun --nproc-per-node 8 train.py
    powerccl run --emulate t4x8 --policy per-call -- powerccl-bench all_reduce
    powerccl run -- mpiexec -n 4 ./app
    srun powerccl run -- ./app
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    if not arguments:
        raise UsageError("no command to run", "put it behind `--`: powerccl run -- python train.py")
    if mpi:
        choose("MPI mode", mpi, MODES)
    own_runs, own_local, problem = _own_dirs(runs_dir is None, local_dir is None)
    request = Request(
        command=list(arguments),
        policy=policy,
        platform=platform,
        emulate=emulate,
        set_clocks=set_clocks,
        clock=clock,
        overhead=overhead,
        ways=ways,
        name=name,
        runs=runs_dir or own_runs,
        local_dir=own_local if local_dir is None else config.parse_local_dir(local_dir, "--local-dir "),
        interval_ms=interval_ms,
        mpi=mpi,
        max_delay_pct=mpi_max_delay,
        max_slowdown_pct=max_slowdown,
        best_effort=True,
        preload=not no_preload,
        tuned=tuned,
    )
    child = Child()
    try:
        with interruptible(child):
            recorded = record(request, say, child)
            if recorded.folder and recorded.leads:
                if problem:
                    say(problem)
                if request.local_dir is not None and (json_file or not quiet):
                    _await_nodes(recorded.folder, recorded.not_packed)
                _report_or_say(recorded.folder, json_file, quiet, bool(ways), problem)
        flush_output()
    except ChildNotStartedError as error:
        fail(str(error), "check the command's name and PATH", error.code)
    except InterruptionError as interruption:
        if (ended := child.ended()) is None:  # the job has not begun: end as it would have
            signal.signal(interruption.number, signal.SIG_DFL)
            os.kill(os.getpid(), interruption.number)
            return 128 + interruption.number
        return ended.code
    except Exception as error:
        if not child.pid:
            raise
        raise JobBegunError(ended.code if (ended := child.ended()) else None) from error
    return recorded.ended.code


def _own_dirs(runs: bool, local: bool) -> tuple[Path, Path | None, str]:
    """The directories of run folders and of nodes, as far as they are asked for, and what is wrong with the user's.

    That is to cost the job nothing.
    """
    wanted = [name for name, asked in (("runs-dir", runs), ("local-dir", local)) if asked]
    if not wanted:
        return Path(), None, ""
    try:
        own = config.read_config(*wanted)
        return config.runs_dir(own), config.local_dir(own) if local else None, ""
    except Exception as error:
        return config.runs_dir(config.Config()), None, f"{one_line(error)}; built-in values are used"


def _await_nodes(folder: Path, not_packed: Path | None) -> None:
    """As await_nodes. A fault of it must not change how the job ended."""
    with contextlib.suppress(Exception):
        from powerccl.launch.local_folder import await_nodes

        await_nodes(folder, not_packed)


def _report_or_say(folder: Path, json_file: str, quiet: bool, ways: bool, problem: str) -> None:
    """Report; the job is over, and nothing that happens now may change how it ended."""
    try:
        _report(folder, json_file, quiet, ways, problem)
    except ModuleNotFoundError as error:
        why, hint = not_installed(error)
        with contextlib.suppress(Exception):
            say(f"the record is in {folder}; a summary of it needs more: {hint}" if extra_of(error) else why)
    except (Exception, SystemExit) as error:  # Rich exits where standard error is closed
        with contextlib.suppress(Exception):
            say(f"no summary could be made ({one_line(error)}); the record is in {folder}")


def _report(folder: Path, json_file: str, quiet: bool, ways: bool, problem: str) -> None:
    if quiet and not json_file:
        return  # summary.json is made when it is first asked for
    # The job has ended. On a node of 32 cores, the start of OpenBLAS takes 4 s of processor time with all threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from powerccl.commandline.summaries import make_summary
    from powerccl.traces.run_files import has_files

    run, summary = make_summary(folder)
    if not run.elsewhere:
        _write(summary, folder)
    if json_file:
        from powerccl import clean

        write_out(json_file, clean.to_json(summary))
    if quiet:
        return
    from powerccl.reports.job import has_figures, summary_lines, write

    if has_figures(summary):
        from powerccl.commands.advice import advise
        from powerccl.reports.next_steps import print_next_steps
        from powerccl.reports.terminal import error_console, print_summary

        cost = None if problem else _cost(run, summary)
        print_summary(error_console(), summary, cost=cost)
        print_next_steps(error_console(), advise(run, summary))
    else:
        write(summary_lines(summary), sys.stderr)
    if ways or has_files(run.folder, "windows-", ".json"):  # the latter: of a tuned profile
        from powerccl.launch.ways import describe

        if line := describe(run.folder):
            say(line)


def _cost(run: RunData, summary: RunSummary) -> Cost | None:
    """What the run costs by the user's own tariff; None: the user has none, or it cannot be used."""
    from powerccl.commandline.tariffs import asked_tariff

    try:
        tariff = asked_tariff()
    except PowercclError as error:
        say(f"{error.message}; no cost is shown")
        return None
    if not tariff.given:
        return None
    from powerccl.analysis.cost import cost_of

    return cost_of(run, summary, tariff)


def _write(summary: RunSummary, folder: Path) -> None:
    from powerccl.analysis.findings import SUMMARY_FILE, write_summary

    try:
        write_summary(summary, folder / SUMMARY_FILE)
    except OSError as error:
        say(f"summary.json could not be written: {error.strerror}")
