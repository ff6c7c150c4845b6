# SPDX-License-Identifier: Apache-2.0
"""`run.json`. Written with the standard library alone: it is on the way to the job's start."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from powerccl import clean
from powerccl.files import write_whole
from powerccl.traces import job_labels

RUN_FILE = "run.json"
SCHEMA = 1  # of run.json: raised where a reader of the one before would misread it
SIMULATED = "simulated"
ROOM_FILE = ".run-end"  # room on the disk for the last run.json
ROOM_BYTES = 4096  # more than the first run.json has; the end adds a few numbers and a sentence
ID_FILE = ".run-id"  # for a run's ranks, which start before run.json has to be there


@dataclass
class Simulation:
    """What powerccl-sim ran in virtual time; `fingerprint` is of the platform's file."""

    platform: str
    scenarios: list[str]
    seed: int
    fingerprint: str = ""
    seconds: float = 0.0
    warm_up_s: float = 0.0


@dataclass
class RunInfo:
    """A job as `powerccl run` saw it: written when it starts, again when it has ended.

    Times are CLOCK_MONOTONIC ns of `host`; `end_ns` 0 and `exit_code` None mean that the launcher did not see the end.
    `emulated` is the emulated platform's name, empty for real GPUs. `simulated`: powerccl-sim wrote it.
    """

    command: list[str]
    schema: int = SCHEMA
    run_id: str = ""  # 128 bits in hex, of this run alone; empty: recorded by a powerccl that gave none
    name: str = ""
    host: str = ""
    working_directory: str = ""
    started_at: str = ""
    start_ns: int = 0
    end_ns: int = 0
    exit_code: int | None = None
    signal: int | None = None
    unrecorded: str = ""  # why no rank left a trace, as a sentence; empty: one did, or the end was not seen
    policy: str = "observe"
    clocks: str = "none"
    clock_mhz: int = 0  # that --clock fixed for the whole job; 0: none
    platform: str = ""
    emulated: str = ""
    slowdown_pct: float | None = None  # that policies that learn may cost; None: the policy keeps no budget
    interval_ms: int = 20
    gpus: list[str] = field(default_factory=list)
    launcher: str = ""
    user: str = ""
    labels: dict[str, str] = field(default_factory=dict)  # job_labels.LABELS: the job, pod and container; those known
    versions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    simulated: Simulation | None = None

    @property
    def modelled_by(self) -> str:
        """The emulated platform's name; behind `simulated` where it was simulated; empty for real GPUs."""
        return f"{SIMULATED} {self.emulated}".rstrip() if self.simulated else self.emulated

    @property
    def span(self) -> tuple[int, int] | None:
        """When the job began and ended, ns; None where the two are not known."""
        return (self.start_ns, self.end_ns) if self.end_ns > self.start_ns > 0 else None

    @property
    def wall_ns(self) -> int:
        """How long the job took; 0: not known."""
        return self.span[1] - self.span[0] if self.span else 0


def model_label(modelled_by: str) -> str:
    """How figures say that they are of no hardware, such as `emulated t4x8`; `yes`: on a platform without a name."""
    if modelled_by.split(" ")[0] in ("", "emulated", SIMULATED):
        return modelled_by
    return "emulated" if modelled_by == "yes" else f"emulated {modelled_by}"


_LATEST_NS = 1 << 62  # sums and differences of two such times still fit 64 bits


def sound_info(info: RunInfo) -> RunInfo:
    """What was read, with names fit to be shown; times that no clock tells count as not known.

    The command, its folder and its environment's values stay as they are: they may be read back.
    """
    for name in ("start_ns", "end_ns"):
        if not 0 <= getattr(info, name) < _LATEST_NS:
            setattr(info, name, 0)
    if not 0 <= info.clock_mhz < 1 << 31:
        info.clock_mhz = 0
    for name in ("exit_code", "signal"):
        value = getattr(info, name)
        if value is not None and not -(1 << 31) <= value < 1 << 31:
            setattr(info, name, None)
    names = ("name", "host", "started_at", "policy", "clocks", "platform", "emulated", "launcher", "user", "unrecorded")
    for name in names:
        setattr(info, name, clean.field(getattr(info, name)))
    info.labels = job_labels.sound(info.labels)
    info.gpus = [clean.field(gpu) for gpu in info.gpus]
    info.versions = {clean.field(name): clean.field(version) for name, version in info.versions.items()}
    return info


@dataclass(frozen=True)
class RunId:
    """A run's id and the name of its folder, as the launchers of one job agree on them."""

    run_id: str
    folder: str


def new_run_id() -> str:
    """An id that no other run has."""
    return os.urandom(16).hex()


def write_run_id(folder: Path, run_id: str) -> None:
    """Give a new folder its run's id; all launchers of a job write the same.

    Raises:
        OSError: the folder cannot be written.
    """
    write_whole(folder / ID_FILE, f"{run_id}\n")


def read_run_id(folder: Path) -> str:
    """The id of a folder's run; empty if it has none."""
    try:
        with (folder / ID_FILE).open("rb") as file:
            return file.read(64).decode("ascii", "replace").strip()
    except OSError:
        return ""


def write_run_info(folder: Path, info: RunInfo) -> None:
    """Write run.json whole or not at all, and take room on the disk for the one that tells the job's end.

    Raises:
        OSError: the folder cannot be written.
    """
    data = _encode(folder, info)
    write_whole(folder / RUN_FILE, data)
    write_whole(folder / ROOM_FILE, b" " * (len(data) + ROOM_BYTES))


def write_run_end(folder: Path, info: RunInfo) -> None:
    """Write the last run.json. If the disk is full, the room that `write_run_info` took holds it.

    Raises:
        OSError: the folder cannot be written.
    """
    data, room = _encode(folder, info), folder / ROOM_FILE
    try:
        write_whole(folder / RUN_FILE, data)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not _fits(room, data):
            raise
        with room.open("r+b") as file:
            file.write(data)
            file.truncate()
        room.replace(folder / RUN_FILE)
    room.unlink(missing_ok=True)


def _encode(folder: Path, info: RunInfo) -> bytes:
    info.run_id = info.run_id or read_run_id(folder)
    # Pure ASCII: a byte that is not UTF-8 is a lone surrogate in Python's text, which JSON can escape and UTF-8 cannot.
    return (json.dumps(dataclasses.asdict(info), indent=2) + "\n").encode()


def _fits(room: Path, data: bytes) -> bool:
    try:
        return room.stat().st_size >= len(data)
    except OSError:
        return False


def parse_run_info(data: bytes) -> RunInfo:
    r"""run.json, with names fit to be shown. Bytes that are not UTF-8 are lone surrogates, as os.fsdecode makes them.

    Raises:
        ValueError: not a run.json; the text says why.
    """
    import msgspec  # it does not read lone surrogates, which the standard library does

    plain = None
    try:
        plain = json.loads(data)
        return sound_info(msgspec.convert(plain, RunInfo))
    except (msgspec.MsgspecError, RecursionError) as error:
        schema = plain.get("schema") if isinstance(plain, dict) else None
        newer = isinstance(schema, int) and of_newer(schema)
        raise ValueError(newer or str(error)) from error


def of_newer(schema: int) -> str:
    """What to say of a run.json with this schema: empty, or that a newer version wrote it."""
    if schema <= SCHEMA:
        return ""
    return f"written by a newer powerccl (schema {schema}, known: {SCHEMA}): new fields are not shown"
