# SPDX-License-Identifier: Apache-2.0
"""MPI programs do the same with the adapter as without it, on every MPI library; and the trace tells what they did."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
from mpi_libraries import PROGRAMS, ROOT, Mpi, adapter_library, not_on, on, run_job
from mpi_libraries import mpi_library as mpi_library

from powerccl.traces.folder import read_run
from powerccl.traces.mpi_tables import mpi_totals

Result = tuple[int, list[str]]
_EXTENSION = str(sysconfig.get_config_var("EXT_SUFFIX"))
_without: dict[tuple[str, ...], Result] = {}


def result(done: subprocess.CompletedProcess[str]) -> Result:
    """Exit code and what the ranks said; not what their launcher says of a job that failed, which has process ids."""
    return done.returncode, sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))


def lines_of_the_adapter(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("powerccl:")]


def without(mpi: Mpi, program: Sequence[str], ranks: int, env: dict[str, str] | None = None) -> Result:
    """What a program does by itself: found out once."""
    key = (mpi.id, str(ranks), *program)
    if key not in _without:
        _without[key] = result(mpi.run(program, ranks, adapter=None, env=env))
    return _without[key]


def same(
    mpi: Mpi,
    program: Sequence[str],
    ranks: int,
    adapter: str,
    folder: Path | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run with the adapter; the outcome is the program's own and the adapter is silent."""
    expected = without(mpi, program, ranks, env)
    done = mpi.run(program, ranks, adapter=adapter, folder=folder, env=env)
    assert result(done) == expected, done.stderr
    assert not lines_of_the_adapter(done)
    return done


def counted(folder: Path) -> dict[tuple[int, str], tuple[int, int]]:
    """Calls and bytes by rank and function, from the traces."""
    run = read_run(folder)
    assert not [problem for problem in run.problems if "run.json" not in problem]
    sums = mpi_totals(run).group_by("rank", "function").agg(pl.sum("calls"), pl.sum("bytes"))
    return {(rank, function): (calls, size) for rank, function, calls, size in sums.iter_rows()}


@pytest.mark.parametrize("adapter", ["auto", "published"])
def test_same_result(mpi: Mpi, adapter: str) -> None:
    """With errors, too; test_mpi_random.py has everything that succeeds."""
    program = [str(mpi.program("point_to_point.c"))]
    code, lines = without(mpi, program, 3)
    assert (code, len(lines)) == (0, 3)
    same(mpi, program, 3, adapter)


@on("debian_mpich", "debian_openmpi")  # the wheels have no Fortran
@pytest.mark.parametrize("program", ["legacy.f90", "modern.f90"])
@pytest.mark.parametrize("adapter", ["auto", "published"])
def test_fortran_is_counted(mpi: Mpi, program: str, adapter: str, tmp_path: Path) -> None:
    done = same(mpi, [str(mpi.program(program))], 3, adapter, tmp_path)
    assert done.returncode == 0
    counts = counted(tmp_path)
    for rank in range(3):
        assert counts[rank, "MPI_Allreduce"] == (3, 3 * 5 * 8)
    assert counts[1, "MPI_Recv"] == (1, 400)


# Its wheel has modules for the ABIs of MPICH's and Open MPI's libraries by the names that these themselves give.
@not_on("mpich_abi", "debian_mpich")
@pytest.mark.parametrize("adapter", ["auto", "published"])
def test_mpi4py(mpi: Mpi, adapter: str, tmp_path: Path) -> None:
    module = ROOT / "mpi4py" / "mpi4py" / f"MPI.{'openmpi' if mpi.is_open_mpi else 'mpich'}{_EXTENSION}"
    if not module.exists():
        pytest.skip(f"mpi4py (tools/fetch-mpi build/deps/mpi) has no module for {mpi.id} and this Python")
    env = {"MPI4PY_LIBMPI": str(mpi.library), "PYTHONPATH": str(ROOT / "mpi4py")}
    done = same(mpi, [sys.executable, str(PROGRAMS / "objects.py")], 3, adapter, tmp_path, env)
    assert done.returncode == 0, done.stderr
    assert counted(tmp_path)[0, "MPI_Allreduce"][0] >= 2


