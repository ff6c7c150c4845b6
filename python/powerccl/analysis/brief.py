# SPDX-License-Identifier: Apache-2.0
"""The summary of a run in which no rank left a trace, from run.json alone.

Tables and numpy take a third of a second to load. A job without communication should not wait for them.
"""

from __future__ import annotations

from pathlib import Path

from powerccl.analysis.findings import Clocks, Communication, Energy, RunSummary, Shares
from powerccl.traces.folder import RunData, read_info
from powerccl.traces.run_info import RunInfo

NOT_COMPUTED = "no rank left a trace; `powerccl report` computes the energy of what was sampled"


def has_traces(folder: Path) -> bool:
    """Whether any rank left a trace."""
    return any(path.suffix == ".trace" for path in folder.iterdir())


def brief(folder: Path) -> RunSummary:
    """What run.json says; energy is not known, with the reason."""
    run = RunData(folder)
    read_info(run)
    info = run.info or RunInfo([])
    return RunSummary(
        emulated=info.modelled_by,
        folder=str(folder),
        name=info.name,
        command=info.command,
        exit_code=info.exit_code,
        policy=info.policy,
        clocks_mode=info.clocks,
        platform=info.platform,
        wall_s=info.wall_ns / 1e9 or None,
        finished=bool(info.end_ns),
        energy=Energy(reason=NOT_COMPUTED),
        communication=Communication(),
        shares=Shares(reason="nothing was recorded"),
        clocks=Clocks(),
        unrecorded=run.unrecorded,
        problems=run.problems,
    )
