# SPDX-License-Identifier: Apache-2.0
"""What a GPU draws that does this at those clocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerccl.analysis import intervals as iv
from powerccl.analysis.exposure import without
from powerccl.analysis.whatif.platform import ClockPlatform
from powerccl.analysis.whatif.power import BURST_NS, LOOKS_EVERY_NS, PowerModel
from powerccl.analysis.whatif.replay import Course, spans_of


@dataclass
class Doing:
    """When a GPU computed and communicated, and which clock it had from when on (0: the default); ns.

    `edges_ns`: block edges. `waits`: with nothing to do, until all GPUs go on. `rests`: until when which share of
    computing is idling, at the default clock. `resets_behind`: a clock is reset only when computation goes on, so that
    a power governor has not wound up by then.
    """

    computing: iv.Intervals
    communicating: iv.Intervals
    clocks: list[tuple[float, int]]
    edges_ns: list[float]
    waits: iv.Intervals
    rests: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
    switches: int = 0
    resets_behind: bool = False


def doing_of(course: Course, idle: npt.NDArray[np.float64], resets_behind: bool = False) -> Doing:
    """What a replayed GPU did: it computed whenever it neither stalled nor waited for the host.

    `idle`: of the computation before each operation, the share that was spent idle.
    """
    stop = round(course.edges_ns[-1])
    starts = np.array(course.starts)
    order = np.argsort(starts, kind="stable")
    talks = [(a, b) for a, b in zip(course.starts, course.stops, strict=True) if 0 <= a < b]
    return Doing(
        computing=without(spans_of(course.stalls + course.waits), 0, stop),
        communicating=spans_of(talks),
        clocks=course.clocks,
        edges_ns=course.edges_ns,
        waits=spans_of(course.waits),
        rests=(starts[order], idle[order]),
        switches=course.switches,
        resets_behind=resets_behind,
    )


def energy(
    found: Doing, model: PowerModel, platform: ClockPlatform, before_w: float | None = None
) -> tuple[npt.NDArray[np.float64], float]:
    """Joules between the block edges, and the share of time at a lowered clock.

    `before_w`: mean power without the policy; a GPU that draws less than it is cooler, and leaks less for it.
    """
    computing, communicating = found.computing, found.communicating
    changes = np.array([time for time, _ in found.clocks], dtype=np.int64)
    mhz = np.array([clock for _, clock in found.clocks])
    edges = np.rint(found.edges_ns).astype(np.int64)
    looks = communicating[:, 1] + LOOKS_EVERY_NS // 2
    parts = (computing.ravel(), communicating.ravel(), looks, found.waits.ravel(), changes, edges)
    knots = np.unique(np.concatenate(parts))
    knots = knots[(knots >= edges[0]) & (knots <= edges[-1])]
    middle = knots[:-1] + np.diff(knots) // 2
    seconds = np.diff(knots) / 1e9
    computes, talks = iv.contains(computing, middle), iv.contains(communicating, middle)
    clock = mhz[np.maximum(np.searchsorted(changes, middle, side="right") - 1, 0)]
    behind, bursts = np.zeros((2, len(clock)))
    if found.resets_behind:
        behind, bursts = _behind(computes, talks, clock == 0, knots)
    until, share = found.rests
    idle = share[np.minimum(np.searchsorted(until, middle), len(share) - 1)] if len(share) else np.zeros(len(middle))
    waits = iv.contains(found.waits, middle) & ~talks
    watts, leaks = _watts(model, platform, computes, talks, waits, clock, behind, bursts, idle)
    if before_w is not None and seconds.sum() > 0:
        kelvin_w = platform.kelvin_per_watt
        leak_w = float((leaks * seconds).sum() / seconds.sum()) * platform.leakage_watts_per_kelvin
        less_w = (float((watts * seconds).sum() / seconds.sum()) - before_w) / max(1 - kelvin_w * leak_w, 0.5)
        watts = watts + leaks * platform.leakage_watts_per_kelvin * kelvin_w * less_w
    joules = np.concatenate([[0.0], np.cumsum(watts * seconds)])
    blocks = np.diff(np.interp(edges.astype(np.float64), knots.astype(np.float64), joules))
    return blocks, float(seconds[clock > 0].sum() / max(seconds.sum(), 1e-12))


def _watts(
    model: PowerModel,
    platform: ClockPlatform,
    computes: npt.NDArray[np.bool_],
    talks: npt.NDArray[np.bool_],
    waits: npt.NDArray[np.bool_],
    clock: npt.NDArray[np.int64],
    behind: npt.NDArray[np.float64],
    bursts: npt.NDArray[np.float64],
    idle: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Power of each stretch, and its voltage where warmth adds to it: not where a power limit says what is drawn."""
    drawn, shape = model.drawn, model.shape
    busy_w, beside_w = model.as_ever()
    watts = np.where(computes, idle * model.idle() + (1 - idle) * busy_w + talks * beside_w, drawn.exposed_w)
    watts = np.where(waits, model.idle(), watts)
    if model.behind_mhz is not None:
        free, as_ever = computes & (clock == 0), watts
        # Communication beside it comes on top: limits hold a mean down, and that of a GPU whose clock was low is below.
        # At a peak's limit it takes its part of that.
        for at_mhz, share, on_top_w in (
            (model.behind_mhz, behind, model.communication_w),
            (drawn.peak_mhz, bursts, 0.0),
        ):
            alone = model.watts(at_mhz, model.busy(idle, at_mhz))
            watts = watts + np.where(free, share, 0.0) * (alone + talks * on_top_w - as_ever)
    leaks = np.where(computes & np.bool_(drawn.limited), 0.0, 1.0)
    for low in np.unique(clock[clock > 0]).tolist():
        at = clock == low
        volts = float(shape.volts(low))
        # Above, the power limit says what is drawn, as it did.
        if low < max(drawn.compute_mhz, model.steady_mhz):
            alone = model.watts(low, model.busy(idle, low))
            watts = np.where(at & computes, alone + talks * model.communication_w, watts)
            leaks = np.where(at & computes, volts, leaks)
        watts = np.where(at & ~computes, model.lowered(low, platform.power_ratio(low)), watts)
        watts = np.where(at & waits, float(model.watts(low, np.zeros(1))[0]), watts)
        leaks = np.where(at & ~computes, volts, leaks)
    return watts, leaks


