# SPDX-License-Identifier: Apache-2.0
"""What a GPU draws and how fast it computes at other clocks, from a run's own samples and the profile's clock curves.

Power is a floor, a part that follows clock and voltage with or without work (the clock tree), a part that computation
adds and that follows them too, and a constant that communication adds. How the following part falls with the clock is
read off the profile's power of communication; how large each part is, off this run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.energy import EnergyCurve
from powerccl.analysis.exposure import by_age, intersection, without
from powerccl.analysis.whatif.platform import ClockPlatform, ClockShape
from powerccl.analysis.whatif.timeline import GpuTimeline

MEMORY_BOUND_SHARE = (
    0.15  # of computation's time, does not scale with the clock: assumed, nobody has measured the job's
)
Values = npt.NDArray[np.float64]

POWER_LIMITED = 0x4  # nvmlClocksEventReasonSwPowerCap
IDLE_UTILIZATION_PCT = 5
IDLE_SAMPLES = 3
UNKNOWN_FLOOR = 0.5  # of communication's constant power, where no idle GPU was sampled: assumed
PULL = 0.15  # of what the samples weigh, towards what is likely
SAMPLE_NS, FEW_SAMPLES = 300_000, 20
UNLIKELY = 0.1  # what communication may draw more or less than the profile says
PURE = 0.98  # of a sample's time, that a state must have for it to tell its power
RARE = 0.02  # of the time: a state too short for its own power
LIMITED, NEARLY_ALWAYS = 0.2, 0.6  # of the samples of computation: a power limit matters, it holds whatever computes
STEADY_STEP_MHZ = 5.0
# Power governors look every so often (5 ms on the emulated T4, not known elsewhere), and wind up where they find a GPU
# that is free to clock up and has nothing to compute: what is so for part of that time is found so part of the times.
LOOKS_EVERY_NS = 5_000_000
# A mean is what they hold: one that wound up on a GPU that had a low clock before lets it compute at the highest that
# its peak limit allows until the mean has risen (30 ms on the emulated T4, not known elsewhere).
BURST_NS = 30_000_000
PEAK = 0.99  # of the samples of computation that a limit held down: the highest clock it ran at
AT_HIGHEST = 0.98  # of the highest clock: nothing holds it down


@dataclass(frozen=True)
class Drawn:
    """Mean power of one GPU in each state as the run was, W; `compute_mhz` the clock computation really ran at."""

    exposed_w: float  # communicating, nothing else
    likely_w: float  # the same by the profile, for a die as warm as this
    warm_w: float  # of that, because it is warmer than where it was profiled, at the highest clock
    computing_w: float  # computing, with or without communication beside it
    beside: float  # share of computation's time with communication beside it
    idle_w: float | None  # awake without work, at the highest clock
    compute_mhz: float
    compute_share: float  # of the power that follows the clock, the mean while computing
    limited: bool  # a power limit held the clock down while computing
    peak_mhz: float  # the highest clock it ran at then
    idle_share: float  # of what counts as computing, nothing ran: the host had not submitted it yet
    residual_w: float  # of the fit, standard error over one step of the samples


@dataclass(frozen=True)
class PowerModel:
    """Power and speed of one GPU at any clock; `memory_share` of computation does not scale with it."""

    drawn: Drawn
    shape: ClockShape
    clock_max_mhz: float
    floor_w: float
    tree_w: float  # at the highest clock
    compute_w: float  # added by computing, at the highest clock
    communication_w: float  # added by communicating
    behind_mhz: float | None  # at which computation runs behind a low clock, None: as ever
    steady_mhz: float = 0.0  # below it a held clock draws less than computation did under its power limit
    memory_share: float = MEMORY_BOUND_SHARE

    def watts(self, mhz: float, busy: Values) -> Values:
        """Power of computation with the clock held at `mhz`, where it runs for so much of the time and idles else."""
        share = float(self.shape.at(mhz))
        constant_w = self.floor_w + self.drawn.warm_w * float(self.shape.volts(mhz))
        return np.asarray(constant_w + (self.tree_w + self.compute_w * busy) * share, dtype=np.float64)

    def busy(self, idle: npt.ArrayLike, mhz: float) -> Values:
        """How much of computation's time it runs at `mhz`, where it idled for that share by default."""
        idle = np.asarray(idle, dtype=np.float64)
        runs = (1 - idle) * self.stretch(mhz, self.drawn.compute_mhz, 0.0)
        return np.asarray(runs / (runs + idle), dtype=np.float64)

    def idle(self) -> float:
        """Power of a GPU that has nothing to do, at the highest clock."""
        return self.floor_w + self.tree_w + self.drawn.warm_w

    def computing_w(self, mhz: float) -> float:
        """Mean power of computation with the clock held at `mhz`, communication beside it as it was."""
        alone = float(self.watts(mhz, self.busy(self.drawn.idle_share, mhz)))
        return alone + self.drawn.beside * self.communication_w

    def slowdown(self, mhz: float) -> float:
        """How many times as long computation takes with the clock held at `mhz`, on the whole."""
        return self.paced(mhz, self.drawn.compute_mhz, self.drawn.idle_share)

    def paced(self, mhz: float, ran_mhz: float, idle_share: float) -> float:
        """The same of a stretch that ran at `ran_mhz` by itself and was idle for that share of it.

        Under a power limit less than one is possible: a steady clock is worth more than one that goes up and down.
        """
        if mhz >= max(self.steady_mhz, self.drawn.compute_mhz):
            return 1.0
        times = self.stretch(mhz, ran_mhz, idle_share)
        return times if self.drawn.limited else max(1.0, times)

    def stretch(self, mhz: float, ran_mhz: float, idle_share: float) -> float:
        """The same, whatever holds the clock there; idling stays as it is."""
        return idle_share + (1 - idle_share) * (self.memory_share + (1 - self.memory_share) * ran_mhz / mhz)

    def lowered(self, mhz: float, ratio: float) -> float:
        """Power of communication alone at `mhz`, where the profile says it is `ratio` of that at the highest clock."""
        warm_w = self.drawn.warm_w
        return (self.drawn.exposed_w - warm_w) * ratio + warm_w * float(self.shape.volts(mhz))

    def as_ever(self) -> tuple[float, float]:
        """Power of computation that does not idle at the clocks it ran at, and what communication beside it adds.

        Where a power limit says what is drawn, communication beside it takes its part of that.
        """
        drawn = self.drawn
        adds_w = 0.0 if drawn.limited else self.communication_w
        alone = drawn.computing_w - drawn.beside * adds_w
        return (alone - drawn.idle_share * self.idle()) / (1 - drawn.idle_share), adds_w


