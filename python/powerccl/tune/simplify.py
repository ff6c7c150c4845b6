# SPDX-License-Identifier: Apache-2.0
"""The best configuration that a search has found is made simple: it loses the variables that it is as good without."""

from __future__ import annotations

import time
from collections.abc import Callable

from powerccl.bench.trials import Bench
from powerccl.platforms.parameters import Configuration
from powerccl.tune.study import Limits, Outcome, Study

SIMPLER = 0.01  # what all variables that are removed may cost together, of the best


def simplify(study: Study, bench: Bench, limits: Limits, progress: Callable[[Outcome], None]) -> Configuration | None:
    """The best configuration without what it is as good without, one variable after the other; None: there is no best.

    The order is that of the names, since the search does not say which variables matter.
    """
    began = time.monotonic()
    best = study.best()
    if best is None:
        return None
    kept, bar = dict(best.configuration), best.value * (1 + SIMPLER)
    for name in best.configuration:
        if limits.seconds is not None and time.monotonic() - began >= limits.seconds:
            break
        without = study.space.mend({key: value for key, value in kept.items() if key != name})
        if name in study.space.fixed or not without or without == kept:
            continue
        outcome = study.attempt(bench, without, "simplified", progress)
        if outcome.status == "done" and outcome.value <= bar:
            kept = without
    return kept
