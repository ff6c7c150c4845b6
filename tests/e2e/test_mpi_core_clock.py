# SPDX-License-Identifier: Apache-2.0
"""Core clocks during long MPI waits, on a cpufreq made of plain files: down, up again, and never left down."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Powerccl
from mpi import Mpi

from powerccl.traces.folder import read_journal

POWERCCL = str(Path(sys.executable).parent / "powerccl")
USUAL, LOWEST = 2_800_000, 800_000


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two ranks on one core; rank 1 comes 0.6 s late."""
    mpi = Mpi("mpich", tmp_path_factory.mktemp("mpich"))
    if missing := mpi.missing():
        pytest.skip(f"{mpi.id} is not installed: {missing}")
    if shutil.which("taskset") is None:
        pytest.skip("no taskset")
    core = str(min(os.sched_getaffinity(0)))
    return [str(mpi.launcher), "-n", "2", "taskset", "-c", core, str(mpi.program("unusual.c")), "late"]


@pytest.fixture
def highest(tmp_path: Path) -> Callable[[], int]:
    """A cpufreq folder of the one core; what it says the highest clock is, in kHz."""
    core = min(os.sched_getaffinity(0))
    folder = tmp_path / "sys" / "devices" / "system" / "cpu" / f"cpu{core}" / "cpufreq"
    folder.mkdir(parents=True)
    for name, text in (("scaling_max_freq", USUAL), ("cpuinfo_min_freq", LOWEST), ("affected_cpus", core)):
        (folder / name).write_text(f"{text}\n")
    return lambda: int((folder / "scaling_max_freq").read_text().split()[0])


def started(powerccl: Powerccl, sysfs: Path, program: list[str]) -> subprocess.Popen[str]:
    environment = {**powerccl.environment, "POWERCCL_MPI_CPU_CLOCK": "1", "POWERCCL_SYSFS": str(sysfs)}
    command = [POWERCCL, "run", "--name", "job", "--", *program]
    return subprocess.Popen(
        command, cwd=powerccl.folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def until(condition: Callable[[], bool], job: subprocess.Popen[str]) -> bool:
    while job.poll() is None:
        if condition():
            return True
        time.sleep(0.002)
    return condition()


def test_down_while_waiting_and_up_again(
    powerccl: Powerccl, program: list[str], highest: Callable[[], int], tmp_path: Path
) -> None:
    job = started(powerccl, tmp_path / "sys", program)
    lowered = until(lambda: highest() == LOWEST, job)
    raised = until(lambda: highest() == USUAL, job)
    out, _ = job.communicate(timeout=60)
    assert job.returncode == 0, out
    assert (lowered, raised, highest()) == (True, True, USUAL), out
    (journal,) = powerccl.runs[0].glob("clocks-*.journal")
    assert [(slot.device.split("@")[1], slot.locked) for slot in read_journal(journal)] == [(str(USUAL), False)]


def test_a_killed_rank_leaves_no_core_slow(
    powerccl: Powerccl, program: list[str], highest: Callable[[], int], tmp_path: Path
) -> None:
    job = started(powerccl, tmp_path / "sys", program)
    assert until(lambda: highest() == LOWEST, job)
    (journal,) = powerccl.runs[0].glob("clocks-*.journal")
    os.kill(next(slot.pid for slot in read_journal(journal) if slot.locked), signal.SIGKILL)
    out, _ = job.communicate(timeout=60)
    assert job.returncode != 0
    deadline = time.monotonic() + 10
    while highest() != USUAL and time.monotonic() < deadline:
        time.sleep(0.01)
    assert highest() == USUAL, out


def test_off_by_default(powerccl: Powerccl, program: list[str], highest: Callable[[], int], tmp_path: Path) -> None:
    environment = {**powerccl.environment, "POWERCCL_SYSFS": str(tmp_path / "sys")}
    environment.pop("POWERCCL_MPI_CPU_CLOCK", None)
    command = [POWERCCL, "run", "--name", "job", "--", *program]
    job = subprocess.Popen(command, cwd=powerccl.folder, env=environment, stdout=subprocess.DEVNULL)
    assert not until(lambda: highest() == LOWEST, job)  # type: ignore[arg-type]
    assert job.wait(60) == 0
