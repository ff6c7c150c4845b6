# SPDX-License-Identifier: Apache-2.0
"""The summary of a run of which nothing but run.json tells: no trace, and no sample of a GPU.

Tables and numpy take a third of a second to load. A job without communication should not wait for them.
"""

from __future__ import annotations

from pathlib import Path

from powerccl.analysis.findings import (
    FIRST_COMMUNICATION,
    SUMMARY_FILE,
    Clocks,
    Communication,
    Energy,
    RunSummary,
    Shares,
)
from powerccl.files import MOST_SAMPLES
from powerccl.traces.folder import RunData, read_info
from powerccl.traces.run_files import opened, run_files
from powerccl.traces.run_info import RUN_FILE, RunInfo

NO_SAMPLES = "no power samples of the job's GPUs"
HEAD_BYTES = 1 << 16  # of a sample file, whose comments and names of columns take a hundredth of it
# Files without a figure of a job that left no trace and that could not set a clock.
NO_FIGURES = (RUN_FILE, SUMMARY_FILE, ".run-id", ".refused-*", "policy.table", "agent-*")


def brief(folder: Path) -> tuple[RunData, RunSummary] | None:
    """What run.json says; None: there is more to tell.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    run = RunData(folder)
    read_info(run)
    info = run.info or RunInfo([])
    listing = run_files(folder)
    if info.clocks not in ("", "none") or listing.elsewhere or listing.here or listing.problems:
        return None
    if not all(_has_no_figures(path) for _, path in listing.files):
        return None
    summary = RunSummary(
        emulated=info.modelled_by,
        folder=str(folder),
        name=info.name,
        command=info.command,
        exit_code=info.exit_code,
        policy=info.policy,
        clocks_mode=info.clocks,
        platform=info.platform,
        user=info.user,
        labels=info.labels,
        hosts=[info.host] if info.host else [],
        wall_s=info.wall_ns / 1e9 or None,
        finished=bool(info.end_ns),
        energy=Energy(reason=NO_SAMPLES),
        communication=Communication(),
        shares=Shares(startup_until=FIRST_COMMUNICATION, reason="nothing was recorded"),
        clocks=Clocks(),
        unrecorded=run.unrecorded,
        problems=run.problems,
    )
    return run, summary


def _has_no_figures(path: Path) -> bool:
    # The summary states the energy of a host's processors in its MPI part only.
    if any(path.match(pattern) for pattern in (*NO_FIGURES, "cpu-*.csv")):
        return True
    if not path.match("power-*.csv"):
        return False
    try:
        with opened(path, MOST_SAMPLES) as file:
            head = file.read(HEAD_BYTES, 0)
    except OSError:
        return False
    rows = [line for line in head.splitlines() if not line.startswith(b"#")]
    return len(rows) <= 1 and len(head) < HEAD_BYTES
