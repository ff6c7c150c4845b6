# SPDX-License-Identifier: Apache-2.0
"""What end-to-end tests share: running `powerccl`, an emulated machine, a profile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from powerccl.analysis.findings import RunSummary
from powerccl.analysis.summary import summarise
from powerccl.launch.native import NativeFiles
from powerccl.platforms.schema import OverheadPoint, PlatformProfile, Point, encode
from powerccl.traces.folder import RunData, read_run

PATIENCE_S = 60.0  # generous: what is waited for takes milliseconds to a second
FOREIGN = ("POWERCCL_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "NCCL_", "CUDA_")


def eventually(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> bool:
    """Poll until the condition holds; False when time ran out."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@dataclass
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


class Running:
    """A command in a session of its own; what is left of it is killed at the end of the test."""

    def __init__(self, command: list[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.out = folder / f"out-{time.monotonic_ns()}"
        self.err = self.out.with_name(self.out.name.replace("out", "err"))
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def wait(self, seconds: float = 120.0) -> Done:
        """Its end. A command that does not end fails the test, with what it has said."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill_all()
            pytest.fail(f"did not end within {seconds} s: {self.err.read_text()[-2000:]}")
        return Done(code, self.out.read_text(), self.err.read_text())

    def kill_all(self) -> None:
        """Everything that it started in its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Powerccl:
    """Runs `powerccl` in a folder with a clean environment."""

    def __init__(self, native: NativeFiles, folder: Path, environment: Mapping[str, str]) -> None:
        self.native = native
        self.folder = folder
        self.environment = dict(environment)
        self.started: list[Running] = []

    @property
    def bench(self) -> str:
        """Absolute path of powerccl-bench."""
        return str(self.native.path("bin/powerccl-bench"))

    @property
    def runs(self) -> list[Path]:
        """Run folders made so far, oldest first."""
        return sorted((self.folder / "runs").glob("[!.]*/"), key=lambda path: path.stat().st_mtime_ns)

    def start(self, *arguments: str, **environment: str) -> Running:
        """Start `powerccl ARGUMENTS`."""
        command = [str(Path(sys.executable).parent / "powerccl"), *arguments]
        running = Running(command, self.folder, {**self.environment, **environment})
        self.started.append(running)
        return running

    def __call__(self, *arguments: str, **environment: str) -> Done:
        """Run `powerccl ARGUMENTS` to its end."""
        return self.start(*arguments, **environment).wait()


def points_are_right(out: str) -> bool:
    """Whether powerccl-bench has measured points, and found no wrong element: by its last line."""
    summary = json.loads(out.rstrip().rpartition("\n")[2])
    return bool(summary["type"] == "summary" and summary["finished"] and summary["points"] and not summary["wrong"])


def descendants(pid: int) -> list[int]:
    """Processes below pid, children first: whichever of its threads started them."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in (task / "children").read_text().split()]
    for child in list(found):
        found += descendants(child)
    return found


def name_of(pid: int) -> str:
    """A process's name, cut at 15 bytes by the kernel; empty if it has gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def alive(pid: int) -> bool:
    """Whether the process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class EmulatedMachine:
    """A machine whose driver is the emulator's: one server that outlives the jobs on it, as hardware does."""

    def __init__(self, native: NativeFiles, folder: Path, name: str = "t4x8.conf") -> None:
        socket = folder / "gpus.sock"
        self.log = folder / "emulator.log"
        platform = native.root / "share/platforms" / name
        with self.log.open("wb") as log:
            self.server = subprocess.Popen(
                [str(native.path("bin/powerccl-emulator")), "--platform", str(platform), "--socket", str(socket)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.environment = {
            "LD_LIBRARY_PATH": str(native.root / "emulator"),
            "POWERCCL_EMULATOR_SOCKET": str(socket),
        }
        assert self.server.stdout
        assert b"ready" in self.server.stdout.readline(), self.log.read_text()

    def clocks_mhz(self) -> list[int]:
        """SM clock of each GPU, asked of NVML. An idle GPU that is not locked is at its idle clock, IDLE_MHZ."""
        code = (
            "import ctypes; n = ctypes.CDLL('libnvidia-ml.so.1'); assert n.nvmlInit_v2() == 0\n"
            "d, c = ctypes.c_void_p(), ctypes.c_uint()\n"
            "for i in range(8):\n"
            "  assert n.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(d)) == 0\n"
            "  assert n.nvmlDeviceGetClockInfo(d, 1, ctypes.byref(c)) == 0; print(c.value)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return [int(line) for line in done.stdout.split()]

    def stop(self) -> None:
        """End the server."""
        assert self.server.stdin
        self.server.stdin.close()
        self.server.wait(20)


IDLE_MHZ = 300  # t4x8.conf: clock_idle_mhz
LOCK_MHZ = 480  # what the profile below has per-call lock: above the idle clock, so that a lock left behind shows


def profile_of(gpu: str, gpus: int) -> bytes:
    """A profile that lets per-call lock LOCK_MHZ for everything from 1 MiB."""
    patterns = ("all_reduce", "broadcast", "all_gather")
    points = [
        Point(pattern=pattern, size_bytes=size, clock_mhz=clock, time_us=1e3, busbw_gbs=3.0, provenance="modelled")
        for pattern in patterns
        for size in (1 << 20, 64 << 20)
        for clock in (1590, LOCK_MHZ)
    ]
    overhead = [OverheadPoint(pattern=name, size_bytes=1 << 20, provenance="modelled") for name in patterns]
    return encode(
        PlatformProfile(
            name="test",
            gpu=gpu,
            gpus=gpus,
            emulated=False,
            clock_max_mhz=1590,
            clock_min_mhz=300,
            clocks_set=True,
            points=points,
            overhead=overhead,
        )
    )


def last_run(powerccl: Powerccl) -> tuple[RunData, RunSummary]:
    """The newest run folder, which must read and summarise without trouble of its own."""
    run = read_run(powerccl.runs[-1])
    return run, summarise(run)


def is_whole(run: RunData) -> bool:
    """Everything reads."""
    return not run.problems


def machine_is_back(machine: EmulatedMachine) -> bool:
    """All GPUs idle and unlocked."""
    return eventually(lambda: machine.clocks_mhz() == [IDLE_MHZ] * 8)