def states(line: GpuTimeline) -> tuple[iv.Intervals, iv.Intervals]:
    """When the GPU only communicated, and when it computed beside communication."""
    if not len(line.communicating):
        return line.exposed, iv.EMPTY
    edges = np.concatenate([[line.communicating[0, 0]], line.exposed.ravel(), [line.communicating[-1, 1]]])
    rest = iv.union(edges[0::2], edges[1::2])
    return line.exposed, intersection(line.communicating, rest)


def fit(
    line: GpuTimeline,
    curve: EnergyCurve,
    samples: pl.DataFrame,
    span: tuple[int, int],
    platform: ClockPlatform,
    alone_watts: float | None,
) -> Drawn | None:
    """Power in each state from the samples inside `span`; None where they are too few.

    `alone_watts`: of a GPU that only communicates, by the profile; None: not known.
    """
    exposed, both = states(line)
    inside = (curve.time_ns >= span[0]) & (curve.time_ns <= span[1])
    time, joules = curve.time_ns[inside], curve.joules[inside]
    if len(time) < 4:
        return None
    sharp = replace(curve, time_ns=time, joules=joules).sharp  # steps in which nothing is missing
    if sharp.sum() < 3:
        return None
    total_s = np.diff(time)[sharp] / 1e9

    def within(intervals: iv.Intervals) -> npt.NDArray[np.float64]:
        return np.asarray(np.diff(iv.covered_before(intervals, time))[sharp] / 1e9, dtype=np.float64)

    ages = [within(part) for part in by_age(without(exposed, int(time[0]), int(time[-1])))]
    seconds = np.column_stack([within(exposed), *ages])
    energy = np.diff(joules)[sharp]
    # A state that hardly occurs is told by what is likely: communication draws what the profile says.
    mean, shares = float(energy.sum() / total_s.sum()), seconds.sum(axis=0) / total_s.sum()
    warm_w = 0.0
    if alone_watts is not None:
        warmer_k = platform.kelvin_per_watt * max(0.0, mean - alone_watts)
        warm_w = platform.leakage_watts_per_kelvin * warmer_k
    likely = alone_watts + warm_w if alone_watts is not None else mean
    rest = (mean - float(shares[0]) * likely) / max(1 - float(shares[0]), RARE)
    pull = PULL * float(np.sqrt((total_s**2).sum()))
    rows = np.vstack([seconds, pull * np.eye(seconds.shape[1])])
    expected = pull * np.array([likely, *[rest] * len(ages)])
    watts = np.linalg.lstsq(rows, np.concatenate([energy, expected]), rcond=None)[0]
    watts *= float(energy.sum() / max(float((seconds @ watts).sum()), 1e-9))  # what was measured is what counts
    residual = float(np.std(energy - seconds @ watts) / max(float(np.mean(total_s)), 1e-9))
    # Samples deep within stalls tell what communication draws: a sensor may be late by one. Where there are few, what
    # computes about them tells more of a regression's outcome than it does, and the profile is all there is.
    pure = seconds[:, 0] > PURE * total_s
    pure = pure & np.append(False, pure[:-1]) & np.append(pure[1:], False)
    exposed_w = likely if alone_watts is not None else float(watts[0])
    if pure.sum() >= FEW_SAMPLES:
        told = float(energy[pure].sum() / total_s[pure].sum())
        exposed_w = float(np.clip(likely, (1 - UNLIKELY) * told, (1 + UNLIKELY) * told))
    if float(shares[0]) > 1 - RARE:
        exposed_w = float(watts[0])
    computing_w = (mean - float(shares[0]) * exposed_w) / max(1 - float(shares[0]), RARE)
    beside = min(1.0, float(within(both).sum()) / max(float(seconds[:, 1:].sum()), 1e-9))
    clock, share, limited, peak_mhz, idle_share = _clocks(samples, exposed, span, platform)
    return Drawn(
        exposed_w=exposed_w,
        likely_w=likely,
        warm_w=warm_w,
        computing_w=computing_w,
        beside=beside,
        idle_w=_idle(samples, platform.clock_max_mhz),
        compute_mhz=clock,
        compute_share=share,
        limited=limited,
        peak_mhz=peak_mhz,
        idle_share=idle_share,
        residual_w=residual,
    )


