# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "python"))


@pytest.fixture(autouse=True)
def _plain_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every test: no colours, a known width, and none of the machine's own POWERCCL_* or launcher variables."""
    import os

    for name in list(os.environ):
        if name.startswith(("POWERCCL_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "MPIR_", "NCCL_", "LD_PRELOAD")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("POWERCCL_PRELOAD", "0")  # the fakes' libraries are none that a loader takes
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
