# SPDX-License-Identifier: Apache-2.0
"""Options that several verbs have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from powerccl.launch.environment import DEFAULT_SLOWDOWN_PCT, SLOWDOWN_RANGE_PCT

Command = TypeVar("Command", bound=Callable[..., Any])

overhead_option = click.option(
    "--overhead",
    type=click.Choice(["measured", "published"]),
    default="measured",
    show_default=True,
    help="Message size from which per-call lowers clocks: the profile's value, or PCCL's.",
)


max_slowdown_option = click.option(
    "--max-slowdown",
    type=click.FloatRange(*SLOWDOWN_RANGE_PCT),
    metavar="PERCENT",
    help="Largest slowdown of the job's iterations that auto may cause. Below 0.2 it is 0.2: less cannot be measured."
    f"  [default: {DEFAULT_SLOWDOWN_PCT:g}]",
)


def json_option(what: str) -> Callable[[Command], Command]:
    """`--json [FILE]`, as the argument `json_file`: empty without the option, `-` without FILE."""
    text = f"Write {what} as JSON to FILE. Without FILE, or with -, to stdout."
    more: dict[str, Any] = {"is_flag": False, "flag_value": "-", "default": "", "metavar": "[FILE]", "help": text}
    return click.option("--json", "json_file", **more)


def html_option(what: str = "the findings") -> Callable[[Command], Command]:
    """`--html FILE`, as the argument `html_file`; empty without the option."""
    text = f"Write {what} as one HTML page to FILE. It opens offline."
    return click.option("--html", "html_file", default="", metavar="FILE", help=text)


def markdown_option() -> Callable[[Command], Command]:
    """`--markdown FILE`, as the argument `markdown_file`; empty without the option."""
    text = "Write the tables in Markdown to FILE (-: stdout)."
    return click.option("--markdown", "markdown_file", default="", metavar="FILE", help=text)


def seconds_option(name: str, least: float, most: float, default: float, text: str) -> Callable[[Command], Command]:
    """`--NAME SECONDS`, as the argument `NAME_s`."""
    kind = click.FloatRange(least, most)
    more: dict[str, Any] = {"default": default, "show_default": True, "metavar": "SECONDS", "help": text}
    return click.option(f"--{name}", f"{name}_s", type=kind, **more)


def more_runs_option(does: str) -> Callable[[Command], Command]:
    """`--runs-dir` of what watches the running jobs."""
    text = f"Also {does} the jobs whose run folders are in this directory."
    return click.option("--runs-dir", type=click.Path(path_type=Path), metavar="DIR", help=text)
