# SPDX-License-Identifier: Apache-2.0
"""`powerccl run` around an MPI job, and as each of its ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import Done, Powerccl
from mpi_libraries import Mpi
from mpi_libraries import mpi_library as mpi_library
from test_mpi_programs import counted, without
from test_mpi_random import results

POWERCCL = str(Path(sys.executable).parent / "powerccl")


@pytest.fixture
def job(powerccl: Powerccl, mpi: Mpi) -> Powerccl:
    """`powerccl` where this library's launcher works."""
    powerccl.environment.update({k: v for k, v in mpi.environment().items() if k.startswith(("OMPI_", "OPAL_"))})
    return powerccl


def launched(mpi: Mpi, ranks: int, *program: str) -> list[str]:
    return [str(mpi.launcher), *(["--oversubscribe"] if mpi.is_open_mpi else []), "-n", str(ranks), *program]


def said(done: Done) -> list[str]:
    return sorted(line for line in done.out.splitlines() if line.startswith("rank "))


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


@pytest.mark.parametrize("mode", ["auto", "published"])
def test_around_the_launcher(job: Powerccl, mpi: Mpi, mode: str) -> None:
    program = [str(mpi.random_program()), "0", "40", "single"]
    done = job("run", "--mpi", mode, "--name", "job", "--", *launched(mpi, 3, *program))
    assert (done.code, len(results(done.out))) == (0, 40), done.err
    (folder,) = job.runs
    assert sorted(path.name for path in folder.glob("mpi-*.trace")) == [f"mpi-{rank}.trace" for rank in range(3)]
    counts = counted(folder)
    assert min(counts[rank, "MPI_Scan"][0] for rank in range(3)) > 0
    assert "MPI" in done.err
    assert "MPI_Barrier" in json.dumps(summary(folder))


def test_as_each_rank(job: Powerccl, mpi: Mpi) -> None:
    program = str(mpi.program("point_to_point.c", ["-pthread"]))
    done = _plain(job, launched(mpi, 2, POWERCCL, "run", "--name", "job", "--", program))
    assert (done.code, said(done)) == without(mpi, [program], 2), done.err
    (folder,) = job.runs
    assert sorted(path.name for path in folder.glob("mpi-*.trace")) == ["mpi-0.trace", "mpi-1.trace"]
    assert counted(folder)[0, "MPI_Recv"][0] > 0


def _plain(job: Powerccl, command: list[str]) -> Done:
    """Run something that is not powerccl itself in its folder."""
    done = subprocess.run(
        command, cwd=job.folder, env=job.environment, capture_output=True, text=True, timeout=60, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


def test_bad_ends_pass_through(job: Powerccl, mpi: Mpi) -> None:
    program = str(mpi.program("unusual.c"))
    for what in ("abort", "killed"):
        plain = _plain(job, launched(mpi, 2, program, what))
        done = job("run", "--name", what, "--", *launched(mpi, 2, program, what))
        assert done.code == plain.code != 0, done.err
        assert "Traceback" not in done.err


def test_off_is_off(job: Powerccl, mpi: Mpi) -> None:
    program = str(mpi.program("unusual.c"))
    done = job("run", "--mpi", "off", "--name", "job", "--", *launched(mpi, 2, program, "plain"))
    assert (done.code, said(done)) == without(mpi, [program, "plain"], 2)
    (folder,) = job.runs
    assert not list(folder.glob("mpi-*.trace"))


def test_two_jobs_in_one_script(job: Powerccl, mpi: Mpi) -> None:
    """One after the other in one run: each is whole, and the second does not spoil the first's exit code."""
    program = str(mpi.program("unusual.c"))
    line = " ".join(launched(mpi, 2, program, "plain"))
    done = job("run", "--mpi", "published", "--name", "job", "--", "sh", "-c", f"{line} && {line}")
    code, lines = without(mpi, [program, "plain"], 2)
    assert (done.code, said(done)) == (code, sorted(lines * 2)), done.err
    assert "Traceback" not in done.err
