# SPDX-License-Identifier: Apache-2.0
"""Hidden options: the old names that `powerccl.aliases` lists."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from powerccl import aliases
from powerccl.commandline.output import say
from powerccl.launch.launchers import in_leader


class _OldOption(click.Option):
    """A hidden option that gives its value to the option of the new name."""

    def __init__(self, old: str, new: click.Option) -> None:
        # Eager: click reads it before the option that takes its value.
        super().__init__([old], type=new.type, hidden=True, expose_value=False, is_eager=True)
        self.old, self.new = old, new

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Pass the value on, as if the user had typed the new name.

        Raises:
            click.UsageError: the user typed both, with different values.
        """
        value, name, option = opts.get(str(self.name)), str(self.new.name), self.new.opts[0]
        if value is None:
            return None, args
        other = opts.get(name, value)
        if self.new.type_cast_value(ctx, value) != self.new.type_cast_value(ctx, other):
            raise click.UsageError(
                f"{self.old} {value} and {option} {other} differ, and both name the same setting: leave {self.old} out",
                ctx,
            )
        opts[name] = value  # type: ignore[index]  # click hands every parameter the same dict
        aliases.announce(self.old, option, in_leader(os.environ, say))
        return None, args


def with_old_options(command: click.Command) -> click.Command:
    """Decorate a command: the old names of its options work as well, and --help does not show them."""
    named = {name: option for option in command.params if isinstance(option, click.Option) for name in option.opts}
    command.params += [_OldOption(old, named[new]) for old, new in aliases.OPTIONS[str(command.name)].items()]
    return command
