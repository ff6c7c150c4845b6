# SPDX-License-Identifier: Apache-2.0
"""Messages to the user, and what was asked for, to a file or stdout."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from powerccl import clean
from powerccl.errors import PowercclError
from powerccl.files import write_whole


def fail(message: str, hint: str = "", code: int = 1) -> NoReturn:
    """Print an error and what to do about it on stderr, and exit."""
    with contextlib.suppress(OSError):  # the terminal is gone
        _print_line("error:", "red", message)
        if hint:
            _print_line("hint:", "cyan", hint)
    sys.exit(code)


def say(message: str) -> None:
    """Tell the user something while a job runs: on stderr, since stdout is the job's."""
    _print_line("powerccl:", "green", message)


def _print_line(label: str, letters: str, message: str) -> None:
    if not sys.stderr:  # it was closed when we began, and click would write to stdout instead
        return
    # The stream by its name: click puts another in the place of one that cannot show everything.
    line = f"{click.style(label, fg=letters, bold=True)} {clean.lines(message)}"
    click.echo(line, file=sys.stderr, color=colour())


def write_out(target: str | Path, data: bytes | str) -> None:
    """Write what was asked for to a file, or to stdout where that is `-`. Text is cleaned; bytes are clean already.

    Raises:
        PowercclError: the file cannot be written.
    """
    raw = clean.lines(data).encode() if isinstance(data, str) else data
    if str(target) == "-":
        if not sys.stdout:
            raise PowercclError("standard output is closed", "name a file instead of -")
        flush_output()
        sys.stdout.buffer.write(raw)
        flush_output()
        return
    try:
        write_whole(target, raw)
    except OSError as error:
        raise PowercclError(f"cannot write {target}: {error.strerror}", "name another file") from error


def flush_output() -> None:
    """Have standard output written, unless it was closed when we began."""
    if sys.stdout:
        sys.stdout.flush()


def colour() -> bool | None:
    """False where NO_COLOR is set; None lets the terminal decide."""
    return False if os.environ.get("NO_COLOR") else None
