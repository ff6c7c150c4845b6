# SPDX-License-Identifier: Apache-2.0
"""Programs that the wheel puts into PATH, by the names that pyproject.toml gives them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "pyproject.toml").read_text()
SCRIPTS = re.findall(r'^(powerccl[\w-]*) = "([\w.]+):(\w+)"$', TEXT, re.MULTILINE)


@pytest.mark.parametrize(("name", "module", "function"), SCRIPTS, ids=[name for name, *_ in SCRIPTS])
def test_each_program_prints_its_help(name: str, module: str, function: str) -> None:
    code = f"import sys; from {module} import {function}; sys.argv[0] = {name!r}; {function}()"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(SCRIPTS) == 3 and f"usage: {name}" in done.stdout.lower().replace("mpiexec -n n ", "")
