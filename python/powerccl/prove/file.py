# SPDX-License-Identifier: Apache-2.0
"""The file that `powerccl prove` writes: a platform profile with more in it, and an emulated platform.

`powerccl run --platform FILE` reads it as a platform profile, and `powerccl run --emulate FILE` as an emulated
platform. It names GPU model and versions, and nothing of a host, a user or a single GPU.
"""

from __future__ import annotations

import msgspec

from powerccl.estimate import Estimate
from powerccl.platforms.schema import PlatformProfile

PROOF_VERSION = 1


class LoadPoint(msgspec.Struct, frozen=True):
    """A load at one clock. None: not known. `watts`: of the mean GPU; `time_ms`: of the load's fixed work.

    `clock_mhz`: as it was set, or as found in a dry run; `sm_clock_mhz`: as it was read.
    """

    load: str
    clock_mhz: int
    sm_clock_mhz: float | None
    watts: float | None
    time_ms: float | None
    iterations: int = 0


class Calls(msgspec.Struct, frozen=True):
    """Time of the driver's call that sets one GPU's clock, microseconds."""

    median_us: float
    p99_us: float
    calls: int


class Transition(msgspec.Struct, frozen=True):
    """From the call's return until kernels take their new time; milliseconds over so many switches."""

    target_mhz: int
    median_ms: float
    worst_ms: float
    switches: int


class Stall(msgspec.Struct, frozen=True):
    """How much longer a load takes for each clock call beside it, in ms: the median turn, with its 93 % interval."""

    load: str
    ms_per_call: Estimate
    calls: int
    iteration_ms: float


class Training(msgspec.Struct, frozen=True):
    """The built-in training step without a policy and under `auto`, in turns. Intervals: least and most of the turns.

    None: it was not run under `auto`.
    """

    step_ms: Estimate
    joules: Estimate  # of all GPUs, a step
    saved_pct: Estimate | None = None
    slowdown_pct: Estimate | None = None
    seconds: float = 0.0  # of each run


class Restored(msgspec.Struct, frozen=True):
    """Clocks of the GPUs under one load at the default clock, before the first call and after the last."""

    before_mhz: list[float | None]
    after_mhz: list[float | None]

    @property
    def all_back(self) -> bool:
        """Whether each GPU is within two steps of where it was; a governor moves it by one or two."""
        pairs = list(zip(self.before_mhz, self.after_mhz, strict=True))
        return all(a is not None and b is not None and abs(a - b) <= max(0.02 * a, 30) for a, b in pairs)


class Emulated(msgspec.Struct, frozen=True):
    """An emulated platform: the built-in one of the nearest GPU, with these keys of its file replaced.

    All that is not among the keys is of that platform, and was not measured here.
    """

    like: str
    keys: dict[str, str]


class Proof(PlatformProfile, kw_only=True):
    """What one run of `powerccl prove` found. Lists are empty, and others None, where nothing was measured."""

    proof_version: int = PROOF_VERSION
    powerccl: str = ""  # the release that measured
    dry: bool = False
    quick: bool = False
    power_limit_w: float | None = None
    read_us: float | None = None  # one reading of one GPU's energy
    calls: Calls | None = None
    transitions: list[Transition] = msgspec.field(default_factory=list)
    stalls: list[Stall] = msgspec.field(default_factory=list)
    loads: list[LoadPoint] = msgspec.field(default_factory=list)
    training: Training | None = None
    restored: Restored | None = None
    emulator: Emulated | None = None
