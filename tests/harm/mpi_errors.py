# SPDX-License-Identifier: Apache-2.0
"""Collectives and exchanges with wrong arguments under MPI_ERRORS_RETURN, on one rank or on all.

What each library notices by itself is found out first. A case that crashes, blocks or passes there is left out. Under
`--mpi published` every other case must give the same error, and the communicator must still work.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from mpi_libraries import PROGRAMS, Mpi, libraries

from harm import Figures, count
from powerccl.launch.native import NativeFiles

RANKS = 2
PATIENCE_S = 30.0  # for a few hundred cases of microseconds each; the program ends by itself at one that blocks alone
EVERYBODY = -1
EVERY = list(range(18 * 14))  # functions and faults of errors.c
_BEGUN = re.compile(r"^case (\d+)$", re.MULTILINE)
_GOT = re.compile(r"^(rank \d+: (\d+) .*): (\d+)$", re.MULTILINE)
_END = re.compile(r"^rank \d+:( 0)*$", re.MULTILINE)


def ask(
    mpi: Mpi, program: Path, adapter: str | None, who: int, how: str, cases: list[int]
) -> tuple[dict[str, int], bool, int]:
    """Error class by rank and case; whether all ranks came to their end as they should; the last case begun."""
    command = [str(program), str(who), how, *map(str, cases)]
    try:
        done = mpi.run(command, RANKS, adapter=adapter, timeout=PATIENCE_S)
        out, err = done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        out, err = str(late.stdout), str(late.stderr)
    got = {case: int(error) for case, _, error in _GOT.findall(out) if error != "0"}
    begun = [int(case) for case in _BEGUN.findall(err)]
    return got, len(_END.findall(out)) == RANKS, begun[-1] if begun else -1


def number_of(case: str) -> int:
    """The number in `rank 1: 15 Bcast, count`."""
    return int(case.split()[2])


def noticed(mpi: Mpi, program: Path, who: int, how: str, cases: list[int]) -> dict[str, int]:
    """The error class of each case that the library notices by itself, and goes on working."""
    found: dict[str, int] = {}
    ended = False
    while not ended:
        got, ended, last = ask(mpi, program, None, who, how, cases)
        if not ended and last not in cases:
            raise RuntimeError(f"{mpi.id}: the program does not run")
        found |= {case: error for case, error in got.items() if ended or number_of(case) != last}
        cases = cases[cases.index(last) + 1 :] if not ended else cases
    return found


def differences(mpi: Mpi, program: Path) -> tuple[int, int]:
    """How many cases there are, and how many are not as without the adapter."""
    cases = changed = 0
    both: set[int] = set(EVERY)
    for who in (0, 1, EVERYBODY):
        chosen = EVERY if who != EVERYBODY else sorted(both)
        for how in ("alone", "again") if who != EVERYBODY else ("alone",):
            expected = noticed(mpi, program, who, how, chosen)
            chosen = sorted({number_of(case) for case in expected})
            both &= set(chosen)
            got, ended, last = ask(mpi, program, "published", who, how, chosen)
            wrong = [case for case, error in expected.items() if got.get(case) != error]
            cases += len(expected)
            changed += max(len(wrong), 0 if ended else 1)
            if wrong or not ended:
                print(f"mpi_errors: {mpi.id} {who} {how}: case {last}, {wrong[:3]}", file=sys.stderr)
    return cases, changed


def measure(native: NativeFiles, folder: Path) -> Figures:
    """All libraries that are installed."""
    cases = changed = 0
    for mpi in libraries():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            mpi.scratch = Path(scratch)
            some, wrong = differences(mpi, mpi.compile(PROGRAMS / "errors.c", mpi.scratch / "errors"))
            print(f"mpi_errors: {mpi.id}: {some} cases, {wrong} changed", file=sys.stderr)
            cases += some
            changed += wrong
    return {"harm.mpi_errors.changed": count(changed, cases)}
