# SPDX-License-Identifier: Apache-2.0
"""The processes beside a job: signals that are meant for it end none, and one that is killed is started again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from harm import process_limits
from harm.helper_signals import AGENT, DAEMON, WITH_CLOCKS, WITHOUT_CLOCKS, WITNESS, Case, Found, try_step

from powerccl.launch.native import NativeFiles

pytestmark = pytest.mark.timeout(300)

# One of each kind: a batch system's announcement and end, a timer, a limit, a terminal's key, and a real-time signal.
NUMBERS = (
    *(signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM, signal.SIGXCPU, signal.SIGIO),
    signal.SIGRTMIN,
)


@pytest.mark.parametrize(
    ("case", "kills"),
    [(WITHOUT_CLOCKS, (AGENT, WITNESS)), (WITH_CLOCKS, (DAEMON,))],
    ids=["without clocks", "with clocks"],
)
def test_helpers_outlast_signals(
    case: Case, kills: tuple[str, ...], native: NativeFiles, clean_environment: dict[str, str], tmp_path: Path
) -> None:
    found = Found()
    try_step(native, tmp_path, case, clean_environment, NUMBERS, kills, found)
    assert found.lost == 0
    assert found.left == 0
    assert found.gap_s < 5, "a second at most, and more on a busy machine"
    said = " ".join((tmp_path / "err").read_text().split())
    assert ("powerccl-agent was killed by signal 9 at " in said) == (AGENT in kills)
    assert ("powerccld was killed by signal 9 at " in said) == (DAEMON in kills)
    assert "no samples for " in said or AGENT not in kills


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, to whom a limit applies")
@pytest.mark.parametrize(
    ("limit", "name"), [(1, "alone"), (3, "three at once"), (4, "a pipe"), (40, "30 threads"), (400, "30 threads")]
)
def test_a_job_comes_first(limit: int, name: str, native: NativeFiles, tmp_path: Path) -> None:
    found = process_limits.verdict(native, tmp_path, "ulimit -u", limit, name)
    assert not found.changed
    assert not found.silent
