# SPDX-License-Identifier: Apache-2.0
"""What policies would have saved, in the terminal."""

from __future__ import annotations

from rich.text import Text

from powerccl.analysis.whatif.findings import Forecast, Range, WhatIf
from powerccl.console import Console
from powerccl.quantities import change, change_between, exact, joules, mhz, number, percent, plural, seconds, watts
from powerccl.reports.table import Table
from powerccl.reports.terminal import COMMUNICATION, ELSEWHERE, NARROW, heading, warning

HIDDEN = "cyan"
WIDE = 110  # room for a word on what was chosen in each row; below, it follows the table


def print_what_if(console: Console, found: WhatIf, of_gpus: bool = False) -> None:
    """The whole of it; with a row for each GPU where asked for."""
    narrow = console.width < NARROW
    console.print()
    console.print(heading(f"powerccl whatif · {found.name}", found.emulated))
    facts = [
        plural(len(found.gpus), "GPU"),
        f"platform {found.platform}",
        f"{seconds(found.covered_s)} and {joules(found.joules)} recorded",
    ]
    console.print(Text(" · ".join(facts), style="dim"))
    console.print()
    console.print(_bar(found, min(console.width, 100)))
    console.print()
    console.print(_policies(found, narrow, console.width >= WIDE))
    console.print()
    console.print(_advice(found))
    remarks = [f"{forecast.policy}: {remark}" for forecast in found.policies for remark in forecast.remarks]
    if console.width < WIDE:
        remarks += [f"{forecast.policy}: {_what(forecast)}" for forecast in found.policies if _what(forecast)]
    for line in remarks:
        console.print(Text(line))
    for note in found.notes:
        console.print(warning(note))
    if of_gpus:
        console.print()
        console.print(_gpus(found, narrow))
    console.print()
    console.print(Text("predicted, not measured; the prediction assumes:", style="dim"))
    for text in found.assumptions:
        console.print(Text(f"- {text}", style="dim"))


def _bar(found: WhatIf, width: int) -> Text:
    """Exposed communication, hidden communication, computation alone, as shares of the time."""
    exposed = min(max(found.exposed_pct, 0.0), 100.0)
    hidden = min(max(found.communication_pct - exposed, 0.0), 100.0 - exposed)
    about = " ~" if found.exposure_source == "estimated" else " "
    label = f"{about}{percent(exposed)} exposed communication"
    if hidden >= 0.5:
        label += f", {percent(hidden)} hidden, of the time"
    cells = max(width - len(label), 10)
    first, second = round(cells * exposed / 100), round(cells * hidden / 100)
    second = min(second, cells - first)
    bar = Text("█" * first, style=COMMUNICATION).append("▒" * second, style=HIDDEN)
    return bar.append("░" * (cells - first - second), style=ELSEWHERE).append(label)


def _policies(found: WhatIf, narrow: bool, wide: bool) -> Table:
    table = Table()
    table.add_column("policy", no_wrap=True)
    table.add_column("energy saved", justify="right", no_wrap=True)
    if not narrow:
        table.add_column("95 %", style="dim", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    if not narrow:
        table.add_column("95 %", style="dim", no_wrap=True)
    for column in ("power / GPU", "low clock", "switches/s"):
        table.add_column(column, justify="right", no_wrap=True)
    if wide:
        table.add_column("chosen", style="dim")
    for forecast in found.policies:
        saved, slower = forecast.saved_pct, forecast.slowdown_pct
        over = not forecast.within_budget
        cells: list[str | Text] = [
            forecast.policy,
            Text(_unsigned(saved.value, saved), style="green" if saved.value >= 1 and not over else ""),
            Text(change(slower.value, wide=slower.high - slower.low), style="red" if over else ""),
            watts.signed(-forecast.saved_watts),
            percent(forecast.low_clock_pct),
            number(forecast.switches_per_s),
        ]
        if not narrow:
            cells[2:2] = [_interval(saved, plus=False)]
            cells[4:4] = [_interval(slower)]
        if wide:
            cells.append(_what(forecast))
        table.add_row(*cells)
    return table


def _what(forecast: Forecast) -> str:
    """The clock or the choice behind a forecast."""
    if forecast.reason:
        return ""
    if forecast.policy == "fixed":
        return mhz(forecast.clock_mhz) if forecast.clock_mhz else "no clock below the maximum"
    if forecast.policy == "auto":
        outside = f", else {mhz(forecast.clock_mhz)}" if forecast.clock_mhz else ""
        return {
            "exposed": "only exposed",
            "fixed": f"fixed at {mhz(forecast.clock_mhz)}" if forecast.clock_mhz else "fixed",
            "slack": "only GPUs that wait for others",
            "exposed and slack": "exposed, and GPUs that wait for others",
            "neither": "sets no clock",
        }.get(forecast.chosen, f"exposed{outside}")
    return ""


def _advice(found: WhatIf) -> Text:
    """The most important sentence."""
    best = max((f for f in found.policies if f.within_budget), key=lambda f: f.saved_pct.value, default=None)
    if best is None or best.saved_pct.value < 0.5 or best.saved_pct.low <= 0:
        return Text(f"no policy would save energy within a slowdown of {exact(found.budget_pct, '%')}", style="bold")
    text = f"{best.policy} would save {_unsigned(best.saved_pct.value, best.saved_pct)} of the energy"
    if best.slowdown_pct.value > 0.05:
        text += f" and take {_unsigned(best.slowdown_pct.value)} more time"
    elif best.slowdown_pct.value < -0.05:
        text += f" and {_unsigned(-best.slowdown_pct.value)} of the time"
    else:
        text += " at the same speed"
    return Text(text, style="bold")


def _gpus(found: WhatIf, narrow: bool) -> Table:
    table = Table()
    table.add_column("rank", justify="right", no_wrap=True)
    if not narrow:
        table.add_column("GPU", no_wrap=True)
    for column in ("energy", "exposed", "computes at", *(f.policy for f in found.policies)):
        table.add_column(column, justify="right", no_wrap=True)
    for gpu in found.gpus:
        saved = [_unsigned(forecast.saved_pct.value) for forecast in gpu.policies]
        row = [joules(gpu.joules), percent(gpu.exposed_pct), mhz(gpu.compute_clock_mhz), *saved]
        table.add_row(str(gpu.rank), *([] if narrow else [gpu.gpu[:12]]), *row)
    return table


def _unsigned(value: float, within: Range | None = None) -> str:
    """A saving in percent, whose sign its column's head says."""
    return change(value, wide=within.high - within.low if within else 0).removeprefix("+")


def _interval(figure: Range, plus: bool = True) -> str:
    text = change_between(figure.low, figure.high)
    return text if plus else text.replace("+", "")
