# SPDX-License-Identifier: Apache-2.0
"""Options that several verbs have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

overhead_option = click.option(
    "--overhead",
    type=click.Choice(["measured", "published"]),
    default="measured",
    show_default=True,
    help="Message size from which per-call lowers clocks: the profile's value, or PCCL's.",
)


def seconds_option(name: str, least: float, most: float, default: float, text: str) -> Callable[[Command], Command]:
    """`--NAME SECONDS`, as the argument `NAME_s`."""
    kind = click.FloatRange(least, most)
    more: dict[str, Any] = {"default": default, "show_default": True, "metavar": "SECONDS", "help": text}
    return click.option(f"--{name}", f"{name}_s", type=kind, **more)


def more_runs_option(does: str) -> Callable[[Command], Command]:
    """`--runs-dir` of what watches the running jobs."""
    text = f"Also {does} the jobs whose run folders are in this directory."
    return click.option("--runs-dir", type=click.Path(path_type=Path), help=text)
