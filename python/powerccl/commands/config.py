# SPDX-License-Identifier: Apache-2.0
"""`powerccl config`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click

from powerccl.commandline.config import SETTINGS, Config, config_file, parse_config, read_config
from powerccl.commandline.output import write_out
from powerccl.errors import PowercclError, choose
from powerccl.files import write_whole


@click.group("config", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Show your own defaults, and where each is set.

    They are in config.toml in $XDG_CONFIG_HOME/powerccl, or in ~/.config/powerccl. An option of a command wins over
    the file, and the file over the built-in value.

    \b
    price      price of energy, such as 0.25EUR/kWh, or a CSV file by hour
    carbon     carbon intensity of energy, such as 380g/kWh, or a CSV file by hour
    pue        energy of the site by that of its computers, such as 1.3
    runs-dir   directory of run folders
    local-dir  directory of each node for traces while the job runs, such as /tmp

    \b
    powerccl config
    powerccl config set price 0.25EUR/kWh
    powerccl config unset price
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    if context.invoked_subcommand is None:
        config = read_config()
        for name in config.values:
            config.checked(name)
        write_out("-", _table(config))


@command.command("set")
@click.argument("name", metavar="SETTING")
@click.argument("value")
def set_value(name: str, value: str) -> int:
    """Set a value in your file.

    It changes the line of SETTING, or adds one. Comments stay.

    \b
    powerccl config set carbon 380g/kWh
    powerccl config set runs-dir ~/runs
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    choose("setting", name, SETTINGS)
    written = json.dumps(value, ensure_ascii=False)
    if SETTINGS[name].number:
        if not re.fullmatch(r"\d+(\.\d+)?", value):
            raise PowercclError(f"{name} {value}: not understood", f"{name} is a number, such as 1.3")
        written = value
    _change(name, f"{name} = {written}\n")
    return 0


@command.command("unset")
@click.argument("name", metavar="SETTING")
def unset(name: str) -> int:
    """Remove a setting from your file.

    \b
    powerccl config unset price
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    choose("setting", name, SETTINGS)
    _change(name, "")
    return 0


def _table(config: Config) -> str:
    rows = []
    for name, setting in SETTINGS.items():
        own = name in config.values
        value = str(config.values[name]) if own else setting.builtin or "none"
        rows.append((name, value, config.place(name) if own else "built-in"))
    width = max(len(value) for _, value, _ in rows)
    lines = [f"{name:<9}  {value:<{width}}  {where}\n" for name, value, where in rows]
    return "".join(lines) + ("" if config.values or not config.file else f"\n{config.file} sets nothing\n")


def _change(name: str, line: str) -> None:
    """Put a line in the place of the one that sets `name`, or at the end; an empty one removes it."""
    file = config_file()
    if file is None:
        raise PowercclError("this user has no home, so there is no file to change", "set XDG_CONFIG_HOME")
    config = read_config()
    lines = _read(file).splitlines(keepends=True) if config.values or file.exists() else []
    if name in config.values:
        at = config.lines[name] - 1
        lines[at : at + 1] = [line] if line else []
    elif line:
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        lines.append(line)
    else:
        return
    data = "".join(lines).encode()
    changed = parse_config(file, data)  # also where a value has several lines, of which only the first is changed
    if line:
        changed.checked(name)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, data)
    except OSError as error:
        raise PowercclError(
            f"cannot write {file}: {error.strerror}", "set XDG_CONFIG_HOME to another folder"
        ) from error


def _read(file: Path) -> str:
    from powerccl.files import read_bytes

    return read_bytes(file).decode()
