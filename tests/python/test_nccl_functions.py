# SPDX-License-Identifier: Apache-2.0
"""The check that no function of a new NCCL is missed (tools/check-nccl-functions.py)."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from tool_module import load_tool


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("check-nccl-functions")


def test_an_unknown_function_is_noticed(tool: ModuleType) -> None:
    assert tool.unknown({"ncclAllReduce", "ncclPutSignal", "ncclCommCount", "ncclTeamRail"}) == []
    assert tool.unknown({"ncclAllReduce", "ncclAllReduceAgain", "ncclCommCountdown"}) == [
        "ncclAllReduceAgain",
        "ncclCommCountdown",
    ]


def test_a_file_that_is_no_nccl_is_said(tool: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no NCCL"):
        tool.in_file(Path("/bin/true"))