def _behind(
    computes: npt.NDArray[np.bool_],
    talks: npt.NDArray[np.bool_],
    free: npt.NDArray[np.bool_],
    knots: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """How likely no governor has wound up since the clock was last held low, and that one just has; 0: it never was."""
    lasted = np.diff(knots).astype(np.float64)
    held = np.maximum.accumulate(np.where(free, -1, np.arange(len(free))))
    winds = np.cumsum(np.where(free & ~computes & talks, lasted, 0.0))
    since = winds - np.where(held >= 0, winds[np.maximum(held, 0)], 0.0)
    unfound = np.where(held >= 0, np.clip(1 - since / LOOKS_EVERY_NS, 0.0, 1.0), 0.0)
    # Each communication alone begins a burst, and so does the end of communication that a governor has made room for
    # beside computation, because it went on when the clock was freed: it looks half of that time later on average.
    ends = free & ~computes & talks
    talked = np.maximum.accumulate(np.where(talks, knots[1:], knots[0]))
    quiet = np.append(np.flatnonzero(~talks & (knots[:-1] - talked >= LOOKS_EVERY_NS // 2)), len(free))
    for era in np.unique(held[held >= 0]).tolist():
        found = int(quiet[np.searchsorted(quiet, era + 1)])
        if found == len(free) or held[found] != era:
            continue
        if talks[era + 1] and not ends[era + 1 : found].any():
            ends[found - 1] = True
            unfound[found:][held[found:] == era] = 0.0
    at = np.maximum.accumulate(np.where(ends, np.arange(len(free)), -1))
    recent = (at >= 0) & (at > held) & (knots[:-1] < knots[np.maximum(at, 0) + 1] + BURST_NS)
    return unfound, np.where((held >= 0) & recent, 1 - unfound, 0.0)
