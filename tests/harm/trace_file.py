# SPDX-License-Identifier: Apache-2.0
"""A job that writes 10^6 records while its trace is cut, deleted or replaced, its disk full, or its descriptors reused.

`powerccl-trace-stress` (tests/native/runtime/trace_stress.cpp) is the job; it knows the contents of its own files and
looks at them in the end. Sandboxes refuse the calls by which the recorder gets descriptors of its own.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harm import Figures, count
from powerccl.launch.native import NativeFiles
from powerccl.traces import records

RECORDS = 1_000_000
SEEDS = 2
BY_OTHERS = ("cut", "empty", "grow", "delete", "replace", "link", "forbid", "remove", "move", "fill")
BY_THE_JOB = ("closefrom", "dup2", "stderr")
SANDBOXES = ("none", "unshare", "neither")
# After these the trace is still the recorder's and has every record that was taken.
HARMLESS = {"closefrom", "dup2", "forbid", "move"}
DISK_KIB = 8192
CHANGED = 3
PATIENCE_S = 300.0


@dataclass
class Outcome:
    """What became of one job."""

    what: str
    code: int
    attacks: int
    accepted: int
    committed: int
    dropped: int
    text: str

    @property
    def killed(self) -> bool:
        """It ended by a signal, or gave another sign than a changed file."""
        return self.code not in (0, CHANGED)


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[None]:
    """A file system of DISK_KIB at `place`, as long as it is used. It takes root."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_KIB}k", "none", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def run_case(
    native: NativeFiles, folder: Path, what: str, sandbox: str = "none", amount: int = RECORDS, seed: int = 0
) -> Outcome:
    """Run the job in `folder`, which is new, and look at what it left.

    Raises:
        RuntimeError: the case did not take place.
    """
    with small_disk(folder) if what == "fill" else contextlib.nullcontext():
        (folder / "run").mkdir(parents=True)
        command = [str(native.path("test/powerccl-trace-stress")), str(folder), what, sandbox, str(amount), str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S)
        numbers = re.match(r"attacks (\d+) accepted (\d+) committed (\d+) dropped (\d+)", done.stdout)
        attacks, accepted, committed, dropped = map(int, numbers.groups()) if numbers else (0, 0, 0, 0)
        outcome = Outcome(what, done.returncode, attacks, accepted, committed, dropped, done.stderr)
        if (numbers and outcome.attacks == 0) or outcome.code in (2, 5):
            raise RuntimeError(f"{' '.join(command)}: nothing went wrong: {done.stdout}{done.stderr}")
        if outcome.code == 0 and what in HARMLESS:
            left = folder / ("elsewhere" if what == "move" else "run") / "rank-0.trace"
            check_whole(left, outcome)
        return outcome


def check_whole(trace: Path, outcome: Outcome) -> None:
    """Nothing but the job's records, each once.

    Raises:
        RuntimeError: it is not so.
    """
    header = np.fromfile(trace, records.HEADER, 1)[0]
    rows = np.fromfile(trace, records.LAYOUTS[records.CALL], offset=int(header["header_bytes"]))[: header["committed"]]
    calls = rows[rows["kind"] == records.CALL]["call_id"]
    if len(calls) != outcome.accepted or len(np.unique(calls)) != len(calls):
        raise RuntimeError(f"{trace}: {len(calls)} of {outcome.accepted} records after {outcome.what}")


def measure(native: NativeFiles, folder: Path) -> Figures:
    """All cases in all sandboxes."""
    outcomes = [
        run_case(native, folder / f"{what}-{sandbox}-{seed}", what, sandbox, RECORDS, seed)
        for what in (*BY_OTHERS, *BY_THE_JOB)
        for sandbox in SANDBOXES
        for seed in range(SEEDS)
    ]
    n = len(outcomes)
    return {
        "harm.trace_file.killed": count(sum(outcome.killed for outcome in outcomes), n),
        "harm.trace_file.foreign_files_changed": count(sum(outcome.code == CHANGED for outcome in outcomes), n),
        "harm.trace_file.records": count(sum(outcome.accepted for outcome in outcomes), n),
    }
