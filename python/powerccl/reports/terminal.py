# SPDX-License-Identifier: Apache-2.0
"""Summaries in the terminal. Rich follows NO_COLOR and the width; what does not fit a narrow terminal is left out."""

from __future__ import annotations

from rich.text import Text

from powerccl.analysis.cost import Cost
from powerccl.analysis.findings import PatternRow, RunSummary, Shares
from powerccl.console import Console
from powerccl.quantities import (
    age,
    at_least,
    byte_size,
    joules,
    mhz,
    microseconds,
    number,
    percent,
    plural,
    seconds,
    watts,
)
from powerccl.reports.cost import cost_lines, small_print
from powerccl.reports.job import Line, closing, of_gpus, opening, record_line
from powerccl.reports.mpi import print_mpi
from powerccl.reports.phases import phases_table
from powerccl.reports.table import Table
from powerccl.traces.run_info import model_label

COMMUNICATION, ELSEWHERE = "bright_cyan", "yellow"
NARROW = 84
MAX_ROWS = 12
LEAST_STARTUP_S = 1.0  # shorter start-ups change no printed share of a run; half of it would be noise


def error_console() -> Console:
    """A console on stderr, where everything about a job goes that is not the job's own output."""
    return Console(stderr=True)


def heading(text: str, emulated: str = "") -> Text:
    """A section's heading; emulated and simulated results always say so."""
    line = Text(text, style="bold")
    if emulated:
        line.append(f"  {model_label(emulated)}", style="bold magenta")
    return line


def warning(text: str) -> Text:
    """A line that deserves attention."""
    return Text.assemble(("! ", "bold yellow"), text)


def print_summary(
    console: Console, summary: RunSummary, whole: str = "whole run", headline: str = "", cost: Cost | None = None
) -> None:
    """The whole summary of a run, below its headline. `whole`: what the first row's times are of."""
    console.print()
    for line in opening(summary, headline):
        console.print(_styled(line))
    if of_gpus(summary):
        _print_gpu_part(console, summary, whole)
    if summary.mpi:
        print_mpi(console, summary.mpi)
    if cost:
        print_cost(console, cost)
    for line in closing(summary):
        console.print(_styled(line))
    console.print()
    console.print(_styled(record_line(summary)), overflow="fold")


def print_cost(console: Console, cost: Cost) -> None:
    """What the run costs and emits, a line for each stretch of time, and what these figures count."""
    console.print()
    for text in cost_lines(cost):
        console.print(text)
    for text in small_print(cost):
        console.print(Text(text, style="dim"))


def _styled(line: Line) -> Text:
    return warning(line.text) if line.style == "warning" else Text(line.text, style=line.style)


def _print_gpu_part(console: Console, summary: RunSummary, whole: str) -> None:
    if summary.shares.communicating_pct is not None:
        console.print()
        console.print(_share_bar(summary.shares, min(console.width, 100)))
    for line in share_lines(summary.shares):
        console.print(Text(line, style="dim"))
    console.print()
    console.print(_totals(summary, console.width < NARROW, whole))
    if summary.patterns:
        console.print()
        console.print(_patterns(summary.patterns, console.width < NARROW))
    if summary.phases:
        console.print()
        console.print(phases_table(summary.phases))


def _share_bar(shares: Shares, width: int) -> Text:
    exposed, busy = shares.exposed_pct or 0.0, shares.communicating_pct or 0.0
    label = f" {shares_text(shares)}"
    cells = max(width - len(label), 10)
    first, both = round(cells * exposed / 100), round(cells * busy / 100)
    bar = Text("█" * first, style=COMMUNICATION)
    bar.append(("█" if shares.exposed_pct is None else "▒") * (both - first), style=COMMUNICATION)
    return bar.append("░" * (cells - both), style=ELSEWHERE).append(label)


def shares_text(shares: Shares) -> str:
    """`communicating 27 %, exposed 6.5 % of the working time`."""
    if shares.communicating_pct is None:
        return f"communicating: not known, because {shares.reason}"
    exposed = "" if shares.exposed_pct is None else f", exposed {exposed_text(shares)}"
    return f"communicating {communicating_text(shares)}{exposed} of the working time"


def communicating_text(shares: Shares) -> str:
    """`27 %`, or `at least 27 %` where some calls were not timed."""
    share = shares.communicating_pct
    return at_least(None if shares.at_least else share, share, show=percent)


def exposed_text(shares: Shares) -> str:
    """`6.5 %`, or `at least 6.5 %` where records are missing."""
    share = shares.exposed_pct
    return at_least(None if shares.uncovered_pct is not None else share, share, show=percent)


def share_lines(shares: Shares) -> list[str]:
    """What the shares are of, and what is in none of them."""
    lines = []
    if shares.communicating_pct is None and shares.span_s:
        lines.append(shares_text(shares))
    parts = []
    if shares.span_s:
        parts.append(f"working time {seconds(shares.span_s)} per rank")
    if shares.startup_s is not None and shares.startup_s >= LEAST_STARTUP_S:
        energy = "" if shares.startup_joules is None else f" and {joules(shares.startup_joules)}"
        parts.append(f"start-up {seconds(shares.startup_s)}{energy}, before {shares.startup_until} and in no share")
    lines += ["; ".join(parts)] if parts else []
    lines += [f"start-up: {text}"] if (text := startup_text(shares)) else []
    if shares.uncovered_pct is not None:
        lines.append(f"records are missing: {percent(shares.uncovered_pct)} of the ranks' working time is not covered")
    return lines


