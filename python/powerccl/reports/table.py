# SPDX-License-Identifier: Apache-2.0
"""Tables in the terminal. Where a table has no room, each row becomes a paragraph: nothing is cut."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import rich.console
import rich.table
from rich.measure import Measurement
from rich.padding import Padding
from rich.text import Text

from powerccl.quantities import NOT_KNOWN

DASH = "–"  # in a cell, where `not known` would widen the column
LEAST_WORD = 16  # columns that a name is folded into, where it is longer
_BARS = re.compile(r"[\s█░▒▓▚▞▁]*")


class Table(rich.table.Table):
    """Columns without lines. A column with `no_wrap` is shown whole or the table turns into paragraphs."""

    def __init__(self, apart: int = 2, **more: Any) -> None:
        super().__init__(box=None, pad_edge=False, header_style="dim", padding=(0, apart, 0, 0), **more)
        self.below: list[Text] = []

    def add_column(self, header: rich.console.RenderableType = "", *, overflow: Any = "fold", **more: Any) -> None:  # type: ignore[override]
        """A column; words that are longer than it are folded, not cut."""
        super().add_column(header, overflow=overflow, **more)

    def add_row(self, *cells: rich.console.RenderableType | None, **more: Any) -> None:
        """A row; a figure that is not known is a dash."""
        super().add_row(*(DASH if cell == NOT_KNOWN else cell for cell in cells), **more)

    def add_more(self, count: int, where: str = "") -> None:
        """Rows that are left out, said below the table, if there are any."""
        if count > 0:
            self.below.append(Text(f"… {count:,} more{where}", style="dim"))

    def add_hidden(self, columns: Sequence[str]) -> None:
        """Columns that are left out for want of room, said below the table."""
        if columns and self.rows:
            self.below.append(Text(f"not shown in this width: {', '.join(columns)}", style="dim"))

    def __rich_console__(
        self, console: rich.console.Console, options: rich.console.ConsoleOptions
    ) -> rich.console.RenderResult:
        widths = self._widths(console, options)
        if widths is None:
            yield from self._paragraphs()
        else:
            for column, width in zip(self.columns, widths, strict=True):
                column.width = width
            yield from super().__rich_console__(console, options)
        yield from self.below

    def _widths(self, console: rich.console.Console, options: rich.console.ConsoleOptions) -> list[int] | None:
        """A width for each column, in which no figure is cut; None: there is no room for that."""
        whole = options.update(max_width=10_000)
        least, most = [], []
        for column in self.columns:
            cells = [column.header, *column.cells] if self.show_header else list(column.cells)
            measured = [Measurement.get(console, whole, cell or "") for cell in cells]
            most.append(max((each.maximum for each in measured), default=0))
            folded = max((min(each.minimum, LEAST_WORD) for each in measured), default=0)
            least.append(most[-1] if column.no_wrap else max(folded, column.min_width or 0))
        room = options.max_width - int(self.padding[1]) * max(len(self.columns) - 1, 0) - sum(least)
        if room < 0:
            return None
        for index in sorted(range(len(least)), key=lambda index: most[index] - least[index]):
            more = min(most[index] - least[index], room)
            least[index], room = least[index] + more, room - more
        return least

    def _paragraphs(self) -> rich.console.RenderResult:
        for cells in zip(*(column.cells for column in self.columns), strict=True):
            for index, (column, cell) in enumerate(zip(self.columns, cells, strict=True)):
                value = cell.copy() if isinstance(cell, Text) else Text(str(cell or ""))
                if not index:  # parts of a whole are indented; here the figures are
                    value = value[len(value.plain) - len(value.plain.lstrip()) :]
                if index and _BARS.fullmatch(value.plain):  # a bar was made for a place in a line
                    continue
                head = Text(str(column.header or ""), style="dim")
                line = Text("  ").join(part for part in (head, Text.assemble(value)) if part.plain)
                yield Padding(line, (0, 0, 0, 2 * (index > 0)), expand=False)
