# SPDX-License-Identifier: Apache-2.0
"""A user's home, and where the user's own configuration is."""

from __future__ import annotations

import os
import pwd
from pathlib import Path


def expanded(text: str) -> Path:
    """A path whose `~` is the user's home; as it is where the user has none."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def configuration_home() -> Path | None:
    """XDG_CONFIG_HOME, else `.config` in the home of the environment or of the user's account; None: there is neither.

    Containers run programs as numbers without an account. A relative path would depend on where a command is typed.
    """
    named = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if named.is_absolute():
        return named
    home = Path(os.environ.get("HOME", ""))
    if not home.is_absolute():
        try:
            home = Path(pwd.getpwuid(os.getuid()).pw_dir)
        except KeyError:
            return None
    return home / ".config" if home.is_absolute() else None
