# SPDX-License-Identifier: Apache-2.0
"""The processes beside a job: how they start, what they say, and how they end."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import fakes
import pytest

from powerccl.errors import PowercclError
from powerccl.launch.emulation import Emulation, emulated_platform
from powerccl.launch.native import DAEMON, NativeFiles
from powerccl.launch.services import Service, start_daemon


def test_a_private_daemon(tmp_path: Path) -> None:
    native = NativeFiles(tmp_path / "native")
    fakes.write_program(native.root / DAEMON, '#!/bin/sh\necho "$*" >&2\necho ready\ncat > /dev/null\necho over >&2\n')
    service = start_daemon(native, tmp_path / "s", tmp_path / "state", tmp_path / "log", os.environ)
    assert service.words() == [f"--private --socket {tmp_path}/s --state {tmp_path}/state"]
    assert service.release(10)  # it lives by its stdin
    assert service.last_words() == "over"


def test_a_private_daemon_that_does_not_start(tmp_path: Path) -> None:
    native = NativeFiles(tmp_path / "native")
    with pytest.raises(PowercclError, match="powerccld is missing"):
        start_daemon(native, tmp_path / "s", tmp_path / "state", tmp_path / "log", os.environ)
    fakes.write_program(native.root / DAEMON, "#!/bin/sh\necho 'powerccld: cannot lease GPUs' >&2\nexit 1\n")
    with pytest.raises(PowercclError, match="did not start: powerccld: cannot lease GPUs") as error:
        start_daemon(native, tmp_path / "s", tmp_path / "state", tmp_path / "log", os.environ)
    assert str(tmp_path / "log") in error.value.hint


def test_emulation_is_up_inside_and_gone_after(native: NativeFiles, tmp_path: Path) -> None:
    with Emulation(native, emulated_platform(native, "t4x8"), tmp_path) as emulation:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(emulation.listening))
        assert emulation.service is not None
        process = emulation.service.process
    assert process.poll() is not None
    assert not emulation.listening.exists()


def test_an_emulator_that_fails_is_quoted(native: NativeFiles, tmp_path: Path) -> None:
    fakes.write_program(native.root / "bin/powerccl-emulator", "#!/bin/sh\necho 'line 3: no clocks' >&2; exit 1\n")
    with (
        pytest.raises(PowercclError, match="line 3: no clocks"),
        Emulation(native, emulated_platform(native, "t4x8"), tmp_path),
    ):
        pass


def test_a_service_ends_with_its_stdin(tmp_path: Path) -> None:
    service = Service(["sh", "-c", "echo ready; cat; exit 0"], os.environ, tmp_path / "log")
    assert service.wait_ready(10)
    assert service.stop(10)


def test_a_service_that_will_not_end_is_ended(tmp_path: Path) -> None:
    service = Service(["sh", "-c", "echo ready; sleep 60"], os.environ, tmp_path / "log")
    assert service.wait_ready(10)
    assert not service.stop(0.1)
    assert service.process.returncode == -signal.SIGKILL


def test_a_service_without_ready(tmp_path: Path) -> None:
    quiet = Service(["sh", "-c", "echo 'cannot: x' >&2; echo 'hint: y' >&2; exit 1"], os.environ, tmp_path / "log")
    assert not quiet.wait_ready(10)
    quiet.stop(5)
    assert quiet.last_words() == "cannot: x"
    slow = Service(["sleep", "60"], os.environ, tmp_path / "log2")
    assert not slow.wait_ready(0.1)
    slow.stop(0.1)
