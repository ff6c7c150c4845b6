# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import fakes
from fakes import RUN_ID
from lease_daemon import ME, OTHER, UUIDS, FakeDaemon, row

from powerccl.launch.native import MPI_ADAPTER, NCCL_ADAPTER, NativeFiles
from powerccl.leases.protocol import Flag
from powerccl.traces.run_info import write_run_id


@pytest.fixture(autouse=True)
def _plain_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every test: no colours, a known width, and none of the machine's own POWERCCL_* or launcher variables."""
    import os

    for name in list(os.environ):
        launchers = ("SLURM_", "OMPI_", "PMI_", "PMIX_", "MPIR_", "KUBERNETES_", "POD_", "CONTAINER_NAME")
        if name.startswith((*launchers, "POWERCCL_", "NCCL_", "LD_PRELOAD")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("POWERCCL_PRELOAD", "0")  # the fakes' libraries are none that a loader takes
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    fake = FakeDaemon(tmp_path / "d.sock")
    monkeypatch.setenv("POWERCCL_LEASE_SOCKET", str(fake.path))
    monkeypatch.setattr("powerccl.leases.client.SILENCE_S", 1)
    yield fake
    fake.stop()


@pytest.fixture
def busy(daemon: FakeDaemon) -> FakeDaemon:
    """Four GPUs: mine, another's, one whose clock is not restored yet, and one without a lease."""
    mine = int(Flag.MINE)
    daemon.devices = [
        row(UUIDS[0], flags=mine, pid=4711, uid=ME, mhz=(345, 345, 360), held_ms=725_000, changes=1234, sharers=2,
            run=b"train"),
        row(UUIDS[1], pid=4712, uid=OTHER, mhz=(210, 1200, 1980), held_ms=12_345, changes=2, run=b"solver"),
        row(UUIDS[2], flags=int(Flag.PENDING), mhz=(0, 0, 0)),
        row(UUIDS[3]),
    ]  # fmt: skip
    return daemon


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, for commands in processes of their own, with stand-ins for the native files."""
    monkeypatch.setenv("POWERCCL_NATIVE", str(fakes.native_folder(tmp_path / "native")))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "python"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def native(tmp_path: Path) -> NativeFiles:
    """Stand-ins for the native files."""
    return NativeFiles(fakes.native_folder(tmp_path / "native"))


@pytest.fixture
def loadable_native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NativeFiles:
    """The same, with libraries that a loader takes."""
    root = fakes.native_folder(tmp_path / "native")
    # Libraries that the loader takes, as any does for LD_PRELOAD; they hold nothing.
    compiler = shutil.which("cc")
    if compiler:
        monkeypatch.setenv("POWERCCL_PRELOAD", "1")
        subprocess.run([compiler, "-shared", "-o", str(root / MPI_ADAPTER), "-x", "c", "/dev/null"], check=True)
        shutil.copy(root / MPI_ADAPTER, root / NCCL_ADAPTER)
    else:
        fakes.write_program(root / MPI_ADAPTER, "")
    return NativeFiles(root)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with RUN_ID and no node's files."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_run_id(folder, RUN_ID)
    return folder


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A node's directory."""
    (tmp_path / "node").mkdir(mode=0o755)
    return tmp_path / "node"
