# SPDX-License-Identifier: Apache-2.0
"""The commands of the tutorial run as they stand, and print what the page shows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from support.pages import ROOT, Outcome, Step, blocks_of, keep, missing

PAGE = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"(<!-- not run: .*? -->\n)?^```(?:console|text)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def steps_of(page: str) -> list[Step]:
    """Commands in the page's order, without the blocks that it marks as not run."""
    steps: list[Step] = []
    for skipped, block in BLOCK.findall(page):
        for line in [] if skipped else block.splitlines():
            if line.startswith("$ "):
                steps.append(Step(line[2:]))
            elif line.startswith("> "):
                steps[-1].command += "\n" + line[2:]
            elif line.strip() not in ("", "…"):
                steps[-1].shown.append(line)
    return steps


def test_the_page_says_which_commands_run() -> None:
    assert [bool(skipped) for skipped, _ in BLOCK.findall(PAGE)].count(True) == 1, "installing a wheel alone is not run"
    commands = [step.command for step in steps_of(PAGE)]
    verbs = {command.split()[1] for command in commands if command.startswith("powerccl ")}
    assert verbs >= {"doctor", "bench", "run", "report", "compare", "profile", "whatif"}


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
        lacks = missing(step.shown, done.stdout)
        assert not lacks, f"{step.command}: the page shows lines that it no longer prints: {lacks}\n{done.stdout}"
    shutil.rmtree(own, ignore_errors=True)
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")[:1000]
    why_not = "builds a wheel and installs it from the network"
    blocks = [(block.name, "make wheel" not in block.text) for block in blocks_of(ROOT / "docs/tutorial.md")]
    keep("tutorial", [Outcome(name, run, why_not="" if run else why_not) for name, run in blocks])
