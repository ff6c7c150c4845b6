# SPDX-License-Identifier: Apache-2.0
"""Random correct MPI programs give the same results with the adapter and without. `make soak` runs thousands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mpi_libraries import PROGRAMS, YIELDING, Mpi, mpi_library

__all__ = ["mpi_library"]  # the fixture `mpi`

SEEDS = 40


@pytest.fixture(scope="module")
def program(mpi: Mpi) -> Path:
    first, *others = sorted((PROGRAMS / "random").glob("*.cpp"))
    assert mpi.scratch is not None
    return mpi.compile(first, mpi.scratch / "random", ["-std=c++17", "-pthread", *map(str, others)])


def results(mpi: Mpi, program: Path, ranks: int, adapter: str | None) -> list[str]:
    done = mpi.run([program, "0", str(SEEDS)], ranks, adapter=adapter, env=YIELDING, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return re.findall(r"^\d+ [0-9a-f]{16} \d+$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("ranks", [3])
def test_same_results_with_and_without(mpi: Mpi, program: Path, ranks: int) -> None:
    without = results(mpi, program, ranks, None)
    assert len(without) == SEEDS
    assert all(line.endswith(" 0") for line in without), "the program itself, or the library, is at fault"
    assert results(mpi, program, ranks, "auto") == without
    assert results(mpi, program, ranks, "published") == without
