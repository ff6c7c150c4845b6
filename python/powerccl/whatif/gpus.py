# SPDX-License-Identifier: Apache-2.0
"""GPUs of a recorded run: their power limit, and the clocks that it left them."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from powerccl.analysis.energy import gpu_samples
from powerccl.traces.folder import RunData
from powerccl.traces.sample_file import number_of

POWER_CAP = 0x4  # nvmlClocksEventReasonSwPowerCap
MOSTLY = 0.5  # of the samples: a GPU that is capped so often has its clock by its power
# Of the mean clock. A governor that averages power slowly swings between clocks: their mean is none that the GPU had.
# Standard deviations are 5 to 7 % on recorded H100s, 17 % on simulated T4s. At half, no H100 is steady. At double,
# all T4s are.
STEADY = 0.1


@dataclass(frozen=True)
class Gpu:
    """A rank's GPU. None: not known."""

    limit_w: float | None  # enforced when the agent began
    clock_mhz: float | None  # the mean while the power limit held the clock down; None also where it hardly did
    steady: bool = True  # at that limit


def limited_clocks(gpus: list[Gpu]) -> list[float]:
    """The mean clocks that their power limit left them; none where it did not hold all of them down."""
    clocks = [gpu.clock_mhz for gpu in gpus if gpu.clock_mhz]
    return clocks if len(clocks) == len(gpus) else []


def held_clocks(gpus: list[Gpu]) -> list[float]:
    """The same, where they were steady; none where one swung."""
    return limited_clocks(gpus) if all(gpu.steady for gpu in gpus) else []


def recorded_gpus(run: RunData, begin_ns: int, end_ns: int) -> list[Gpu]:
    """Those of the ranks, between two times."""
    return [_recorded(run, trace.gpu, begin_ns, end_ns) for trace in run.ranks]


def _recorded(run: RunData, name: str, begin_ns: int, end_ns: int) -> Gpu:
    sampled = gpu_samples(run, name)
    if sampled is None:
        return Gpu(None, None)
    log, samples = sampled
    during = samples.filter(pl.col("time_ns").is_between(begin_ns, end_ns), pl.col("sm_clock_mhz").is_not_null())
    if during.is_empty():
        return Gpu(None, None)
    limit_mw = number_of(log.about, f"gpu{during['gpu'][0]}_power_limit_mw")
    clock_mhz, steady = clock_at_limit(during)
    return Gpu(limit_mw / 1e3 if limit_mw else None, clock_mhz, steady)


def clock_at_limit(samples: pl.DataFrame) -> tuple[float | None, bool]:
    """The mean clock of one GPU's samples in which its power limit held the clock down, and whether it was steady.

    None: it did in too few samples.
    """
    reasons = samples["throttle_reasons"].str.strip_prefix("0x").str.to_integer(base=16, strict=False)
    clocks = samples.filter((reasons & POWER_CAP) != 0)["sm_clock_mhz"].to_numpy()
    if len(clocks) <= MOSTLY * len(samples):
        return None, True
    return float(clocks.mean()), float(clocks.std()) <= STEADY * float(clocks.mean())
