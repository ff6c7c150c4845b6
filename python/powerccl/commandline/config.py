# SPDX-License-Identifier: Apache-2.0
"""A user's own defaults: one TOML file, `powerccl/config.toml` in the folder of a user's configuration.

`powerccl run` imports this on the way to the job's start. Importing the parser takes longer than all the rest here.
So `powerccl run` parses nothing if the file is absent or has no such setting.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from powerccl.errors import PowercclError, UsageError, nearest, one_line
from powerccl.files import expanded, read_bytes, user_folder

MOST_BYTES = 1 << 20  # a few lines; a file a thousand times as long is another one
# There is no such file, or this user may not look: containers run programs as other users in root's home.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EACCES)
LOCAL_DIR_VARIABLE = "POWERCCL_LOCAL_DIR"
HINT = 'write lines such as: price = "0.25EUR/kWh"; `powerccl config --help` lists the settings'
Value = str | float


@dataclass(frozen=True)
class Setting:
    """`builtin`: its value where nothing sets it; empty: none. `check` raises PowercclError."""

    number: bool
    builtin: str
    check: Callable[[Any, Path], object]


def _price(value: str, folder: Path) -> object:
    from powerccl.tariff import parse_price

    return parse_price(value, folder)


def _carbon(value: str, folder: Path) -> object:
    from powerccl.tariff import parse_carbon

    return parse_carbon(value, folder)


def _pue(value: float, _: Path) -> object:
    from powerccl.tariff import parse_pue

    return parse_pue(value)


def _folder(value: str, _: Path) -> object:
    if not value.strip():
        raise PowercclError("a folder has a name", 'write "runs", or "~/runs"')
    return value


def _absolute(value: str, _: Path) -> object:
    if not expanded(value).is_absolute():
        raise PowercclError(f"local-dir '{value}' is no absolute path", 'write "/tmp", or "/dev/shm"')
    return value


SETTINGS = {
    "price": Setting(False, "", _price),
    "carbon": Setting(False, "", _carbon),
    "pue": Setting(True, "", _pue),
    "runs-dir": Setting(False, "runs", _folder),
    "local-dir": Setting(False, "", _absolute),
}


@dataclass(frozen=True)
class Config:
    """The user's file as it is; both maps are by setting. `file` None: this user has no home."""

    file: Path | None = None
    values: Mapping[str, Value] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)

    def place(self, name: str) -> str:
        """`FILE:LINE`."""
        return f"{self.file}:{self.lines[name]}"

    def checked(self, name: str) -> object:
        """A setting as its check returns it; None: the file does not set it.

        Raises:
            PowercclError: it is not possible.
        """
        if name not in self.values or self.file is None:
            return None
        try:
            return SETTINGS[name].check(self.values[name], self.file.parent)
        except PowercclError as error:
            raise PowercclError(f"{self.place(name)}: {error.message}", error.hint) from error


def config_file() -> Path | None:
    """Where the user's file is, or would be; None: this user has no home."""
    home = user_folder("XDG_CONFIG_HOME", ".config")
    return home / "powerccl" / "config.toml" if home else None


def read_config(*wanted: str) -> Config:
    """The user's file. `wanted`: settings of which one must be in it, else it is not parsed; none: it is parsed.

    Raises:
        PowercclError: the file is there and cannot be used.
    """
    file = config_file()
    try:
        data = read_bytes(file, MOST_BYTES) if file else b""
    except OSError as error:
        if error.errno in _ABSENT:
            return Config(file)
        raise PowercclError(f"cannot read {one_line(error)}", HINT) from error
    if file is None or not data or (wanted and not any(name.encode() in data for name in wanted)):
        return Config(file)
    return parse_config(file, data)


def parse_config(file: Path, data: bytes) -> Config:
    """A file's content, with settings that are known and of the right type.

    Raises:
        PowercclError: it is another.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        text = data.decode()
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # of tomllib, and of UTF-8
        raise PowercclError(f"{file} is no TOML file: {' '.join(str(error).split())[:200]}", HINT) from error
    lines = {name: _line_of(name, text) for name in values}
    for name, value in values.items():
        place = f"{file}:{lines[name]}"
        if name not in SETTINGS:
            known = ", ".join(SETTINGS)
            raise PowercclError(f"{place}: unknown setting '{name}'", f"{nearest(name, SETTINGS)}known: {known}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if SETTINGS[name].number and not number:
            raise PowercclError(f"{place}: {name} is a number", f"write {name} = 1.3")
        if not SETTINGS[name].number and not isinstance(value, str):
            raise PowercclError(f"{place}: {name} is text", f'put it into quotes: {name} = "…"')
    return Config(file, values, lines)


def _line_of(name: str, text: str) -> int:
    """The line that sets a name, from 1; 1 where its form is unusual."""
    form = re.compile(rf"\s*\[*\s*[\"']?{re.escape(name)}[\"']?\s*[=.\]]")
    return next((number for number, line in enumerate(text.splitlines(), 1) if form.match(line)), 1)


def runs_dir(config: Config) -> Path:
    """The directory of run folders: the user's, else the built-in one.

    Raises:
        PowercclError: the user's is not possible.
    """
    own = config.checked("runs-dir")
    return expanded(str(own or SETTINGS["runs-dir"].builtin))


def local_dir(config: Config) -> Path | None:
    """The directory of each node that keeps a run's files while the job runs: POWERCCL_LOCAL_DIR, else the user's own.

    None: there is none.

    Raises:
        PowercclError: it is not possible.
    """
    if (named := os.environ.get(LOCAL_DIR_VARIABLE)) is not None:
        return parse_local_dir(named, f"{LOCAL_DIR_VARIABLE}=")
    own = config.checked("local-dir")
    return expanded(str(own)) if own else None


def parse_local_dir(text: str, said: str) -> Path | None:
    """A directory as an option or a variable names it; empty: none. `said`: the words in front of it, for the message.

    Raises:
        UsageError: it is no absolute path.
    """
    if not text:
        return None
    if not expanded(text).is_absolute():
        raise UsageError(f"{said}{text} is no absolute path", "name a directory that each node has, such as /tmp")
    return expanded(text)
