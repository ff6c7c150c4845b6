# SPDX-License-Identifier: Apache-2.0
"""Verbs of `powerccl` called inside this process: hundreds of pages take minutes, not an hour of starting Python."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from bench.trust import ROOT
from bench.trust.jobs import FOREIGN, TOGETHER, Said

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


class _Bytes(io.BytesIO):
    def close(self) -> None:
        """Kept: whoever closes the text around it must not take what was written."""


def speak(arguments: Sequence[object]) -> Said:
    """`powerccl ARGUMENTS`, here. stdin is empty."""
    from powerccl.commands import cli

    out, err = _Bytes(), _Bytes()
    before = sys.stdout, sys.stderr, sys.stdin, sys.argv
    words = [str(each) for each in arguments]
    code = 0
    try:
        sys.stdout = io.TextIOWrapper(out, "utf-8", write_through=True)
        sys.stderr = io.TextIOWrapper(err, "utf-8", write_through=True)
        sys.stdin, sys.argv = io.StringIO(""), ["powerccl", *words]
        cli.main(args=words, prog_name="powerccl")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        code = 2
        err.write("".join(traceback.format_exception(error)).encode())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError, OSError):
                stream.flush()
        sys.stdout, sys.stderr, sys.stdin, sys.argv = before
    return Said(code, out.getvalue().decode("utf-8", "replace"), err.getvalue().decode("utf-8", "replace"))


def spread(work: Callable[[T], R], items: Sequence[T], native: object) -> Iterator[R]:
    """`work` of each item, TOGETHER at a time, in processes that were not forked: polars has threads."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(TOGETHER, context, _prepare, (str(native),)) as pool:
        yield from pool.map(work, items)
