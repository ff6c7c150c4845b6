# SPDX-License-Identifier: Apache-2.0
"""What MPI came to, in the terminal: a bar, times, the calls, and each rank's wait against its execution."""

from __future__ import annotations

from collections import Counter

from rich.text import Text

from powerccl.analysis.findings import CpuEnergy, MpiImbalance, MpiRank, MpiRow, MpiSummary
from powerccl.console import Console
from powerccl.quantities import at_least, byte_size, exact, microseconds, percent, plural, seconds, watts
from powerccl.reports.table import Table

EXECUTING, TRANSFERRING, WAITING, ASLEEP = "yellow", "bright_cyan", "red", "green"
CELLS = {EXECUTING: "░", TRANSFERRING: "█", WAITING: "▓", ASLEEP: "▁"}
WORDS = {
    EXECUTING: "outside MPI",
    TRANSFERRING: "transferring",
    WAITING: "waiting, awake",
    ASLEEP: "waiting, asleep",
}
NARROW = 84
MAX_ROWS = 8
MAX_RANKS = 8
MAX_COMMS = 5
UNEVEN = 0.005  # of the run: collectives that wait less are even enough
WORTH_SHOWING = 0.001  # of the time in MPI: calls below are left to summary.json


def print_mpi(console: Console, mpi: MpiSummary) -> None:
    """The MPI part of a summary."""
    width = min(console.width, 100)
    narrow = console.width < NARROW
    console.print()
    if not mpi.rows and mpi.cpu_s is None:
        console.print("No rank recorded anything before it ended.")
        return
    console.print(_bar(mpi, width))
    console.print(key())
    console.print()
    console.print(_totals(mpi, narrow))
    if mpi.threads_per_rank > 1:
        threads = exact(round(mpi.threads_per_rank, 1), "threads")
        words = f"Times of a rank are sums over {threads} that call MPI; shares are of the time of all of them."
        console.print(words, style="dim")
    console.print(processors(mpi.energy), style="dim")
    if mpi.rows:
        console.print()
        console.print(_calls(mpi, narrow))
    if sum(comm.nranks > 0 for comm in mpi.comms) > 1:
        console.print()
        console.print(_comms(mpi))
    if len(mpi.by_rank) > 1:
        console.print()
        for line in rank_lines(mpi, width):
            console.print(line, no_wrap=True, overflow="crop")
    if worst := late_rank(mpi):
        console.print(_latest(mpi, worst))


def late_rank(mpi: MpiSummary) -> MpiImbalance | None:
    """The collective whose last rank costs the others most; None: the ranks are even enough."""
    worst = mpi.imbalance[0] if mpi.imbalance else None
    uneven_s = UNEVEN * (mpi.wall_s or mpi.time_per_rank_s)
    return worst if worst and worst.wait_max_s - worst.wait_min_s >= uneven_s else None


def parts(execution_s: float, of_it: MpiRank | MpiSummary, ranks: int = 1) -> list[tuple[str, float]]:
    """Style and seconds of each part of a rank's time, in the order pictured."""
    asleep = min(of_it.sleep_s, of_it.wait_s)
    return [
        (EXECUTING, execution_s),
        (TRANSFERRING, of_it.transfer_s / ranks),
        (WAITING, (of_it.wait_s - asleep) / ranks),
        (ASLEEP, asleep / ranks),
    ]


def bar(shares: list[tuple[str, float]], whole: float, cells: int) -> Text:
    """Parts of a whole as a bar of that many cells; what is there at all and rounds to nothing takes none."""
    line = Text()
    done, before = 0.0, 0
    for style, part in shares:
        done += part
        upto = min(round(done / whole * cells), cells) if whole > 0 else 0
        line.append(CELLS[style] * (upto - before), style=style)
        before = max(upto, before)
    return line


def _bar(mpi: MpiSummary, width: int) -> Text:
    label = f" {percent(mpi.share_pct)} of the run in MPI"
    whole = (mpi.wall_s or 0.0) * mpi.threads_per_rank or mpi.time_per_rank_s
    elsewhere = max(whole - mpi.time_per_rank_s, 0.0)
    return bar(parts(elsewhere, mpi, mpi.ranks), whole, max(width - len(label), 10)).append(label)


def key() -> Text:
    """What the cells of bars mean."""
    line = Text()
    for style, word in WORDS.items():
        line.append(CELLS[style] * 2, style=style).append(f" {word}   ", style="dim")
    return line


def _totals(mpi: MpiSummary, narrow: bool) -> Table:
    table = Table()
    table.add_column("", no_wrap=True)
    for column in ("time / rank", "of the run", "all ranks"):
        table.add_column(column, justify="right", no_wrap=True)
    if not narrow:
        table.add_column("", style="dim")
    wall_s = mpi.wall_s

    def row(
        name: str | Text, per_rank_s: float | None, all_s: float | None, words: str = "", threads: float = 1.0
    ) -> None:
        share = None if not wall_s or per_rank_s is None else per_rank_s / wall_s / threads * 100
        if share is not None and share > 100:  # CPU time of threads that do not call MPI
            share = None
        cells = [name, seconds(per_rank_s), percent(share), "" if all_s is None else seconds(all_s), words]
        table.add_row(*cells[: 4 if narrow else 5])

    row("whole run", wall_s, None)
    of_threads = mpi.threads_per_rank
    row("in MPI", mpi.time_per_rank_s, mpi.time_s, threads=of_threads)
    row(Text("  transferring", style=TRANSFERRING), mpi.transfer_per_rank_s, mpi.transfer_s, threads=of_threads)
    row(Text("  waiting", style=WAITING), mpi.wait_per_rank_s, mpi.wait_s, threads=of_threads)
    slept = plural(mpi.sleeps, "sleep") if mpi.sleeps else ""
    if slept and (mpi.oversleep_us or 0.0) >= 1:
        slept += f", each {microseconds(mpi.oversleep_us)} longer than requested"
    row(Text("    asleep", style=ASLEEP), mpi.sleep_per_rank_s, mpi.sleep_s, slept, of_threads)
    per_rank = None if mpi.cpu_s is None else mpi.cpu_s / mpi.ranks
    row("CPU time used", per_rank, mpi.cpu_s, "without the time asleep" if mpi.sleep_s else "")
    return table


