# SPDX-License-Identifier: Apache-2.0
"""Once a job is under way, nothing of ours in it allocates memory: not runtime, adapter or their threads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import Powerccl
from mpi_libraries import Mpi, mpi_library

from powerccl.traces import records, tables
from powerccl.traces.folder import read_run

__all__ = ["mpi_library"]  # the fixture `mpi`

SCENARIOS = Path(__file__).parents[2] / "bench/scenarios"
RANKS = 8
CALLS = 3  # of a rank: what is allocated before they are over is part of arming


@dataclass(frozen=True)
class Allocation:
    """A line of tests/native/allocations/count_allocations.cpp."""

    time_ns: int
    function: str
    bytes: int
    place: str


@pytest.fixture
def counter(powerccl: Powerccl) -> Path:
    """The library that counts; built with the native tests only."""
    library = powerccl.native.root / "test/count-allocations.so"
    if not library.exists():
        pytest.skip("no counter here: POWERCCL_NATIVE has to name the stage of a build with POWERCCL_TESTS=ON")
    return library


def read(path: Path) -> list[Allocation]:
    """What one process allocated."""
    rows = [line.split() for line in path.read_text().splitlines()]
    return [Allocation(int(time), function, int(size), place) for time, function, size, place in rows]


@pytest.mark.parametrize(
    ("policy", "scenario", "iterations", "nccl"),
    [
        ("observe", "fsdp", 8, "2.28.9"),
        ("per-call", "fsdp", 8, "2.28.9"),
        ("auto", "exposed", 200, "2.21.5"),  # loads no plugin: calls and kernels are seen from outside
        pytest.param("auto", "exposed", 200, "2.28.9", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_allocated_once_armed(
    powerccl: Powerccl, counter: Path, policy: str, scenario: str, iterations: int, nccl: str
) -> None:
    counted = powerccl.folder / "counted"
    counted.mkdir()
    replay = ["scenario", str(SCENARIOS / f"{scenario}.scn"), "--iterations", str(iterations), "-w", "1"]
    under = ("--quiet", "--emulate", "t4x8", "--policy", policy)
    counting = {"LD_PRELOAD": str(counter), "COUNT_ALLOCATIONS": str(counted)}
    command = ("--", powerccl.bench, *replay)
    done = powerccl("run", *under, *command, **counting, POWERCCL_EMULATOR_NCCL_VERSION=nccl)
    assert done.code == 0, done.err

    run = read_run(powerccl.runs[-1])
    # All that might allocate has been at work: marks, leases, the clock thread, a clock that was learnt.
    assert len(tables.waits(run)) > 0
    assert (len(tables.clocks(run)) > 0) == (policy != "observe")
    assert policy == "observe" or {rank.clock_client for rank in run.ranks} == {"lease"}
    if policy == "auto":
        assert len(tables.budgets(run)) == RANKS
        assert (tables.budgets(run)["clock_mhz"] > 0).all()

    assert len(run.ranks) == RANKS
    for rank in run.ranks:
        armed_ns = int(rank.kinds[records.CALL]["start_ns"][CALLS])
        every = read(counted / str(rank.pid))
        ours = [each for each in every if each.function != "others"]
        # The counter sees what there is to see: the trace is mapped when the runtime is armed, the policy's table read.
        assert {"mmap", "malloc"} <= {each.function for each in ours} or policy != "per-call"
        assert "mmap" in {each.function for each in ours}
        # And it still counted after that, when others allocated.
        assert max(each.time_ns for each in every if each.function == "others") > armed_ns
        assert [each for each in ours if each.time_ns > armed_ns] == []


def ranks_counted(powerccl: Powerccl, counter: Path, mpi: Mpi, mode: str, *program: str) -> list[list[Allocation]]:
    """What each of two ranks allocated once its trace was there, ours alone. Others do allocate meanwhile."""
    counted = powerccl.folder / "counted"
    counted.mkdir()
    environment = {**mpi.environment(), "LD_PRELOAD": str(counter), "COUNT_ALLOCATIONS": str(counted)}
    options = ("--quiet", "--mpi", mode, "--interval-ms", "0")
    done = powerccl("run", *options, "--", str(mpi.launcher), "-n", "2", *program, **environment)
    assert done.code == 0, done.err
    run = read_run(powerccl.runs[-1])
    assert len(run.mpi) == 2
    found = []
    for rank in run.mpi:
        every = read(counted / str(rank.pid))
        ours = [each for each in every if each.function != "others"]
        others_ns = max(each.time_ns for each in every if each.function == "others")
        assert others_ns > rank.start_ns
        # The trace's memory is mapped. That is not seen where the library brings UCX, which takes the place of mmap.
        later = [each for each in ours if each.time_ns > rank.start_ns and each.function != "mmap"]
        # One thread that writes it is started, and libc allocates for that.
        (thread,) = [each for each in later if each.function == "pthread_create"]
        assert thread.time_ns - rank.start_ns < 1e9
        found.append([each for each in later if each.place != thread.place])
    return found


@pytest.mark.parametrize("mode", ["auto", "published"])
def test_nothing_is_allocated_while_ranks_wait(powerccl: Powerccl, counter: Path, mpi: Mpi, mode: str) -> None:
    program = str(powerccl.native.path("bin/powerccl-bench-mpi"))
    stencil = (program, "stencil", "--iterations", "30", "--library", str(mpi.library))
    assert ranks_counted(powerccl, counter, mpi, mode, *stencil) == [[], []]
