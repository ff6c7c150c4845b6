# SPDX-License-Identifier: Apache-2.0
"""The console that everything is printed on: names of others are shown as they are and can do nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import rich.console
from rich.segment import Segment

from powerccl import clean

# Columns that every table needs to show something. Rich prints nothing at all into a width of 0, and of a table of 20
# columns only its frame. A terminal that is narrower wraps the lines.
LEAST_WIDTH = 40
# Rich fills lines with spaces up to the width: ten thousand columns would make a megabyte of a short table.
GREATEST_WIDTH = 1000


def sensible_sizes(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without COLUMNS and LINES that no screen has: cron, CI systems and editors set 0."""
    left = dict(environment)
    for name in ("COLUMNS", "LINES"):
        value = left.get(name, "")
        if not (value.isascii() and value.isdigit() and 0 < int(value[:10]) <= GREATEST_WIDTH):
            left.pop(name, None)
    return left


class Console(rich.console.Console):
    """Rich's console without markup, so that a host called `[red]` is printed so, and with text made visible.

    Rich itself writes the sequences for colours, after this: those in the text come from foreign text.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, _environ=sensible_sizes(os.environ), **more)

    @property  # type: ignore[misc]
    def size(self) -> rich.console.ConsoleDimensions:
        """Its width and height, never too narrow for a table."""
        width, height = super().size
        return rich.console.ConsoleDimensions(min(max(width, LEAST_WIDTH), GREATEST_WIDTH), height)

    def render_str(self, text: str, **more: Any) -> rich.console.Text:  # type: ignore[name-defined]
        """A string as text: cleaned before it is measured, so that tables stay straight."""
        return super().render_str(clean.lines(text), **more)

    def render(self, *arguments: Any, **more: Any) -> Iterable[Segment]:
        """Whatever it is made from, as segments of clean text."""
        for segment in super().render(*arguments, **more):
            if segment.control or (segment.text.isascii() and segment.text.isprintable()):
                yield segment
            else:
                yield Segment(clean.lines(segment.text), segment.style)
