# SPDX-License-Identifier: Apache-2.0
"""GPUs after kill -9 in PID namespaces, as in containers: each GPU's clock is read from outside afterwards.

Cases: who is killed, what is inside the namespace, and whether /proc is the namespace's own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

from harness import FOREIGN, IDLE_MHZ, EmulatedMachine, alive, descendants, eventually, name_of

from harm import Figures, count
from powerccl.launch.native import NativeFiles

GPUS = 8
BUSY_MHZ = 600  # above what the policy sets for a collective of this size
ENTER = ("unshare", "-p", "-f", "--kill-child")
MEMBERS = ("job", "rank", "wrapper")


class Machine(EmulatedMachine):
    """Emulated GPUs that outlive every namespace, as hardware does, and a powerccld that leases their clocks."""

    def __init__(self, native: NativeFiles, folder: Path) -> None:
        super().__init__(native, folder)
        self.native = native
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)},
            **self.environment,
            "POWERCCL_NATIVE": str(native.root),
            "POWERCCL_LEASE_SOCKET": str(folder / "powerccld.sock"),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        daemon = [str(native.path("bin/powerccld")), "--private", "--socket", self.environment["POWERCCL_LEASE_SOCKET"]]
        with (folder / "powerccld.log").open("wb") as log:
            self.daemon = subprocess.Popen(
                [*daemon, "--state", str(folder / "state")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment,
            )
        assert self.daemon.stdout
        if b"ready" not in self.daemon.stdout.readline():
            raise RuntimeError(f"powerccld: {(folder / 'powerccld.log').read_text()}")

    def stop(self) -> None:
        """End what was started, the GPUs last."""
        assert self.daemon.stdin
        self.daemon.stdin.close()
        self.daemon.wait(20)
        super().stop()


class Job:
    """A job with every clock lowered. `inside`: what enters the namespace, the job alone or all of it."""

    def __init__(self, machine: Machine, place: Path, inside: str, mount: bool) -> None:
        place.mkdir(parents=True)
        self.machine = machine
        self.place = place
        self.environment = machine.environment
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
        if not eventually(lambda: all(IDLE_MHZ < mhz < BUSY_MHZ for mhz in machine.clocks_mhz())):
            self.end()
            raise RuntimeError(f"no clock was ever set: {(place / 'err').read_text()}")
        below = {pid: name_of(pid) for pid in descendants(self.process.pid)}
        self.processes = below | {self.process.pid: "powerccl"}

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
        eventually(lambda: not any(alive(pid) for pid in victims))

    def locked(self) -> list[int]:
        """Clocks that stay, once there was time to reset them."""
        eventually(lambda: self.machine.clocks_mhz() == [IDLE_MHZ] * GPUS, 10)
        return [mhz for mhz in self.machine.clocks_mhz() if mhz != IDLE_MHZ]

    def end(self) -> None:
        """Whatever is left of it."""
        for pid in [*descendants(self.process.pid), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def kill_in_namespace(machine: Machine, place: Path, member: str, inside: str, mount: bool) -> list[int]:
    """One case: the clocks that stayed."""
    job = Job(machine, place, inside, mount)
    try:
        ranks = job.named("powerccl-bench")
        if member == "rank":
            job.kill(ranks[-1:])
        elif member == "wrapper":
            job.kill(job.named("powerccl"))
        if any(alive(pid) for pid in ranks):  # the others of a killed one
            job.kill(ranks)
        return job.locked()
    finally:
        job.end()


def measure(native: NativeFiles, folder: Path) -> Figures:
    """Every combination; n is GPUs times cases."""
    locked = cases = 0
    for case in itertools.product(MEMBERS, ("job", "all"), (False, True)):
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
