# SPDX-License-Identifier: Apache-2.0
"""The `powerccl` command as a user types it, on emulated GPUs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from daemon_process import Daemon
from harness import FOREIGN, IDLE_MHZ, EmulatedMachine, Powerccl, eventually, profile_of

from powerccl.launch.native import NativeFiles, find_native

# Started in the background, this process ignores what the jobs of tests are to be ended by.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture(scope="session")
def native() -> NativeFiles:
    """The native files under test: POWERCCL_NATIVE, else what `powerccl` itself would find."""
    return find_native()


@pytest.fixture(scope="session")
def clean_environment(native: NativeFiles, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """This process's environment without anything that PowerCCL, NCCL or a launcher would read.

    Output is buffered, as users have it: without a buffer, nothing is left that could not be written at the end.
    """
    foreign = (*FOREIGN, "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    config = tmp_path_factory.mktemp("config")
    return {
        **kept,
        "POWERCCL_NATIVE": str(native.root),
        "NO_COLOR": "1",
        "COLUMNS": "120",
        "XDG_CONFIG_HOME": str(config),
    }


@pytest.fixture
def powerccl(native: NativeFiles, clean_environment: dict[str, str], tmp_path: Path) -> Iterator[Powerccl]:
    """`powerccl` on a machine without GPUs, in a folder of its own."""
    command = Powerccl(native, tmp_path, clean_environment)
    yield command
    for running in command.started:
        running.kill_all()


@pytest.fixture(scope="session")
def machine(native: NativeFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedMachine]:
    """The emulated machine, once."""
    server = EmulatedMachine(native, tmp_path_factory.mktemp("gpus"))
    yield server
    server.stop()


@pytest.fixture
def on_machine(powerccl: Powerccl, machine: EmulatedMachine) -> Powerccl:
    """`powerccl` on the emulated machine, without --emulate. The GPUs are idle and unlocked before and after."""
    powerccl.environment.update(machine.environment)
    assert eventually(lambda: machine.clocks_mhz() == [IDLE_MHZ] * 8), machine.clocks_mhz()
    return powerccl


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A profile of the emulated server."""
    path = tmp_path / "t4.json"
    path.write_bytes(profile_of("Tesla T4", 8))
    return path


@pytest.fixture
def daemon(native: NativeFiles, machine: EmulatedMachine) -> Iterator[Daemon]:
    """A daemon on the emulated machine, whose GPUs are at their usual clock before and after."""
    assert eventually(lambda: machine.clocks_mhz() == [IDLE_MHZ] * 8)
    made = Daemon(native, machine)
    yield made
    made.end()
    assert eventually(lambda: machine.clocks_mhz() == [IDLE_MHZ] * 8), "every clock is as usual in the end"
