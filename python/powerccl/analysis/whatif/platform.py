# SPDX-License-Identifier: Apache-2.0
"""What a prediction needs to know of a machine, as plain tables: times and powers of communication over the clock.

Made from a platform profile by whoever may read one (commands/whatif.py); sizes in bytes, clocks in MHz.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

# A conservative guess for GPUs whose transition nobody has measured: 10 to 100 ms are reported for Hopper.
UNKNOWN_TRANSITION_US = 20_000.0
TURNS_FROM = 3  # GPUs
IN_TURNS = 1.25  # as native/policy/windows.h has it
# Of voltage over the clock, tried: where it begins to grow, what it is below (1: at the highest), how fast it grows.
KNEES, LEAST_VOLTS, SLOPES = 30, np.linspace(0.4, 1.0, 121), np.linspace(0.0, 1.5, 31)
LOWER_CLOCKS = 0.7  # of the highest
FEW_COMPUTING = 4  # clocks at which computation alone was profiled


@dataclass(frozen=True)
class Curve:
    """One pattern and size over ascending clocks: time of an operation, mean power of a GPU (NaN: not known)."""

    clocks_mhz: npt.NDArray[np.float64]
    time_us: npt.NDArray[np.float64]
    watts: npt.NDArray[np.float64]

    def time_ratio(self, mhz: float) -> float:
        """How many times as long an operation takes at `mhz` as at the highest clock; never less than one."""
        return max(1.0, float(np.interp(mhz, self.clocks_mhz, self.time_us)) / float(self.time_us[-1]))

    def power_ratio(self, mhz: float) -> float:
        """Power at `mhz` as a share of that at the highest clock."""
        known = np.isfinite(self.watts)
        if known.sum() < 2:
            return 1.0
        watts = np.interp(mhz, self.clocks_mhz[known], self.watts[known])
        return min(1.0, float(watts) / float(self.watts[known][-1]))


@dataclass(frozen=True)
class Switch:
    """What changing a clock costs: one driver call, from its return until the clock follows, and asking for it.

    `serialised`: calls for GPUs of one host wait for each other.
    """

    call_us: float
    transition_us: float
    asking_us: float = 0.0
    serialised: bool = True
    transition_known: bool = True

    def latency_us(self, place: int) -> float:
        """From asking until the clock has changed, for the GPU that is `place`-th (from 0) of those asking at once."""
        return self.asking_us + self.call_us * (place + 1 if self.serialised else 1) + self.transition_us

    def queue_us(self, gpus: int) -> float:
        """How long a call waits for those of other GPUs, on average, where all ask at once."""
        return self.call_us * (gpus - 1) / 2 if self.serialised else 0.0

    def calls_us(self, gpus: int) -> float:
        """A driver call and the wait for its turn."""
        return self.call_us + self.queue_us(gpus)

    def turns_us(self, gpus: int, place: int) -> tuple[float, float]:
        """By how much later a GPU's clock is low, and sooner up, than it could be, since GPUs ask one after the other.

        They take turns where calls take half as long again as the quickest; two merely wait for each other.
        """
        if not self.serialised or gpus < TURNS_FROM:
            return 0.0, self.queue_us(gpus)
        return self.call_us * place, self.call_us * (gpus - 1 - place)

    def window_us(self, gpus: int) -> float:
        """The shortest window that pays: as long as a change of clock takes, a quarter longer where GPUs take turns."""
        turns_us = sum(self.turns_us(gpus, 0))
        fits = IN_TURNS if self.serialised and gpus >= TURNS_FROM else 1.0
        return fits * (self.asking_us + self.call_us + self.transition_us) + turns_us


@dataclass(frozen=True)
class ClockPlatform:
    """A machine: its clocks, curves by pattern and size, the clocks that per-call sets, and what a switch costs.

    `managed[pattern]` holds (from bytes, to bytes or 0 for no end, MHz); `overhead_bytes` None: never worth it.
    `idle_watts`: of an awake GPU without work, at the highest clock, None: not known.
    `behind_watts`: power at which computation runs behind a low clock where a power limit governs it, None: not known.
    `kelvin_per_watt`: of a die, in the long run; `leakage_watts_per_kelvin`: what its warmth adds at the highest clock;
    0: not known, then no policy cools anything. `spread_pct`: of the profile's energies. `computing`: power of
    computation alone with the clock held, W by ascending MHz, where no power limit cuts it.
    """

    name: str
    gpus: int
    clock_max_mhz: int
    clocks_mhz: tuple[int, ...]
    curves: dict[str, dict[int, Curve]]
    managed: dict[str, list[tuple[int, int, int]]]
    overhead_bytes: dict[str, int | None]
    switch: Switch
    idle_watts: float | None = None
    behind_watts: float | None = None
    kelvin_per_watt: float = 0.0
    leakage_watts_per_kelvin: float = 0.0
    spread_pct: float = 0.0
    computing: tuple[tuple[float, float], ...] = ()
    known_ratios: dict[tuple[str, int, float], float] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def curve(self, pattern: str, size_bytes: int) -> Curve | None:
        """The curve of the nearest profiled size at or below (above, where there is none below)."""
        sizes = self.curves.get(pattern)
        if not sizes:
            return None
        ordered = sorted(sizes)
        return sizes[ordered[max(0, bisect_right(ordered, size_bytes) - 1)]]

    def time_ratio(self, pattern: str, size_bytes: int, mhz: float) -> float:
        """How many times as long an operation takes at `mhz`, between the two profiled sizes about its own."""
        sizes = self.curves.get(pattern)
        if not sizes:
            return 1.0
        key = (pattern, size_bytes, mhz)
        if key not in self.known_ratios:
            ordered = sorted(sizes)
            ratios = [sizes[size].time_ratio(mhz) for size in ordered]
            place = np.interp(np.log2(max(size_bytes, 1)), np.log2(np.maximum(ordered, 1)), ratios)
            self.known_ratios[key] = float(place)
        return self.known_ratios[key]

    def minimum_mhz(self, pattern: str, size_bytes: int) -> int:
        """The lowest clock that keeps the bandwidth, whatever the overhead of switching; 0: none below the highest."""
        for start, stop, mhz in self.managed.get(pattern, []):
            if start <= size_bytes and (size_bytes < stop or stop == 0):
                return mhz
        return 0

    def percall_mhz(self, pattern: str, size_bytes: int) -> int:
        """What per-call sets for a call: the minimum clock from the overhead point on, else 0."""
        overhead = self.overhead_bytes.get(pattern)
        if overhead is None or size_bytes < overhead:
            return 0
        return self.minimum_mhz(pattern, size_bytes)

    def isothermal(self) -> ClockPlatform:
        """The same with powers as they would be, had the die stayed as warm at all clocks as at the highest.

        Each clock was profiled until its die had cooled to it, so that its power holds a part that is not the clock's.
        """
        kelvin_w, leak_w = self.kelvin_per_watt, self.leakage_watts_per_kelvin

        # Computation's powers are of dies of many temperatures, and do not tell voltage yet.
        shape = self._communication_shape()

        def warmed(curve: Curve) -> Curve:
            kelvin = kelvin_w * (curve.watts[-1] - curve.watts)
            return replace(curve, watts=curve.watts + leak_w * shape.volts(curve.clocks_mhz) * kelvin)

        curves = {p: {size: warmed(curve) for size, curve in sizes.items()} for p, sizes in self.curves.items()}
        tops = [curve.watts[-1] for sizes in self.curves.values() for curve in sizes.values()]
        top_w = float(np.nanmedian(tops)) if tops else 0.0
        computing = tuple(
            (mhz, watts + leak_w * float(shape.volts(mhz)) * kelvin_w * (top_w - watts))
            for mhz, watts in self.computing
        )
        return replace(self, curves=curves, computing=computing)

    def power_ratio(self, mhz: float) -> float:
        """Of communication's power at the highest clock, the mean over all curves."""
        key = ("power", 0, mhz)
        if key not in self.known_ratios:
            ratios = [curve.power_ratio(mhz) for sizes in self.curves.values() for curve in sizes.values()]
            self.known_ratios[key] = float(np.mean(ratios)) if ratios else 1.0
        return self.known_ratios[key]

    @cached_property
    def clock_shape(self) -> ClockShape:
        """How power falls with the clock: as communication tells, the lower clocks as computation does if profiled."""
        return self._as_computation_has_it(self._communication_shape())

    def _communication_shape(self) -> ClockShape:
        """How power falls with the clock, from communication's median over all curves.

        Communication draws a constant and a part that follows clock and voltage. Voltage is taken to be constant up to
        some clock and to grow evenly from there, which tells the constant and all below that clock better than single
        points do: computation magnifies their errors. Above it the points themselves count.
        """
        shares: dict[float, list[float]] = {}
        for sizes in self.curves.values():
            for curve in sizes.values():
                for mhz, watts in zip(curve.clocks_mhz, curve.watts / curve.watts[-1], strict=True):
                    if np.isfinite(watts):
                        shares.setdefault(float(mhz), []).append(float(watts))
        if len(shares) < 4:
            return ClockShape(np.array([0.0, float(self.clock_max_mhz)]), np.array([0.0, 1.0]), 1.0)
        clocks = np.array(sorted(shares))
        share = np.array([np.median(shares[mhz]) for mhz in clocks])
        constant, follows, knee_mhz = _steady_voltage(clocks, share)
        points = (share - constant) / max(1 - constant, 1e-9)
        # Voltage never falls with the clock.
        squared = np.where(clocks > knee_mhz, points, follows) * clocks[-1] / clocks
        squared = np.minimum(np.maximum.accumulate(np.maximum(squared, squared[0])), 1.0)
        follows = squared * clocks / clocks[-1]
        return ClockShape(np.concatenate([[0.0], clocks]), np.concatenate([[0.0], follows]), constant)

    def _as_computation_has_it(self, shape: ClockShape) -> ClockShape:
        """The same with the lower clocks' shares as computation alone tells them, where it was profiled.

        It draws many times as much that follows the clock as communication does, which so tells it badly down there.
        Where both are known, at the highest clock of computation, they are made one.
        """
        tops = [curve.watts[-1] for sizes in self.curves.values() for curve in sizes.values()]
        if self.idle_watts is None or len(self.computing) < FEW_COMPUTING or not tops:
            return shape
        floor_w = self.idle_watts - float(np.nanmedian(tops)) * (1 - shape.constant_share)
        mhz, watts = np.array(self.computing).T
        if floor_w <= 0 or floor_w >= watts.min():
            return shape
        own = (watts - floor_w) / (watts[-1] - floor_w) * float(shape.at(mhz[-1]))
        above = shape.clocks_mhz > mhz[-1]
        clocks = np.concatenate([[0.0], mhz, shape.clocks_mhz[above]])
        return replace(shape, clocks_mhz=clocks, share=np.concatenate([[0.0], own, shape.share[above]]))


