# SPDX-License-Identifier: Apache-2.0
"""Blocks of the guides marked `sh` run as they stand, on a machine without GPUs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

GUIDES = Path(__file__).resolve().parents[2] / "docs/guides"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = sorted(page for page in GUIDES.glob("*.md") if BLOCK.search(page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_it_runs_as_written(page: Path, clean_environment: dict[str, str], tmp_path: Path) -> None:
    scripts = Path(sys.executable).parent  # `powerccl` as pip installed it
    # Open MPI 4.1's jobs fail where two of them make their folder in /tmp at once; and its paths must be short.
    own = tempfile.mkdtemp(prefix="g")
    environment = {**clean_environment, "PATH": f"{scripts}:{clean_environment['PATH']}", "TMPDIR": own}
    script = "\n".join(BLOCK.findall(page.read_text()))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env=environment, capture_output=True, timeout=240
    )
    shutil.rmtree(own, ignore_errors=True)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert b"unexpected:" not in done.stderr


def test_there_are_some() -> None:
    assert len(PAGES) >= 3
