# SPDX-License-Identifier: Apache-2.0
"""For all tests: what was skipped and why, and run again, left for tools/report-skipped.py, which ends `make test`.

And which are left out: those of packages, programs and container images that are too large for CI (marker `large`),
where these are not there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path

import pytest
from support.programs import program

SKIPPED = Path(__file__).resolve().parent.parent / "build" / "skipped"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked `large(NAME, ...)` where one of these packages, programs or variables is not there."""
    left_out = [
        item
        for item in items
        if any(
            importlib.util.find_spec(name) is None and shutil.which(program(name)) is None and name not in os.environ
            for mark in item.iter_markers("large")
            for name in mark.args
        )
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write how many tests ran and which were skipped. With pytest-xdist this is the process that hears of all."""
    stats = terminalreporter.stats
    skipped = [
        {"test": report.nodeid, "reason": str(report.longrepr[2]).removeprefix("Skipped: ")}
        for report in stats.get("skipped", [])
    ]
    again = sorted({report.nodeid for report in stats.get("rerun", [])})
    ran = sum(len(stats.get(outcome, [])) for outcome in ("passed", "failed", "error", "xfailed"))
    name = Path(config.args[0]).name if config.args else "all"
    SKIPPED.mkdir(parents=True, exist_ok=True)
    left = {"ran": ran, "skipped": skipped, "again": again}
    (SKIPPED / f"{name[:80]}.json").write_text(json.dumps(left, indent=1) + "\n")
