# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can act on."""

from __future__ import annotations

from collections.abc import Iterable

# Exit codes. `powerccl run` and `powerccl bench` hand on the code of what they started.
FAILED = 1
USAGE = 2  # as click, argparse, GNU and POSIX utilities have it
FAULT = 70  # EX_SOFTWARE, as BSD and sendmail have it
NOT_STARTED = 125  # of `powerccl run`, as of env, timeout and docker run; 126 and 127 are a shell's


class PowercclError(Exception):
    """Something a user can mend: what is wrong, and what to do about it.

    Printed as `error: …` and `hint: …`; the command then ends with `exit_code`.
    """

    exit_code = FAILED

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(PowercclError):
    """A command line that no state of the machine makes right: options that exclude each other, an unknown name."""

    exit_code = USAGE


class JobBegunError(Exception):
    """A fault of ours after a job has begun, which must not be started again. `code`: how it ended; None: it runs."""

    def __init__(self, code: int | None) -> None:
        super().__init__()
        self.code = code


def one_line(error: BaseException) -> str:
    """What went wrong, for a message: an error of the world by its own words, a fault of ours with its kind."""
    if isinstance(error, PowercclError):
        return error.message
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def nearest(name: str, known: Iterable[str]) -> str:
    """The beginning of a hint: the known name that was probably meant, if any is close."""
    import difflib

    close = difflib.get_close_matches(name, list(known), 1)
    return f"did you mean '{close[0]}'? " if close else ""


def choose(kind: str, value: str, options: Iterable[str]) -> str:
    """The value, if it is one of the options.

    Raises:
        UsageError: it is not; the nearest is suggested and all are listed.
    """
    options = list(options)
    if value in options:
        return value
    raise UsageError(f"unknown {kind} '{value}'", f"{nearest(value, options)}known: {', '.join(options) or 'none'}")