def model(drawn: Drawn, platform: ClockPlatform, memory_share: float = MEMORY_BOUND_SHARE) -> PowerModel:
    """The parts of a GPU's power, from what it drew and how the profile's power of communication follows the clock."""
    shape = platform.clock_shape
    communicating_w = drawn.exposed_w
    tree_w = (communicating_w - drawn.warm_w) * (1 - shape.constant_share)
    constant_w = communicating_w - drawn.warm_w - tree_w
    floor_w = drawn.idle_w - tree_w if drawn.idle_w is not None else UNKNOWN_FLOOR * constant_w
    floor_w = float(np.clip(floor_w, 0.1 * constant_w, constant_w))
    # What warmth adds goes with voltage; at the clocks of computation, with that of their mean.
    warm_w = drawn.warm_w * float(shape.volts(drawn.compute_mhz))
    alone_w = drawn.computing_w - warm_w - drawn.beside * (constant_w - floor_w)
    # Where nothing ran, the clock was at its highest.
    alone_w = (alone_w - drawn.idle_share * (floor_w + tree_w)) / (1 - drawn.idle_share)
    compute_w = max(0.0, (alone_w - floor_w) / max(drawn.compute_share, 1e-3) - tree_w)
    behind_mhz = None
    if platform.behind_watts is not None and drawn.limited and compute_w > 0:
        behind_mhz = shape.clock_of(min(1.0, (platform.behind_watts - warm_w - floor_w) / (tree_w + compute_w)))
    found = PowerModel(
        drawn=drawn,
        shape=shape,
        clock_max_mhz=float(platform.clock_max_mhz),
        floor_w=floor_w,
        tree_w=tree_w,
        compute_w=compute_w,
        communication_w=constant_w - floor_w,
        behind_mhz=behind_mhz,
        memory_share=memory_share,
    )
    if not drawn.limited:
        return found
    clocks = np.arange(drawn.compute_mhz, platform.clock_max_mhz, STEADY_STEP_MHZ)
    steady = [mhz for mhz in clocks.tolist() if found.computing_w(mhz) < drawn.computing_w]
    return replace(found, steady_mhz=max(steady, default=0.0))


