# SPDX-License-Identifier: Apache-2.0
"""How well hosts kept up with the GPUs that they emulated (`emulator-<host>-<boot>.json`, from the emulator's end)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from powerccl.files import MIB, decode_json
from powerccl.traces.run_files import read_bytes

LATENESS_FILES = "emulator-*.json"
MOST_LATE = 0.02  # of the time: as much as results of one platform may differ from machine to machine
# In seconds. Starting many processes keeps a machine busy for a moment, before anything is timed.
LEAST_DATA_LATE_S = 0.1
LEAST_EVENTS_LATE_S = 0.25


def lateness_problems(paths: Sequence[Path]) -> str:
    """As `lateness_problem`, of all hosts of a run."""
    said = {path: lateness_problem(path) for path in paths}
    late = [f"{path.stem.removeprefix('emulator-')}: {text}" for path, text in said.items() if text]
    return "; ".join(late) if len(paths) > 1 else "".join(said.values())


def lateness_problem(path: Path) -> str:
    """Why the times of an emulated run are this machine's and not the platform's; empty if they are the platform's.

    A run without the file, one that was killed for instance, has nothing said about it.
    """
    import msgspec

    from powerccl.quantities import seconds

    try:
        document = decode_json(read_bytes(path, MIB), dict[str, float])
    except (OSError, msgspec.MsgspecError):
        return ""
    up_s, data_s, events_s = (document.get(name, 0.0) for name in ("up_s", "data_late_s", "events_late_s"))
    if not up_s > 0:
        return ""
    if data_s > max(MOST_LATE * up_s, LEAST_DATA_LATE_S):
        return (
            f"emulated times are wrong: for {seconds(data_s)} of {seconds(up_s)}, collectives waited until this "
            "machine had moved their data; set POWERCCL_EMULATOR_MOVE_DATA=0 to move none"
        )
    if events_s > max(MOST_LATE * up_s, LEAST_EVENTS_LATE_S):
        return (
            f"emulated times are wrong: this machine was late in {seconds(events_s)} of {seconds(up_s)}; it is too "
            "busy for this job"
        )
    return ""
