# SPDX-License-Identifier: Apache-2.0
"""Which runs a list shows, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from powerccl.commandline.run_index import RunRow

# By column of `--sort`: what a row is sorted by. Names begin with the first letter, times and figures with the most.
COLUMNS: dict[str, Callable[[RunRow], Any]] = {
    "name": lambda row: row.name,
    "when": lambda row: row.started_s,
    "time": lambda row: row.wall_s,
    "gpus": lambda row: row.gpus,
    "energy": lambda row: row.joules if row.joules is not None else row.joules_at_least,
    "iteration": lambda row: row.joules_per_iteration,
    "exposed": lambda row: row.exposed_pct,
    "exit": lambda row: row.exit_code,
}


def select(
    rows: Iterable[RunRow], patterns: Sequence[str] = (), since_s: float = 0.0, failed: bool = False
) -> list[RunRow]:
    """The rows whose name or folder is like one of the patterns, that started since, and that failed."""
    return [
        row
        for row in rows
        if (not patterns or any(_like(row, pattern) for pattern in patterns))
        and (not since_s or row.started_s >= since_s)
        and (not failed or row.failed)
    ]


def _like(row: RunRow, pattern: str) -> bool:
    """Whether name or folder fit a pattern with `*`, `?` or `[...]`, or begin with a text without them."""
    names = (row.name, row.folder)
    if any(letter in pattern for letter in "*?["):
        return any(fnmatchcase(name, pattern) for name in names)
    return any(name.startswith(pattern) for name in names)


def in_order(rows: Sequence[RunRow], column: str) -> list[RunRow]:
    """Rows by a column; those that do not tell it are last."""
    key = COLUMNS[column]
    known = [row for row in rows if key(row) is not None]
    ordered = sorted(known, key=key, reverse=column != "name")
    return ordered + [row for row in rows if key(row) is None]
