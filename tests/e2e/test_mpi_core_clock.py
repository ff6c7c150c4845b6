# SPDX-License-Identifier: Apache-2.0
"""Core clocks during long MPI waits, on a cpufreq made of plain files: down, up again, and never left down.

Set by the rank itself, and by a powerccld that leases cores.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_process import Daemon
from harness import Powerccl, eventually
from mpi_libraries import Mpi

from powerccl.launch.native import NativeFiles
from powerccl.traces.folder import read_journal

POWERCCL = str(Path(sys.executable).parent / "powerccl")
USUAL, LOWEST = 2_800_000, 800_000
NOBODY = 65534


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
    return cpufreq(tmp_path / "sys", min(os.sched_getaffinity(0)))


def cpufreq(sysfs: Path, core: int) -> Callable[[], int]:
    folder = sysfs / "devices" / "system" / "cpu" / f"cpu{core}" / "cpufreq"
    folder.mkdir(parents=True)
    for name, text in (("scaling_max_freq", USUAL), ("cpuinfo_min_freq", LOWEST), ("affected_cpus", core)):
        (folder / name).write_text(f"{text}\n")
    return lambda: int((folder / "scaling_max_freq").read_text().split()[0])


def started(
    powerccl: Powerccl, sysfs: Path, program: list[str], *become: str, folder: Path | None = None, **environment: str
) -> subprocess.Popen[str]:
    added = {"POWERCCL_MPI_CPU_CLOCK": "1", "POWERCCL_SYSFS": str(sysfs), **environment}
    return subprocess.Popen(
        [*become, POWERCCL, "run", "--name", "job", "--", *program],
        cwd=folder or powerccl.folder,
        env={**powerccl.environment, **added},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
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


# ---- By lease.


class CoreDaemon(Daemon):
    """A powerccld that leases the cores of such a cpufreq."""

    def start_on(self, sysfs: Path) -> None:
        config = '[gpu]\nleases = false\n[core]\nleases = true\n[log]\nlevel = "debug"\n'
        self.start(config, POWERCCL_SYSFS=str(sysfs))


@pytest.fixture
def daemon(native: NativeFiles) -> Iterator[CoreDaemon]:
    made = CoreDaemon(native)
    yield made
    made.end()


def asking(daemon: CoreDaemon) -> dict[str, str]:
    """What a user sets who wants leases although the files may be written, as root's may."""
    return {"POWERCCL_CLOCKS": "lease", "POWERCCL_LEASE_SOCKET": str(daemon.socket)}


def test_leased_for_each_wait(
    powerccl: Powerccl, program: list[str], highest: Callable[[], int], daemon: CoreDaemon, tmp_path: Path
) -> None:
    daemon.start_on(tmp_path / "sys")
    job = started(powerccl, tmp_path / "sys", program, **asking(daemon))
    lowered = until(lambda: highest() == LOWEST, job)
    raised = until(lambda: highest() == USUAL, job)
    out, _ = job.communicate(timeout=60)
    assert job.returncode == 0, out
    assert (lowered, raised, highest()) == (True, True, USUAL), out + daemon.log.read_text()
    (journal,) = powerccl.runs[0].glob("clocks-*.journal")
    assert not read_journal(journal), "the daemon's, not the agent's"


def test_by_somebody_without_rights(
    powerccl: Powerccl, program: list[str], highest: Callable[[], int], daemon: CoreDaemon, tmp_path: Path
) -> None:
    """Who may not write cpufreq is given leases without asking for them by name."""
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    daemon.start_on(tmp_path / "sys")
    home = Path(tempfile.mkdtemp(prefix="powerccl-home-", dir="/dev/shm"))
    try:
        sysfs = shutil.copytree(tmp_path / "sys", home / "sys")  # of the same kind; pytest's folders are root's
        mine = shutil.copy(program[-2], home / "late")
        os.chown(home, NOBODY, NOBODY)
        become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        names = {"POWERCCL_LEASE_SOCKET": str(daemon.socket), "HOME": str(home)}
        job = started(powerccl, sysfs, [*program[:-2], str(mine), "late"], *become, folder=home, **names)
        lowered = until(lambda: highest() == LOWEST, job)
        out, _ = job.communicate(timeout=60)
        assert job.returncode == 0, out
        assert lowered, out + daemon.log.read_text()
        assert eventually(lambda: highest() == USUAL, 10)
        assert f"of user {NOBODY}" in daemon.log.read_text()
    finally:
        shutil.rmtree(home)


def test_a_killed_rank_leaves_no_leased_core_slow(
    powerccl: Powerccl, program: list[str], highest: Callable[[], int], daemon: CoreDaemon, tmp_path: Path
) -> None:
    daemon.start_on(tmp_path / "sys")
    job = started(powerccl, tmp_path / "sys", program, **asking(daemon))
    assert until(lambda: highest() == LOWEST, job), job.communicate(timeout=60)[0] + daemon.log.read_text()
    (rank,) = daemon.leaseholders()
    os.kill(rank, signal.SIGKILL)
    assert eventually(lambda: highest() == USUAL, 10), daemon.log.read_text()
    job.communicate(timeout=60)
    assert job.returncode != 0
    assert not daemon.leaseholders()


def test_a_killed_daemon_is_no_matter(
    powerccl: Powerccl, program: list[str], highest: Callable[[], int], daemon: CoreDaemon, tmp_path: Path
) -> None:
    daemon.start_on(tmp_path / "sys")
    job = started(powerccl, tmp_path / "sys", program, **asking(daemon))
    assert until(lambda: highest() == LOWEST, job)
    assert daemon.process
    daemon.process.kill()
    daemon.process.wait()
    daemon.socket.unlink()
    daemon.start_on(tmp_path / "sys")  # it finds in its state file what to put back
    out, _ = job.communicate(timeout=60)
    assert job.returncode == 0, out
    assert eventually(lambda: highest() == USUAL, 10)
    assert out.count("at present: powerccld closed the connection") <= 2, out


def test_a_refusal_is_said_and_the_job_goes_on(
    powerccl: Powerccl, program: list[str], highest: Callable[[], int], daemon: CoreDaemon, tmp_path: Path
) -> None:
    other = max(os.sched_getaffinity(0))
    if other == min(os.sched_getaffinity(0)):
        pytest.skip("there is one core")
    cpufreq(tmp_path / "other", other)  # the daemon has another core to lease
    daemon.start_on(tmp_path / "other")
    job = started(powerccl, tmp_path / "sys", program, **asking(daemon))
    assert not until(lambda: highest() == LOWEST, job)
    out, _ = job.communicate(timeout=60)
    assert job.returncode == 0, out
    assert out.count("powerccld has no such device") == 1, out
    assert "hint: ask the administrator to allow it" in out
