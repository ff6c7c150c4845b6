# SPDX-License-Identifier: Apache-2.0
"""`powerccl admin`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from powerccl.commandline.output import say, write_out
from powerccl.errors import PowercclError

root_option = click.option(
    "--root",
    type=click.Path(path_type=Path),
    default=Path("/"),
    show_default=True,
    metavar="DIR",
    help="Folder that stands for the node's /, such as the image of a node.",
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Only print what would change.")

NEXT = """\
next, on the node:
  getent group {group} || groupadd --system {group}   # its members may ask for leases
  install -d -m 755 /run/powerccl              # the unit makes it at each start; the check expects it
  powerccld --check
  systemctl enable --now nvidia-persistenced   # keeps the driver loaded; the daemon may not load it
  systemctl daemon-reload && systemctl enable --now powerccld
"""
NEXT_SLURM = """\
  # slurm.conf: Prolog=/etc/slurm/prolog.d/* and Epilog=/etc/slurm/epilog.d/*
  # to record steps of users who set POWERCCL_RECORD=1: TaskProlog=/etc/slurm/powerccl-task-prolog
  # and TaskEpilog=/etc/slurm/powerccl-task-epilog
"""


@click.group("admin")
def command() -> None:
    """Install powerccld and its files on a node, or remove them.

    \b
    powerccl admin install --dry-run
    sudo powerccl admin install --slurm
    sudo powerccl admin remove
    """  # noqa: D301 - click's mark for text that is not to be wrapped


@command.command("install")
@click.option("--slurm", is_flag=True, help="Install prologs and epilogs for Slurm as well.")
@root_option
@dry_run_option
def install_command(slurm: bool, root: Path, dry_run: bool) -> None:
    """Install powerccld, its unit, configuration and dashboard.

    Install starts no service: it prints the commands that do. A file that was changed by hand stays as it is. The new
    version is then written beside it, as FILE.new. Run the same command after an update of PowerCCL.

    \b
    powerccl admin install --dry-run
    sudo powerccl admin install --slurm
    powerccl admin install --root /srv/images/gpu-node
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from powerccl.admin.files import GROUP, check_root, install, items

    root = root.absolute()
    if not dry_run:
        check_root(root)
    lines = install(root, items(slurm, root), dry_run)
    write_out("-", "\n".join(lines) + "\n")
    if dry_run:
        say("dry run: nothing was written")
    elif any(line.startswith(("write", "update")) for line in lines):
        say((NEXT.format(group=GROUP) + (NEXT_SLURM if slurm else "")).rstrip())


@command.command("remove")
@root_option
@dry_run_option
def remove_command(root: Path, dry_run: bool) -> None:
    """Remove what `powerccl admin install` wrote.

    Files that were changed by hand since stay, and the command names them. Remove refuses while powerccld runs, since
    the daemon restores the clocks of its leases when it ends.

    \b
    powerccl admin remove --dry-run
    sudo powerccl admin remove
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from powerccl.admin.files import check_root, remove

    root = root.absolute()
    if not dry_run:
        check_root(root)
        if root == Path("/"):
            _refuse_while_running()
    lines = remove(root, dry_run)
    if not lines:
        say(f"nothing to remove: `powerccl admin install` wrote nothing in {root}")
        return
    write_out("-", "\n".join(lines) + "\n")
    if dry_run:
        say("dry run: nothing was removed")


def _refuse_while_running() -> None:
    from powerccl.leases.client import NoDaemonError, connect, socket_path

    try:
        connect(socket_path(os.environ), "powerccl admin").close()
    except NoDaemonError:
        return
    raise PowercclError("powerccld runs on this node", "systemctl disable --now powerccld")
