# SPDX-License-Identifier: Apache-2.0
"""`powerccl report` in the terminal: the run's summary, then where time and energy went."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group
from rich.text import Text

from powerccl.analysis.attribution import EnergyFindings, KindEnergy
from powerccl.analysis.link import NO_PROFILE
from powerccl.analysis.report import ReportFindings
from powerccl.analysis.report_findings import ClockEffect, Iterations, LinkRow, Peers, Straggler
from powerccl.console import Console
from powerccl.quantities import (
    NOT_KNOWN,
    byte_size,
    change,
    joules,
    mhz,
    microseconds,
    number,
    percent,
    plural,
    said_once,
    seconds,
    watts,
    window,
)
from powerccl.reports.headline import headline
from powerccl.reports.host_clocks import host_clock_lines
from powerccl.reports.next_steps import print_next_steps
from powerccl.reports.table import Table
from powerccl.reports.terminal import (
    NARROW,
    heading,
    print_summary,
    warning,
)
from powerccl.reports.time_bars import BAR, bar_parts, used
from powerccl.reports.ways import print_possible

NOT_TIMED = "no collective was timed on all ranks of a host"
MOST_RANKS, MOST_ROWS = 16, 12
MOST_HOSTS = 8
LEAST_SHARE = 0.001  # of communication's time: what is shorter in all is counted, not shown


def print_report(console: Console, findings: ReportFindings) -> None:
    """The whole report."""
    if findings.window_s:
        console.print()
        console.print(warning(f"times, energies and calls are those of {window(findings.window_s)} only"))
    whole = "this window" if findings.window_s else "whole run"
    print_summary(console, findings.summary, whole, headline(findings), findings.cost)
    if findings.ranks:
        _print_parts(console, findings)
    if findings.summary.ranks and (findings.peers.ranks or findings.peers.reason):
        console.print(straggler_line(findings.peers, findings.summary.rank_name))
    for line in host_clock_lines(findings.peers.hosts):
        console.print(line)
    if findings.link:
        console.print()
        console.print(_link(findings, console.width < NARROW))
    _print_energy(console, findings)
    if findings.clock_effects:
        console.print()
        console.print(_clock_effects(findings.clock_effects, findings.summary.rank_name))
    if findings.ways:
        print_possible(console, findings.ways)
    for note in findings.notes:
        console.print(Text(note, style="dim") if "NCCL kernels found" in note else warning(note))
    print_next_steps(console, findings.next_steps)


def iterations_line(iterations: Iterations) -> str:
    """How many iterations there were and how long they took, in a sentence."""
    if not iterations.found:
        return f"no iterations found: {iterations.reason}"
    text = (
        f"{plural(iterations.found, 'iteration')} of {plural(iterations.operations, 'operation')},"
        f" {seconds(iterations.median_s)} median, 90 % of them {seconds.between(iterations.p5_s, iterations.p95_s)}"
    )
    if iterations.joules is not None:
        text += f", {joules(iterations.joules, 1.96 * (iterations.joules_error or 0.0))} on average, all GPUs"
        # The first and the last may reach beyond the samples.
        if iterations.joules_of < iterations.found - 2:
            text += f" (over the {iterations.joules_of:,} that were sampled)"
    if iterations.reason:
        text += f"; {iterations.reason}"
    return text + ("" if iterations.by == "kernels" else "; by host calls, which may run ahead of the GPU")


def iterations_lines(findings: ReportFindings, shown: list[Iterations]) -> list[str]:
    """The same of each host and job, what many have in common once."""
    if len(findings.iterations) == 1:
        return [iterations_line(each) for each in shown]
    lines = said_once(f"{iterations_of(findings, each)}: {iterations_line(each)}" for each in shown)
    more = [f"… {len(lines) - MOST_HOSTS} more in --json"] if len(lines) > MOST_HOSTS else []
    return lines[:MOST_HOSTS] + more


def straggler_line(peers: Peers, name: Callable[[int], str] = str) -> str:
    """Which rank the others wait for, in a sentence; `name`: how a rank is printed."""
    if not peers.ranks:
        return f"the time of waiting for peers is not known: {peers.reason or NOT_TIMED}"
    steady = [row for row in peers.ranks if row.steady]
    known = f"{percent(peers.matched_pct)} of the kernels could be compared"
    if not steady:
        worst = peers.ranks[0]
        often = (
            f"; rank {name(worst.rank)} most often, in {percent(worst.last_pct)} of the collectives"
            if worst.last
            else ""
        )
        return f"no rank is a straggler{often} ({known})"
    lines = []
    for row in steady[:3]:
        middle = (
            ""
            if row.behind_p25_us is None or row.behind_p75_us is None
            else (f"; middle half {seconds.between(row.behind_p25_us / 1e6, row.behind_p75_us / 1e6)}")
        )
        behind = microseconds(row.behind_us)
        lines.append(
            f"rank {name(row.rank)} is a straggler: it arrives last in {percent(row.last_pct)} of"
            f" {plural(row.collectives, 'collective')}, {behind} behind the next rank (median{middle});"
            f" this costs {cost_text(row)} ({known})"
        )
    return "\n".join(lines)


def cost_text(row: Straggler) -> str:
    """What a straggler costs its peers: exactly where exposed waiting is known."""
    if row.cost_s is not None:
        return seconds(row.cost_s)
    return NOT_KNOWN if row.cost_at_most_s is None else f"at most {seconds(row.cost_at_most_s)}"


def _print_parts(console: Console, findings: ReportFindings) -> None:
    console.print()
    console.print(heading("where the time went", findings.summary.emulated))
    for line in iterations_lines(findings, findings.iterations):
        console.print(line)
    console.print(_parts_table(findings, console.width))
    if findings.exposure_why:
        console.print(Text(f"exposed: {findings.exposure_why}", style="dim"))


def iterations_of(findings: ReportFindings, of: Iterations) -> str:
    """Whose iterations those are: the host's and, if several jobs ran on it, the job's by its first rank."""
    alone = sum(each.host == of.host for each in findings.iterations) == 1
    return of.host if alone or not of.ranks else f"{of.host}, rank {findings.summary.rank_name(of.ranks[0])} and others"


def _parts_table(findings: ReportFindings, width: int) -> Group:
    rows, known = findings.ranks, findings.summary.shares.reason == ""
    table = Table()
    narrow = width < NARROW
    table.add_column("rank", justify="right", no_wrap=True)
    for column in ("working time", "communicating", "exposed", "waiting"):
        table.add_column(column, justify="right", no_wrap=True)
    names = [findings.summary.rank_name(parts.rank) for parts in rows[:MOST_RANKS]]
    others = (58 if not narrow else 54) + max([0, *(len(name) - len("rank") for name in names)])
    cells = max(10, min(width, 120) - others)
    table.add_column("", no_wrap=True)
    for parts in rows[:MOST_RANKS]:
        shares = bar_parts(parts) if known else {}
        waiting = parts.exposed_waiting_s if parts.exposed_s is not None else parts.waiting_s
        table.add_row(
            findings.summary.rank_name(parts.rank) + ("*" if parts.by_profiler else ""),
            seconds(parts.span_s),
            *(
                _of(value if known else None, parts.span_s)
                for value in (parts.communication_s, parts.exposed_s, waiting)
            ),
            _bar(shares, parts.span_s, cells),
        )
    table.add_more(len(rows) - MOST_RANKS)
    shown = used(rows[:MOST_RANKS]) if known else []
    legend = Text()
    for name, word, mark, style, _ in BAR:
        if name in shown and mark.strip():
            legend.append(f"{mark} ", style=style).append(f"{word}  ", style="dim")
    legend.append("\n" * bool(shown) + "shares are of each rank's working time", style="dim")
    if any(row.by_profiler for row in rows):
        legend.append(", * from its profiler's trace", style="dim")
    return Group(table, legend)


def _of(value: float | None, span: float) -> str:
    return NOT_KNOWN if value is None or span <= 0 else percent(100 * value / span)


def _bar(shares: dict[str, float], span: float, cells: int) -> Text:
    line = Text()
    if span <= 0:
        return line
    drawn, total = 0, 0.0
    for name, _, mark, style, _ in BAR:
        total += shares.get(name, 0.0)
        until = min(cells, round(cells * total / span))
        line.append(mark * max(until - drawn, 0), style=style)
        drawn = max(drawn, until)
    return line


def size_texts(findings: ReportFindings) -> Callable[[str, int], str]:
    """What a class of sizes is called in every table of a report: its median call's size, as in the summary's."""
    medians = {(row.pattern, row.size_class_bytes): row.median_bytes for row in findings.summary.patterns}
    return lambda pattern, size_class: byte_size(medians.get((pattern, size_class)) or size_class)


def _link(findings: ReportFindings, narrow: bool) -> Table:
    rows: list[LinkRow] = findings.link
    least = LEAST_SHARE * sum(row.time_all_ranks_s for row in rows)
    shown = [row for row in rows if row.time_all_ranks_s >= least][:MOST_ROWS]
    size_text = size_texts(findings)
    beside = any(row.profile_gbs is not None or row.reason != NO_PROFILE for row in shown)
    table = Table()
    table.add_column("bus bandwidth", no_wrap=True)
    whose = f"profile {findings.platform}" if findings.platform else "profile"
    for column in ("size", "kernels", "GB/s", "without waiting", *((whose,) if beside else ())):
        table.add_column(column, justify="right", no_wrap=True)
    if beside:
        table.add_column("change from it", justify="right")
    for row in shown:
        against = (
            change(row.change_pct) if row.change_pct is not None else Text("" if narrow else row.reason, style="dim")
        )
        table.add_row(
            row.pattern.replace("_", "-"),
            size_text(row.pattern, row.size_class_bytes),
            f"{row.operations:,}",
            number(row.busbw_gbs),
            number(row.transfer_gbs),
            *((number(row.profile_gbs), against) if beside else ()),
        )
    table.add_more(len(rows) - len(shown))
    if narrow and beside:
        reasons = dict.fromkeys(row.reason for row in shown if row.reason)
        table.below += [Text(f"no change: {reason}", style="dim") for reason in reasons]
    return table


def _print_energy(console: Console, findings: ReportFindings) -> None:
    energy = findings.energy
    if not energy.kinds:
        if energy.reason and findings.summary.ranks:
            console.print()
            console.print(Text(f"the energy of each kind of communication is not known: {energy.reason}", style="dim"))
        return
    table = Table()
    table.add_column("energy per GPU", no_wrap=True)
    narrow = console.width < NARROW
    wide = ("sum, all GPUs",)
    for column in ("size", "kernels", "per operation", "95 % interval", "power", *(() if narrow else wide)):
        table.add_column(column, justify="right", no_wrap=True)
    least = LEAST_SHARE * sum(kind.time_s for kind in energy.kinds)
    ranked = sorted(energy.kinds, key=lambda kind: -(kind.joules or 0.0))
    shown = [kind for kind in ranked if kind.resolved or kind.time_s >= least][:MOST_ROWS]
    size_text = size_texts(findings)
    said = [f"{kind_text(kind, size_text)}: {kind.reason}" for kind in shown if kind.reason]
    for kind in shown:
        between = joules.between(kind.low, kind.high)
        name, size = kind.pattern.replace("_", "-"), size_text(kind.pattern, kind.size_class_bytes)
        cells = [name, size, f"{kind.operations:,}"]
        if kind.resolved:
            cells += [joules(kind.joules_per_operation), between, watts(kind.watts)]
            cells += [] if narrow else [joules(kind.joules)]
        else:
            cells += [NOT_KNOWN, between, NOT_KNOWN] + ([] if narrow else [""])
        table.add_row(*cells)
    table.add_more(len(energy.kinds) - len(shown))
    table.add_hidden(wide if narrow else ())
    console.print()
    console.print(table)
    if energy.reason:
        console.print(Text(f"energy of operations: {energy.reason}", style="dim"))
    totals = [f"{word} {figure}" for word, figure in energy_parts(energy)]
    if totals:
        console.print(Text(f"energy of all GPUs: {', '.join(totals)}", style="dim"))
    elif energy.parts_reason:
        console.print(Text(f"the parts of the energy are not known: {energy.parts_reason}", style="dim"))
    for line in said[:6]:
        console.print(Text(line, style="dim"))


def energy_parts(energy: EnergyFindings) -> list[tuple[str, str]]:
    """What the energy went into: parts that add up to the whole. What one of the first two gains, the other loses."""
    low, high = energy.joules_communication_low, energy.joules_communication_high
    half = (high - low) / 2 if low is not None and high is not None else None
    parts = (
        ("communication", energy.joules_communication, half),
        ("computation", energy.joules_computation, half),
        ("idle", energy.joules_idle, None),
        ("unexplained", energy.joules_unexplained, None),
    )
    return [(word, joules(value, spread)) for word, value, spread in parts if value is not None]


def kind_text(kind: KindEnergy, size_text: Callable[[str, int], str]) -> str:
    """Its pattern and size."""
    return f"{kind.pattern.replace('_', '-')} {size_text(kind.pattern, kind.size_class_bytes)}"


def _clock_effects(effects: list[ClockEffect], name: Callable[[int], str]) -> Table:
    table = Table()
    table.add_column("lowered clock", no_wrap=True)
    for column in ("times", "of the time", "communicating", "clock", "power in comm."):
        table.add_column(column, justify="right", no_wrap=True)
    for row in effects[:MOST_RANKS]:
        power = NOT_KNOWN
        if row.lowered_watts is not None:
            power = f"{watts(row.communication_watts)} → {watts(row.lowered_watts)}"
        table.add_row(
            f"rank {name(row.rank)}",
            f"{row.windows:,}",
            percent(row.lowered_pct),
            percent(row.communication_pct),
            f"{mhz(row.elsewhere_mhz)} → {mhz(row.lowered_mhz)}",
            power,
        )
    table.add_more(len(effects) - MOST_RANKS)
    return table
