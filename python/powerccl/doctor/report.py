# SPDX-License-Identifier: Apache-2.0
"""`powerccl doctor` in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from powerccl.console import Console
    from powerccl.doctor.checks import Check

MARKS = {"ok": ("✓", "bold green"), "missing": ("–", "bold yellow"), "broken": ("✗", "bold red")}


def print_checks(console: Console, checks: Sequence[Check]) -> None:
    """One line a check, with advice below where there is any."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for check in checks:
        mark, style = MARKS[check.state]
        text = Text(check.found)
        if check.advice:
            text.append(f"\n→ {check.advice}", style="cyan")
        table.add_row(Text(mark, style=style), check.name, text)
    console.print(table)
    wrong = [check.name for check in checks if check.state == "broken"]
    console.print()
    if wrong:
        console.print(Text(f"Does not work: {', '.join(wrong)}.", style="bold red"))
    elif any(check.name == "GPUs" and check.state == "ok" for check in checks):
        console.print("Next: powerccl run -- <your job>")
    elif any(check.name == "mpiexec" and check.state == "ok" for check in checks):
        console.print("No GPU here, but MPI. Next: powerccl run -- mpiexec -n 2 ./app, or powerccl demo")
    else:
        console.print("No GPU here; everything can be tried on an emulated server. Next: powerccl demo")