def _clocks(
    samples: pl.DataFrame, exposed: iv.Intervals, span: tuple[int, int], platform: ClockPlatform
) -> tuple[float, float, bool, float, float]:
    """The clock computation made the same progress at, its mean share of power, whether a limit held it down.

    Then the highest clock it ran at where one did. The last: the share of samples that a limit did not hold down
    although it does what computes: nothing ran then.
    """
    highest = platform.clock_max_mhz
    time = samples["time_ns"].to_numpy()
    clock = samples["sm_clock_mhz"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    known = (time >= span[0]) & (time < span[1]) & np.isfinite(clock) & (clock > 0)
    computing = known & ~iv.contains(exposed, time)
    # A sample's time is not quite that of its clock; next to a stall it may be the stall's.
    surely = computing & ~iv.contains(exposed, time - SAMPLE_NS) & ~iv.contains(exposed, time + SAMPLE_NS)
    computing = surely if surely.sum() >= FEW_SAMPLES else computing
    if not computing.any():
        return float(highest), 1.0, False, float(highest), 0.0
    held = np.array([bool(_mask(text) & POWER_LIMITED) for text in samples["throttle_reasons"].to_numpy()[computing]])
    clock, limited = clock[computing], bool(held.mean() > LIMITED)
    peak_mhz = float(np.quantile(clock[held], PEAK, method="nearest")) if limited else float(highest)
    idle = ~held & (clock >= AT_HIGHEST * highest)
    idle_share = float(idle.mean()) if held.mean() > NEARLY_ALWAYS else 0.0
    if idle_share > 0:
        clock = clock[~idle]
    share = float(np.mean(platform.clock_shape.at(clock)))
    return steady_clock(clock, highest), share, limited, peak_mhz, idle_share


def rate_of(clocks: npt.NDArray[np.float64], highest: float) -> npt.NDArray[np.float64]:
    """How fast computation goes at each clock, as a share of that at the highest."""
    return np.asarray(1 / (MEMORY_BOUND_SHARE + (1 - MEMORY_BOUND_SHARE) * highest / clocks), dtype=np.float64)


def steady_clock(clocks: npt.NDArray[np.float64], highest: float) -> float:
    """The clock at which computation makes the same progress as at each of these for as long."""
    m = MEMORY_BOUND_SHARE
    return (1 - m) * highest / (1 / float(np.mean(rate_of(clocks, highest))) - m)


def _mask(text: str | None) -> int:
    try:
        return int((text or "0").strip(), 16)
    except ValueError:
        return 0


def _idle(samples: pl.DataFrame, highest: int) -> float | None:
    """Power of an awake GPU without work: no use in this sample and the one before, the clock still high."""
    rows = samples.select("power_mw", "sm_clock_mhz", "utilization_pct").drop_nulls()
    if len(rows) < 2:
        return None
    idle = (rows["utilization_pct"].to_numpy() <= IDLE_UTILIZATION_PCT) & (
        rows["sm_clock_mhz"].to_numpy() >= 0.9 * highest
    )
    settled: npt.NDArray[np.bool_] = idle & np.append(False, idle[:-1])
    watts = rows["power_mw"].to_numpy()[settled] / 1e3
    return float(np.median(watts)) if len(watts) >= IDLE_SAMPLES else None
