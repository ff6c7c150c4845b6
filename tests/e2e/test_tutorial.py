# SPDX-License-Identifier: Apache-2.0
"""The commands of the tutorial run as they stand, and print what the page shows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs/tutorial.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(<!-- not run: .*? -->\n)?^```(?:console|text)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass
class Step:
    """A command of the page, and the lines of its output that the page shows."""

    command: str
    shown: list[str]


def steps_of(page: str) -> list[Step]:
    """Commands in the page's order, without the blocks that it marks as not run."""
    steps: list[Step] = []
    for skipped, block in BLOCK.findall(page):
        for line in [] if skipped else block.splitlines():
            if line.startswith("$ "):
                steps.append(Step(line[2:], []))
            elif line.startswith("> "):
                steps[-1].command += "\n" + line[2:]
            elif line.strip() not in ("", "…"):
                steps[-1].shown.append(line)
    return steps


def label(line: str) -> str:
    """The text of a line of output up to its first figure, bar or column, which no measurement changes.

    Which policy would save the most within its budget depends on the times of the recorded run.
    """
    text = re.sub(r"^\W+|^[a-z-]+ (?=would save )", "", line)
    return re.split(r"\s{2,}|[\d█▓▁░]", text)[0].strip()


def test_the_page_says_which_commands_run() -> None:
    assert [bool(skipped) for skipped, _ in BLOCK.findall(PAGE)].count(True) == 1, "installing a wheel alone is not run"
    commands = [step.command for step in steps_of(PAGE)]
    verbs = {command.split()[1] for command in commands if command.startswith("powerccl ")}
    assert verbs >= {"doctor", "bench", "run", "report", "compare", "profile", "whatif"}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("whole run   4.3 s", "whole run"),
        ("per-call  1 %", "per-call"),
        ("per-call would save 1 %", "would save"),
        ("–  GPUs  none", "GPUs"),
    ],
)
def test_label(line: str, text: str) -> None:
    assert label(line) == text


def test_it_runs_as_written(clean_environment: dict[str, str], tmp_path: Path) -> None:
    scripts = Path(sys.executable).parent  # `powerccl` and `mpiexec` as pip installed them
    # Open MPI puts sockets below TMPDIR, and the path of a socket must be short.
    own = tempfile.mkdtemp(prefix="t")
    environment = {
        **clean_environment,
        "PATH": f"{scripts}:{clean_environment['PATH']}",
        "TMPDIR": own,
        "COLUMNS": "100",
    }
    for step in steps_of(PAGE):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", step.command],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, f"{step.command}\n{done.stdout[-3000:]}"
        missing = [line for line in step.shown if label(line) not in done.stdout]
        assert not missing, f"{step.command}: the page shows lines that it no longer prints: {missing}\n{done.stdout}"
    shutil.rmtree(own, ignore_errors=True)
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")[:1000]
