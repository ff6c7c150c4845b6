# SPDX-License-Identifier: Apache-2.0
"""What a search needs of a measurement; bench/server.py makes it with powerccl-bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from powerccl.bench.workload import Case
from powerccl.platforms.rules import Rule


@dataclass(frozen=True)
class Sample:
    """One case under one configuration: microseconds an operation, a stretch each; joules of all GPUs an operation."""

    times_us: tuple[float, ...]
    joules: float | None = None

    @property
    def time_us(self) -> float:
        """Mean of the stretches."""
        return fmean(self.times_us)


class TrialFailedError(Exception):
    """A configuration under which NCCL failed, or hung (`hung`: it ran into the time-out)."""

    def __init__(self, reason: str, hung: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.hung = reason, hung


class Bench(Protocol):
    """Measures collectives under one configuration after the other."""

    def open(self, configuration: Mapping[str, str], rules: Sequence[Rule] = ()) -> None:
        """Make a communicator under these variables and these rules for the tuner plugin; without any, no plugin.

        Raises:
            TrialFailedError: NCCL refused, or did not come up in time.
        """

    def measure(self, case: Case, energy: bool, thorough: bool = False) -> Sample:
        """Time one case; `thorough`: for longer, as confirming takes.

        Raises:
            TrialFailedError: NCCL failed or hung.
        """

    def close(self) -> None:
        """Leave the communicator. Never raises: what cannot be left is ended."""
