# SPDX-License-Identifier: Apache-2.0
"""`powerccl tune`."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerccl.commandline.output import say
from powerccl.commandline.runs import complete_run, find_run, runs_dir_option
from powerccl.errors import PowercclError, UsageError
from powerccl.files import write_whole
from powerccl.quantities import change

if TYPE_CHECKING:
    from powerccl.bench.workload import Workload
    from powerccl.platforms.tuned import TunedProfile
    from powerccl.tune.found import Found
    from powerccl.tune.search import Asked, Tuning
    from powerccl.tune.study import Outcome

DEFAULT_TIME = "10m"


@click.command("tune")
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option(
    "--from",
    "source",
    default="",
    metavar="RUN",
    shell_complete=complete_run,
    help="Tune for the collectives of this recorded run.",
)
@click.option(
    "--beside",
    "beside_run",
    default="",
    metavar="RUN",
    shell_complete=complete_run,
    help="Tune the iteration of this recorded run as a whole: replay its computation and collectives, and search the "
    "ways of carrying them out.",
)
@runs_dir_option
@click.option("--sizes", default="", metavar="LIST", help="Message sizes of PATTERNs.  [default: 16K,1M,8M,64M]")
@click.option(
    "--objective",
    default="",
    metavar="WHAT",
    help="What to minimise: time, energy, edp (energy-delay product), or energy@slowdown=1% (energy, within that "
    "slowdown).  [default: time; with --beside energy@slowdown=1%]",
)
@click.option(
    "--time",
    "limit",
    default=DEFAULT_TIME,
    show_default=True,
    metavar="TIME",
    help="Duration of the search, such as 90s, 10m or 2h.",
)
@click.option("--trials", type=click.IntRange(1), metavar="N", help="Largest number of configurations to try.")
@click.option(
    "--timeout",
    type=click.FloatRange(1),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="Time after which a trial counts as hung.",
)
@click.option("--emulate", default="", metavar="NAME", help="Tune an emulated GPU server such as h200x4-sockets.")
@click.option("--gpus", type=click.IntRange(2), metavar="N", help="Number of ranks, one per GPU.  [default: all GPUs]")
@click.option(
    "--nccl", default="", metavar="FILE", help="libnccl.so.2 to tune.  [default: the one that the loader finds]"
)
@click.option(
    "--links",
    default="",
    metavar="LIST",
    help="Links between the GPUs: nvlink, nvls, pcie, sockets, ib.  [default: from GPU and environment]",
)
@click.option(
    "--parameter", "add", multiple=True, metavar="NAME[=V1,V2]", help="Also search this parameter. Repeatable."
)
@click.option(
    "--fix",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set this parameter in all trials, defaults included. Repeatable.",
)
@click.option("--forbid", multiple=True, metavar="NAME", help="Do not search this parameter. Repeatable.")
@click.option(
    "--symmetric",
    is_flag=True,
    help="Put the buffers into symmetric windows, for jobs that do. NCCL then uses symmetric kernels and copy engines, "
    "and asks no tuner.",
)
@click.option(
    "--products",
    default="",
    metavar="TOKENSxWIDTHxHIDDEN",
    help="With --beside: the shape of the matrix products that stand for the job's computation, as its perceptrons "
    "have it.  [default: 4096x4096x4096]",
)
@click.option("--no-rules", is_flag=True, help="Make no rules for NCCL's tuner plugin.")
@click.option(
    "--seed", type=int, default=1, show_default=True, metavar="N", help="Seed of the search. Give each worker its own."
)
@click.option(
    "--name", default="", metavar="NAME", help="Name of the tuned profile.  [default: from GPU, ranks and links]"
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder of the search. An existing one is continued; several workers may share it.  [default: tune/NAME]",
)
@click.option("--verify", default="", metavar="NAME|FILE", help="Only confirm an existing tuned profile again.")
@click.option(
    "--csv",
    "csv_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write the rules to FILE.",
)
@click.option("--list", "only_list", is_flag=True, help="Only list the parameters that tune would search, and why.")
def command(
    patterns: tuple[str, ...],
    source: str,
    beside_run: str,
    sizes: str,
    runs_dir: Path,
    objective: str,
    limit: str,
    trials: int | None,
    timeout: float,
    emulate: str,
    gpus: int | None,
    nccl: str,
    links: str,
    add: tuple[str, ...],
    fix: tuple[str, ...],
    forbid: tuple[str, ...],
    symmetric: bool,
    products: str,
    no_rules: bool,
    seed: int,
    name: str,
    out: Path | None,
    verify: str,
    csv_file: Path | None,
    only_list: bool,
) -> int:
    """Search NCCL parameters that save time or energy in a workload.

    Tune writes a tuned profile that `powerccl run --tuned NAME` applies. The profile holds NCCL variables, and rules
    for NCCL's tuner plugin: algorithm, protocol and channels by pattern and size. With --beside it also holds the way
    of each collective: rings, symmetric kernels or copy engines. It holds only settings that interleaved runs confirmed
    against NCCL's defaults.

    Stop with Ctrl-C; the same command continues. Workers with the same --out, on this or a similar node, share the
    search.

    \b
    powerccl tune all_reduce --sizes 1M,64M
    powerccl tune --from runs/train --objective energy@slowdown=1%
    powerccl tune --beside runs/train
    powerccl tune all_reduce --emulate h200x4-sockets --time 60s
    powerccl run --tuned h200-x4-sockets -- torchrun train.py
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from powerccl.platforms.tuned import load_tuned
    from powerccl.tune.links import parse_links
    from powerccl.tune.objective import parse_objective
    from powerccl.tune.search import Asked, Tuning

    profile = load_tuned(verify) if verify else None
    if profile and profile.ways and not beside_run:
        raise UsageError(f"'{profile.name}' was tuned beside a recorded run", "name such a run with --beside")
    if beside_run and (patterns or source or sizes or symmetric):
        raise UsageError("--beside RUN says all of what is tuned", "leave PATTERN, --from, --sizes and --symmetric out")
    if products and not beside_run:
        raise UsageError("--products is for --beside RUN", "leave it out")
    if source and (patterns or sizes):
        raise UsageError("--from says what is tuned; PATTERNs and --sizes do, too", "give one or the other")
    beside = find_run(beside_run, runs_dir) if beside_run else None
    source = str(find_run(source, runs_dir)) if source else ""
    asked = Asked(
        workload=_what(profile, beside, patterns, source, sizes),
        objective=parse_objective(profile.objective if profile else objective or _objective(beside)),
        emulate=emulate,
        gpus=gpus or 0,
        nccl=nccl,
        links=parse_links(links),
        seconds=_seconds(limit),
        trials=trials,
        timeout_s=timeout,
        add=add,
        fix=fix,
        forbid=forbid,
        rules=not no_rules and not symmetric and not beside,
        windows=profile.windows if profile else symmetric,
        beside=beside,
        products=products,
        seed=seed,
        folder=out or Path("tune") / (name or _default_name(emulate, str(beside or source), patterns)),
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that ranks end with us
    try:
        with contextlib.ExitStack() as stack:
            tuning = Tuning(asked, say, stack)
            if profile:
                return _verify(tuning, profile)
            if only_list:
                return _list(tuning)
            return _tune(tuning, asked, name, csv_file)
    except KeyboardInterrupt:
        say(f"interrupted; run the same command to continue in {asked.folder}")
        raise


def _tune(tuning: Tuning, asked: Asked, name: str, csv_file: Path | None) -> int:
    from powerccl.console import Console
    from powerccl.platforms.tuned import TUNED, save_tuned
    from powerccl.tune.report import print_found, print_space, print_workload
    from powerccl.tune.search import write_result

    console = Console()
    machine = tuning.machine
    name = name or _profile_name(machine.gpu, machine.ranks, machine.links)
    print_workload(console, asked.workload, asked.emulate)
    print_space(console, tuning.space)
    findings = _search(tuning, asked)
    profile = tuning.profile(name, findings)
    path = TUNED.place(name, asked.folder)
    tuned = bool(profile.variables or profile.rules or profile.ways)
    try:  # all of it before anything is printed: a terminal that fails costs no search
        result = write_result(asked.folder, findings, profile)
        if csv_file and profile.table:
            write_whole(csv_file, profile.table)
    except OSError as error:
        raise PowercclError(f"cannot write {error.filename}: {error.strerror}", "name another place") from error
    if tuned:
        save_tuned(profile, path)
    print_found(console, findings, name, asked.objective.text)
    if tuned:
        usable = name if path.parent == TUNED.folder else path
        console.print(f"profile  {path}\nuse      powerccl run --tuned {usable} -- COMMAND", soft_wrap=True)
    console.print(f"search   {result}", soft_wrap=True)
    return 0


def _search(tuning: Tuning, asked: Asked) -> Found:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from powerccl.console import Console

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    count, best = 0, 1.0
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=1.0)

        def report(stage: str, outcome: Outcome | None, share: float) -> None:
            nonlocal count, best
            if outcome is not None:
                count += 1
                best = min(best, outcome.value) if outcome.status == "done" else best
            words = f"{stage}, {count} tried, best {change(100 * (best - 1))}" if count else stage
            progress.update(task, description=words, completed=min(share, 1.0))

        return tuning.search(report)


