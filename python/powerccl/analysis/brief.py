# SPDX-License-Identifier: Apache-2.0
"""The summary of a run in which no rank left a trace, from run.json alone.

Tables and numpy take a third of a second to load. A job without communication should not wait for them.
"""

from __future__ import annotations

from pathlib import Path

from powerccl.analysis.findings import Clocks, Communication, Energy, RunSummary, Shares
from powerccl.traces.run_info import RUN_FILE, parse_run_info

NOT_COMPUTED = "no rank left a trace; `powerccl report` computes the energy of what was sampled"


def has_traces(folder: Path) -> bool:
    """Whether any rank left a trace."""
    return any(path.suffix == ".trace" for path in folder.iterdir())


def brief(folder: Path) -> RunSummary:
    """What run.json says; energy is not known, with the reason.

    Raises:
        OSError: run.json cannot be read.
        ValueError: it is none.
    """
    info = parse_run_info((folder / RUN_FILE).read_bytes())
    return RunSummary(
        emulated=info.emulated,
        folder=str(folder),
        name=info.name,
        command=info.command,
        exit_code=info.exit_code,
        policy=info.policy,
        clocks_mode=info.clocks,
        platform=info.platform,
        library="",
        ranks=0,
        wall_s=(info.end_ns - info.start_ns) / 1e9 if info.end_ns > info.start_ns > 0 else None,
        finished=bool(info.end_ns),
        energy=Energy(reason=NOT_COMPUTED),
        communication=Communication(),
        shares=Shares(reason="nothing was communicated"),
        clocks=Clocks(),
    )
