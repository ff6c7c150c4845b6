# SPDX-License-Identifier: Apache-2.0
"""At which clock each stretch of an iteration's computation ran by itself, and how much of it was spent idle.

Power governors leave computation behind a stall a higher clock than long computation, and where they hold all of it
down a GPU that nothing holds down has nothing to do. Both differ from place to place in the iteration, so that samples
are told apart by it; GPUs that do the same there tell it together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.whatif.power import (
    AT_HIGHEST,
    FEW_SAMPLES,
    MEMORY_BOUND_SHARE,
    SAMPLE_NS,
    Drawn,
    PowerModel,
    rate_of,
)
from powerccl.analysis.whatif.timeline import GpuTimeline

ALIKE = 0.05  # of the length of computation at a place: GPUs that do the same
PRIOR = 20.0  # samples that a GPU's mean counts as

Values = npt.NDArray[np.float64]


@dataclass
class Pace:
    """By place of an iteration (one place where none is known), of the computation before the operation there."""

    ran_mhz: Values
    idle: Values

    def idling(self, share: float) -> Pace:
        """The same, idle for that share of the time before an iteration."""
        idle = self.idle.copy()
        idle[0] = share
        return Pace(self.ran_mhz, idle)

    def times(self, model: PowerModel, place: int, mhz: float) -> float:
        """How many times as long the computation there takes with the clock held at `mhz` (0: by default)."""
        if not mhz:
            return 1.0
        return model.paced(mhz, float(self.ran_mhz[place]), float(self.idle[place]))

    def behind(self, model: PowerModel, place: int) -> float:
        """The same behind a low clock, no governor having wound up since."""
        if model.behind_mhz is None:
            return 1.0
        return model.stretch(model.behind_mhz, float(self.ran_mhz[place]), float(self.idle[place]))

    def burst(self, model: PowerModel, place: int) -> float:
        """The same once a governor has wound up there."""
        if model.behind_mhz is None:
            return 1.0
        return model.stretch(model.drawn.peak_mhz, float(self.ran_mhz[place]), float(self.idle[place]))


@dataclass
class Counted:
    """Of a GPU, by place of computation: samples in which it ran, in which it rested, and the rate in the former.

    First row: all of them; second: those before stalls that others waited for it in, by how much they did.
    """

    ran: Values
    rests: Values
    rate: Values
    length_ns: Values


def counted(
    line: GpuTimeline,
    places: npt.NDArray[np.int64],
    calls: int,
    last: Values,
    samples: pl.DataFrame,
    drawn: Drawn,
    span: tuple[int, int],
    highest: float,
) -> Counted:
    """Samples inside `span`; `places` of the line's operations, and `last`: how much each was waited for."""
    time = samples["time_ns"].to_numpy()
    clock = samples["sm_clock_mhz"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    here = (time >= span[0]) & (time < span[1]) & np.isfinite(clock) & (clock > 0)
    for off in (-SAMPLE_NS, 0, SAMPLE_NS):
        here &= ~iv.contains(line.exposed, time + off)
    leads_to = np.searchsorted(line.starts, time)
    here &= leads_to < len(places)
    place, clock = places[leads_to[here]], clock[here]
    # What a stall ended with is what computation came to late, from the stall before on.
    ends = np.append(last[np.maximum(np.searchsorted(line.starts, line.exposed[:, 1]) - 1, 0)], 0.0)
    weight = ends[np.searchsorted(line.exposed[:, 0], time[here])]
    rests = (clock >= AT_HIGHEST * highest) if drawn.idle_share > 0 else np.zeros(len(clock), dtype=np.bool_)
    inside = (line.starts >= span[0]) & (line.starts < span[1])
    done = line.starts - iv.covered_before(line.exposed, line.starts)
    steps = np.diff(done, prepend=done[:1])
    length = np.zeros(calls)
    for at in range(calls):
        mine = steps[inside & (places == at)]
        length[at] = float(np.median(mine)) if len(mine) else 0.0

    def summed(values: Values) -> Values:
        rows = [np.bincount(place, weights=values * by, minlength=calls) for by in (np.ones(len(place)), weight)]
        return np.array(rows, dtype=np.float64)

    return Counted(
        summed((~rests).astype(np.float64)),
        summed(rests.astype(np.float64)),
        summed(np.where(rests, 0.0, rate_of(clock, highest))),
        length,
    )


def paces(found: list[Counted], of: list[Drawn], highest: float) -> list[Pace]:
    """Of each GPU, from its own samples and those of GPUs that do the same at a place.

    What others waited for tells most: where governors move clocks up and down, it is the slow ones that come last. Then
    all of that place, then what was waited for in all places.
    """
    late = [sum(float(part[1].sum()) for part in parts) for parts in ([f.ran for f in found], [f.rate for f in found])]
    result = []
    for mine, drawn in zip(found, of, strict=True):
        ran, rests, rate = np.zeros((3, 2, mine.ran.shape[1]))
        for other in found:
            if other.ran.shape == mine.ran.shape:
                alike = np.abs(other.length_ns - mine.length_ns) <= ALIKE * mine.length_ns
                ran += np.where(alike, other.ran, 0.0)
                rests += np.where(alike, other.rests, 0.0)
                rate += np.where(alike, other.rate, 0.0)
        mean = np.full(ran.shape[1], rate_of(np.array([drawn.compute_mhz]), highest)[0])
        if late[0] >= FEW_SAMPLES:
            mean[:] = late[1] / late[0]
        idle = np.full(ran.shape[1], drawn.idle_share)
        mean = (rate[1] + PRIOR * mean) / (ran[1] + PRIOR)
        idle = (rests[0] + PRIOR * idle) / (ran[0] + rests[0] + PRIOR)
        m = MEMORY_BOUND_SHARE
        result.append(Pace((1 - m) * highest / (1 / mean - m), idle))
    return result
