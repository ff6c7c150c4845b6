# SPDX-License-Identifier: Apache-2.0
"""The live view of `powerccl top`: one scrolling page that is looked at again every second. No mouse is needed."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable
from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Static

from powerccl.console import Console
from powerccl.live.snapshot import NodeView
from powerccl.live.top import render
from powerccl.reports.terminal import warning

LOOKS_KEPT = 120
FASTEST_S, SLOWEST_S = 0.25, 60.0


class Top(App[None]):
    """Shows what `look` finds; it is called in a thread, one call at a time."""

    TITLE = "powerccl top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; }
    VerticalScroll { background: ansi_default; scrollbar-size-vertical: 1; }
    #page { width: 100%; height: auto; background: ansi_default; color: ansi_default; }
    #rest { width: 100%; height: 1; background: ansi_default; color: ansi_default; text-style: dim; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,escape", "quit", "quit"),
        Binding("space", "pause", "pause"),
        Binding("r", "look", "refresh"),
        Binding("plus,equals_sign", "pace(0.5)", "faster", key_display="+"),
        Binding("minus", "pace(2)", "slower", key_display="-"),
        Binding("j,down", "move(1)", "down", key_display="j"),
        Binding("k,up", "move(-1)", "up", key_display="k"),
    ]

    def __init__(self, look: Callable[[], NodeView], interval_s: float) -> None:
        super().__init__(ansi_color=True)
        self.animation_level = "none"  # over ssh every frame costs
        self.looking = look
        self.interval_s = interval_s
        self.paused = False
        self.view: NodeView | None = None
        self.history: dict[str, deque[float]] = {}
        self.rank_lines: list[int] = []

    def compose(self) -> ComposeResult:
        """The page, a line that sets the keys apart, and the keys."""
        with VerticalScroll():
            yield Static(Text("reading…", style="dim"), id="page")
        yield Static(id="rest")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Begin to look."""
        self.watch(self.query_one(VerticalScroll), "scroll_y", self._count_rest)
        self.action_look()
        self.set_timer(self.interval_s, self._tick)

    def on_resize(self) -> None:
        """Lay out again for the present width."""
        self._show()

    def _tick(self) -> None:
        if not self.paused:
            self.action_look()
        self.set_timer(self.interval_s, self._tick)

    @work(thread=True, exclusive=True)
    def action_look(self) -> None:
        """Look now."""
        try:
            view = self.looking()
            self.call_from_thread(self._take, view)
        except Exception as error:  # shown, and tried again at the next look
            if self.is_running:
                self.call_from_thread(self._failed, f"{type(error).__name__}: {error}")

    def _failed(self, text: str) -> None:
        self.query_one("#page", Static).update(warning(text))

    def _take(self, view: NodeView) -> None:
        self.view = view
        current = {job.folder for job in view.jobs}
        self.history = {folder: values for folder, values in self.history.items() if folder in current}
        for job in view.jobs:
            if job.power_w is not None and not job.ended:
                self.history.setdefault(job.folder, deque(maxlen=LOOKS_KEPT)).append(job.power_w)
        self._show()

    def _show(self) -> None:
        if self.view is None:
            return
        page = self.query_one("#page", Static)
        width = max(self.size.width - 1, 20)
        text, self.rank_lines = _laid_out(render(self.view, width, self.history, self.interval_s), width)
        page.update(text)
        self.call_after_refresh(self._count_rest)

    def _count_rest(self) -> None:
        """Say in the line above the keys how many ranks are out of sight."""
        view = self.query_one(VerticalScroll)
        first, height = round(view.scroll_y), view.size.height
        above = sum(line < first for line in self.rank_lines)
        below = sum(line >= first + height for line in self.rank_lines)
        parts = [
            f"{count} more {'rank' if count == 1 else 'ranks'} {where}"
            for count, where in ((above, "above"), (below, "below"))
            if count
        ]
        text = f"── {', '.join(parts)} " if parts else ""
        self.query_one("#rest", Static).update(text + "─" * max(self.size.width - len(text), 0))

    def action_pause(self) -> None:
        """Stop looking, or go on."""
        self.paused = not self.paused
        self.sub_title = "paused" if self.paused else ""
        if not self.paused:
            self.action_look()

    def action_pace(self, factor: float) -> None:
        """Look more or less often."""
        self.interval_s = min(max(self.interval_s * factor, FASTEST_S), SLOWEST_S)
        self._show()

    def action_move(self, lines: int) -> None:
        """Scroll."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


def _laid_out(page: RenderableType, width: int) -> tuple[Text, list[int]]:
    """Tables as plain lines with styles, and the numbers of the lines of ranks.

    Textual would lay tables out again each time that it asks for their height.
    """
    console = Console(width=width, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    lines = console.render_lines(page, console.options.update(width=width), pad=False)
    ranks = [index for index, line in enumerate(lines) if any(part.style and part.style.meta for part in line)]
    text = Text("\n").join(
        Text.assemble(*((part.text, part.style.clear_meta_and_links() if part.style else "") for part in line))
        for line in lines
    )
    return text, ranks


def run_top(look: Callable[[], NodeView], interval_s: float) -> None:
    """Show until the user quits. Textual itself follows NO_COLOR."""
    for name in ("COLUMNS", "LINES"):  # the terminal knows its size better, also after it has changed
        os.environ.pop(name, None)
    Top(look, interval_s).run(mouse=False)
