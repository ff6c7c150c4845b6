# SPDX-License-Identifier: Apache-2.0
"""A search over NCCL's parameters in the terminal: the workload, and what was found and confirmed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from powerccl.bench.workload import STEP, Case
from powerccl.console import Console
from powerccl.patterns import bus_factor
from powerccl.platforms.ways import what_to_write_for
from powerccl.quantities import byte_size, change, joules, microseconds, number, percent, plural, seconds
from powerccl.reports.table import Table
from powerccl.reports.terminal import COMMUNICATION, heading, warning
from powerccl.tune.replay import split

if TYPE_CHECKING:
    from powerccl.bench.workload import Workload
    from powerccl.platforms.parameters import Space
    from powerccl.platforms.rules import Rule
    from powerccl.platforms.tuned import Confirmed, TunedWay
    from powerccl.tune.found import Found

BAR = 24
WIDE = 96  # columns from which on everything has a place


def print_workload(console: Console, workload: Workload, emulated: str = "") -> None:
    """What is tuned, as a histogram of time over pattern and size."""
    console.print()
    console.print(heading("powerccl tune · workload", emulated))
    if not workload.histogram:
        console.print(Text(f"{workload.source}, all alike", style="dim"))
        return
    console.print(Text(f"{workload.source}; bars: share of communication time", style="dim"))
    table = Table(1)
    table.add_column("pattern")
    for name in ("size", "ranks", "calls", "share"):
        table.add_column(name, justify="right")
    table.add_column("")
    tuned = {(case.pattern, case.size_bytes, case.ranks) for case in workload.cases}
    most = max(case.weight for case in workload.histogram)
    for case in workload.histogram[:16]:
        chosen = (case.pattern, case.size_bytes, case.ranks) in tuned
        bar = "█" * max(1, round(BAR * case.weight / most)) if case.weight > 0 else ""
        table.add_row(
            case.pattern,
            byte_size(case.size_bytes),
            str(case.ranks),
            f"{case.calls:,}",
            percent(case.weight * 100),
            Text(bar, style=COMMUNICATION if chosen else "dim"),
        )
    console.print(table)
    more = len(workload.histogram) - 16
    rest = f"; {plural(more, 'more row')}" if more > 0 else ""
    console.print(
        Text(f"tuned: {len(workload.cases)} of them, {percent(workload.covered * 100)} of the time{rest}", style="dim")
    )


def print_space(console: Console, space: Space, every: bool = False) -> None:
    """Which parameters are searched, and with `every` why the others are not."""
    # A product of choices soon has thirty digits: which power of ten it is tells enough.
    size = (
        plural(space.size, "configuration") if space.size < 1e6 else f"10^{math.log10(space.size):.0f} configurations"
    )
    console.print(Text(f"{plural(len(space.parameters), 'parameter')}, {size}", style="dim"))
    if not every:
        return
    table = Table(1)
    for name in ("parameter", "values", "default", "what"):
        table.add_column(name)
    for parameter in space.parameters:
        table.add_row(parameter.name, " ".join(parameter.choices[1:]), parameter.default, parameter.what)
    console.print(table)
    console.print()
    for name, why in sorted(space.left_out.items(), key=lambda item: item[1]):
        console.print(Text(f"{name} is left out: {why}", style="dim"), soft_wrap=True)


def print_found(console: Console, findings: Found, name: str, objective: str) -> None:
    """Everything a search came to."""
    machine = findings.machine
    console.print()
    console.print(heading(f"powerccl tune · {name}", "yes" if findings.emulated else ""))
    failed = sum(outcome.status in ("failed", "hung") for outcome in findings.outcomes)
    pruned = sum(outcome.status == "pruned" for outcome in findings.outcomes)
    facts = [
        f"{machine.ranks} x {machine.gpu}",
        f"NCCL {machine.nccl}" if machine.nccl else "",
        "+".join(machine.links),
        f"objective {objective}",
        f"{plural(len(findings.outcomes), 'configuration')} ({pruned} given up early, {failed} failed)",
        f"{number(findings.trials_per_minute)} a minute",
        seconds(findings.seconds),
    ]
    console.print(Text(" · ".join(fact for fact in facts if fact), style="dim"))
    if findings.confirmed:
        console.print()
        print_confirmed(console, findings.confirmed, machine.ranks)
    console.print()
    if findings.variables or findings.rules:
        variables, ways = split(findings.variables)
        for variable, value in variables.items():
            console.print(Text(f"{variable}={value}", style="bold"))
        print_ways(console, ways)
        print_rules(console, findings.rules)
    for note in findings.notes:
        console.print(warning(note))


def print_confirmed(console: Console, confirmed: Sequence[Confirmed], ranks: int) -> None:
    """Tuned against defaults, case by case, with 95 % intervals."""
    energy = any(each.energy is not None for each in confirmed)
    table = Table(1)
    table.add_column("case", no_wrap=True)
    bandwidth = console.width >= WIDE
    for name in ("default", "tuned", *(["bus GB/s"] if bandwidth else []), "time", *(["energy"] if energy else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for each in confirmed:
        whole = each.pattern == STEP
        factor = 0.0 if whole else bus_factor(each.pattern, ranks) * each.size_bytes / 1e3
        speed = "" if whole else f"{number(factor / each.default_us)} → {number(factor / each.tuned_us)}"
        row: list[str | Text] = [
            Case(each.pattern, each.size_bytes).name,
            microseconds(each.default_us),
            microseconds(each.tuned_us),
            *([speed] if bandwidth else []),
            _change(each.time, each.time_low, each.time_high),
        ]
        if energy and each.energy is not None:
            row.append(_change(each.energy, each.energy_low or 0.0, each.energy_high or 0.0))
        table.add_row(*row)
    console.print(table)
    if energy:
        spent = [f"{joules(e.default_joules)} → {joules(e.tuned_joules)}" for e in confirmed if e.default_joules]
        of = "an iteration" if confirmed[0].pattern == STEP else "an operation"
        console.print(Text(f"{of}, all GPUs: {', '.join(spent[:4])}", style="dim"))


def print_ways(console: Console, ways: Sequence[TunedWay]) -> None:
    """The ways that were found, and how each is brought about."""
    for each in ways:
        pattern = each.pattern.replace("_", "-")
        console.print(Text(f"{pattern} {byte_size(each.size_bytes)}: {each.way}", style="bold"))
    for (pattern, way), text in what_to_write_for(dict.fromkeys((each.pattern, each.way) for each in ways)):
        console.print(Text(f"{pattern.replace('_', '-')}, {way}: {text}", style="dim"))


def print_rules(console: Console, rules: Sequence[Rule]) -> None:
    """Rules for the tuner plugin, a line each."""
    for rule in rules:
        sizes = f"{byte_size(rule.min_bytes)} to {byte_size(rule.max_bytes)}"
        channels = f", {plural(rule.channels, 'channel')}" if rule.channels > 0 else ""
        console.print(Text(f"{rule.pattern} {sizes}: {rule.algorithm}, {rule.protocol}{channels}", style="bold"))


def _change(ratio: float, low: float, high: float) -> Text:
    """A change in percent and, behind it, how far its 95 % interval reaches on both sides."""
    style = "green" if high < 1 else "red" if low > 1 else "dim"
    return Text(change(100 * (ratio - 1), 50 * (high - low)), style=style)
