# SPDX-License-Identifier: Apache-2.0
"""Who holds which clock, in the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from powerccl.console import Console
from powerccl.quantities import age, mhz, plural
from powerccl.reports.table import Table

if TYPE_CHECKING:
    from powerccl.leases.client import Device, Leases

WIDE = 110
NONE = "–"  # not held, or not visible
SHORTEST = len("GPU-01234567")
MINE, AWAY = "bold bright_cyan", "yellow"


def print_clocks(console: Console, daemon: Leases, devices: Sequence[Device]) -> None:
    """A line a GPU; what needs attention below."""
    named = len({gpu.name for gpu in devices}) > 1 or console.width >= WIDE
    console.print(_heading(daemon, devices, named))
    if devices:
        console.print()
        console.print(_table(devices, named))
    console.print()
    for line in _remarks(daemon, devices):
        console.print(line)


def _heading(daemon: Leases, gpus: Sequence[Device], named: bool) -> Text:
    line = Text(daemon.server or "powerccld", style="bold")
    if gpus and not named:
        line.append(f" · {len(gpus)} × {gpus[0].name}")
    if daemon.emulated:
        line.append("  emulated", style="bold magenta")
    return line


def _table(devices: Sequence[Device], named: bool) -> Table:
    table = Table()
    table.add_column("device", no_wrap=True)
    if named:
        table.add_column("name", overflow="fold")
    table.add_column("clock now", justify="right", no_wrap=True)
    table.add_column("set to", justify="right", no_wrap=True)
    table.add_column("held by")  # what is cut where the width does not suffice; see _holder
    table.add_column("since", justify="right", no_wrap=True)
    table.add_column("changes", justify="right", no_wrap=True)
    names = short_names([device.device for device in devices])
    for device in devices:
        cells = [Text(names[device.device])]
        if named:
            cells.append(Text(device.name))
        cells += [Text(mhz(device.now_mhz) if device.now_mhz else NONE), _set_to(device), _holder(device)]
        if not device.held:
            cells += [Text(), Text()]
        elif device.details_known:
            cells += [Text(age(device.held_ms / 1e3)), Text(str(device.changes))]
        else:
            cells += [Text(NONE, style="dim")] * 2
        table.add_row(*cells)
    return table


def _set_to(device: Device) -> Text:
    if not device.details_known:
        return Text(NONE, style="dim")
    if device.max_mhz:
        low = f"{device.min_mhz}–" if device.min_mhz not in (0, device.max_mhz) else ""
        return Text(f"{low}{mhz(device.max_mhz)}", style=AWAY)
    return Text("restoring", style=AWAY) if device.pending else Text("default", style="dim")


def _holder(device: Device) -> Text:
    if not device.held:
        return Text(NONE, style="dim")
    holder = Text(no_wrap=True, overflow="ellipsis")
    holder.append(device.user, style=MINE if device.mine else "bold")
    holder.append(f" {device.holder_pid}")
    if device.sharers > 1:
        holder.append(f" +{device.sharers - 1}")
    if device.run:
        holder.append(f" {device.run}", style="dim")
    return holder


def _remarks(daemon: Leases, devices: Sequence[Device]) -> list[Text]:
    lines = []
    held = sum(device.held for device in devices)
    if not devices:
        lines.append(Text("It knows no device whose clock could be leased; its log says why."))
    elif not held:
        lines.append(Text("No process holds a GPU."))
    else:
        yours = sum(device.mine for device in devices)
        whose = f", {'all' if yours == held else yours} of them yours" if yours and held > 1 else ""
        whose = ", by you" if yours and held == 1 else whose
        lines.append(Text(f"{held} of {len(devices)} held{whose}."))
    back = sum(device.pending and not device.held for device in devices)
    if back:
        lines.append(_attention(f"{plural(back, 'clock')} not restored yet: the daemon continues to try."))
    if daemon.draining:
        lines.append(_attention("draining: no new leases until `powerccl clocks --drain off`"))
    if daemon.dry:
        lines.append(_attention("dry: it decides and answers, and sets no clock"))
    return lines


def _attention(text: str) -> Text:
    return Text.assemble(("! ", "bold yellow"), text)


def short_names(devices: Sequence[str]) -> dict[str, str]:
    """UUIDs cut to what tells them apart: their beginning, else beginning and end; other names as they are."""
    names = {}
    for device in devices:
        names[device] = device
        cuts = [(length, 0) for length in range(SHORTEST, SHORTEST + 3)]
        cuts += [(8, length) for length in range(4, len(device) - 8)]
        for head, tail in cuts if device.startswith("GPU-") else ():
            end = device[len(device) - tail :]
            if sum(other.startswith(device[:head]) and other.endswith(end) for other in devices) == 1:
                names[device] = device[:head] + (f"…{end}" if tail else "")
                break
    return names


def as_json(daemon: Leases, devices: Sequence[Device], about: Mapping[str, Any]) -> dict[str, Any]:
    """What the table shows and more, for programs; null: the default, not read, not held, or not visible (`told`)."""
    return {
        "schema": 1,
        "server": daemon.server,
        **about,
        "draining": daemon.draining,
        "dry": daemon.dry,
        "emulated": daemon.emulated,
        "devices": [
            {
                "device": device.device,
                "name": device.name,
                "now_mhz": device.now_mhz or None,
                "min_mhz": device.min_mhz or None,
                "max_mhz": device.max_mhz or None,
                "pending": device.pending,
                "holder": {
                    "uid": device.holder_uid,
                    "user": device.user,
                    "pid": device.holder_pid,
                    "mine": device.mine,
                    "told": device.details_known,
                    "run": device.run or None,
                    "held_ms": device.held_ms if device.details_known else None,
                    "changes": device.changes if device.details_known else None,
                    "leases": device.sharers if device.details_known else None,
                }
                if device.held
                else None,
            }
            for device in devices
        ],
    }