def _verify(tuning: Tuning, profile: TunedProfile) -> int:
    from powerccl.console import Console
    from powerccl.platforms.tuned import check_tuned
    from powerccl.reports.terminal import heading
    from powerccl.tune.report import print_confirmed

    machine = tuning.machine
    check_tuned(profile, machine.gpu, machine.ranks, machine.nccl)
    console = Console()
    proof = tuning.verify(profile, lambda rounds: say(f"round {rounds}"))
    console.print(heading(f"powerccl tune --verify {profile.name}", "yes" if tuning.emulated else ""))
    print_confirmed(console, proof, machine.ranks)
    # All cases together, as they were put to the proof: a profile may lose a little at one size and gain at the rest.
    slower = sum(each.time_low for each in proof) / len(proof) > 1
    if slower and all(each.energy_low is None or each.energy_low > 1 for each in proof):
        raise PowercclError("with this profile NCCL is slower than with its defaults now", "tune again")
    return 0


def _list(tuning: Tuning) -> int:
    from powerccl.console import Console
    from powerccl.tune.report import print_space

    print_space(Console(), tuning.space, every=True)
    return 0


def _what(
    profile: TunedProfile | None, beside: Path | None, patterns: tuple[str, ...], source: str, sizes: str
) -> Workload:
    from powerccl.bench.workload import Workload

    if beside:  # known once the machine is
        return Workload([], str(beside))
    return _confirmed_before(profile) if profile else _workload(patterns, source, sizes)


