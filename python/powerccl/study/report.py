# SPDX-License-Identifier: Apache-2.0
"""`powerccl study scaling` in the terminal and as Markdown: the tables of study E, with its published rows beside."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.text import Text

from powerccl.console import Console
from powerccl.quantities import NOT_KNOWN, byte_size, joules, number, percent, plural, seconds
from powerccl.reports.table import Table
from powerccl.reports.terminal import heading, warning
from powerccl.study.worlds import MIN_SHARE_PCT, Collective, ScalingFindings, World

PUBLISHED = (
    'Published: "Distributed Communication Overhead on Training GPT-350M using Megatron-LM" (Jia, 2024), '
    "4 x A100 a node over NVLink, Slingshot-10 between nodes."
)
# Of GPT-350M, 2 bytes a parameter: GPUs, time of either collective, bandwidth by its formula.
PUBLISHED_BYTES = 700_000_000
PUBLISHED_COLLECTIVES = ((4, "4-5", "105"), (8, "62", "9.9"))
PUBLISHED_SHARE = (8, "~15 %")
MIB = 1 << 20
# All-reduce by NCCL tests: MiB, then time in us and bus bandwidth in GB/s on 2 nodes (8 GPUs) and on 1 (4 GPUs).
PUBLISHED_ALL_REDUCE = (
    (16, 2990.5, 9.82, 205.0, 122.79),
    (32, 7861.7, 7.47, 331.5, 151.81),
    (48, 9115.2, 9.66, 465.3, 162.25),
    (64, 14081, 8.34, 617.9, 162.91),
    (80, 14998, 9.79, 743.5, 169.23),
    (96, 18074, 9.75, 876.4, 172.28),
    (112, 21282, 9.66, 1023.2, 172.17),
    (128, 25198, 9.32, 1139.8, 176.63),
    (144, 27169, 9.73, 1222.3, 185.30),
    (160, 30548, 9.61, 1364.1, 184.48),
    (176, 34752, 9.29, 1359.6, 203.61),
    (192, 37054, 9.51, 1470.5, 205.37),
)


@dataclass
class Grid:
    """One table: `published` are indices of rows that are not ours; columns after `left` are aligned to the right."""

    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    published: set[int] = field(default_factory=set)
    left: int = 0
    note: str = ""

    def table(self) -> Table:
        """As the terminal and pages show it."""
        table = Table(1)
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="left" if index < self.left else "right", no_wrap=True)
        for index, row in enumerate(self.rows):
            table.add_row(*row, style="dim" if index in self.published else "")
        return table


def grids(findings: ScalingFindings) -> list[Grid]:
    """The study's tables; those that have nothing to say are left out."""
    tables = [_worlds(findings.worlds), _collectives(findings.worlds), _all_reduce(findings.worlds)]
    return [grid for grid in tables if grid.rows]


def remarks(findings: ScalingFindings) -> list[str]:
    """Notes of the worlds, each said once, with the worlds that it is of."""
    several = len({world.links for world in findings.worlds}) > 1
    said: dict[str, list[str]] = {}
    for world in findings.worlds:
        for note in world.notes:
            said.setdefault(note, []).append(f"{world.gpus} {world.links}" if several else str(world.gpus))
    where: dict[str, list[str]] = {}
    for world in findings.worlds:
        where.setdefault(world.emulated, []).append(str(world.gpus))
    apart = [f"{_gpus(of)}: emulated {name}" for name, of in where.items()] if len(where) > 1 else []
    return [*findings.notes, *apart, *(f"{_gpus(of)}: {note}" for note, of in said.items())]


def _gpus(of: list[str]) -> str:
    return f"{', '.join(of)} GPU{'s' * (of != ['1'])}"


def print_scaling(console: Console, findings: ScalingFindings) -> None:
    """Everything, to the terminal."""
    console.print(heading("powerccl study scaling", emulated_names(findings)))
    console.print(Text(findings.command, style="dim"), overflow="fold")
    for grid in grids(findings):
        console.print()
        console.print(Text(grid.title, style="bold"))
        console.print(grid.table())
        if grid.note:
            console.print(Text(grid.note, style="dim"))
    console.print()
    for line in remarks(findings):
        console.print(warning(line))
    if beside_published(findings):
        console.print(Text(PUBLISHED, style="dim"))


def markdown(findings: ScalingFindings) -> str:
    """The same as Markdown."""
    emulated = emulated_names(findings)
    parts = [f"`{findings.command}`" + (f" (**emulated {emulated}**)" if emulated else "")]
    for grid in grids(findings):
        rows = [grid.columns, ["---:" if index >= grid.left else "---" for index in range(len(grid.columns))]]
        for index, row in enumerate(grid.rows):
            rows.append([f"*{cell}*" if index in grid.published and cell else cell for cell in row])
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        parts += [f"**{grid.title}**", "\n".join(lines), *([grid.note] if grid.note else [])]
    parts += [f"- {line}" for line in remarks(findings)]
    return "\n\n".join([*parts, *([PUBLISHED] if beside_published(findings) else [])]) + "\n"


def emulated_names(findings: ScalingFindings) -> str:
    """Emulated platforms, in order; empty where none is."""
    return ", ".join(dict.fromkeys(world.emulated for world in findings.worlds if world.emulated))


def beside_published(findings: ScalingFindings) -> bool:
    """Whether some table has published rows."""
    return any(grid.published or "published" in " ".join(grid.columns) for grid in grids(findings))


