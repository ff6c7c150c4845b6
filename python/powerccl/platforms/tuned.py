# SPDX-License-Identifier: Apache-2.0
"""A tuned profile: what `powerccl tune` confirmed for one machine, and what `powerccl run --tuned` applies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from powerccl.errors import PowercclError
from powerccl.files import write_whole
from powerccl.patterns import PATTERNS
from powerccl.platforms.catalog import Catalog
from powerccl.platforms.parameters import Configuration, Machine
from powerccl.platforms.rules import Rule, write_rules
from powerccl.platforms.ways import WAYS
from powerccl.quantities import plural

SCHEMA_VERSION = 1


class Confirmed(msgspec.Struct, frozen=True):
    """One case, tuned against NCCL's defaults in interleaved rounds; ratios below 1 are better.

    `time`: ratio of times, with a 95 % interval; `energy` the same of joules, null where it was not measured.
    """

    pattern: str
    size_bytes: int
    default_us: float
    tuned_us: float
    time: float
    time_low: float
    time_high: float
    rounds: int
    default_joules: float | None = None
    tuned_joules: float | None = None
    energy: float | None = None
    energy_low: float | None = None
    energy_high: float | None = None


class TunedWay(msgspec.Struct, frozen=True):
    """The way that was found best for one pattern and size (bytes, as NCCL tests count them)."""

    pattern: str
    size_bytes: int
    way: str


class TunedProfile(msgspec.Struct):
    """Variables for the job, rules for NCCL's tuner plugin, and ways of collectives; for this machine only."""

    schema_version: int
    name: str
    gpu: str
    ranks: int
    nodes: int
    nccl: str
    links: list[str]
    objective: str
    variables: Configuration
    rules: list[Rule]
    confirmed: list[Confirmed]
    emulated: bool = False
    environment: Configuration = {}  # NCCL variables that were set by the user while it was tuned
    workload: str = ""
    windows: bool = False  # its buffers were in symmetric windows: for jobs whose buffers do
    created_at: str = ""
    trials: int = 0
    seconds: float = 0.0
    notes: list[str] = []
    ways: list[TunedWay] = []  # of all that was searched; empty unless another than plain was found for some of it

    @property
    def machine(self) -> Machine:
        """What it was tuned on."""
        return Machine(self.gpu, self.ranks, self.nodes, self.nccl, tuple(self.links))

    @property
    def table(self) -> str:
        """Its rules as the tuner plugin reads them; empty without rules."""
        return (
            write_rules(self.rules, [f"{self.name}: {self.ranks} x {self.gpu}, NCCL {self.nccl}"]) if self.rules else ""
        )

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that change with what is applied: equal on hosts that apply the same."""
        parts: list[object] = [sorted(self.variables.items()), self.rules]
        applied = msgspec.json.encode([*parts, self.ways] if self.ways else parts)
        return hashlib.sha256(applied).hexdigest()[:12]


def _faults(profile: TunedProfile) -> Iterator[str]:
    for variable in profile.variables:
        if not variable.startswith("NCCL_"):
            yield f"'{variable}' is not a variable of NCCL"
    for each in profile.ways:
        if each.pattern not in PATTERNS or each.way not in WAYS:
            yield f"no way of a collective: {each.way} of {each.pattern}"
    try:
        write_rules(profile.rules, [])
    except PowercclError as error:
        yield error.message


TUNED = Catalog(TunedProfile, "tuned profile", "tuned profile", SCHEMA_VERSION, "powerccl tune", "tuned", _faults)
load_tuned = TUNED.load


def save_tuned(profile: TunedProfile, path: Path) -> None:
    """Write a profile, whole or not at all.

    Raises:
        PowercclError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.format(msgspec.json.encode(profile), indent=1) + b"\n")
    except OSError as error:
        raise PowercclError(f"cannot write {path}: {error.strerror}", "name another file with --out") from error


def check_tuned(profile: TunedProfile, gpu: str, ranks: int | None, nccl: str) -> None:
    """Refuse a profile of another machine. What is not known here (empty, None) is not compared.

    Raises:
        PowercclError: GPU, rank count or NCCL differ from those it was tuned on.
    """
    again = "tune on this machine with `powerccl tune`, or run without --tuned"
    if gpu and gpu != profile.gpu:
        raise PowercclError(f"tuned profile '{profile.name}' is for {profile.gpu}; this machine has {gpu}", again)
    if ranks is not None and ranks != profile.ranks:
        raise PowercclError(
            f"tuned profile '{profile.name}' is for {plural(profile.ranks, 'rank')}; this job has {ranks}", again
        )
    if nccl and profile.nccl and nccl != profile.nccl:
        raise PowercclError(f"tuned profile '{profile.name}' is for NCCL {profile.nccl}; this job loads {nccl}", again)
