# SPDX-License-Identifier: Apache-2.0
"""What a prediction is worth: money and emissions of the energy saved in a month of the recorded job."""

from __future__ import annotations

from powerccl.analysis.cost import MONTH_S, covers, kwh_of, rates_of
from powerccl.analysis.findings import CpuEnergy
from powerccl.commandline.summaries import summary_of
from powerccl.estimate import Estimate
from powerccl.tariff import Tariff
from powerccl.traces.folder import RunData
from powerccl.whatif.forecasts import MonthSaved, WhatIf


def month_saved(run: RunData, prediction: WhatIf, tariff: Tariff) -> MonthSaved | None:
    """Of the recommended policy; None: nothing was asked for, or no policy is worth it.

    The energy is what the recorded GPUs drew in their iterations. Of more GPUs than were recorded it is not known.
    """
    best = prediction.best()
    if not tariff.given or best is None or prediction.more_ranks or prediction.recorded_watts is None:
        return None
    summary = summary_of(run.folder)
    rates = rates_of(run, summary, tariff)
    month_kwh = kwh_of(prediction.recorded_watts * prediction.ranks * MONTH_S, tariff)
    saved = _times(best.saved_pct, month_kwh / 100)
    return MonthSaved(
        policy=best.policy,
        kwh=saved,
        currency=tariff.price.unit if tariff.price else "",
        cost=None if rates.price is None else _times(saved, rates.price),
        co2e_kg=None if rates.carbon_g is None else _times(saved, rates.carbon_g / 1e3),
        covers=covers(summary, CpuEnergy(), tariff, rates),
        notes=rates.notes,
    )


def _times(estimate: Estimate, factor: float) -> Estimate:
    value, *ends = (factor * each for each in (estimate.value, estimate.low, estimate.high))
    return Estimate(value, min(ends), max(ends))
