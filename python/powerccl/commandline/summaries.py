# SPDX-License-Identifier: Apache-2.0
"""A run's summary.json: made at the end of the run, or when the first reader asks for it.

`powerccl run -q` makes none. An analysis takes ten times as long as everything else that is done around a short job.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from powerccl.analysis.findings import SUMMARY_FILE, RunSummary, read_summary, write_summary

if TYPE_CHECKING:
    from powerccl.traces.folder import RunData


def make_summary(folder: Path) -> tuple[RunData, RunSummary]:
    """A run's records and what they come to.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    from powerccl.analysis.brief import brief

    if summarised := brief(folder):
        return summarised
    from powerccl.analysis.summary import summarise
    from powerccl.commandline.references import own_reference
    from powerccl.traces.folder import KEPT_RECORDS, MOST_RECORDS, read_run

    run = read_run(folder, MOST_RECORDS, kept_records=KEPT_RECORDS)
    return run, summarise(run, run.window, reference=own_reference(run))


def summary_of(folder: Path) -> RunSummary:
    """A run's summary: that in summary.json where it is whole, else one that is made now and kept there.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    import msgspec

    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return read_summary(folder / SUMMARY_FILE)
    run, summary = make_summary(folder)
    keep_summary(summary, run)
    return summary


def keep_summary(summary: RunSummary, run: RunData) -> None:
    """Write summary.json, unless the run has no end, or the folder is another user's or cannot be written.

    A run without an end may still be recording. Where files were on nodes still, the summary lacks them.
    """
    with contextlib.suppress(OSError):
        if summary.finished and run.folder.stat().st_uid == os.geteuid() and not run.elsewhere:
            write_summary(summary, run.folder / SUMMARY_FILE)
