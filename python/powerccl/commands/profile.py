# SPDX-License-Identifier: Apache-2.0
"""`powerccl profile`."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerccl.commandline.output import say, write_out
from powerccl.errors import PowercclError, choose
from powerccl.files import write_whole
from powerccl.patterns import PATTERNS, parse_bytes
from powerccl.quantities import plural

if TYPE_CHECKING:
    from powerccl.platforms.schema import PlatformProfile
    from powerccl.profile.measure import Profiling

SIZES = "128K:64M:2"


@click.command("profile")
@click.option("--emulate", default="", metavar="NAME", help="Profile an emulated GPU server such as t4x8.")
@click.option(
    "--patterns", default="all", show_default=True, metavar="LIST", help="Communication patterns, separated by commas."
)
@click.option(
    "--sizes",
    default=SIZES,
    show_default=True,
    metavar="FROM:TO:FACTOR|LIST",
    help="Message sizes, such as 1M or 128K:64M:2.",
)
@click.option(
    "--clocks", default="", metavar="LIST", help="SM clocks in MHz.  [default: twelve of the supported clocks]"
)
@click.option("--name", default="", help="Name of the platform.  [default: from GPU model and count]")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Profile file to write, in JSON.  [default: ~/.config/powerccl/platforms/NAME.json]",
)
@click.option("--resume", is_flag=True, help="Continue an interrupted profile.")
@click.option(
    "--set-clocks",
    is_flag=True,
    help="Set GPU clocks (as root or through powerccld). Without it, profile measures at the present clock only.",
)
# Hidden: profile once measured computation as well. Scripts that switched it off keep working for one release.
@click.option("--computing/--no-computing", hidden=True, expose_value=False)
@click.option(
    "--ways",
    is_flag=True,
    help="Measure how NCCL carries collectives out (plain, symmetric, copy engines, efficiency), alone and beside "
    "computation. Needs no right, takes minutes, and is what `powerccl run --ways auto` goes by.",
)
@click.option(
    "--products",
    default="",
    metavar="TOKENSxWIDTHxHIDDEN",
    help="With --ways: the shape of the matrix products that run beside collectives, as in your model's perceptrons. "
    "Tokens of a rank and micro-batch, width, hidden width.  [default: 4096x4096x4096]",
)
@click.option(
    "--table", type=click.Path(path_type=Path, dir_okay=False), help="Also write the policy table to this file."
)
def command(
    emulate: str,
    patterns: str,
    sizes: str,
    clocks: str,
    name: str,
    out: Path | None,
    resume: bool,
    set_clocks: bool,
    ways: bool,
    products: str,
    table: Path | None,
) -> int:
    """Measure bandwidth and power by pattern, message size and clock.

    Profile writes a platform profile, from which the clock policy per-call takes its clocks, and an HTML
    page with the curves. It prints minimum clocks and overhead points beside PCCL's. Measure a machine once. Stop with
    Ctrl-C, and continue with --resume.
    """
    if ways:
        if set_clocks or clocks or table:
            raise PowercclError("--ways sets no clocks", "leave --set-clocks, --clocks and --table out")
        return _ways(emulate, patterns, sizes, name, out, resume, products)
    if products:
        raise PowercclError("--products is for --ways", "add --ways")
    from powerccl.profile.measure import Profiling

    started = time.monotonic()
    wanted = (
        list(PATTERNS) if patterns == "all" else [choose("pattern", p.strip(), PATTERNS) for p in patterns.split(",")]
    )
    chosen_clocks = _clocks(clocks)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that clocks are restored
    try:
        terms = (emulate, wanted, _sizes(sizes), chosen_clocks, set_clocks, name, out, resume, say)
        with contextlib.ExitStack() as stack:
            profiling = Profiling(*terms, stack)
            profile = _measure(profiling, started)
            out = profiling.out
    except KeyboardInterrupt:
        say("interrupted; the same command with --resume goes on from here")
        raise
    _write(profile, out)
    _show(profile, out, table)
    return 0


def _ways(emulate: str, patterns: str, sizes: str, name: str, out: Path | None, resume: bool, products: str) -> int:
    from powerccl.console import Console
    from powerccl.ways import profile as ways_profile
    from powerccl.ways.report import print_table

    known = ways_profile.PATTERNS
    wanted = list(known) if patterns == "all" else [choose("pattern", p.strip(), known) for p in patterns.split(",")]
    span = ways_profile.SIZES if sizes == SIZES else _span(sizes)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        table, written = ways_profile.measure(emulate, wanted, span, name, out, resume, products, say)
    except KeyboardInterrupt:
        say("interrupted; the same command with --resume goes on from here")
        raise
    print_table(Console(), table)
    say(f"written: {written}")
    return 0


def _span(text: str) -> tuple[int, int, int]:
    """Sizes as first, last and factor."""
    listed = _sizes(text)
    factor = listed[1] // listed[0] if len(listed) > 1 else 2
    if any(later != factor * before for before, later in pairwise(listed)):
        raise PowercclError(f"--sizes {text}: --ways takes sizes that grow by one whole factor", "try 16M:256M:2")
    return listed[0], listed[-1], factor


def _measure(profiling: Profiling, started: float) -> PlatformProfile:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from powerccl.console import Console

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("profiling", total=profiling.total)
        logged = ("", 0)

        def moved(stage: str, done: int) -> None:
            nonlocal logged
            progress.update(task, description=stage, completed=done)
            step = (stage, 10 * done // max(profiling.total, 1))  # in a log: a line a stage and a tenth of the points
            if not console.is_terminal and step != logged:
                logged = step
                say(f"{stage}: {done} of {plural(profiling.total, 'point')}")

        profile = profiling.measure(moved)
    profile.seconds = round(profiling.seconds_before + time.monotonic() - started, 1)
    profile.created_at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return profile


def _write(profile: PlatformProfile, out: Path) -> None:
    from powerccl.platforms.schema import encode
    from powerccl.profile.page import profile_page

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, encode(profile))
        write_whole(out.with_suffix(".html"), profile_page(profile))
    except OSError as error:
        raise PowercclError(
            f"cannot write {error.filename or out}: {error.strerror}", "name another file with --out"
        ) from error
    shutil.rmtree(work_folder(out), ignore_errors=True)


def work_folder(out: Path) -> Path:
    """Where an unfinished profile's measurements are kept for --resume."""
    return out.with_suffix(".profiling")


