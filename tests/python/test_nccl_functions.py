# SPDX-License-Identifier: Apache-2.0
"""The check that no function of a new NCCL is missed (tools/check-nccl-functions)."""

from __future__ import annotations

import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    loader = SourceFileLoader("check_nccl_functions", str(ROOT / "tools/check-nccl-functions"))
    spec = importlib.util.spec_from_loader("check_nccl_functions", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_an_unknown_function_is_noticed(tool: ModuleType) -> None:
    assert tool.unknown({"ncclAllReduce", "ncclPutSignal", "ncclCommCount", "ncclTeamRail"}) == []
    assert tool.unknown({"ncclAllReduce", "ncclAllReduceAgain", "ncclCommCountdown"}) == [
        "ncclAllReduceAgain",
        "ncclCommCountdown",
    ]


def test_a_file_that_is_no_nccl_is_said(tool: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no NCCL"):
        tool.in_file(Path("/bin/true"))
