# SPDX-License-Identifier: Apache-2.0
"""What a run costs and emits, in lines: of the terminal and of the page."""

from __future__ import annotations

from functools import partial

from powerccl.analysis.cost import ITERATIONS, MONTH, Cost, CostRow
from powerccl.quantities import NOT_KNOWN, at_least, grams, money, watt_hours, watts


def amounts(cost: Cost, row: CostRow) -> str:
    """`0.0347 EUR, 53.1 g CO2e, 139 Wh`: what was asked for, then the energy."""

    def error(value: float | None) -> float | None:
        return None if value is None or row.error_pct is None else abs(value) * row.error_pct / 100

    parts = []
    if cost.currency:
        show = partial(_money, cost.currency)
        text = at_least(row.cost, row.cost_at_least, error(row.cost), show)
        parts.append(f"cost {text}" if text == NOT_KNOWN else text)
    if cost.carbon:
        whole, least = _times(row.co2e_kg, 1e3), _times(row.co2e_kg_at_least, 1e3)
        text = at_least(whole, least, error(whole), grams)
        parts.append(f"CO2e {text}" if text == NOT_KNOWN else f"{text} CO2e")
    whole, least = _times(row.kwh, 1e3), _times(row.kwh_at_least, 1e3)
    text = at_least(whole, least, error(whole), watt_hours)
    parts.append(f"energy {text}" if text == NOT_KNOWN else text)
    return ", ".join(parts)


def stretch(cost: Cost, row: CostRow) -> str:
    """What a row is of: `this run`, `1,000 iterations`, `30 days at 572 W`."""
    if row.what == MONTH:
        return f"{MONTH} at {watts(cost.month_watts)}"
    return row.what if row.what == ITERATIONS else f"this {row.what}"


def cost_lines(cost: Cost) -> list[str]:
    """The figures, one line for each stretch."""
    return [f"{stretch(cost, row)}: {amounts(cost, row)}" for row in cost.rows]


def small_print(cost: Cost) -> list[str]:
    """What the figures count and assume, and why something is not known."""
    month = any(row.what == MONTH for row in cost.rows)
    assumed = f"; {MONTH}: this power day and night, at the same price" if month else ""
    return [f"counted: {cost.covers}{assumed}", *cost.notes]


def _money(currency: str, value: float | None, error: float | None = None) -> str:
    return money(value, currency, error)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
