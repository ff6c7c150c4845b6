# SPDX-License-Identifier: Apache-2.0
"""`powerccl top`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerccl.commandline.options import json_option, more_runs_option, seconds_option
from powerccl.commandline.runs import complete_run, find_run

if TYPE_CHECKING:
    from powerccl.live.node import LiveNode


@click.command("top")
@click.argument("names", nargs=-1, metavar="[RUN]...", shell_complete=complete_run)
@click.option("--once", is_flag=True, help="Print once and exit. Also the default if stdout is no terminal.")
@json_option("one line per interval, with --once one object,")
@seconds_option("interval", 0.25, 60, 1.0, "Time between two updates.")
@seconds_option("over", 1, 300, 5.0, "Length of the past interval that rates and shares cover.")
@more_runs_option("show")
def command(
    names: tuple[str, ...], once: bool, json_file: str, interval_s: float, over_s: float, runs_dir: Path | None
) -> int:
    """Show the running jobs on this node.

    The table shows clocks, power, communication and leases. Top finds your jobs by their processes (as root: all
    users' jobs). With RUN, it shows these run folders instead. It only reads files that the jobs write anyway.
    Keys: q quits, space pauses, + and - change the interval, j and k scroll.

    \b
    powerccl top
    powerccl top --once
    powerccl top --json | jq .jobs[0].share_pct
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from powerccl.live.node import LiveNode

    node = LiveNode([find_run(name, runs_dir or Path("runs")) for name in names], runs_dir, over_s)
    try:
        if json_file:
            _write_json(node, json_file, once, interval_s)
        elif once or not sys.stdout.isatty():
            from powerccl.console import Console
            from powerccl.live.top import print_top

            print_top(Console(), node.look())
        else:
            from powerccl.live.top_app import run_top

            run_top(node.look, interval_s)
    finally:
        node.close()
    return 0


def _write_json(node: LiveNode, target: str, once: bool, interval_s: float) -> None:
    from powerccl import clean
    from powerccl.commandline.output import write_out

    while True:
        begin_s = time.monotonic()
        write_out(target, clean.to_json(node.look(), indent=2 if once else 0))
        if once:
            return
        time.sleep(max(interval_s - (time.monotonic() - begin_s), 0.05))
