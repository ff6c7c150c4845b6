# SPDX-License-Identifier: Apache-2.0
"""What a search minimises: time, energy, their product, or energy within a slowdown bound; each against the defaults.

All are ratios to NCCL's defaults on the same machine, measured by the same worker: below 1 is better.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from powerccl.bench.workload import Case
from powerccl.errors import UsageError

KINDS = ("time", "energy", "edp", "energy@slowdown=PERCENT%")
Costs = Mapping[str, tuple[float, float | None]]  # case key -> us an operation, joules of all GPUs an operation


@dataclass(frozen=True)
class Objective:
    """One of KINDS. `slowdown`: the most that time may grow under `energy@slowdown`, as a fraction; else None."""

    kind: str
    slowdown: float | None = None

    @property
    def text(self) -> str:
        """As the user writes it."""
        return f"energy@slowdown={self.slowdown * 100:g}%" if self.slowdown is not None else self.kind

    @property
    def needs_energy(self) -> bool:
        """Whether joules have to be measured."""
        return self.kind != "time"

    def value(self, time: float, energy: float | None) -> float:
        """One number to compare configurations by; where time exceeds its bound, worse than any that keeps it."""
        if self.kind == "time":
            return time
        assert energy is not None
        if self.slowdown is not None:
            over = time / (1 + self.slowdown)
            return energy if over <= 1 else max(energy, 1.0) * over
        return time * energy if self.kind == "edp" else energy

    def exceeds(self, time: float) -> float:
        """By how much time is beyond its bound (a fraction; at most 0: within)."""
        return time - 1 - self.slowdown if self.slowdown is not None else -1.0


def parse_objective(text: str) -> Objective:
    """The objective of `--objective`.

    Raises:
        PowercclError: it is none of KINDS.
    """
    bounded = re.fullmatch(r"energy@slowdown=(\d+(?:\.\d+)?)%?", text)
    if bounded:
        return Objective("energy", float(bounded[1]) / 100)
    if text in ("time", "energy", "edp"):
        return Objective(text)
    raise UsageError(
        f"--objective {text}: unknown objective", f"use one of {', '.join(KINDS)}, such as energy@slowdown=1%"
    )


def relative(cases: Sequence[Case], costs: Costs, defaults: Costs) -> tuple[float, float | None]:
    """Time and energy of the workload against the defaults'; energy None unless all of it is known.

    A case's weight is its share of time under the defaults; operations are those that make up that share.
    """
    time = sum(case.weight * costs[case.key][0] / defaults[case.key][0] for case in cases)
    joules = before = 0.0
    for case in cases:
        operations = case.weight / defaults[case.key][0]
        now, then = costs[case.key][1], defaults[case.key][1]
        if now is None or then is None or then <= 0:
            return time / sum(case.weight for case in cases), None
        joules += operations * now
        before += operations * then
    return time / sum(case.weight for case in cases), joules / before