def _labels(worlds: list[World]) -> dict[int, list[str]]:
    """The first cells of each world's rows: GPUs, and links where there are several kinds."""
    several = len({world.links for world in worlds}) > 1
    return {id(world): [str(world.gpus)] + ([world.links] if several else []) for world in worlds}


def _heads(worlds: list[World]) -> list[str]:
    return ["GPUs"] + (["links"] if len({world.links for world in worlds}) > 1 else [])


def _worlds(worlds: list[World]) -> Grid:
    known = [world for world in worlds if world.iteration_s]
    tokens = any(world.tokens_per_s for world in known)
    energy = any(world.joules_per_iteration is not None for world in known)
    heads = _heads(worlds)
    columns = [*heads, "iteration", "commun.", "exposed", "tokens/s" if tokens else "iter./s", "a GPU", "scaling"]
    columns += ["energy"] if energy else []
    columns += ["a token"] if energy and tokens else []
    grid = Grid("End to end", columns, left=0)
    for world in known:
        rate = world.tokens_per_s if tokens else 1 / (world.iteration_s or 1)
        row = [
            *_labels(worlds)[id(world)],
            seconds(world.iteration_s),
            percent(world.communication_pct),
            percent(world.exposed_pct),
            number(rate),
            number(rate / world.gpus if rate and tokens else None) if tokens else NOT_KNOWN,
            percent(world.scaling_pct),
        ]
        row += [joules(world.joules_per_iteration)] if energy else []
        row += [joules(world.joules_per_token)] if energy and tokens else []
        grid.rows.append(row)
    if not tokens and "a GPU" in columns:
        place = columns.index("a GPU")
        for row in [columns, *grid.rows]:
            row.pop(place)
    if any(_is_published_job(world) for world in known):
        gpus, share = PUBLISHED_SHARE
        row = [str(gpus), *[""] * (len(heads) - 1), "", share]
        grid.published.add(len(grid.rows))
        grid.rows.append(row + [""] * (len(columns) - len(row) - 1) + ["published"])
    grid.note = (
        "Communication and exposed communication: shares of an iteration. Scaling: throughput per GPU, in percent of"
        " that of the first row."
    )
    return grid


def _is_published_job(world: World) -> bool:
    """Whether it gathers and scatters what GPT-350M does."""
    return any(abs(each.size_bytes / PUBLISHED_BYTES - 1) < 0.1 for each in world.collectives)


def collectives_shown(world: World) -> list[Collective]:
    """Those that take a share of the time worth a row."""
    total = sum(each.time_s for each in world.collectives)
    return [each for each in world.collectives if each.time_s > total * MIN_SHARE_PCT / 100]


def _collectives(worlds: list[World]) -> Grid:
    heads = _heads(worlds)
    columns = [*heads, "collective", "size", "ms", "waiting", "GB/s", "transfer", "sweep", "of it"]
    grid = Grid(
        "Collectives of an iteration: time in ms, the waiting in it, and bandwidth", columns, left=len(heads) + 1
    )
    job = False
    for world in worlds:
        job = job or _is_published_job(world)
        for each in collectives_shown(world):
            times = "" if abs(each.per_iteration - 1) < 0.01 else f"{number(each.per_iteration)} x "
            share = each.busbw_gbs / each.sweep_busbw_gbs * 100 if each.busbw_gbs and each.sweep_busbw_gbs else None
            grid.rows.append(
                [
                    *_labels(worlds)[id(world)],
                    each.pattern.replace("_", "-"),
                    times + byte_size(each.size_bytes),
                    number(each.time_s * 1e3),
                    number(None if each.waiting_s is None else each.waiting_s * 1e3),
                    number(each.busbw_gbs),
                    number(each.transfer_busbw_gbs),
                    number(each.sweep_busbw_gbs),
                    percent(share),
                ]
            )
    if job:
        for gpus, time, bandwidth in PUBLISHED_COLLECTIVES:
            grid.published.add(len(grid.rows))
            first = [str(gpus), *[""] * (len(heads) - 1)]
            grid.rows.append([*first, "both, published", byte_size(PUBLISHED_BYTES), time, "", bandwidth, "", "", ""])
    grid.note = (
        "GB/s: bytes x (n-1)/n / time (all-reduce: twice that), with waiting for late ranks; transfer: without it. "
        "Sweep: powerccl-bench on the same GPUs and links; of it: GB/s in percent of the sweep's."
    )
    return grid


def _all_reduce(worlds: list[World]) -> Grid:
    """Study E's first table: all-reduce by size."""
    several = len({world.links for world in worlds}) > 1
    swept = {
        id(world): {point.size_bytes: point for point in world.sweep if point.pattern == "all_reduce"}
        for world in worlds
    }
    sizes = [row[0] * MIB for row in PUBLISHED_ALL_REDUCE]
    shown = [world for world in worlds if any(size in swept[id(world)] for size in sizes)]
    grid = Grid("All-reduce, bus bandwidth in GB/s by size", ["size"], left=1)
    if not shown:
        return grid
    grid.columns += [f"{plural(world.gpus, 'GPU')}" + (f" {world.links}" if several else "") for world in shown]
    grid.columns += ["published: 4, 1 node", "8, 2 nodes"]
    for row in PUBLISHED_ALL_REDUCE:
        points = [swept[id(world)].get(row[0] * MIB) for world in shown]
        measured = [number(point.busbw_gbs if point else None) for point in points]
        grid.rows.append([byte_size(row[0] * MIB), *measured, number(row[4]), number(row[2])])
    return grid
