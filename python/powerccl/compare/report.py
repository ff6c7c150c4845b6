# SPDX-License-Identifier: Apache-2.0
"""`powerccl compare` in the terminal, as Markdown and as CSV; all from the same tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace
from rich.text import Text

from powerccl import clean
from powerccl.compare.gate import FAILED, PASSED, UNDECIDED
from powerccl.compare.member import BANDWIDTH, ENERGY, POWER, RUN, TIME
from powerccl.compare.side_by_side import MANY_SIDES, Row, SideBySide
from powerccl.compare.significance import HIGHER, LOWER, SAME, Cell, Change
from powerccl.console import Console
from powerccl.quantities import NOT_KNOWN, byte_size, change, change_between, factor, number, plural, quantity
from powerccl.reports.table import Table
from powerccl.reports.terminal import heading, warning

GOOD, BAD, QUIET = "green", "red", "dim"
GATE = {PASSED: f"bold {GOOD}", FAILED: f"bold {BAD}", UNDECIDED: "bold"}
WIDE = 110
LABEL_WIDTH, SIDE_WIDTH = 30, 30  # of what fits beside each other
# Of many sides: the figures that are shown, if they are known, the first ones.
DECIDING = (
    *("iteration, median", "energy of an iteration", "step", "energy of a step, all GPUs", "wall time", "energy"),
    *("CPU time of the ranks", "time", "wait"),
)
MOST_DECIDING = 3  # as many as fit into 80 columns with their changes
MOST_LINES = 10  # of caveats, and of settings that differ; --json has all
MANY_TIMES = 2.0  # from here on a change reads better as a factor
RATES = (BANDWIDTH, "bandwidth")


@dataclass
class Grid:
    """A table as text: `rows` of cells, each with a style; the first column is to the left."""

    title: str
    columns: list[str]
    rows: list[list[tuple[str, str]]] = field(default_factory=list)

    def table(self, most_width: int = 1000) -> Table:
        """As the terminal and pages show it. The first column is folded to a third of the width, no figure is."""
        table = Table()
        for place, column in enumerate(self.columns):
            widest = max((len(row[place][0]) for row in self.rows), default=0)
            if place:
                table.add_column(Text(column), justify="right", min_width=widest)
            else:
                table.add_column(Text(column), overflow="fold", min_width=min(widest, most_width // 3))
        for row in self.rows:
            table.add_row(*(Text(text, style=style) for text, style in row))
        return table


def change_text(delta: Change, brief: bool = False) -> str:
    """`-82.1 % (-82.9 to -81.0 %)`, `× 5.02`, `+0.3 %, not significant`; with * where it is of two runs only."""
    if delta.pct is None:
        return NOT_KNOWN
    far = 1 + delta.pct / 100 >= MANY_TIMES
    text = factor(1 + delta.pct / 100) if far else change(delta.pct, wide=(delta.high_pct or 0) - (delta.low_pct or 0))
    if delta.verdict == SAME:
        return f"≈ {text}" if brief else f"{text}, not significant"
    if delta.verdict not in (LOWER, HIGHER):
        return f"{text} ?"
    mark = "" if delta.of_settings else " *"
    if brief or delta.low_pct is None or delta.high_pct is None:
        return text + mark
    if far:
        return factor(*(1 + end / 100 for end in (delta.pct, delta.low_pct, delta.high_pct))) + mark
    return f"{text} ({change_between(delta.low_pct, delta.high_pct)}){mark}"


def change_style(row: Row, delta: Change) -> str:
    """Green where settings made it better beyond chance, red where worse."""
    if delta.verdict not in (LOWER, HIGHER) or not row.better or not delta.of_settings:
        return QUIET if delta.verdict == SAME else ""
    return GOOD if (delta.verdict == LOWER) == (row.better == "less") else BAD


def grids(comparison: SideBySide, brief: bool = False) -> list[Grid]:
    """The comparison as tables: the form of published ones first, then of each pattern its sizes.

    Of many sides, one table with a line a side and the figures that decide.
    """
    if len(comparison.sides) > MANY_SIDES:
        return [_by_side(comparison)]
    tables = []
    if comparison.headline:
        tables.append(_listed("", [side.name for side in comparison.sides], comparison.headline, brief, _label))
    whole = [row for row in comparison.rows if not row.pattern]
    if whole:
        tables.append(_listed("", [side.name for side in comparison.sides], whole, brief, lambda row: row.what))
    places = dict.fromkeys((row.pattern, row.variant) for row in comparison.rows if row.pattern)
    for pattern, variant in places:
        rows = [row for row in comparison.rows if (row.pattern, row.variant) == (pattern, variant)]
        title = pattern.replace("_", "-") + (f", {variant}" if variant else "")
        tables.append(_by_size(title, comparison, rows, brief))
    return tables


def deciding(comparison: SideBySide) -> list[Row]:
    """The figures that many sides are compared by, the most telling first."""
    rows = [row for row in comparison.rows if not row.pattern]
    chosen = [row for what in DECIDING for row in rows if row.what == what]
    return (chosen or comparison.headline or comparison.rows)[:MOST_DECIDING]


def _by_side(comparison: SideBySide) -> Grid:
    """A line a side: each figure, and its change against the baseline, which is the first line."""
    rows = deciding(comparison)
    grid = Grid("", ["", *(column for row in rows for column in (_label(row), "change"))])
    for index, side in enumerate(comparison.sides):
        line = [(side.name, "")]
        for row in rows:
            judged = row.changes[index - 1] if index else None
            line.append((quantity(row.cells[index].value, row.unit), ""))
            line.append((change_text(judged, True), change_style(row, judged)) if judged else ("", ""))
        grid.rows.append(line)
    return grid


def _label(row: Row) -> str:
    name = f"{row.pattern.replace('_', '-')} {row.what}".strip()
    if row.size_bytes is not None:
        name += f", {byte_size(row.size_bytes)}"
    return f"{name} ({row.variant})" if row.variant else name


def _listed(title: str, names: Sequence[str], rows: Sequence[Row], brief: bool, label: Callable[[Row], str]) -> Grid:
    """A row a figure: baseline, then each side with its change."""
    columns = ["", names[0]]
    for name in names[1:]:
        columns += [name, "change"]
    grid = Grid(title, columns)
    for row in rows:
        cells = [(label(row), ""), (quantity(row.cells[0].value, row.unit), "")]
        for each, difference in zip(row.cells[1:], row.changes, strict=True):
            text = change_text(difference, brief)
            if row.factor_low is not None and row.factor_high is not None:
                # The two cells are peaks, which may be of different sizes: this is no change of theirs.
                text = factor(1 + (difference.pct or 0.0) / 100, row.factor_low, row.factor_high)
                text += ", mean over sizes"
            cells += [(quantity(each.value, row.unit), ""), (text, change_style(row, difference))]
        grid.rows.append(cells)
    return grid


def _by_size(title: str, comparison: SideBySide, rows: Sequence[Row], brief: bool) -> Grid:
    """Sizes down, figures across; only time carries its change, others are to be read side by side."""
    of_run = comparison.kind == RUN
    names = [side.name for side in comparison.sides]
    wanted = [(TIME, "time"), *((rate, "GB/s") for rate in RATES), (POWER, "W"), (ENERGY, "energy / op")]
    shown = [(what, head) for what, head in wanted if any(row.what == what for row in rows)]
    if brief:
        shown = [each for each in shown if each[0] in (TIME, *RATES)][:2]
    columns = ["from" if of_run else "size"]
    for what, head in shown:
        columns.append(f"{head} {names[0]}")
        for name in names[1:]:
            columns.append(f"{head} {name}")
            columns += ["change"] if what == TIME or len(shown) == 1 else []
    grid = Grid(title, columns)
    sizes = sorted({row.size_bytes for row in rows if row.size_bytes is not None})
    by_place = {(row.what, row.size_bytes): row for row in rows}
    for size in sizes:
        line: list[tuple[str, str]] = [(byte_size(size), "")]
        for what, _ in shown:
            row = by_place.get((what, size))
            judged = what == TIME or len(shown) == 1
            if row is None:
                line += [(NOT_KNOWN, QUIET)] * (len(names) + (len(names) - 1 if judged else 0))
                continue
            line.append((_bare(row.cells[0], row.unit), ""))
            for each, difference in zip(row.cells[1:], row.changes, strict=True):
                line.append((_bare(each, row.unit), ""))
                if judged:
                    line.append((change_text(difference, True), change_style(row, difference)))
        grid.rows.append(line)
    return grid


def _bare(cell: Cell, unit: str) -> str:
    """A value where the column's head has the unit."""
    if cell.value is None:
        return NOT_KNOWN
    if unit in ("s", "J"):
        return quantity(cell.value, unit)
    return number(cell.value / 1e9 if unit == "B/s" else cell.value)


