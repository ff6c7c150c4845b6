# SPDX-License-Identifier: Apache-2.0
"""GPUs after kill -9 in PID namespaces, as in containers: each GPU's clock is read from outside afterwards.

Cases: who is killed, what is inside the namespace, whether /proc is the namespace's own, and who sets clocks.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.harm import Figures, count

from powerccl.launch.native import NativeFiles

GPUS = 8
IDLE_MHZ = 300  # t4x8.conf
BUSY_MHZ = 600  # above what the policy sets for a collective of this size
ENTER = ("unshare", "-p", "-f", "--kill-child")
PATIENCE_S = 30.0
MEMBERS = ("job", "rank", "wrapper", "agent and job")
CLOCKS = ("nvml", "lease")

READ_CLOCKS = """import ctypes
n = ctypes.CDLL('libnvidia-ml.so.1')
assert n.nvmlInit_v2() == 0
d, c = ctypes.c_void_p(), ctypes.c_uint()
for i in range(8):
    assert n.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(d)) == 0
    assert n.nvmlDeviceGetClockInfo(d, 1, ctypes.byref(c)) == 0
    print(c.value)
"""


class Machine:
    """Emulated GPUs that outlive every namespace, as hardware does, and a powerccld that leases their clocks."""

    def __init__(self, native: NativeFiles, folder: Path, daemon: bool = True) -> None:
        self.native = native
        self.folder = folder
        self.helpers: list[subprocess.Popen[bytes]] = []
        foreign = ("POWERCCL_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "NCCL_", "CUDA_")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(foreign)},
            "POWERCCL_NATIVE": str(native.root),
            "LD_LIBRARY_PATH": str(native.root / "emulator"),
            "POWERCCL_EMULATOR_SOCKET": str(folder / "gpus.sock"),
            "POWERCCL_LEASE_SOCKET": str(folder / "powerccld.sock"),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        platform = native.root / "share/platforms/t4x8.conf"
        self._start("powerccl-emulator", "--platform", str(platform), "--socket", str(folder / "gpus.sock"))
        if daemon:
            self._start(
                "powerccld", "--private", "--socket", str(folder / "powerccld.sock"), "--state", str(folder / "state")
            )

    def _start(self, program: str, *arguments: str) -> None:
        helper = subprocess.Popen(
            [str(self.native.path(f"bin/{program}")), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.folder / f"{program}.log").open("wb"),
            env=self.environment,
        )
        self.helpers.append(helper)
        assert helper.stdout
        if b"ready" not in helper.stdout.readline():
            raise RuntimeError(f"{program}: {(self.folder / f'{program}.log').read_text()}")

    def clocks_mhz(self) -> list[int]:
        """Each GPU's clock. An idle GPU that is not locked is at IDLE_MHZ."""
        command = [sys.executable, "-c", READ_CLOCKS]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True)
        return [int(line) for line in done.stdout.split()]

    def stop(self) -> None:
        """End what was started, the GPUs last."""
        for helper in reversed(self.helpers):
            assert helper.stdin
            helper.stdin.close()
            helper.wait(20)


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> bool:
    """Poll until the condition holds; False when time ran out."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def below(pid: int) -> dict[int, str]:
    """Processes below this one, by their numbers outside, with their names."""
    found: dict[int, str] = {}
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found[int(child)] = Path(f"/proc/{child}/comm").read_text().strip()
            found.update(below(int(child)))
    return found


class Job:
    """A job with every clock lowered. `inside`: what enters the namespace, the job alone or all of it."""

    def __init__(self, machine: Machine, place: Path, inside: str, mount: bool, clocks: str) -> None:
        place.mkdir(parents=True)
        self.machine = machine
        self.place = place
        self.environment = {**machine.environment, "POWERCCL_CLOCKS": clocks}
        enter = [*ENTER, *(["--mount-proc"] if mount else [])]
        bench = str(machine.native.path("bin/powerccl-bench"))
        job = [bench, "all_reduce", "-b", "64M", "-e", "64M", "-g", str(GPUS), "-n", "100000"]
        wrapper = [str(Path(sys.executable).parent / "powerccl"), "run", "-q", "--set-clocks", "--runs-dir", str(place)]
        wrapper += ["--policy", "per-call", "--platform", "t4x8", "--"]
        self.process = subprocess.Popen(
            [*wrapper, *enter, *job] if inside == "job" else [*enter, *wrapper, *job],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=(place / "out").open("wb"),
            stderr=(place / "err").open("wb"),
            start_new_session=True,
            cwd=place,
        )
        # Whoever is busy and not locked runs faster.
        if not wait_for(lambda: all(IDLE_MHZ < mhz < BUSY_MHZ for mhz in machine.clocks_mhz())):
            self.end()
            raise RuntimeError(f"no clock was ever set: {(place / 'err').read_text()}")
        self.processes = below(self.process.pid) | {self.process.pid: "powerccl"}

    @property
    def folder(self) -> Path:
        """Its run folder."""
        (info,) = self.place.glob("*/run.json")
        return info.parent

    def named(self, name: str) -> list[int]:
        """Its processes of this name."""
        return [pid for pid, known in self.processes.items() if known == name]

    def kill(self, victims: list[int]) -> None:
        """Kill them without a chance to clean up, and wait until they are gone."""
        if not victims:
            raise RuntimeError(f"nobody to kill among {self.processes}")
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(lives(pid) for pid in victims))

    def restore_all(self) -> subprocess.CompletedProcess[str]:
        """What a person runs after a node came back."""
        agent = str(self.machine.native.path("bin/powerccl-agent"))
        command = [agent, "--restore-all", "--run-folder", str(self.folder)]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)

    def locked(self) -> list[int]:
        """Clocks that stay, once there was time to reset them."""
        wait_for(lambda: self.machine.clocks_mhz() == [IDLE_MHZ] * GPUS, 10)
        return [mhz for mhz in self.machine.clocks_mhz() if mhz != IDLE_MHZ]

    def end(self) -> None:
        """Whatever is left of it."""
        for pid in [*below(self.process.pid), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def lives(pid: int) -> bool:
    """Whether the process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill_in_namespace(machine: Machine, place: Path, member: str, inside: str, mount: bool, clocks: str) -> list[int]:
    """One case: the clocks that stayed."""
    job = Job(machine, place, inside, mount, clocks)
    try:
        ranks = job.named("powerccl-bench")
        if member == "rank":
            job.kill(ranks[-1:])
        elif member == "wrapper":
            job.kill(job.named("powerccl"))
        elif member == "agent and job":
            job.kill(job.named("powerccl-agent") + ranks)
        if any(lives(pid) for pid in ranks):  # the others of a killed one
            job.kill(ranks)
        if clocks == "nvml" and not any(lives(pid) for pid in job.named("powerccl-agent")):
            job.restore_all()  # the agent was in the namespace that was ended, too
        return job.locked()
    finally:
        job.end()


def measure(native: NativeFiles, folder: Path) -> Figures:
    """Every combination; n is GPUs times cases."""
    locked = cases = 0
    for case in itertools.product(MEMBERS, ("job", "all"), (False, True), CLOCKS):
        place = folder / str(cases)
        place.mkdir()
        machine = Machine(native, place)
        try:
            left = kill_in_namespace(machine, place / "runs", *case)
        finally:
            machine.stop()
        if left:
            print(f"{case}: {left}", file=sys.stderr)
        locked += len(left)
        cases += 1
    return {"harm.namespaces.locked": count(locked, GPUS * cases)}
