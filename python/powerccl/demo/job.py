# SPDX-License-Identifier: Apache-2.0
"""One job of the demo: recorded, and kept with the file of figures that the job itself wrote."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from powerccl.errors import PowercclError
from powerccl.launch.record import record
from powerccl.launch.request import Request
from powerccl.launch.services import last_line


def run_job(request: Request, what: str, written: Path, say: Callable[[str], None]) -> Path:
    """Run `request` and return its run folder, with the file `written` in it.

    Raises:
        PowercclError: the job failed; its last line of output is in the message.
        KeyboardInterrupt: a signal ended the job.
    """
    recorded = record(request, say)
    assert recorded.folder is not None
    if recorded.ended.signal:
        raise KeyboardInterrupt
    if recorded.ended.code or not written.exists():
        words = last_line(recorded.folder / request.output) or "no message"
        raise PowercclError(
            f"{what} ended with exit code {recorded.ended.code}: {words}",
            "run `powerccl doctor` to find the cause",
        )
    shutil.copyfile(written, recorded.folder / written.name)
    return recorded.folder
