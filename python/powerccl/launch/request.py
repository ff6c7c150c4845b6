# SPDX-License-Identifier: Apache-2.0
"""What `powerccl run` is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from powerccl.errors import PowercclError

LEARNING = "auto"  # the policy that learns a clock: it keeps within --max-slowdown, and needs no platform profile
POLICIES = ("observe", "per-call", LEARNING)
NO_PROFILE = "none"  # --platform


@dataclass
class Request:
    """What to run and how; the options of `powerccl run`."""

    command: list[str]
    policy: str = "observe"  # empty: auto where clocks will be set, else observe
    platform: str = ""  # a profile's name or file; NO_PROFILE: none at all; empty: that of these GPUs
    emulate: str = ""
    set_clocks: bool = False
    clock: str = ""  # MHz or a percentage, for the whole job; empty: no clock is fixed
    overhead: str = "measured"
    name: str = ""
    runs: Path = Path("runs")
    local_dir: Path | None = None  # of each node, for its files while the job runs; None: they go to the run folder
    interval_ms: int = 19
    mpi: str = ""  # one of mpi.MODES; empty: what the environment says, else auto
    max_delay_pct: float | None = None  # of waits in MPI; None: what the environment says, else 1
    max_slowdown_pct: float | None = None  # None: what the environment says, else 1
    best_effort: bool = False  # a job that cannot be recorded runs all the same
    preload: bool = True
    table_text: str = ""  # a policy table as it is, instead of one made from a profile
    environment: Mapping[str, str] = field(default_factory=dict)  # added to the child's
    tuned: str = ""  # a tuned profile, NAME, NAME@DIGEST or a file
    ways: str = ""  # auto, or a table of ways, NAME or file; empty: collectives stay as NCCL carries them out
    output: str = ""  # file in the run folder that takes the child's output, instead of the terminal

    @property
    def needs_us(self) -> bool:
        """Whether the job needs this process beside it: emulated GPUs and a fixed clock end with it."""
        return bool(self.emulate or self.clock)


class UnrecordableError(Exception):
    """A job cannot be recorded, and that is nothing that the user has asked for in so many words."""

    def __init__(self, error: PowercclError) -> None:
        super().__init__(str(error))
        self.error = error


@contextlib.contextmanager
def recording_only() -> Iterator[None]:
    """An error in here is one of recording: the job can do without."""
    try:
        yield
    except PowercclError as error:
        raise UnrecordableError(error) from error


def silent(_: str) -> None:
    """The other ranks' launchers keep quiet."""
