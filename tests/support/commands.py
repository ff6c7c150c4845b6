# SPDX-License-Identifier: Apache-2.0
"""Commands that benches run: what one says, and what happens to one that does not end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

HUNG = -signal.SIGKILL


class Said(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def hung(self) -> bool:
        """It was killed, by us or by another."""
        return self.code == HUNG

    @property
    def died(self) -> bool:
        """Ended by a signal, by a traceback, or as what the command itself calls unexpected."""
        both = self.out + self.err
        return self.code < 0 or self.code > 128 or "Traceback" in both or "unexpected:" in both


def run_command(
    command: Sequence[str | Path], environment: Mapping[str, str], limit_s: float, folder: str | Path | None = None
) -> Said:
    """Run a command in a session of its own; all of a session that does not end in time is killed."""
    with subprocess.Popen(
        list(map(str, command)),
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return Said(HUNG, "", f"did not end within {limit_s:g} s")
    return Said(process.returncode, out, err)