def print_compare(console: Console, comparison: SideBySide) -> None:
    """The whole comparison."""
    brief = console.width < WIDE or len(comparison.sides) > 2
    console.print()
    console.print(heading(against(comparison), comparison.modelled))
    sides = len(comparison.sides)
    many = sides > MANY_SIDES
    of_sides = [_in_all(comparison)] if many else what_sides_are(comparison)
    for text in [*of_sides, *_cut(comparison.differs)]:
        console.print(Text(text, style=QUIET), overflow="fold")
    apart = 2 < sides <= MANY_SIDES and console.width < LABEL_WIDTH + SIDE_WIDTH * sides
    for part in [pair(comparison, index) for index in range(1, sides)] if apart else [comparison]:
        if apart:
            console.print()
            console.print(Text(f"{part.sides[1].name} against {part.sides[0].name}", style="bold"))
        _print_grids(console, grids(part, brief))
    console.print()
    if comparison.gate:
        console.print(Text(comparison.gate.sentence, style=GATE[comparison.gate.outcome]))
    if many and (more := len(comparison.rows) - len(deciding(comparison))) > 0:
        console.print(Text(f"… {plural(more, 'more figure')} of each side in --json and --csv", style=QUIET))
    for text in _cut(comparison.caveats):
        console.print(warning(text))
    for text in [*comparison.notes, *(["≈: not significant"] if brief else [])]:
        console.print(Text(text, style=QUIET))