def _objective(beside: Path | None) -> str:
    return "energy@slowdown=1%" if beside else "time"


def _workload(patterns: tuple[str, ...], source: str, sizes: str) -> Workload:
    from powerccl.bench.workload import DEFAULT_SIZES, given, of_run

    if source:
        return of_run(Path(source))
    return given(",".join(patterns) or "all_reduce", sizes or DEFAULT_SIZES)


def _confirmed_before(profile: TunedProfile) -> Workload:
    from powerccl.bench.workload import Case, Workload

    cases = [Case(each.pattern, each.size_bytes, 1 / len(profile.confirmed)) for each in profile.confirmed]
    return Workload(cases, f"profile {profile.name}")


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if not match or float(match[1]) <= 0:
        raise UsageError(f"--time {text}: not understood", "90s, 10m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def _profile_name(gpu: str, ranks: int, links: tuple[str, ...]) -> str:
    model = _slug(gpu.lower().removeprefix("nvidia ").removeprefix("tesla "))
    return f"{model}-x{ranks}-{'-'.join(links)}"


def _default_name(emulate: str, source: str, patterns: tuple[str, ...]) -> str:
    what = Path(source).name if source else "-".join(patterns) or "all_reduce"
    return _slug(f"{emulate}-{what}" if emulate else what)
