# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can act on."""


class PowercclError(Exception):
    """Something a user can mend: what is wrong, and what to do about it.

    Printed as `error: …` and `hint: …`; the command then ends with exit code 1.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def one_line(error: BaseException) -> str:
    """What went wrong, for a message: an error of the world by its own words, a fault of ours with its kind."""
    if isinstance(error, PowercclError):
        return error.message
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
