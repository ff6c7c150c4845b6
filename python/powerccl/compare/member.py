# SPDX-License-Identifier: Apache-2.0
"""What a comparison compares: members, their values, and what those are called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from powerccl.analysis.report_findings import Reference
from powerccl.compare.significance import Value
from powerccl.patterns import PATTERNS
from powerccl.tariff import Tariff
from powerccl.traces.folder import RunData

RUN, SWEEP, MPI_SWEEP, REPLAY, MPI_WAIT, STENCIL = "run", "sweep", "MPI sweep", "replay", "MPI wait", "stencil"
TIME, BANDWIDTH, POWER, ENERGY = "time", "bus bandwidth", "power", "energy"
COST, CO2E = "cost", "CO2e"
NO_TARIFF = Tariff()
OPERATIONS = "operations of an iteration"
# What a step of a run and of a replay needs, on all GPUs.
ENERGY_OF_STEP = ("energy of an iteration", "energy of a step, all GPUs")
FORMS = (
    "name run folders of `powerccl run`, or files that `powerccl bench ... --json FILE` wrote, each side in one form"
)
ReferenceOf = Callable[[RunData], Reference | None]


def nothing_known(_: RunData) -> None:
    """For a caller without a platform profile of the run."""


class Key(NamedTuple):
    """What a value is of. `pattern` "" and `size_bytes` -1: the whole. In runs, sizes are powers of two at or below."""

    what: str
    unit: str  # SI: s, B/s, W, J, Hz, kg; %, currencies and "" as they are
    pattern: str = ""
    size_bytes: int = -1
    variant: str = ""


ENERGY_OF_RUN = Key(ENERGY, "J")


@dataclass
class Member:
    """One run or one sweep. `facts` is what it was made with, `warnings` what is wrong with it.

    `work`: how many calls a run made, by kind; a sweep measures each size for itself and has none.
    `failed`: it did not end with exit code 0. `gpus`: their UUIDs.
    """

    path: Path
    kind: str
    values: dict[Key, Value] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    work: dict[str, int] = field(default_factory=dict)
    emulated: str = ""
    covers: str = ""  # what its cost counts; empty: it has none
    failed: bool = False
    gpus: frozenset[str] = frozenset()


def pattern_order(pattern: str) -> tuple[int, str]:
    """Patterns in the order of every table, others behind them."""
    return (PATTERNS.index(pattern) if pattern in PATTERNS else len(PATTERNS), pattern)
