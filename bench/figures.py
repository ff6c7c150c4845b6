# SPDX-License-Identifier: Apache-2.0
"""Figures as bench/results keeps them: a value with its unit, its spread, and how many measurements it is of."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Figure = dict[str, float | int | str]
Figures = dict[str, Figure]


def count(value: int, n: int) -> Figure:
    """A number of cases, out of n that ran."""
    return {"value": value, "unit": "1", "low": value, "high": value, "n": n}


def one(value: float, unit: str, n: int = 1) -> Figure:
    """A figure without spread: the worst of n, or an exact number."""
    return {"value": value, "unit": unit, "low": value, "high": value, "n": n}


def spread(values: Sequence[float], unit: str, digits: int = 3) -> Figure:
    """The median, the least and the greatest."""
    return _rounded(min(values), statistics.median(values), max(values), unit, digits, len(values))


def figure(values: Sequence[float], unit: str, digits: int = 3) -> Figure:
    """The median and the quartiles; of fewer than four values the least and the greatest, as they have no quartiles."""
    if len(values) < 4:
        return spread(values, unit, digits)
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return _rounded(low, middle, high, unit, digits, len(values))


def confirmed(stem: str, case: Mapping[str, Any]) -> Figures:
    """Speed-up and energy of a case that `powerccl tune` confirmed: ratios to NCCL's defaults, with their intervals."""
    low, faster, high = (1 / case[name] for name in ("time_high", "time", "time_low"))
    found = {f"{stem}.speedup": _rounded(low, faster, high, "times", 3, case["rounds"])}
    if case["energy"] is not None:
        low, saved, high = (100 * (1 - case[name]) for name in ("energy_high", "energy", "energy_low"))
        found[f"{stem}.energy_saved_pct"] = _rounded(low, saved, high, "%", 2, case["rounds"])
    return found


def _rounded(low: float, value: float, high: float, unit: str, digits: int, n: int) -> Figure:
    return {
        "value": round(value, digits),
        "unit": unit,
        "low": round(low, digits),
        "high": round(high, digits),
        "n": n,
    }
