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