def _show(profile: PlatformProfile, out: Path, table: Path | None) -> None:
    from powerccl.console import Console
    from powerccl.platforms.policy_table import policy_table
    from powerccl.profile.report import print_profile

    console = Console()
    print_profile(console, profile)
    console.print(f"profile  {out}\ncurves   {out.with_suffix('.html')}", soft_wrap=True)
    if table:
        write_out(table, policy_table(profile))
        console.print(f"table    {table}", soft_wrap=True)


def _sizes(text: str) -> list[int]:
    """Sizes in bytes of `128K:64M:2` or `128K,1M,64M`, ascending."""
    try:
        if ":" in text:
            first, last, *rest = text.split(":")
            size, end, factor = parse_bytes(first), parse_bytes(last), float(rest[0]) if rest else 2.0
            if size < 1 or factor <= 1 or len(rest) > 1:
                raise ValueError(text)
            sizes = []
            while size <= end:
                sizes.append(size)
                size = int(size * factor)
        else:
            sizes = sorted({parse_bytes(part) for part in text.split(",")})
    except ValueError as error:
        raise PowercclError(f"--sizes {text}: not understood", "128K:64M:2 (from:to:factor) or 128K,1M,64M") from error
    if not sizes or sizes[0] < 1:
        raise PowercclError(f"--sizes {text}: no size above 0", "128K:64M:2 (from:to:factor) or 128K,1M,64M")
    return sizes


def _clocks(text: str) -> list[int]:
    """Clocks in MHz of `1590,900,450`, highest first; none for an empty text."""
    try:
        clocks = sorted({int(part) for part in text.split(",")} if text else set(), reverse=True)
    except ValueError as error:
        raise PowercclError(f"--clocks {text}: not understood", "MHz, separated by commas: 1590,900,450") from error
    if clocks and clocks[-1] <= 0:
        raise PowercclError(f"--clocks {text}: a clock is above 0", "MHz, separated by commas: 1590,900,450")
    return clocks
