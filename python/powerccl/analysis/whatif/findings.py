# SPDX-License-Identifier: Apache-2.0
"""What a prediction came to: the content of `powerccl whatif --json`."""

from __future__ import annotations

import msgspec


class Range(msgspec.Struct):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


class Forecast(msgspec.Struct, kw_only=True):
    """One policy, on one GPU or all of them; percentages of the run as it was measured.

    NaN, which JSON has as null: not known, since what the model came to cannot be; `reason` says it.
    """

    policy: str
    saved_pct: Range
    slowdown_pct: Range
    saved_watts: float  # mean per GPU over the time it then takes
    low_clock_pct: float  # of the time, at a lowered clock
    switches_per_s: float  # driver calls a GPU
    clock_mhz: int | None = None  # `fixed`: the one; `auto`: outside of windows
    chosen: str = ""  # `auto`: what it comes to
    within_budget: bool = True
    reason: str = ""  # why nothing is known, or why nothing would be managed
    remarks: list[str] = []


class GpuForecast(msgspec.Struct, kw_only=True):
    """One GPU as it was, and under each policy."""

    gpu: str
    rank: int
    host: str
    joules: float | None
    exposed_pct: float
    compute_clock_mhz: float
    policies: list[Forecast]


class WhatIf(msgspec.Struct, kw_only=True):
    """Findings; everything is of `covered_s`, from the first operation replayed to the last."""

    schema: int = 1
    emulated: str = ""
    folder: str = ""
    name: str = ""
    platform: str = ""
    budget_pct: float = 1.0
    covered_s: float = 0.0
    joules: float | None = None  # of what was replayed; None: samples are missing
    communication_pct: float = 0.0
    exposed_pct: float = 0.0
    exposure_source: str = ""
    exposure_why: str = ""
    operations: int = 0
    calls: int = 0
    policies: list[Forecast] = []
    gpus: list[GpuForecast] = []
    assumptions: list[str] = []
    notes: list[str] = []
