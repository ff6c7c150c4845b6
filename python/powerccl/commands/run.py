# SPDX-License-Identifier: Apache-2.0
"""`powerccl run`."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import click

from powerccl.commands import fail, say, write_out
from powerccl.errors import PowercclError, one_line
from powerccl.launch import child
from powerccl.launch.child import ChildNotStartedError, InterruptionError, interruptible
from powerccl.launch.environment import DEFAULT_SLOWDOWN_PCT, SLOWDOWN_RANGE_PCT
from powerccl.launch.mpi import BUDGET_RANGE_PCT, DEFAULT_BUDGET_PCT, MODES
from powerccl.launch.record import POLICIES, Recorded, Request, choose, record


@click.command("run", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option(
    "--policy",
    default="",
    metavar=f"[{'|'.join(POLICIES)}]",
    help="When to lower clocks: never (observe: record only); at each call, as PCCL published it (percall); while "
    "communication is exposed (phase); one clock for the whole job (job); both (auto).  "
    "[default: auto where clocks may be set and a platform profile is known, else observe]",
)
@click.option("--platform", default="", metavar="NAME|FILE", help="Platform profile that clocks are taken from.")
@click.option(
    "--slowdown",
    type=click.FloatRange(*SLOWDOWN_RANGE_PCT),
    metavar="PERCENT",
    help=f"Most that phase, job and auto may slow the job's iterations.  [default: {DEFAULT_SLOWDOWN_PCT:g}]",
)
@click.option("--emulate", default="", metavar="NAME", help="Run on an emulated GPU server, e.g. t4x8. No GPU needed.")
@click.option("--set-clocks", is_flag=True, help="Really set GPU clocks. Without it, policies run dry on real GPUs.")
@click.option(
    "--overhead",
    type=click.Choice(["measured", "published"]),
    default="measured",
    show_default=True,
    help="Overhead points: the profile's own or PCCL's.",
)
@click.option(
    "--mpi",
    default="",
    metavar=f"[{'|'.join(MODES)}]",
    help="How ranks wait in MPI: asleep (auto), as PCCL published it, as ever (observe: record only); off: no MPI.  "
    "[default: auto]",
)
@click.option(
    "--budget",
    type=click.FloatRange(*BUDGET_RANGE_PCT),
    metavar="PERCENT",
    help=f"Most that a wait in MPI may end late, of its length.  [default: {DEFAULT_BUDGET_PCT:g}]",
)
@click.option("--tuned", default="", metavar="NAME|FILE", help="NCCL's parameters as `powerccl tune` found them.")
@click.option("--name", default="", help="Name of the run folder; the command's by default.")
@click.option(
    "--runs-dir",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Where run folders go.",
)
@click.option("--baseline", default="", metavar="RUN", help="A previous run's folder, to compare with.")
@click.option(
    "--interval-ms",
    type=click.IntRange(0, 10_000),
    default=19,  # 20 keeps step with counters that change every 100 ms: then nobody knows when they did
    show_default=True,
    help="Sampling of power and clocks; 0: none.",
)
@click.option(
    "--no-preload",
    is_flag=True,
    help="Add nothing to LD_PRELOAD: no MPI, no marks where computation waits, no NCCL before 2.27.",
)
@click.option("--best-effort", is_flag=True, hidden=True, help="As every run is now: accepted, without effect.")
@click.option("--json", "json_file", default="", metavar="FILE", help="Also write the summary there (-: stdout).")
@click.option("--quiet", "-q", is_flag=True, help="No summary in the terminal; summary.json is written all the same.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND [ARGS]...")
def command(
    policy: str,
    platform: str,
    slowdown: float | None,
    emulate: str,
    set_clocks: bool,
    overhead: str,
    mpi: str,
    budget: float | None,
    tuned: str,
    name: str,
    runs_dir: Path,
    baseline: str,
    interval_ms: int,
    no_preload: bool,
    best_effort: bool,
    json_file: str,
    quiet: bool,
    arguments: tuple[str, ...],
) -> int:
    """Run a job and record its communication, power and clocks.

    Nothing in the job changes, but that ranks which wait in MPI sleep (--mpi). Its stdout stays its own, signals and
    the exit code pass through (128 + n if signal n ended it). A summary follows on stderr and in the run folder's
    summary.json.

    \b
    powerccl run -- torchrun --nproc-per-node 8 train.py
    powerccl run --set-clocks --slowdown 0.5 -- ./app
    powerccl run --emulate t4x8 --policy percall -- powerccl-bench all_reduce -b 1M -e 64M
    powerccl run -- mpiexec -n 4 ./app
    srun powerccl run -- ./app
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    if not arguments:
        raise PowercclError("no command to run", "put it behind `--`: powerccl run -- python train.py")
    if mpi:
        choose("MPI mode", mpi, MODES)
    before = _find_baseline(baseline, runs_dir) if baseline else None
    request = Request(
        command=list(arguments),
        policy=policy,
        platform=platform,
        emulate=emulate,
        set_clocks=set_clocks,
        overhead=overhead,
        name=name,
        runs=runs_dir,
        interval_ms=interval_ms,
        mpi=mpi,
        budget_pct=budget,
        slowdown_pct=slowdown,
        best_effort=True,
        preload=not no_preload,
        tuned=tuned,
    )
    try:
        with interruptible():
            recorded = record(request, say)
            if recorded.folder and recorded.leads:
                _report_or_say(recorded, recorded.folder, before, json_file, quiet)
    except ChildNotStartedError as error:
        fail(str(error), "check the command's name and PATH", error.code)
    except InterruptionError as interruption:
        if (ended := child.last.ended()) is None:  # the job has not begun: end as it would have
            signal.signal(interruption.number, signal.SIG_DFL)
            os.kill(os.getpid(), interruption.number)
            return 128 + interruption.number
        return ended.code
    return recorded.ended.code


