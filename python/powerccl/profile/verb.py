# SPDX-License-Identifier: Apache-2.0
"""`powerccl profile` without --ways: measure, write, print."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import time
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from powerccl.commandline.output import say, write_out
from powerccl.console import Console
from powerccl.errors import PowercclError
from powerccl.files import write_whole
from powerccl.platforms.policy_table import policy_table
from powerccl.platforms.schema import PlatformProfile, encode
from powerccl.profile.measure import Profiling
from powerccl.profile.page import profile_page
from powerccl.profile.report import print_profile
from powerccl.quantities import plural


def profile_machine(
    emulate: str,
    patterns: list[str],
    sizes: list[int],
    clocks: list[int],
    set_clocks: bool,
    name: str,
    out: Path | None,
    resume: bool,
    table: Path | None,
) -> None:
    """Write and print the profile of a machine; `table`: write its policy table there too."""
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that clocks are restored
    try:
        terms = (emulate, patterns, sizes, clocks, set_clocks, name, out, resume, say)
        with contextlib.ExitStack() as stack:
            profiling = Profiling(*terms, stack)
            profile = _measure(profiling, started)
            written = profiling.out
    except KeyboardInterrupt:
        say("interrupted; the same command with --resume goes on from here")
        raise
    _write(profile, written)
    _show(profile, written, table)


def _measure(profiling: Profiling, started: float) -> PlatformProfile:
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
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, encode(profile))
        write_whole(out.with_suffix(".html"), profile_page(profile))
    except OSError as error:
        raise PowercclError(
            f"cannot write {error.filename or out}: {error.strerror}", "name another file with --out"
        ) from error
    shutil.rmtree(out.with_suffix(".profiling"), ignore_errors=True)


def _show(profile: PlatformProfile, out: Path, table: Path | None) -> None:
    console = Console()
    print_profile(console, profile)
    console.print(f"profile  {out}\ncurves   {out.with_suffix('.html')}", soft_wrap=True)
    if table:
        write_out(table, policy_table(profile))
        console.print(f"table    {table}", soft_wrap=True)
