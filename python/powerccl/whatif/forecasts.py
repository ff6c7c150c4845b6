# SPDX-License-Identifier: Apache-2.0
"""What a prediction came to: the content of `powerccl whatif --json`."""

from __future__ import annotations

import msgspec

from powerccl.analysis.report_findings import NextStep
from powerccl.estimate import Estimate

WORTH_IT_PCT = 0.5  # of the energy: less is not worth a word


class Forecast(msgspec.Struct, kw_only=True):
    """One policy; percentages of the same job simulated with no policy.

    A value is of the likely machine, low and high are the least and most of all machines that the run could be of. The
    range of the energy that `auto` saves is wider by MARGIN_POINTS on both sides.
    """

    policy: str
    saved_pct: Estimate
    slowdown_pct: Estimate
    saved_watts: float  # of a GPU, in the mean
    switches_per_s: float  # clock requests of a GPU
    within_budget: bool


class Case(msgspec.Struct, kw_only=True):
    """One thing that the run does not tell, as it could be; and what `auto` would then come to."""

    what: str
    saved_pct: float
    slowdown_pct: float


class MonthSaved(msgspec.Struct, kw_only=True):
    """What the recommended policy would save in 30 days of the recorded job; None: not asked for, or not known."""

    policy: str
    kwh: Estimate
    currency: str = ""
    cost: Estimate | None = None
    co2e_kg: Estimate | None = None
    covers: str = ""
    notes: list[str] = []


class WhatIf(msgspec.Struct, kw_only=True):
    """Findings. `recorded_*`: means over the iterations that were replayed; None: not known."""

    schema: int = 2
    emulated: str = ""
    folder: str = ""
    name: str = ""
    gpu: str = ""
    model: str = ""  # the emulated platform that models it
    platform: str = ""  # the platform profile that was put in; empty: none
    ranks: int = 0  # that were recorded
    more_ranks: int = 0  # that were asked for; 0: as many
    more_ms: float | None = None  # an iteration with so many
    budget_pct: float = 1.0
    recorded_ms: float = 0.0
    recorded_watts: float | None = None
    simulated_ms: float = 0.0
    simulated_watts: float = 0.0
    exposed_pct: float = 0.0
    iterations: int = 0
    policies: list[Forecast] = []
    cases: list[Case] = []
    month: MonthSaved | None = None  # None: no tariff is given, or no policy is worth it

    def best(self) -> Forecast | None:
        """The policy that saves most within the budget; None: none saves enough."""
        within = (forecast for forecast in self.policies if forecast.within_budget)
        best = max(within, key=lambda forecast: forecast.saved_pct.value, default=None)
        return best if best and best.saved_pct.value >= WORTH_IT_PCT else None

    notes: list[str] = []
    next_steps: list[NextStep] = []
