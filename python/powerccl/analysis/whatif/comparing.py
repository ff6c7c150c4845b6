# SPDX-License-Identifier: Apache-2.0
"""How much of a job `fixed` and `auto` leave alone, to compare with: more where iterations differ by themselves."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from powerccl.analysis.whatif.findings import Forecast, Range

# As native/policy/trial.h and conductor.h have it.
KNOWN = 0.5  # of the budget, that a slowdown must be known to
OUTLIER = 1.5  # times the mean: a checkpoint, not an iteration
BLOCK_NS = 16e9  # that are left alone at a time where iterations differ
ALONE = 1 / 3  # of the time, then
RARELY = 1 / 40  # else
FEWEST = 8


def left_alone(begins_ns: npt.NDArray[np.int64], budget: float, left: float = 1.0) -> float:
    """The share that is left alone of a job whose iterations begin then; `budget`: a fraction.

    `left`: of the deviation of their lengths, the share that nothing explains.

    Where iterations are alike it is one block in forty, once that is known. Where blocks of them do not tell whether a
    clock keeps the budget, clocks are compared for as long as the job runs.
    """
    lengths = np.diff(begins_ns).astype(np.float64)
    if len(lengths) < FEWEST:
        return RARELY
    lengths = lengths[lengths < OUTLIER * lengths.mean()]
    count = max(BLOCK_NS / lengths.mean(), 1.0)
    doubt = left * float(lengths.std() / lengths.mean()) * np.sqrt(2 / count)  # both kinds of blocks vary
    return ALONE if doubt > KNOWN * budget else RARELY


def of_part(forecast: Forecast, share: float) -> Forecast:
    """What a policy comes to that has this share of the job only."""

    def less(figure: Range) -> Range:
        return Range(*(round(share * value, 3) for value in (figure.value, figure.low, figure.high)))

    return msgspec.structs.replace(
        forecast,
        saved_pct=less(forecast.saved_pct),
        slowdown_pct=less(forecast.slowdown_pct),
        saved_watts=round(share * forecast.saved_watts, 3),
        low_clock_pct=round(share * forecast.low_clock_pct, 2),
        switches_per_s=round(share * forecast.switches_per_s, 3),
    )