def startup_text(shares: Shares) -> str:
    """`23.8 s, 4.42 kJ until the first communicator, ...`: what a start-up that deserves it consists of."""
    if (shares.startup_s or 0.0) < LEAST_STARTUP_S or len(shares.startup_parts) < 2:
        return ""
    return ", then ".join(
        seconds(part.time_s) + ("" if part.joules is None else f" and {joules(part.joules)}") + f" until {part.until}"
        for part in shares.startup_parts
    )


def _totals(summary: RunSummary, narrow: bool, whole: str) -> Table:
    energy, communication = summary.energy, summary.communication
    table = Table()
    energy_head = f"energy, {plural(len(summary.gpus), 'GPU')}" if len(summary.gpus) > 1 else "energy"
    for column in ("", "time", energy_head, "power / GPU", "clock"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    if not narrow:
        table.add_column("", style="dim")
    other = None if energy.joules is None or communication.joules is None else energy.joules - communication.joules
    spread = f" ±{joules(communication.uncertainty_joules)}" if communication.uncertainty_joules else ""
    spread = spread if communication.joules is not None else ""
    rows: list[list[str | Text]] = [
        [
            whole,
            seconds(summary.wall_s),
            at_least(energy.joules, energy.joules_at_least),
            watts(energy.average_watts),
            "",
            _source(summary),
        ]
    ]
    if summary.ranks:
        rows.append(
            [
                Text("communication", style=COMMUNICATION),
                at_least(
                    None if communication.incomplete else communication.time_s, communication.time_s, show=seconds
                ),
                at_least(communication.joules, communication.joules_at_least, communication.uncertainty_joules),
                watts(communication.average_watts),
                mhz(communication.clock_mhz),
                _coverage(summary),
            ]
        )
    if summary.ranks and communication.time_s is not None:
        # What is not recorded may have been communication.
        unknown = summary.wall_s is None or communication.incomplete
        elsewhere_s = None if unknown else (summary.wall_s or 0.0) - communication.time_s
        rows.append(
            [
                Text("elsewhere", style=ELSEWHERE),
                seconds(elsewhere_s),
                joules(other),
                watts(communication.other_average_watts),
                mhz(communication.other_clock_mhz),
                "",
            ]
        )
    for row in rows:
        table.add_row(*row[: 5 if narrow else 6])
        if narrow and row[5]:
            table.below.append(Text(f"{row[0]}: {row[5]}", style="dim"))
    return table


def _source(summary: RunSummary) -> str:
    energy = summary.energy
    if energy.joules is None and energy.joules_at_least is None:
        return energy.reason
    words = {"counter": "energy counter", "power+counter": "power, scaled to the energy counter"}
    text = words.get(energy.source, f"{energy.source} samples") + ","
    if energy.sample_ms is not None and energy.update_ms is not None:
        text += f" sampled every {age(energy.sample_ms / 1e3)}"
        if energy.update_ms > energy.sample_ms * 1.5:
            text += f", updated every {age(energy.update_ms / 1e3)}"
    text = text.removesuffix(",")
    return f"{text}; {energy.reason}" if energy.reason else text


def _coverage(summary: RunSummary) -> str:
    counted = summary.communication
    parts = []
    if counted.timed_calls < counted.calls:
        parts.append(f"{counted.timed_calls:,} of {plural(counted.calls, 'call')} timed")
    if counted.estimated_s:
        parts.append(f"{seconds(counted.estimated_s)} more estimated")
    if counted.joules is not None and not counted.resolved:
        parts.append("energy in proportion to time: shorter than the sampling interval")
    return "; ".join(parts)


def _patterns(rows: list[PatternRow], narrow: bool) -> Table:
    table = Table()
    table.add_column("pattern", no_wrap=True)
    wide = ("energy / op", "timed")
    for column in ("size", "calls", "time / GPU", "median", "bus GB/s", *(() if narrow else wide)):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows[:MAX_ROWS]:
        known = row.timed or row.estimated_s  # what was not timed is not known, never zero
        time = seconds(row.time_s + row.estimated_s if known else None)
        cells = [
            row.pattern.replace("_", "-"),
            byte_size(row.median_bytes),
            f"{row.calls:,}" + (f" +{row.captured_calls:,} captured" if row.captured_calls else ""),
            f"~{time}" if row.estimated_s > 0.01 * row.time_s else time,
            microseconds(row.median_us),
            number(row.busbw_gbs),
        ]
        table.add_row(*cells, *([] if narrow else [_joules_per_operation(row), f"{row.timed:,}"]))
    table.add_more(len(rows) - MAX_ROWS, " in summary.json")
    table.add_hidden(wide if narrow else ())
    return table


def _joules_per_operation(row: PatternRow) -> str:
    """With half of its interval, where that is known."""
    known = row.joules_low is not None and row.joules_high is not None
    return joules(row.joules_per_operation, ((row.joules_high or 0.0) - (row.joules_low or 0.0)) / 2 if known else None)
