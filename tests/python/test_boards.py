# SPDX-License-Identifier: Apache-2.0
"""Emulated platforms have the lines of the boards that they name, so that a board is held against its source once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from powerccl.platforms.conf import value_of

PLATFORMS = Path(__file__).resolve().parents[2] / "native/testbed/emulator/platforms"
TEXTS = {file.stem: file.read_text() for file in PLATFORMS.glob("*.conf")}
OF_A_BOARD = {name: text for name, text in TEXTS.items() if "# board: boards/" in text}


def test_every_platform_of_a_real_gpu_names_its_board() -> None:
    assert set(OF_A_BOARD) == {"a100x4", "a100x8-two-nodes", "h100x8", "h200x4", "h200x4-sockets"}


@pytest.mark.parametrize("name", OF_A_BOARD)
def test_a_platform_has_its_boards_lines(name: str) -> None:
    text = OF_A_BOARD[name]
    named = re.search(r"^# board: (\S+)", text, re.MULTILINE)
    assert named
    board = (PLATFORMS / named[1]).read_text()
    lines = [line for line in board.splitlines() if line and not line.startswith("#")]
    assert len(lines) > 15
    for line in lines:
        key = line.partition("=")[0].strip()
        assert value_of(text, key) == value_of(board, key), f"{key} differs"
