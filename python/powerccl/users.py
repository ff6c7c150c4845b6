# SPDX-License-Identifier: Apache-2.0
"""Names of users. Nothing else is here: it is on the way to the job's start."""

from __future__ import annotations

import pwd


def user_name(uid: int) -> str:
    """The user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
