# SPDX-License-Identifier: Apache-2.0
"""`powerccl bench`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from powerccl.commands import fail
from powerccl.launch.child import ChildNotStartedError, run_child
from powerccl.launch.emulation import Emulation, emulated_platform
from powerccl.launch.native import BENCH, find_native


@click.command("bench", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--emulate", default="", metavar="NAME", help="Run on an emulated GPU server, e.g. t4x8. No GPU needed.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[PATTERN|train] [OPTIONS]...")
def command(emulate: str, arguments: tuple[str, ...]) -> int:
    """Measure collectives, or replay a training step, with powerccl-bench.

    Takes NCCL tests' own options; `powerccl bench --emulate t4x8 -- --help` lists all of them.
    The exit code is powerccl-bench's.

    \b
    powerccl bench --emulate t4x8 all_reduce -b 1M -e 64M -f 2
    powerccl bench train --model microllama
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    native = find_native()
    program = str(native.path(BENCH))
    rest = list(arguments[1:] if arguments[:1] == ("--",) else arguments)
    if not emulate:
        os.execv(program, [program, *rest])
    platform = emulated_platform(native, emulate)
    with Emulation(native, platform, None) as emulation:
        try:
            return run_child([program, *rest], emulation.environment(os.environ)).code
        except ChildNotStartedError as error:
            fail(str(error), f"reinstall powerccl: {Path(program)} does not run here", error.code)
