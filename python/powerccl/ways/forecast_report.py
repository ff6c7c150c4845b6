# SPDX-License-Identifier: Apache-2.0
"""What other ways of carrying collectives out would save, in the terminal."""

from __future__ import annotations

from rich.text import Text

from powerccl.analysis.ways import WaysForecast
from powerccl.console import Console
from powerccl.platforms.ways import PLAIN
from powerccl.quantities import byte_size, change_between, joules, percent, plural, seconds
from powerccl.reports.table import Table
from powerccl.reports.terminal import heading, warning
from powerccl.ways.forecast import WaysWhatIf

ASSUMPTIONS = (
    "the host gives its orders as early or late as it did",
    "all iterations are like the typical one",
)

LIMITED = "the GPUs stay at their power limit: they compute matrix products, and save as much energy as time"


def print_ways_what_if(console: Console, found: WaysWhatIf) -> None:
    """The iteration, what each choice would save, and which ways the best one takes."""
    console.print()
    console.print(heading(f"powerccl whatif --ways · {found.name}", found.emulated))
    facts = [
        f"an iteration takes {seconds(found.iteration_ms / 1e3)} and {joules(found.joules)} of all GPUs",
        f"rank {found.rank} waits {percent(100 * found.exposed_ms / found.iteration_ms)} of it for communication",
        plural(found.iterations, "typical iteration"),
    ]
    console.print(Text(" · ".join(facts), style="dim"))
    console.print(Text(f"by the table '{found.table}': {found.provenance}", style="dim"))
    console.print()
    best = found.forecasts[-1]
    if all(each.way == PLAIN for each in best.chosen):
        console.print(_nothing(found))
    else:
        console.print(_forecasts(found.forecasts))
        console.print()
        console.print(_ways(best))
    if found.unmeasured:
        console.print(
            warning(f"{plural(found.unmeasured, 'collective')} of an iteration stay as they are: the table lacks them")
        )
    for note in found.notes:
        console.print(warning(note))
    console.print()
    console.print(Text("predicted, not measured; the prediction assumes:", style="dim"))
    shape = f" ({found.products}; give your model's: powerccl profile --ways --products)" if found.products else ""
    beside = f"computation is like the matrix products{shape} or the memory traffic that the table was measured beside"
    for text in (beside, *ASSUMPTIONS, *([LIMITED] if found.power_limited else [])):
        console.print(Text(f"- {text}", style="dim"))


def _nothing(found: WaysWhatIf) -> str:
    if not found.forecasts[-1].chosen:
        return "Nothing is known: the table has none of this job's collectives."
    return "Nothing: for this job's collectives NCCL's rings and trees are as good as any other way."


def _forecasts(forecasts: list[WaysForecast]) -> Table:
    table = Table()
    table.add_column("choice", no_wrap=True)
    for column in ("time", "energy"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in forecasts:
        energy = each.energy_saved_pct
        table.add_row(
            each.name,
            change_between(-each.time_saved_pct[1], -each.time_saved_pct[0]),
            change_between(-energy[1], -energy[0]) if energy else change_between(None, None),
        )
    return table


def _ways(best: WaysForecast) -> Table:
    table = Table()
    for column in ("collective", "size", "best way"):
        table.add_column(column, no_wrap=True)
    table.add_column("calls per iteration", justify="right", no_wrap=True)
    for each in best.chosen:
        table.add_row(each.pattern.replace("_", "-"), byte_size(each.size_bytes), each.way, f"{each.calls:,}")
    return table