def _report_or_say(recorded: Recorded, folder: Path, before: Path | None, json_file: str, quiet: bool) -> None:
    """Report; the job is over, and nothing that happens now may change how it ended."""
    try:
        _report(recorded, folder, before, json_file, quiet)
    except (Exception, SystemExit) as error:  # Rich exits where standard error is closed
        with contextlib.suppress(Exception):
            say(f"no summary could be made ({one_line(error)}); the record is in {folder}")


MOST_RECORDS = 6_000_000  # two or three gigabytes in memory: of larger runs the closing summary is of a part


def _report(recorded: Recorded, folder: Path, before: Path | None, json_file: str, quiet: bool) -> None:
    from powerccl.analysis.comparison.baseline import compare
    from powerccl.analysis.findings import SUMMARY_FILE, write_summary
    from powerccl.analysis.summary import summarise
    from powerccl.commands.references import own_reference
    from powerccl.reports.terminal import error_console, print_comparison, print_summary
    from powerccl.traces.folder import read_run

    run = read_run(folder, MOST_RECORDS)
    summary = summarise(run, run.window, reference=own_reference(run))
    summary.mpi_unseen = recorded.mpi_unseen
    try:
        write_summary(summary, folder / SUMMARY_FILE)
    except OSError as error:
        say(f"summary.json could not be written: {error.strerror}")
    if json_file:
        from powerccl import clean

        write_out(json_file, clean.to_json(summary))
    if quiet:
        return
    console = error_console()
    print_summary(console, summary)
    if before:
        earlier = read_run(before)
        print_comparison(console, compare(summarise(earlier, reference=own_reference(earlier)), summary))


def _find_baseline(name: str, runs: Path) -> Path:
    folder = next((path for path in (Path(name), runs / name) if path.is_dir()), None)
    if folder is None:
        raise PowercclError(f"no baseline run {name}", f"name a run folder, such as those in {runs}/")
    return folder
