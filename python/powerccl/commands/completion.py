# SPDX-License-Identifier: Apache-2.0
"""`powerccl completion`."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> int:
    """Print a script with which a shell completes commands and runs.

    In bash, put eval "$(powerccl completion bash)" into ~/.bashrc. In zsh, put the same with zsh into ~/.zshrc, behind
    compinit. In fish, put the line below into ~/.config/fish/config.fish.

    \b
    powerccl completion fish | source
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from click.shell_completion import get_completion_class

    from powerccl.commandline.output import write_out
    from powerccl.commands import cli

    kind = get_completion_class(shell)
    assert kind is not None  # click has all three
    script = kind(cli, {}, "powerccl", "_POWERCCL_COMPLETE").source()
    # Where no option or run fits, such as behind --json, bash completes files.
    write_out("-", script.replace("complete -o nosort ", "complete -o nosort -o default ") + "\n")
    return 0
