# SPDX-License-Identifier: Apache-2.0
"""The line that ends `make test`: which tests were skipped, and how to have them run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools/report-skipped.py"


def report(
    folder: Path, *reasons: str, again: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """What the tool says of a suite in which 5 tests ran and these were skipped."""
    file = folder / "suite.json"
    skipped = [{"test": f"test_{at}", "reason": reason} for at, reason in enumerate(reasons)]
    file.write_text(json.dumps({"ran": 5, "skipped": skipped, "again": list(again)}))
    kept = {name: value for name, value in os.environ.items() if name != "CI"}
    command = [sys.executable, str(TOOL), str(file), "--out", str(folder / "figure.json")]
    return subprocess.run(command, env={**kept, **environment}, capture_output=True, text=True, timeout=60, check=False)


def test_nothing_skipped_says_nothing(tmp_path: Path) -> None:
    done = report(tmp_path, CI="1")
    assert (done.returncode, done.stdout) == (0, "")
    assert json.loads((tmp_path / "figure.json").read_text())["figures"]["ci.skipped"]["value"] == 0


def test_one_line_with_one_command(tmp_path: Path) -> None:
    reasons = ("debian_mpich is not installed: mpich libmpich-dev", "no Chromium here", "needs root and systemd")
    done = report(tmp_path, *reasons)
    assert done.returncode == 0
    (line,) = done.stdout.splitlines()
    assert line.startswith("skipped 3 of 8 tests: ")
    assert line.endswith("sudo apt-get install chromium libmpich-dev mpich")


def test_what_was_run_again_is_named(tmp_path: Path) -> None:
    done = report(tmp_path, again=["test_late"], CI="1")
    assert (done.returncode, done.stdout) == (0, "failed and were run again, as on a busy host: test_late\n")


@pytest.mark.parametrize(
    ("reasons", "code"),
    [
        (["needs root and systemd"] * 10, 0),
        (["needs root and systemd"] * 11, 1),
        (["no Chromium here"], 1),
    ],
)
def test_in_ci_a_missing_package_is_a_fault(tmp_path: Path, reasons: list[str], code: int) -> None:
    assert report(tmp_path, *reasons, CI="1").returncode == code
