# SPDX-License-Identifier: Apache-2.0
"""How NCCL's ways of carrying collectives out compare on one machine."""

from __future__ import annotations

from collections.abc import Iterator

from powerccl.console import Console
from powerccl.platforms.ways import (
    COPY_ENGINE,
    PLAIN,
    WAYS,
    Comparison,
    WaysTable,
    compare,
    never_slower_from,
    why_never,
)
from powerccl.quantities import (
    NOT_KNOWN,
    byte_size,
    change,
    microseconds,
)
from powerccl.reports.table import Table


def print_table(console: Console, table: WaysTable) -> None:
    """Every way against plain; and what `powerccl run --ways` would make of it."""
    comparisons = [each for way in WAYS if way != PLAIN for each in compare(table, way)]
    comparisons.sort(key=lambda each: (each.pattern, each.size_bytes, WAYS.index(each.way)))
    besides = sorted({beside for each in comparisons for beside in each.beside_saved_us})
    grid = Table()
    for name in ("pattern", "size", "way"):
        grid.add_column(name, no_wrap=True)
    for name in ("time", "energy", *besides):
        grid.add_column(name, justify="right", no_wrap=True)
    for each in comparisons:
        grid.add_row(*_row(each, besides))
    emulated = ", emulated" if table.emulated else ""
    console.print()
    console.print(
        f"{table.gpus} x {table.gpu}{emulated} · NCCL {table.versions.get('nccl', 'not known')} · against plain:"
    )
    console.print(grid)
    if besides:
        console.print(f"{', '.join(besides)}: time that a call costs while the GPU computes that, against plain")
    console.print("*: slower than plain, alone or beside computation")
    least = never_slower_from(table, "all_gather", COPY_ENGINE)
    if least is None:
        console.print(f"`powerccl run --ways` would change nothing: {why_never(table, 'all_gather', COPY_ENGINE)}.")
    else:
        console.print(
            f"`powerccl run --ways` would use copy engines for FSDP2's all-gathers from {byte_size(least)} on."
        )


def _row(each: Comparison, besides: list[str]) -> Iterator[str]:
    yield each.pattern
    yield byte_size(each.size_bytes)
    yield each.way if each.never_slower else f"{each.way}*"
    yield change(-each.time_saved_pct)
    yield NOT_KNOWN if each.energy_saved_pct is None else change(-each.energy_saved_pct)
    for beside in besides:
        saved_us = each.beside_saved_us.get(beside)
        sign = "+" if saved_us is not None and saved_us < 0 else "-"
        yield NOT_KNOWN if saved_us is None else f"{sign}{microseconds(abs(saved_us))}"
