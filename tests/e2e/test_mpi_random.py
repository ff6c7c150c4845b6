# SPDX-License-Identifier: Apache-2.0
"""Random correct MPI programs give the same results with the adapter and without. `make soak` runs thousands."""

from __future__ import annotations

import re
import subprocess

import pytest
from mpi_libraries import YIELDING, Mpi, mpi_library
from test_mpi_programs import lines_of_the_adapter

__all__ = ["mpi_library"]  # the fixture `mpi`

SEEDS = 40


def results(said: str) -> list[str]:
    """A line for each seed: a hash of all that was received, and how much of it was wrong."""
    return re.findall(r"^\d+ [0-9a-f]{16} \d+$", said, re.MULTILINE)


def run(
    mpi: Mpi, ranks: int, how: str, adapter: str | None, *, only_rank_0: bool = False
) -> subprocess.CompletedProcess[str]:
    command = [str(mpi.random_program()), "0", str(SEEDS), how]
    done = mpi.run(command, ranks, adapter=adapter, env=YIELDING, timeout=120, only_rank_0=only_rank_0)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@pytest.mark.parametrize(("ranks", "how"), [(3, "threads"), (3, "single"), (1, "single")])
def test_same_results_with_and_without(mpi: Mpi, ranks: int, how: str) -> None:
    without = results(run(mpi, ranks, how, None).stdout)
    assert len(without) == SEEDS
    assert all(line.endswith(" 0") for line in without), "the program itself, or the library, is at fault"
    for adapter in ("auto", "published"):
        done = run(mpi, ranks, how, adapter)
        assert results(done.stdout) == without
        assert not lines_of_the_adapter(done)
    if ranks > 1 and how == "single":
        done = run(mpi, ranks, how, "published", only_rank_0=True)
        assert results(done.stdout) == without
        (line,) = lines_of_the_adapter(done)
        assert "no barrier is added" in line