def test_a_waiting_rank_serves_its_window(mpi: Mpi) -> None:
    program = [str(mpi.program("window.c"))]

    def each_us(done: subprocess.CompletedProcess[str]) -> float:
        return float(re.findall(r"each_us ([\d.]+)", done.stderr)[0])

    alone = mpi.run(program, 2, adapter=None)
    done = mpi.run(program, 2, adapter="auto")
    assert result(done) == result(alone)
    assert "rank 0: fetched=79800" in done.stdout
    # On a busy machine either may have waited for a core, whence the constant.
    assert each_us(done) < 20 * each_us(alone) + 20_000  # a busy machine may hold it up by a time slice or two


def same_end(mpi: Mpi, what: str, adapter: str) -> None:
    """The exit code is the program's own; whether a launcher still passes on what was printed before is its luck."""
    program = [str(mpi.program("unusual.c")), what]
    done = mpi.run(program, 2, adapter=adapter)
    assert done.returncode == without(mpi, program, 2)[0] != 0, done.stderr
    assert not lines_of_the_adapter(done)


@pytest.mark.parametrize("adapter", ["auto", "published"])
def test_abort(mpi: Mpi, adapter: str) -> None:
    assert without(mpi, [str(mpi.program("unusual.c")), "abort"], 2)[0] == 7
    same_end(mpi, "abort", adapter)


def test_a_rank_is_killed(mpi: Mpi, tmp_path: Path) -> None:
    program = [str(mpi.program("unusual.c")), "killed"]
    assert without(mpi, program, 2)[0] != 0
    same(mpi, program, 2, "auto", tmp_path)
    counted(tmp_path)  # Sums are written now and then: of a job this short there may be none, but nothing is damaged.
    assert {trace.rank for trace in read_run(tmp_path).mpi} == {0, 1}


@pytest.mark.parametrize("what", ["never", "alarm"])  # children: test_mpi_more.py
def test_own_ways(mpi: Mpi, what: str) -> None:
    done = same(mpi, [str(mpi.program("unusual.c")), what], 2, "auto")
    assert (done.returncode, len(result(done)[1])) == (0, 2)


def test_yields_outside_mpi_are_the_systems(mpi: Mpi) -> None:
    program = [str(mpi.program("unusual.c")), "yields"]

    def ns_each(adapter: str | None) -> float:
        return float(re.findall(r"ns_each ([\d.]+)", mpi.run(program, 1, adapter=adapter).stderr)[0])

    alone, with_adapter = ns_each(None), ns_each("auto")
    assert alone / 5 < with_adapter < alone * 5 + 1000


def test_static_executable(mpi: Mpi, tmp_path: Path) -> None:
    program = tmp_path / "static"
    subprocess.run(["cc", "-static", PROGRAMS / "no_mpi.c", "-o", program], check=True, timeout=60)
    done = same(mpi, [str(program)], 2, "auto")
    assert len(result(done)[1]) == 2


def test_another_librarys_launcher(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A program of MPICH under Open MPI's mpiexec does what it does without the adapter, whatever that is."""
    program_of, launcher_of = Mpi("mpich", tmp_path_factory.mktemp("mpich")), Mpi("openmpi")
    for mpi in (program_of, launcher_of):
        if missing := mpi.missing():
            pytest.skip(f"{mpi.id} is not installed: {missing}")
    same(launcher_of, [str(program_of.program("unusual.c")), "plain"], 2, "auto")


def test_library_without_profiling_interface(tmp_path: Path) -> None:
    library, program = tmp_path / "libmpi.so", tmp_path / "program"
    subprocess.run(["cc", "-shared", "-fPIC", PROGRAMS / "poor_library.c", "-o", library], check=True, timeout=60)
    link = [f"-L{tmp_path}", "-lmpi", f"-Wl,-rpath,{tmp_path}"]
    subprocess.run(["cc", PROGRAMS / "poor_program.c", "-o", program, *link], check=True, timeout=60)
    folder = tmp_path / "run"
    folder.mkdir()
    adapter = {"LD_PRELOAD": str(adapter_library()), "POWERCCL_RUN_FOLDER": str(folder), "POWERCCL_MPI": "auto"}
    command = ["env", *(f"{name}={value}" for name, value in adapter.items()), str(program)]
    done = run_job(command, dict(os.environ), 30, tmp_path)
    assert result(done) == (4, ["rank 42: poor"])
    assert len(lines_of_the_adapter(done)) == 1
