# SPDX-License-Identifier: Apache-2.0
"""`powerccl clocks`."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerccl import clean
from powerccl.commandline.options import json_option
from powerccl.commandline.output import say, write_out
from powerccl.errors import PowercclError

if TYPE_CHECKING:
    from powerccl.leases.client import Device, Leases


@click.command("clocks")
@json_option("devices and lease holders")
@click.option("--release", is_flag=True, help="End all leases that you hold. Their processes cannot get them again.")
@click.option("--revoke", default="", metavar="DEVICE|all", help="End the lease of any user.  [administrators]")
@click.option(
    "--restore",
    default="",
    metavar="DEVICE|all",
    help="As --revoke, and reset clocks that no process holds.  [administrators]",
)
@click.option("--user", default="", metavar="USER", help="With --revoke: only leases of this user (name or number).")
@click.option(
    "--drain",
    type=click.Choice(["on", "off"]),
    help="With on, grant no new leases; present ones stay. With off, grant them again.  [administrators]",
)
@click.option(
    "--socket",
    "socket",
    type=click.Path(path_type=Path, readable=False),
    metavar="PATH",
    help="Socket of powerccld.  [default: $POWERCCL_LEASE_SOCKET, else /run/powerccl/powerccld.sock]",
)
def command(
    json_file: str,
    release: bool,
    revoke: str,
    restore: str,
    user: str,
    drain: str | None,
    socket: Path | None,
) -> None:
    """Show who holds leases of clocks, and end leases.

    powerccld grants the leases. DEVICE is the UUID of a GPU (the part that the table shows is enough) or its PCI bus
    id. A lease also ends with the process that holds it.

    \b
    powerccl clocks
    powerccl clocks --release
    sudo powerccl clocks --revoke all
    sudo powerccl clocks --drain on
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from powerccl.leases.client import connect, socket_path

    wishes = [bool(json_file), release, bool(revoke), bool(restore), drain is not None]
    if sum(wishes) > 1:
        raise click.UsageError("--json, --release, --revoke, --restore and --drain: one at a time")
    if user and not revoke:
        raise click.UsageError("--user goes with --revoke")
    with connect(socket or socket_path(os.environ), "powerccl clocks") as leases:
        if release:
            _release(leases)
        elif revoke:
            _revoke(leases, revoke, _uid(user) if user else None)
        elif restore:
            device = "" if restore == "all" else _find(leases.status(), restore)
            answer = leases.restore(device)
            say(answer or f"{device or 'all devices'}: the default clock is restored")
        elif drain:
            answer = leases.drain(drain == "on")
            on = "no new leases from now on, those there are stay; undo it with `powerccl clocks --drain off`"
            say(answer or (on if drain == "on" else "new leases are given again"))
        else:
            _show(leases, json_file)


def _show(leases: Leases, json_file: str) -> None:
    from powerccl.reports import clocks as report

    devices = leases.status()
    if json_file:
        about = {
            "socket": str(leases.path),
            "admin": leases.admin,
            "heartbeat_ms": leases.heartbeat_ms,
            "gpu_interval_ms": leases.gpu_interval_ms,
        }
        write_out(json_file, clean.to_json(report.as_json(leases, devices, about), indent=2))
    if json_file == "-":
        return
    from powerccl.console import Console

    report.print_clocks(Console(), leases, devices)


def _release(leases: Leases) -> None:
    """End what this user holds."""
    from powerccl.leases.client import RefusedError
    from powerccl.leases.protocol import Status

    held = [device for device in leases.status() if device.mine]
    if not held:
        say("you hold no lease")
        return
    try:
        _end(leases, held)
    except RefusedError as error:
        if error.status != Status.NOT_ALLOWED:
            raise
        pids = sorted({device.holder_pid for device in held})
        raise PowercclError(
            f"powerccld ends leases for administrators only; yours are held by {_processes(held)}",
            f"a lease ends with its process: kill {' '.join(map(str, pids))}",
        ) from error


def _revoke(leases: Leases, wish: str, uid: int | None) -> None:
    """End the leases on a device or on all, of one user or of all."""
    from powerccl.leases.client import RefusedError
    from powerccl.leases.protocol import Status

    devices = leases.status()
    wanted = "" if wish == "all" else _find(devices, wish)
    if uid is not None:
        if wanted and not any(device.device == wanted for device in devices):
            raise PowercclError(
                f"with --user, '{wish}' has to be a device as `powerccl clocks` lists it", "or leave --user out"
            )
        of_user = [device for device in devices if device.held and device.holder_uid == uid]
        _end(leases, [device for device in of_user if wanted in ("", device.device)])
        return
    if not wanted and not leases.admin:
        raise PowercclError(
            "--revoke all is for administrators", "your own leases end with `powerccl clocks --release`"
        )
    held = [device for device in devices if device.held and wanted in ("", device.device)]
    try:
        answer = leases.revoke(wanted)
    except RefusedError as error:
        if error.status == Status.NOT_ALLOWED:
            error.hint += "; your own leases end with `powerccl clocks --release`"
        raise
    known = not wanted or any(device.device == wanted for device in devices)
    not_held = f"no process holds {wish if wanted else 'a device'}"
    say(answer or (f"ended the lease of {_processes(held)}" if held else not_held if known else f"{wish}: revoked"))


def _end(leases: Leases, devices: list[Device]) -> None:
    """Revoke these, one by one."""
    for device in devices:
        leases.revoke(device.device)
        say(f"{device.device}: ended the lease of {_processes([device])}")


def _processes(devices: list[Device]) -> str:
    """Who they are, each process once: `alice's process 4711 (train)`."""
    processes = {
        device.holder_pid: f"{device.user}'s process {device.holder_pid}{f' ({device.run})' if device.run else ''}"
        for device in devices
    }
    return ", ".join(processes.values())


def _find(devices: list[Device], wish: str) -> str:
    """The device that is called so, or the only one whose name begins so; else the wish: the daemon knows other names.

    Raises:
        PowercclError: several begin so.
    """
    names = [device.device for device in devices]
    if wish in names:
        return wish
    head, _, tail = wish.partition("…")  # as the table cuts them
    matching = [name for name in names if name.startswith(head) and name.endswith(tail)]
    if len(matching) > 1:
        raise PowercclError(f"{len(matching)} devices are called so: {wish}", f"which of {', '.join(matching)}?")
    return matching[0] if matching else wish


def _uid(user: str) -> int:
    """Number of a user.

    Raises:
        PowercclError: there is none of that name.
    """
    if user.isdigit():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise PowercclError(f"no user is called '{user}'", "name one of this machine, or give the number") from None
