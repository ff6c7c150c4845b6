# SPDX-License-Identifier: Apache-2.0
"""What the wheel is: programs in PATH, by the names that pyproject.toml gives them, of one version."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import powerccl

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "pyproject.toml").read_text()
SCRIPTS = re.findall(r'^(powerccl[\w-]*) = "([\w.]+):(\w+)"$', TEXT, re.MULTILINE)


@pytest.mark.parametrize(("name", "module", "function"), SCRIPTS, ids=[name for name, *_ in SCRIPTS])
def test_each_program_prints_its_help(name: str, module: str, function: str) -> None:
    code = f"import sys; from {module} import {function}; sys.argv[0] = {name!r}; {function}()"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(SCRIPTS) == 3 and f"usage: {name}" in done.stdout.lower().replace("mpiexec -n n ", "")


def test_all_parts_have_one_version() -> None:
    """A tag names it, and jobs, daemons and emulated GPUs of one version belong together."""
    built = (ROOT / "CMakeLists.txt").read_text()
    assert re.findall(r'^version = "(.+)"$', TEXT, re.MULTILINE) == [powerccl.__version__]
    assert re.findall(r"project\(powerccl VERSION (\S+)", built) == [powerccl.__version__]
    assert (ROOT / "CHANGELOG.md").read_text().split("## ", 2)[1].startswith(powerccl.__version__)