def processors(energy: CpuEnergy) -> str:
    """What the hosts' processors used, or why that is not known, and how idle they were."""
    of_hosts = f"processors of {plural(energy.hosts, 'host')}" if energy.hosts > 1 else "processors"
    idle = "" if energy.idle_pct is None else f"{of_hosts}: idle {percent(energy.idle_pct)} of the time; "
    if energy.joules is None and energy.joules_at_least is None:
        return f"{idle}energy not known: {energy.reason}"
    power = f" ({watts(energy.average_watts)})" if energy.average_watts is not None else ""
    return f"{idle or of_hosts + ': '}{at_least(energy.joules, energy.joules_at_least)}{power}, packages and DRAM"


def _calls(mpi: MpiSummary, narrow: bool) -> Table:
    table = Table()
    table.add_column("call", no_wrap=True)
    columns = ("size", "calls", "time / rank", "waiting", "mean") if narrow else (
        "size", "calls", "time / rank", "waiting", "asleep", "transferring", "mean"
    )  # fmt: skip
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    shown = [row for row in mpi.rows if row.time_s >= WORTH_SHOWING * mpi.time_s][:MAX_ROWS]
    for row in shown:
        table.add_row(*_call(row, narrow))
    table.add_more(len(mpi.rows) - len(shown), " in summary.json")
    return table


def _call(row: MpiRow, narrow: bool) -> list[str]:
    size = row.bytes / row.calls if row.calls else 0.0
    cells = [
        row.function,
        byte_size(round(size)) if row.bytes else "",
        f"{row.calls:,}",
        seconds(row.time_per_rank_s),
        seconds(row.wait_per_rank_s),
    ]
    if not narrow:
        cells += [seconds(row.sleep_per_rank_s), seconds(row.transfer_per_rank_s)]
    return [*cells, seconds(row.time_s / row.calls if row.calls else None)]


def _comms(mpi: MpiSummary) -> Table:
    comms, names = mpi.comms, Counter(comm.name for comm in mpi.comms)
    table = Table()
    table.add_column("communicator", no_wrap=True)
    for column in ("ranks", "calls", "time / member", "waiting"):
        table.add_column(column, justify="right", no_wrap=True)
    for comm in comms[:MAX_COMMS]:
        members = f"rank {mpi.rank_name(comm.ranks[0])} and others"
        name = comm.name or (members if comm.nranks else "not named (MPI_Wait, …)")
        if comm.name and names[comm.name] > 1:
            name += f" of {members}"
        count = len(comm.ranks)
        size = str(comm.nranks) if comm.nranks else ""
        table.add_row(name, size, f"{comm.calls:,}", seconds(comm.time_s / count), seconds(comm.wait_s / count))
    table.add_more(len(comms) - MAX_COMMS, " in summary.json")
    return table


def _pictured(ranks: list[MpiRank]) -> list[MpiRank]:
    """All ranks, or of many those that waited least and most, in the order of waiting."""
    known = [rank for rank in ranks if rank.span_s]
    if len(known) <= MAX_RANKS:
        return known
    by_wait = sorted(known, key=lambda rank: rank.wait_s)
    return by_wait[: MAX_RANKS // 2] + by_wait[-MAX_RANKS // 2 :]


def rank_lines(mpi: MpiSummary, width: int) -> list[Text]:
    """Each rank's wait against its execution, as bars; of many ranks those that waited least and most."""
    ranks, of = _pictured(mpi.by_rank), len(mpi.by_rank)
    if not ranks:
        return []
    lines = [Text(f"the ranks that waited least and most, of {of}", style="dim")] if len(ranks) < of else []
    longest = max((rank.span_s or 0.0) * rank.threads for rank in ranks)
    names = {rank.rank: mpi.rank_name(rank.rank) for rank in ranks}
    name_width = max(map(len, names.values()))
    for rank in ranks:
        label = f" {seconds(rank.wait_s)} waiting"
        cells = max(width - name_width - len("rank  ") - 16, 10)
        line = Text(f"rank {names[rank.rank]:>{name_width}} ", style="dim")
        line.append_text(bar(parts(rank.execution_s or 0.0, rank), longest, cells))
        lines.append(line.append(label))
    return lines


def _latest(mpi: MpiSummary, worst: MpiImbalance) -> Text:
    name = f" on {worst.comm_name}" if worst.comm_name else ""
    return Text.assemble(
        ("imbalance  ", "dim"),
        f"{worst.function}{name}: {percent(worst.imbalance_pct)} of its time;"
        f" rank {mpi.rank_name(worst.latest_rank)} comes last "
        f"(it waited {seconds(worst.wait_min_s)}, others up to {seconds(worst.wait_max_s)})",
    )
