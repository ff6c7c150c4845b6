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


def print_ways_what_if(console: Console, what_if: WaysWhatIf) -> None:
    """The iteration, what each choice would save, and which ways the best one takes."""
    console.print()
    console.print(heading(f"powerccl whatif --ways · {what_if.name}", what_if.emulated))
    facts = [
        f"an iteration takes {seconds(what_if.iteration_ms / 1e3)} and {joules(what_if.joules)} of all GPUs",
        f"rank {what_if.rank} waits {percent(100 * what_if.exposed_ms / what_if.iteration_ms)} of it for communication",
        plural(what_if.iterations, "typical iteration"),
    ]
    console.print(Text(" · ".join(facts), style="dim"))
    console.print(Text(f"by the table '{what_if.table}': {what_if.provenance}", style="dim"))
    console.print()
    best = what_if.forecasts[-1]
    if all(each.way == PLAIN for each in best.chosen):
        console.print(_nothing(what_if))
    else:
        console.print(_forecasts(what_if.forecasts))
        console.print()
        console.print(_ways(best))
    if what_if.unmeasured:
        left = plural(what_if.unmeasured, "collective")
        console.print(warning(f"{left} of an iteration stay as they are: the table lacks them"))
    for note in what_if.notes:
        console.print(warning(note))
    console.print()
    console.print(Text("predicted, not measured; the prediction assumes:", style="dim"))
    shape = f" ({what_if.products}; give your model's: powerccl profile --ways --products)" if what_if.products else ""
    beside = f"computation is like the matrix products{shape} or the memory traffic that the table was measured beside"
    for text in (beside, *ASSUMPTIONS, *([LIMITED] if what_if.power_limited else [])):
        console.print(Text(f"- {text}", style="dim"))


def _nothing(what_if: WaysWhatIf) -> str:
    if not what_if.forecasts[-1].chosen:
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
