# SPDX-License-Identifier: Apache-2.0
"""NVML libraries that lack functions: what they tell is known, the rest is not, and nothing else changes."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from daemon_process import Daemon
from harness import IDLE_MHZ, LOCK_MHZ, EmulatedMachine, Powerccl, eventually, last_run
from lease_client import OK, Client
from support.nvml_copies import NEEDED, OPTIONAL, copy_without

from powerccl.launch.gpus import query_gpus_in
from powerccl.launch.native import NativeFiles

POWER = ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetFieldValues")
LIBRARY = "emulator/libnvidia-ml.so.1"


@pytest.fixture
def lacking(native: NativeFiles, on_machine: Powerccl, tmp_path: Path) -> dict[str, str]:
    """The environment of an NVML that lacks all that is optional."""
    copy_without(native.path(LIBRARY), OPTIONAL, tmp_path / "old")
    on_machine.environment["LD_LIBRARY_PATH"] = str(tmp_path / "old")
    return on_machine.environment


def test_a_copy_lacks_what_it_should(native: NativeFiles, tmp_path: Path) -> None:
    whole = ctypes.CDLL(str(native.path(LIBRARY)))
    old = ctypes.CDLL(str(copy_without(native.path(LIBRARY), OPTIONAL, tmp_path / "old")))
    assert all(hasattr(whole, name) for name in (*OPTIONAL, *NEEDED))
    assert [name for name in (*OPTIONAL, *NEEDED) if hasattr(old, name)] == [*NEEDED]


def test_doctor_and_launcher_without_each_function(
    native: NativeFiles, machine: EmulatedMachine, tmp_path: Path
) -> None:
    for name in OPTIONAL:
        copy_without(native.path(LIBRARY), [name], tmp_path / "old")
        gpus = query_gpus_in({**os.environ, **machine.environment, "LD_LIBRARY_PATH": str(tmp_path / "old")})
        assert gpus.describe() == ("NVML finds no GPU" if name == "nvmlDeviceGetName" else "8 x Tesla T4"), name
        assert bool(gpus.clocks_mhz) != name.startswith("nvmlDeviceGetSupported"), name


def test_a_run_without_power(native: NativeFiles, on_machine: Powerccl, tmp_path: Path) -> None:
    copy_without(native.path(LIBRARY), POWER, tmp_path / "old")
    on_machine.environment["LD_LIBRARY_PATH"] = str(tmp_path / "old")
    done = on_machine("run", "--", "sleep", "1")
    assert done.code == 0 and "Traceback" not in done.err, done.err
    run, summary = last_run(on_machine)
    assert not run.problems
    (log,) = run.power
    assert log.about["gpu0_name"] == "Tesla T4"
    assert set(log.samples["power_mw"]) == {None} and set(log.samples["energy_uj"]) == {-1}
    assert set(log.samples["sm_clock_mhz"]) == {300}
    assert summary.energy.joules is None and {gpu.joules for gpu in summary.gpus} == {None}


def test_a_run_without_all_that_is_optional(lacking: dict[str, str], on_machine: Powerccl) -> None:
    done = on_machine("run", "--", "sleep", "1")
    assert done.code == 0 and "Traceback" not in done.err, done.err
    run, summary = last_run(on_machine)
    assert not run.problems
    assert summary.energy.joules is None
    report = on_machine("report")
    assert report.code == 0 and "Traceback" not in report.err, report.err
    view = on_machine("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(view.out)["checks"]}
    assert checks["energy"]["found"] == "neither energy counter nor power reading"
    assert "power limit" not in checks


@pytest.mark.parametrize("name", NEEDED)
def test_a_library_without_a_needed_function_is_none(
    name: str, native: NativeFiles, on_machine: Powerccl, tmp_path: Path
) -> None:
    copy_without(native.path(LIBRARY), [name], tmp_path / "old")
    on_machine.environment["LD_LIBRARY_PATH"] = str(tmp_path / "old")
    done = on_machine("run", "--", "echo", "result")
    assert (done.code, done.out) == (0, "result\n") and "Traceback" not in done.err, done.err
    run, summary = last_run(on_machine)
    assert summary.energy.joules is None and not summary.gpus
    words = "".join(path.read_text() for path in run.folder.glob("agent-*.log"))
    assert "no power samples: " in words and "nvml" in words


def test_the_daemon_names_the_function_that_it_lacks(
    native: NativeFiles, machine: EmulatedMachine, daemon: Daemon, tmp_path: Path
) -> None:
    copy_without(native.path(LIBRARY), ["nvmlDeviceGetMaxClockInfo"], tmp_path / "old")
    daemon.machine = {**machine.environment, "LD_LIBRARY_PATH": str(tmp_path / "old")}
    daemon.start()
    reply = Client(daemon.socket).acquire(daemon.devices[0])
    assert reply.status != OK and "this NVML has no nvmlDeviceGetMaxClockInfo" in reply.text
    daemon.kill(signal.SIGTERM)
    copy_without(native.path(LIBRARY), ["nvmlDeviceSetGpuLockedClocks"], tmp_path / "old")
    refused = subprocess.run(daemon.command, env=dict(daemon.environment), capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert "cannot lease GPUs: this NVML has no nvmlDeviceSetGpuLockedClocks" in refused.stderr


def test_threads_of_the_library_do_not_take_the_signals(
    native: NativeFiles, machine: EmulatedMachine, daemon: Daemon, tmp_path: Path
) -> None:
    """A thread that takes SIGTERM ends the daemon before it restores a clock."""
    threaded = tmp_path / "threaded.so"
    program = Path(__file__).parent / "programs/nvml_thread.c"
    link = ["-Wl,--no-as-needed", str(native.path(LIBRARY)), "-lpthread"]
    subprocess.run(["cc", "-shared", "-fPIC", str(program), "-o", str(threaded), *link], check=True, timeout=60)
    daemon.start(POWERCCL_NVML_LIBRARY=str(threaded))
    assert daemon.process
    assert len(list(Path(f"/proc/{daemon.process.pid}/task").iterdir())) > 1
    client = Client(daemon.socket)
    client.set(client.lease(daemon.devices[0]), LOCK_MHZ)
    assert eventually(lambda: machine.clocks_mhz()[0] == LOCK_MHZ)
    assert daemon.kill(signal.SIGTERM) == 0
    assert machine.clocks_mhz()[0] == IDLE_MHZ
