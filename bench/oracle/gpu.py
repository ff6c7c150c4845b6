# SPDX-License-Identifier: Apache-2.0
"""One GPU in model time, as native/physics/gpu.cpp: clock, governor, temperature, power, energy."""

import math

from .platform import Platform


class Tables:
    """What GPUs of a platform share, as plain lists: they are looked up millions of times."""

    def __init__(self, platform: Platform) -> None:
        p = platform
        self.platform = p
        self.clocks = p.clocks_mhz.tolist()
        self.top = len(self.clocks) - 1
        self.leak: list[float] = (p["leakage_w_per_kv"] * p.volts).tolist()
        self.quiet: list[float] = (p["static_w"] + p["tree_w"] * p.fv2).tolist()
        self.busy: list[float] = (p["static_w"] + (p["tree_w"] + p["compute_w"]) * p.fv2).tolist()
        self._comm: dict[float, list[float]] = {}

    def comm(self, size: float) -> list[float]:
        """What communicating so many bytes adds, by clock."""
        if size not in self._comm:
            self._comm[size] = self.platform.communication_w(size).tolist()
        return self._comm[size]


class Gpu:
    """Whoever changes what runs calls settle(now) first, and update() behind it."""

    def __init__(self, tables: Tables, warm: "Gpu | None" = None) -> None:
        p = tables.platform
        self.t = tables
        self.kernels = 0
        self.comms: list[float] = []
        self.locked: int | None = None  # index of the highest clock allowed
        self.settled = 0
        self.energy = 0.0  # W ns
        self.max_mhz = p["clock_max_mhz"]
        self.min_mhz = p["clock_min_mhz"]
        self.cap_mhz: float = warm.cap_mhz if warm else self.max_mhz
        self.average_w: float = warm.average_w if warm else p["power_limit_w"] / 2
        self.slow_w: float = warm.slow_w if warm else p["power_limit_w"] / 2
        self.temperature_c: float = warm.temperature_c if warm else p["start_temperature_c"]
        self.clock = tables.top
        self.watts = 0.0
        self.ambient_c, self.k_per_w = p["ambient_c"], p["thermal_k_per_w"]
        self.reference_c, self.idle_w = p["leakage_reference_c"], p["idle_p8_w"]
        self.lags_ns = tuple(p[k] * 1e6 for k in ("thermal_tau_ms", "governor_lag_ms", "governor_slow_ms"))
        self.limit_w, self.peak_w, self.start_w = p["power_limit_w"], p["peak_limit_w"], p["governor_start_w"]
        self.low_w, self.high_w = p["governor_low_w"], p["governor_high_w"]
        self.gain, self.step_mhz = p["governor_slow_gain"], p["governor_step_mhz"]
        self.update()

    def settle(self, now: int) -> None:
        """Integrate power up to now."""
        passed = now - self.settled
        if passed <= 0:
            return
        w = self.watts
        self.energy += w * passed
        thermal, lag, slow = self.lags_ns
        steady = self.ambient_c + self.k_per_w * w
        self.temperature_c = steady + (self.temperature_c - steady) * math.exp(-passed / thermal)
        self.average_w = w + (self.average_w - w) * math.exp(-passed / lag)
        self.slow_w = w + (self.slow_w - w) * math.exp(-passed / slow)
        self.settled = now

    def watts_at(self, clock: int, computes: bool) -> float:
        """Power at a clock with what communicates now."""
        t = self.t
        watts = (t.busy if computes else t.quiet)[clock] + t.leak[clock] * (self.temperature_c - self.reference_c)
        if self.comms:
            watts += t.comm(max(self.comms))[clock]
        return max(watts, self.idle_w)

    def clock_for(self, watts: float) -> int:
        """The highest clock at which computation draws no more."""
        clock = self.t.top
        while clock > 0 and self.watts_at(clock, True) > watts:
            clock -= 1
        return clock

    def lock(self, clock: int | None) -> None:
        """Locked to no more than this clock, or unlocked."""
        if clock is None and self.locked is not None:
            self.cap_mhz = self.t.clocks[self.clock_for(self.start_w)]
        self.locked = clock

    def update(self) -> bool:
        """The clock and power of what runs; true: the clock changed."""
        before = self.clock
        clock = self.t.platform.index(self.cap_mhz)
        if self.locked is not None and self.locked < clock:
            clock = self.locked
        if self.kernels and self.peak_w > 0 and self.watts_at(clock, True) > self.peak_w:
            clock = min(clock, self.clock_for(self.peak_w))
        self.clock = clock
        self.watts = self.watts_at(clock, self.kernels > 0)
        return clock != before

    def tick(self) -> None:
        """The governor's look at the averaged power, after settle()."""
        locked = self.locked is not None and self.t.clocks[self.locked] <= self.cap_mhz
        limit = self.limit_w - self.gain * max(0.0, self.slow_w - self.limit_w)
        if self.average_w > limit + self.high_w:
            self.cap_mhz = min(self.cap_mhz, self.t.clocks[self.clock]) - self.step_mhz
        elif not locked and not self.kernels:
            self.cap_mhz = self.max_mhz
        elif not locked and max(self.average_w, self.watts) < limit + self.low_w:
            self.cap_mhz += self.step_mhz
        self.cap_mhz = min(max(self.cap_mhz, self.min_mhz), self.max_mhz)
