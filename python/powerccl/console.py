# SPDX-License-Identifier: Apache-2.0
"""The console that everything is printed on: names of others are shown as they are and can do nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment

from powerccl import clean


class Console(rich.console.Console):
    """Rich's console without markup, so that a host called `[red]` is printed so, and with text made visible.

    Rich itself writes the sequences for colours, after this: those in the text are of somebody else.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **more)

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