def _steady_voltage(
    clocks: npt.NDArray[np.float64], share: npt.NDArray[np.float64]
) -> tuple[float, npt.NDArray[np.float64], float]:
    """Of the best voltage that is constant and then grows evenly: the constant power, what follows, where it bends.

    Fitted to the lower clocks: further up voltage grows as it likes.
    """
    top = float(clocks[-1])
    mine = clocks <= max(LOWER_CLOCKS * top, float(clocks[3]))
    knees = np.linspace(clocks[0], clocks[mine][-1], KNEES)
    knee_mhz, least, slope = (part[..., None] for part in np.meshgrid(knees, LEAST_VOLTS, SLOPES, indexing="ij"))
    volts = least + slope * np.maximum(clocks - knee_mhz, 0) / top
    follows = clocks / top * volts**2
    rest = (1 - follows)[..., mine]
    over = share[mine] - follows[..., mine]
    constant = np.clip((over * rest).sum(axis=-1) / (rest**2).sum(axis=-1), 0.0, 1.0)
    off = ((over - constant[..., None] * rest) ** 2).sum(axis=-1)
    best = np.unravel_index(int(off.argmin()), off.shape)
    return float(constant[best]), np.asarray(follows[best]), float(knees[best[0]])


@dataclass(frozen=True)
class ClockShape:
    """`share[i]` of the power that follows the clock at `clocks_mhz[i]`, 1 at the highest; the part that does not."""

    clocks_mhz: npt.NDArray[np.float64]
    share: npt.NDArray[np.float64]
    constant_share: float

    def at(self, mhz: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The share at each clock. Between two clocks voltage is what grows evenly, squared."""
        clocks = np.asarray(mhz, dtype=np.float64)
        squared = self.share[1:] / self.clocks_mhz[1:]
        return np.asarray(clocks * np.interp(clocks, self.clocks_mhz[1:], squared), dtype=np.float64)

    def volts(self, mhz: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Voltage at each clock as a share of the highest clock's: power goes with the clock and voltage squared."""
        clocks = np.maximum(np.asarray(mhz, dtype=np.float64), 1.0)
        return np.asarray(np.minimum(1.0, np.sqrt(self.at(clocks) * self.clocks_mhz[-1] / clocks)), dtype=np.float64)

    def clock_of(self, share: float) -> float:
        """The clock at which power that follows it has fallen to `share`."""
        clocks = np.arange(1.0, self.clocks_mhz[-1] + 1.0)
        return float(np.interp(share, self.at(clocks), clocks))
