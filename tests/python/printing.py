# SPDX-License-Identifier: Apache-2.0
"""What a user sees in the terminal, as text."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console


def printed(show: Callable[..., None], *what: object, width: int = 120) -> str:
    """What `show(console, *what)` prints in a terminal of that width."""
    target = Console(file=io.StringIO(), width=width, highlight=False)
    show(target, *what)
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()
