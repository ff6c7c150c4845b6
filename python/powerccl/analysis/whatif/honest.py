# SPDX-License-Identifier: Apache-2.0
"""What a prediction may promise: nothing that cannot be, and nothing where a policy learnt nothing."""

from __future__ import annotations

from math import nan

import msgspec
import numpy as np

from powerccl.analysis import possible
from powerccl.analysis.whatif.findings import Forecast, Range, WhatIf
from powerccl.analysis.whatif.platform import ClockPlatform
from powerccl.analysis.whatif.scene import Gpu
from powerccl.quantities import exact, seconds

NOTHING = "lowers no clock"
# A mean of powers lies below the highest of them. Fits of power are a tenth off; half of it would doubt them.
ABOVE = 1.25
# native/policy/conductor.h: kWarmNs, kReferenceNs and kTryNs. Before that a clock for the whole job is not tried.
SEARCH_S = 6.0 + 1.6 + 1.0
# Iterations before the first window: three tell the rhythm (native/policy/rhythm.cpp), three their times
# (conductor.h, kReference). Half of them would promise windows of a job that ends first, double deny what was seen.
FEWEST_ITERATIONS = 6


def promise_nothing(forecast: Forecast, why: str) -> None:
    """The policy leaves the job alone."""
    for figure in (forecast.saved_pct, forecast.slowdown_pct):
        figure.value = figure.low = figure.high = 0.0
    forecast.saved_watts = forecast.low_clock_pct = forecast.switches_per_s = 0.0
    forecast.clock_mhz, forecast.chosen, forecast.within_budget = None, "neither", True
    forecast.reason = f"{NOTHING}: {why}"
    forecast.remarks = [text for text in forecast.remarks if text.startswith("does nothing")] or [forecast.reason]


def unlearnt(found: WhatIf, iterations: float) -> None:
    """Policies that learn promise nothing of a job that is over before, or has no iteration (0) to learn.

    `iterations`: as many as the longest part of the recording holds.
    """
    late = f"the run ends after {seconds(found.covered_s)}"
    for policies in (found.policies, *(gpu.policies for gpu in found.gpus)):
        by_phase, by_job, automatic = (f for f in policies if f.policy != "per-call")
        if not iterations or iterations < FEWEST_ITERATIONS:
            few = f"learning takes {FEWEST_ITERATIONS} iterations, and the run has {round(iterations)}"
            for forecast in (by_phase, by_job, automatic):
                promise_nothing(forecast, few if iterations else "no iteration found")
        elif found.covered_s < SEARCH_S:
            promise_nothing(
                by_job, f"{late}, before the policy tries a clock for the whole job ({exact(SEARCH_S, 's')})"
            )
            windows = by_phase.low_clock_pct > 0
            kept = msgspec.structs.asdict(by_phase) | {"policy": "auto", "chosen": "exposed" if windows else "neither"}
            for name, value in kept.items():
                setattr(automatic, name, value)


def limits_of(gpus: list[Gpu], platform: ClockPlatform) -> possible.Limits:
    """What a prediction on this machine can come to."""
    curves = [curve for sizes in platform.curves.values() for curve in sizes.values()]
    watts = [float(curve.watts[np.isfinite(curve.watts)].max(initial=0.0)) for curve in curves]
    watts += [drawn for _, drawn in platform.computing]
    watts += [max(gpu.drawn.computing_w, gpu.drawn.exposed_w) for gpu in gpus]
    highest, lowest = float(platform.clock_max_mhz), float(platform.clocks_mhz[0])
    slower = [float(curve.time_us.max() / curve.time_us[-1]) for curve in curves if curve.time_us[-1] > 0]
    return possible.Limits(
        most_watts=ABOVE * max(watts),
        least_times=min(1.0, *(gpu.drawn.compute_mhz / highest for gpu in gpus)),
        most_times=max(highest / lowest, *slower),
    )


def check(found: WhatIf, limits: possible.Limits) -> None:
    """What cannot be is not known, and says why."""
    rows = [(forecast, found.joules, found.covered_s * max(len(found.gpus), 1)) for forecast in found.policies]
    rows += [(forecast, gpu.joules, found.covered_s) for gpu in found.gpus for forecast in gpu.policies]
    for forecast, joules, gpu_seconds in rows:
        saved, slower = forecast.saved_pct, forecast.slowdown_pct
        why = possible.of_forecast(
            [saved.value, saved.low, saved.high],
            [slower.value, slower.low, slower.high],
            None if joules is None else joules / gpu_seconds - forecast.saved_watts,
            limits,
        )
        if joules is None:  # samples are missing: what it is to be saved from is not known
            forecast.saved_watts = nan
        if not why:
            continue
        forecast.saved_pct = forecast.slowdown_pct = Range(nan, nan, nan)
        forecast.saved_watts = forecast.low_clock_pct = forecast.switches_per_s = nan
        forecast.within_budget = False
        forecast.reason = f"not known: {why}"
        forecast.remarks = [forecast.reason]
