# SPDX-License-Identifier: Apache-2.0
"""How a job's collectives are carried out, from outside: `powerccl run --ways`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

import powerccl.hooks
from powerccl.errors import PowercclError
from powerccl.files import MIB, decode_json
from powerccl.launch.gpus import Gpus
from powerccl.platforms.tuned import TunedProfile
from powerccl.platforms.ways import COPY_ENGINE, WaysTable, copy_engines_from, load_table, tables_for, why_never
from powerccl.quantities import byte_size, plural
from powerccl.traces.run_files import list_files, read_bytes

AUTO = "auto"
LEAST = "POWERCCL_WINDOWS_FROM"
HOOKS = Path(powerccl.hooks.__file__).parent


class RankWindows(msgspec.Struct):
    """What a rank's hook left in the run folder of one group of ranks."""

    state: str
    reason: str = ""
    bytes: int = 0  # of memory that the windows take


class _Note(msgspec.Struct):
    groups: list[RankWindows]


def choose_tables(ways: str, gpus: Gpus) -> list[WaysTable]:
    """The table that `--ways` names, or those of this machine's GPUs: of all of them, and of fewer.

    Raises:
        PowercclError: there is none, or it is of other GPUs.
    """
    if ways != AUTO:
        table = load_table(ways)
        if gpus.names and set(gpus.names) != {table.gpu}:
            raise PowercclError(
                f"the table of ways '{table.name}' was measured on {table.gpus} x {table.gpu}; this machine: "
                f"{gpus.describe()}",
                "measure this machine: powerccl profile --ways",
            )
        return [table]
    tables = tables_for(gpus.names)
    if not tables:
        raise PowercclError(
            f"no table of ways for {gpus.describe()}",
            "measure this machine, in some minutes and without any right: powerccl profile --ways",
        )
    return list(tables.values())


def ways_environment(
    base: Mapping[str, str], tables: Sequence[WaysTable], say: Callable[[str], None]
) -> dict[str, str]:
    """The job's environment with PyTorch hooked where the tables say that copy engines are never slower.

    In groups of as many ranks as a table was measured with.
    """
    least = copy_engines_from(tables)
    if not least:
        name = tables[0].name
        say(f"--ways changes nothing: by '{name}' {why_never(tables[0], 'all_gather', COPY_ENGINE)}")
        return dict(base)
    return _hooked(base, least)


def tuned_ways_environment(base: Mapping[str, str], profile: TunedProfile) -> dict[str, str]:
    """The job's environment with PyTorch hooked where a tuned profile has all-gathers go by copy engines.

    From the smallest size on from which it has no other way. Nothing else of its ways can be done from outside.
    """
    least = None
    gathers = [each for each in profile.ways if each.pattern == "all_gather"]
    for each in sorted(gathers, key=lambda each: -each.size_bytes):
        if each.way != COPY_ENGINE:
            break
        least = each.size_bytes
    return dict(base) if least is None else _hooked(base, {profile.ranks: least})


def _hooked(base: Mapping[str, str], least: Mapping[int, int]) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(HOOKS), base.get("PYTHONPATH", "")]))
    return {**base, LEAST: ",".join(f"{size}@{ranks}" for ranks, size in least.items()), "PYTHONPATH": path}


def read_notes(folder: Path) -> list[RankWindows]:
    """What the hooks of all ranks left in a run folder; of a damaged file nothing."""
    notes: list[RankWindows] = []
    for path in list_files(folder, "windows-", ".json")[0]:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            notes += decode_json(read_bytes(path, MIB), _Note).groups
    return notes


def describe(folder: Path) -> str:
    """One line about what came of `--ways`."""
    notes = read_notes(folder)
    on = [note for note in notes if note.state == "on"]
    if on:
        memory = byte_size(max(note.bytes for note in on))
        return (
            f"ways: all-gathers by copy engines on {plural(len(on), 'rank')}, with {memory} of memory each for windows"
        )
    reasons = sorted({note.reason for note in notes if note.reason})
    return f"ways: nothing changed: {reasons[0] if reasons else 'no FSDP2 all-gather was large enough'}"
