# SPDX-License-Identifier: Apache-2.0
"""What policies would save, in the terminal."""

from __future__ import annotations

from rich.text import Text

from powerccl.analysis.cost import MONTH
from powerccl.console import Console
from powerccl.estimate import Estimate
from powerccl.quantities import (
    change,
    change_between,
    exact,
    grams,
    money,
    number,
    plural,
    seconds,
    watt_hours,
    watts,
)
from powerccl.reports.next_steps import print_next_steps
from powerccl.reports.table import Table
from powerccl.reports.terminal import NARROW, heading, warning
from powerccl.whatif.forecasts import Forecast, MonthSaved, WhatIf


def print_what_if(console: Console, what_if: WhatIf) -> None:
    """The whole of it."""
    narrow = console.width < NARROW
    console.print()
    console.print(heading(f"powerccl whatif · {what_if.name}", what_if.emulated))
    drawn = f", {watts(what_if.recorded_watts)} a GPU" if what_if.recorded_watts is not None else ""
    facts = [plural(what_if.ranks, "GPU"), what_if.gpu, f"iterations of {seconds(what_if.recorded_ms / 1e3)}{drawn}"]
    console.print(Text(" · ".join(facts), style="dim"))
    if what_if.more_ms is not None:
        longer = change(100 * (what_if.more_ms / what_if.simulated_ms - 1))
        text = f"on {plural(what_if.more_ranks, 'GPU')}: iterations of {seconds(what_if.more_ms / 1e3)} ({longer})"
        console.print(Text(text))
    console.print()
    console.print(_policies(what_if, narrow))
    console.print()
    console.print(_advice(what_if))
    if what_if.month:
        _print_month(console, what_if.month)
    for note in what_if.notes:
        console.print(warning(note))
    console.print()
    console.print(Text("simulated, not measured; what `auto` would save if", style="dim"))
    for case in what_if.cases:
        text = f"- {case.what}: {_unsigned(case.saved_pct)}, {change(case.slowdown_pct)} time"
        console.print(Text(text, style="dim"))
    console.print(Text(_narrower(what_if), style="dim"))
    print_next_steps(console, what_if.next_steps)


def _policies(what_if: WhatIf, narrow: bool) -> Table:
    table = Table()
    table.add_column("policy", no_wrap=True)
    for name in ("energy saved", "time"):
        table.add_column(name, justify="right", no_wrap=True)
        table.add_column("range", style="dim", no_wrap=True)
    for column in () if narrow else ("power / GPU", "switches/s"):
        table.add_column(column, justify="right", no_wrap=True)
    for forecast in what_if.policies:
        saved, slower = forecast.saved_pct, forecast.slowdown_pct
        over = not forecast.within_budget
        cells: list[str | Text] = [
            forecast.policy,
            Text(_unsigned(saved.value), style="green" if saved.value >= 1 and not over else ""),
            _interval(saved).replace("+", ""),
            Text(change(slower.value), style="red" if over else ""),
            _interval(slower),
        ]
        cells += [] if narrow else [watts.signed(-forecast.saved_watts), number(forecast.switches_per_s)]
        table.add_row(*cells)
    return table


def _advice(what_if: WhatIf) -> Text:
    """The most important sentence."""
    best = what_if.best()
    if best is None:
        text = f"no policy would save energy within a slowdown of {exact(what_if.budget_pct, '%')}"
        return Text(text, style="bold")
    return Text(
        f"{best.policy} would save {_unsigned(best.saved_pct.value)} of the energy {_speed(best)}", style="bold"
    )


def _print_month(console: Console, month: MonthSaved) -> None:
    """What that is worth, with its range, and what it counts."""
    parts: list[str] = []
    if month.cost:
        low = money(month.cost.low, "").rstrip()
        parts.append(f"{money(month.cost.value, month.currency)} ({low} to {money(month.cost.high, month.currency)})")
    if month.co2e_kg:
        grams_of = [1e3 * each for each in (month.co2e_kg.value, month.co2e_kg.low, month.co2e_kg.high)]
        parts.append(f"{grams(grams_of[0])} CO2e ({grams.between(*grams_of[1:])})")
    wh = [1e3 * each for each in (month.kwh.value, month.kwh.low, month.kwh.high)]
    parts.append(f"{watt_hours(wh[0])} ({watt_hours.between(*wh[1:])})")
    saved = ", ".join(parts)
    console.print(Text(f"In {MONTH} of this job it would save {saved}."))
    for text in [f"counted: {month.covers}; the job runs day and night", *month.notes]:
        console.print(Text(text, style="dim"))


def _speed(best: Forecast) -> str:
    slower = best.slowdown_pct.value
    if slower > 0.05:
        return f"and take {_unsigned(slower)} more time"
    return "at the same speed" if slower >= -0.05 else f"and {_unsigned(-slower)} of the time"


def _narrower(what_if: WhatIf) -> str:
    """What would narrow the ranges."""
    if not what_if.platform:
        return "A platform profile tells more: `powerccl profile --set-clocks`, then `powerccl whatif --platform NAME`."
    return f"The clocks that collectives need are those of profile {what_if.platform}."


def _unsigned(value: float) -> str:
    """A saving in percent, whose sign its column's head says."""
    return change(value).removeprefix("+")


def _interval(figure: Estimate) -> str:
    return change_between(figure.low, figure.high)
