# SPDX-License-Identifier: Apache-2.0
"""What a run's energy went into. None: not known; nothing is ever guessed into a number. Intervals are of 95 %."""

from __future__ import annotations

import msgspec


class KindEnergy(msgspec.Struct, kw_only=True):
    """One pattern and size class.

    Its energy is all that GPUs drew while it ran, computation beside it included. Where k kinds run together on a GPU,
    each has a k-th. `exposed_*` is of the time in which nothing computed beside it, `beside_*` of the rest.
    """

    pattern: str
    size_class_bytes: int
    operations: int  # timed kernels, all ranks
    time_s: float  # of its kernels, mean per GPU
    joules_per_operation: float | None = None  # per GPU
    low: float | None = None
    high: float | None = None
    watts: float | None = None  # mean power of a GPU while it runs
    exposed_share: float | None = None  # of its time; None: no record of when computation waits
    exposed_watts: float | None = None
    exposed_low: float | None = None
    exposed_high: float | None = None
    beside_watts: float | None = None
    beside_low: float | None = None
    beside_high: float | None = None
    joules: float | None = None  # over all GPUs
    resolved: bool = False
    reason: str = ""  # why it is not resolved, what it may be mixed with, what else to bear in mind


class EnergyFindings(msgspec.Struct, kw_only=True):
    """A run's energy by what ran. Joules are sums over GPUs.

    Communication, computation and what is unexplained are between each GPU's first kernel and its last; idle is what
    GPUs without work drew before and behind. Computation is whatever runs where no communication does: gaps in which
    the host was late are in it, because no record has them.
    """

    kinds: list[KindEnergy] = []
    idle_watts: float | None = None
    idle_low: float | None = None
    idle_high: float | None = None
    computation_watts: float | None = None  # without communication beside it
    computation_low: float | None = None
    computation_high: float | None = None
    joules_total: float | None = None
    joules_communication: float | None = None
    joules_communication_low: float | None = None  # None: so wide that nothing is known
    joules_communication_high: float | None = None
    joules_computation: float | None = None
    joules_idle: float | None = None
    joules_unexplained: float | None = None
    parts_reason: str = ""  # why the parts of the total are not known
    residual_pct: float | None = None  # rms of what the fit leaves of a step's energy
    steps: int = 0
    misread: int = 0  # steps left out because no other is like them
    update_ms: float | None = None
    source: str = ""  # counter, power, power+counter
    caveat: str = ""  # what to bear in mind with all of it
    reason: str = ""  # why there is nothing, or what it does not cover
    part: str = ""  # of a large run, what was measured; joules are extrapolated to the run. Empty: all of it
