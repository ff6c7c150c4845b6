# SPDX-License-Identifier: Apache-2.0
"""Names that preloaded libraries export are found only where something defines them, and follow what is loaded."""

from __future__ import annotations

import tempfile
from pathlib import Path

from harm import names
from mpi_libraries import PROGRAMS, Mpi, adapter_library
from mpi_libraries import mpi_library as mpi_library

from powerccl.launch.native import find_native
from powerccl.traces.folder import read_run
from powerccl.traces.mpi_tables import mpi_notes, mpi_totals


def test_programs_find_only_what_is_there() -> None:
    """Every program that asks ends as it does alone: exit status, stdout and stderr."""
    with tempfile.TemporaryDirectory() as folder:  # which another user can read
        different, ran = names.differences(find_native(), Path(folder), ["nccl-mpi"])
    assert ran > 150
    assert not different, different[:3]


def test_a_module_with_mpi_comes_and_goes(mpi: Mpi, tmp_path: Path) -> None:
    """Its results are its own, and each life's calls are recorded."""
    assert names.reloads(mpi, find_native(), tmp_path) == []


def test_calls_of_all_threads_are_counted(mpi: Mpi, tmp_path: Path) -> None:
    assert names.lost_of_threads(mpi, find_native(), tmp_path, [(200, 50, 1), (70, 5, 4)]) == (0, 11400)


def test_the_trace_says_that_calls_are_missing(mpi: Mpi, tmp_path: Path) -> None:
    """The memory for threads has ended: no call is counted, and that is told."""
    program = mpi.compile(PROGRAMS / "many_threads.c", tmp_path / "threads", ["-pthread"])
    # Open MPI 4.1 itself fails now and then where it gets no memory.
    for attempt in range(4):
        run = tmp_path / f"run-{attempt}"
        run.mkdir()
        code, _, text = names.one_process(mpi, [program, "200", "20", "1", "no memory"], adapter_library(), run)
        if code == 0:
            break
    assert code == 0, text
    found = read_run(run)
    counted = int(mpi_totals(found)["calls"].sum())
    notes = mpi_notes(found)
    assert "MPI counts are minimums: no memory for threads" in notes
    missing = next(int(note.split()[0]) for note in notes if note.endswith("MPI calls left out"))
    assert counted + missing >= 4000


def test_forms_that_a_library_lacks_are_not_found(mpi: Mpi) -> None:
    """A program that asks for large counts gets the library's answer."""
    program = [str(mpi.program("large_counts.c"))]
    alone, found = (mpi.run(program, 2, adapter=adapter) for adapter in (None, "auto"))
    assert (alone.returncode, alone.stdout) == (found.returncode, found.stdout)