def _cut(texts: Sequence[str]) -> list[str]:
    more = len(texts) - MOST_LINES
    return [*texts[:MOST_LINES], *([f"{more} more in --json"] if more > 0 else [])]


def _print_grids(console: Console, tables: Sequence[Grid]) -> None:
    for grid in tables:
        console.print()
        if grid.title:
            console.print(Text(grid.title, style="bold"))
        console.print(grid.table(console.width))


def pair(comparison: SideBySide, index: int) -> SideBySide:
    """One side and the baseline."""

    def only(rows: Sequence[Row]) -> list[Row]:
        kept = [replace(row, cells=[row.cells[0], row.cells[index]], changes=[row.changes[index - 1]]) for row in rows]
        return [row for row in kept if row.cells[1].value is not None]

    return replace(
        comparison,
        sides=[comparison.sides[0], comparison.sides[index]],
        headline=only(comparison.headline),
        rows=only(comparison.rows),
    )


def against(comparison: SideBySide) -> str:
    """What is compared with what."""
    if len(comparison.sides) > MANY_SIDES:
        return f"{len(comparison.sides) - 1} sides against {comparison.sides[0].name}"
    return f"{' · '.join(side.name for side in comparison.sides[1:])} against {comparison.sides[0].name}"


def what_sides_are(comparison: SideBySide) -> list[str]:
    """Each side's name, of how many runs or sweeps it is, and whether of an emulated server."""
    counts = [
        plural(len(side.members), comparison.kind) + (", emulated" if side.emulated else "")
        for side in comparison.sides
    ]
    return [f"{side.name}: {count}" for side, count in zip(comparison.sides, counts, strict=True)]


def _in_all(comparison: SideBySide) -> str:
    members = sum(len(side.members) for side in comparison.sides)
    return f"{len(comparison.sides)} sides, {plural(members, comparison.kind)}"


def markdown(comparison: SideBySide) -> str:
    """The comparison as Markdown, with what makes it hard below."""
    lines = [f"# {against(comparison)}", ""]
    if comparison.gate:
        lines += [f"**{comparison.gate.sentence[:1].upper()}{comparison.gate.sentence[1:]}**", ""]
    if comparison.modelled:
        lines += [f"{comparison.modelled.capitalize()}: all figures come from a model, none from hardware.", ""]
    lines += [f"- {side.name}: {', '.join(f'`{member}`' for member in side.members)}" for side in comparison.sides]
    lines += [f"- {text}" for text in comparison.differs]
    for grid in grids(comparison):
        lines += ["", *([f"## {grid.title}", ""] if grid.title else [])]
        lines.append("| " + " | ".join(_escaped(column) for column in grid.columns) + " |")
        lines.append("|" + "|".join("---" if index == 0 else "---:" for index in range(len(grid.columns))) + "|")
        lines += ["| " + " | ".join(_escaped(text) for text, _ in row) + " |" for row in grid.rows]
    lines.append("")
    lines += [f"- **{text}**" for text in comparison.caveats]
    lines += [f"- {text}" for text in comparison.notes]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


CSV_COLUMNS = (
    *("what", "unit", "pattern", "size_bytes", "variant", "side", "value", "low", "high", "n", "of", "baseline"),
    *("change_pct", "change_low_pct", "change_high_pct", "verdict", "basis"),
)


def as_csv(comparison: SideBySide) -> str:
    """A line a figure and side, in SI units; the baseline's own lines have no change."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    baseline = comparison.sides[0].name
    for row in comparison.rows:
        place = [row.what, row.unit, row.pattern, row.size_bytes, row.variant]
        for index, (side, each) in enumerate(zip(comparison.sides, row.cells, strict=True)):
            if each.value is None:
                continue
            line = [*place, side.name, each.value, each.low, each.high, each.n, each.of, baseline]
            if index:
                judged = row.changes[index - 1]
                line += [judged.pct, judged.low_pct, judged.high_pct, judged.verdict, judged.basis]
            writer.writerow(["" if value is None else clean.cell(value) for value in line])
    return text.getvalue()
