# SPDX-License-Identifier: Apache-2.0
"""Time namespaces and seccomp filters: a thin sample of tests/harm/environment.py."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from harness import Powerccl, last_run
from mpi_libraries import Mpi, on
from mpi_libraries import mpi_library as mpi_library

from powerccl.traces.folder import read_run

PROGRAMS = Path(__file__).parent / "programs"
PWRITE64 = {"x86_64": "18", "aarch64": "68"}[os.uname().machine]
SLEEP = {"x86_64": "230", "aarch64": "115"}[os.uname().machine]  # clock_nanosleep
REFUSED = "the job's seccomp filter refuses pwrite64"


def test_a_job_in_a_time_namespace(powerccl: Powerccl) -> None:
    """An emulated job: host, server and ranks exchange times."""
    enter = ["unshare", "--time", "--monotonic", "86400", "--boottime", "7200"]
    if os.geteuid() != 0 or subprocess.run([*enter, "true"], capture_output=True, check=False).returncode:
        pytest.skip("takes root, and a kernel with time namespaces")
    job = [powerccl.bench, "all_reduce", "-g", "2", "-b", "8M", "-e", "8M", "-n", "50"]
    done = powerccl("run", "--emulate", "t4x8", "--", *enter, *job)
    assert done.code == 0, done.err
    _, summary = last_run(powerccl)
    assert summary.communication.time_s and summary.wall_s
    assert 0 < summary.communication.time_s < summary.wall_s < 100
    assert summary.energy.joules
    assert not summary.problems


@pytest.mark.parametrize("delay_ms", ["0", "1000"])
def test_a_filter_for_all_threads_ends_recording_and_nothing_else(
    powerccl: Powerccl, tmp_path: Path, delay_ms: str
) -> None:
    if not shutil.which("cc"):
        pytest.skip("takes a C compiler")
    library = tmp_path / "filter.so"
    source = str(PROGRAMS / "late_filter.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-pthread", "-o", str(library), source], check=True)
    job = f'LD_PRELOAD="$LD_PRELOAD:{library}" exec {powerccl.bench} all_reduce -g 2 -b 8M -e 8M -n 800'
    environment = {"FILTER": f"{delay_ms} {PWRITE64}"}
    done = powerccl("run", "--emulate", "t4x8", "--policy", "auto", "--", "sh", "-c", job, **environment)
    assert done.code == 0, done.err
    assert done.err.count(REFUSED) == 1
    run = read_run(powerccl.runs[-1])
    assert len(run.ranks) == (2 if delay_ms != "0" else 0)
    assert ("refuses pwrite64, which recording needs" in run.unrecorded) == (delay_ms == "0")


@on("mpich", "debian_openmpi")
@pytest.mark.parametrize("how", ["tsync", "prctl"])
def test_a_rank_of_mpi_installs_a_filter(mpi: Mpi, tmp_path: Path, how: str) -> None:
    """One that waits for the other one: neither the recorder nor the wait makes the call that ends the job."""
    killing = [PWRITE64, *([] if mpi.is_open_mpi else [SLEEP])]  # Open MPI itself sleeps as it ends
    done = mpi.run([str(mpi.program("filtered.c")), how, *killing], 2, adapter="auto", folder=tmp_path / "run")
    assert (done.returncode, done.stdout) == (0, "received 7\n"), done.stderr
    assert REFUSED in done.stderr
    assert len(read_run(tmp_path / "run").mpi) == 2
