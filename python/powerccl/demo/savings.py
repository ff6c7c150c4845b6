# SPDX-License-Identifier: Apache-2.0
"""What a policy saved of a training job, as named figures with their 95 % interval over iterations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from powerccl.demo.iterations import Training
from powerccl.estimate import Estimate

RESAMPLES = 2000


Values = npt.NDArray[np.float64]


def savings(observed: Training, managed: Training, policy: str) -> dict[str, Estimate]:
    """Figures by short name: communication energy, energy, power saved, and slowdown, all in percent of `observed`."""

    def saved_of(before: Values, after: Values) -> float:
        return float((1 - after.mean() / before.mean()) * 100)

    count = min(len(observed.step_s), len(managed.step_s))
    pairs = {
        "comm_energy_saved_pct": (observed.communication_joules, managed.communication_joules, saved_of),
        "energy_saved_pct": (observed.joules, managed.joules, saved_of),
        "power_saved_pct": (observed.joules / observed.step_s, managed.joules / managed.step_s, saved_of),
        "slowdown_pct": (observed.step_s, managed.step_s, lambda a, b: -saved_of(a, b)),
    }
    figures = {
        f"{policy}.{name}": _figure(before, after, compute, count) for name, (before, after, compute) in pairs.items()
    }
    for word, training in (("observe", observed), (policy, managed)):
        figures[f"{word}.step_ms"] = _mean(training.step_s * 1e3, "ms")
        figures[f"{word}.joules_per_step"] = _mean(training.joules, "J")
        figures[f"{word}.comm_joules_per_step"] = _mean(training.communication_joules, "J")
        watts = training.summary.communication.average_watts
        if watts is not None:
            n = len(training.step_s)
            figures[f"{word}.comm_watts"] = Estimate(round(watts, 3), round(watts, 3), round(watts, 3), n, "W")
    return figures


def _figure(before: Values, after: Values, compute: Callable[[Values, Values], float], count: int) -> Estimate:
    random = np.random.default_rng(0)
    drawn = sorted(
        compute(random.choice(before, len(before)), random.choice(after, len(after))) for _ in range(RESAMPLES)
    )
    low, high = drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES)]
    return Estimate(round(compute(before, after), 3), round(low, 3), round(high, 3), count, "%")


def _mean(values: Values, unit: str) -> Estimate:
    error = 1.96 * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else 0.0
    mean = float(values.mean())
    return Estimate(round(mean, 4), round(mean - error, 4), round(mean + error, 4), len(values), unit)
