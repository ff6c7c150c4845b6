# SPDX-License-Identifier: Apache-2.0
"""Verbs of `powerccl` called inside this process: hundreds of pages take minutes, not an hour of starting Python."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from click.testing import CliRunner
from support.commands import Said

from trust import ROOT
from trust.jobs import FOREIGN, TOGETHER

T = TypeVar("T")
R = TypeVar("R")
WIDTH = "240"  # so that no sentence is wrapped


def _prepare(native: str) -> None:
    for name in list(os.environ):
        if name.startswith(FOREIGN):
            del os.environ[name]
    os.environ.update(
        {"COLUMNS": WIDTH, "NO_COLOR": "1", "POWERCCL_NATIVE": native, "PYTHONPATH": str(ROOT / "python")}
    )
    os.environ["POWERCCL_DEBUG"] = "1"  # so that a fault shows where it is


def speak(arguments: Sequence[object]) -> Said:
    """`powerccl ARGUMENTS`, here. stdin is empty."""
    from powerccl.commands import cli

    done = CliRunner().invoke(cli, [str(each) for each in arguments], prog_name="powerccl")
    if done.exception is None or isinstance(done.exception, SystemExit):
        return Said(done.exit_code, done.stdout, done.stderr)
    return Said(2, done.stdout, done.stderr + "".join(traceback.format_exception(done.exception)))


def spread(work: Callable[[T], R], items: Sequence[T], native: object) -> Iterator[R]:
    """`work` of each item, TOGETHER at a time, in processes that were not forked: polars has threads."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(TOGETHER, context, _prepare, (str(native),)) as pool:
        yield from pool.map(work, items)
