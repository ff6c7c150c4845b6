#!/usr/bin/env python3
"""Kill jobs under `powerccl run --clock` at random moments, and count the clocks that are left on emulated GPUs.

Half of the trials ask the user's own powerccld, the others one of the system. A quarter runs collectives on two GPUs,
the others `sleep`. Killed are the launcher, the job, both, and powerccld, by SIGKILL, and the launcher by SIGTERM.
The launcher and its own powerccld are not killed together: the next job restores the clocks then.
clock.left counts GPUs that are not at their default clock five seconds after the kill, or after the job's end where
powerccld was killed. Takes a quarter of an hour for 200 kills.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/e2e"), str(ROOT / "tests")]

from daemon_process import Daemon
from harness import IDLE_MHZ, EmulatedMachine, alive, descendants, eventually, name_of
from support.figures import Figures, about, count, figure, one, show, write

from powerccl.launch.native import NativeFiles, find_native

KINDS = ("launcher", "job", "launcher and job", "powerccld", "launcher by SIGTERM")
MHZ = 600
GPUS = (2, 3)
JOB_S = 2.5  # longer than the latest kill, so that every job is killed before its own end
LATEST_S = 2.0  # of a kill after the launcher's start: a launcher takes 0.5 s to set the clock here
PATIENCE_S = 5.0  # a GPU that has worked goes to its idle clock after 1.5 s (t4x8.conf)


class Machine:
    """The emulated machine with its NVML in this process."""

    def __init__(self, native: NativeFiles, folder: Path) -> None:
        self.emulated = EmulatedMachine(native, folder)
        os.environ.update(self.emulated.environment)
        self.library = ctypes.CDLL(str(native.path("emulator/libnvidia-ml.so.1")))
        assert self.library.nvmlInit_v2() == 0
        self.gpus = [ctypes.c_void_p() for _ in range(8)]
        for index, gpu in enumerate(self.gpus):
            assert self.library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(gpu)) == 0

    def clocks_mhz(self) -> list[int]:
        """SM clock of each GPU."""
        clocks, mhz = [], ctypes.c_uint()
        for gpu in self.gpus:
            assert self.library.nvmlDeviceGetClockInfo(gpu, 1, ctypes.byref(mhz)) == 0
            clocks.append(mhz.value)
        return clocks

    def left(self) -> int:
        """GPUs that are not at their idle clock, once all are or time has run out."""
        eventually(lambda: self.clocks_mhz() == [IDLE_MHZ] * 8, PATIENCE_S)
        return sum(clock != IDLE_MHZ for clock in self.clocks_mhz())


class Trial:
    """One job and one kill."""

    def __init__(self, machine: Machine, native: NativeFiles, daemon: Daemon | None, works: bool, folder: Path) -> None:
        job = ["sleep", str(JOB_S)]
        if works:
            job = [str(native.path("bin/powerccl-bench")), "scenario", str(ROOT / "bench/scenarios/ddp.scn")]
            job += ["--seconds", "20"]
        self.machine, self.daemon = machine, daemon
        asked = {"POWERCCL_LEASE_SOCKET": str(daemon.socket)} if daemon else {}
        self.launcher = subprocess.Popen(
            [sys.executable, "-m", "powerccl", "run", "--clock", str(MHZ), "-q", "--", *job],
            cwd=folder,
            env={**os.environ, **asked, "CUDA_VISIBLE_DEVICES": ",".join(map(str, GPUS))},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def processes(self) -> tuple[list[int], list[int]]:
        """The job's processes, and the user's own powerccld."""
        below = descendants(self.launcher.pid)
        names = {pid: name_of(pid) for pid in below}
        jobs = [pid for pid, name in names.items() if name in ("sleep", "powerccl-bench")]
        return jobs, [pid for pid, name in names.items() if name == "powerccld"]

    def kill(self, kind: str) -> tuple[bool, int, float | None]:
        """Kill; whether the clock was set, how many GPUs keep it, and after how many ms it was restored."""
        was_set = any(self.machine.clocks_mhz()[gpu] == MHZ for gpu in GPUS)
        jobs, daemons = self.processes()
        begun_s = time.monotonic()
        if kind == "powerccld":
            self._kill_daemon(daemons)
        if kind == "launcher by SIGTERM":
            _signal([self.launcher.pid], signal.SIGTERM)
        if kind in ("launcher", "launcher and job"):
            _signal([self.launcher.pid], signal.SIGKILL)
        if kind in ("job", "launcher and job"):
            _signal(jobs, signal.SIGKILL)
        restored_ms = None
        if was_set and kind != "powerccld":
            eventually(lambda: MHZ not in self.machine.clocks_mhz(), PATIENCE_S)
            restored_ms = (time.monotonic() - begun_s) * 1e3
        if kind != "powerccld":
            _signal(jobs, signal.SIGKILL)  # a job whose launcher was killed goes on
        elif jobs and not eventually(lambda: not any(map(alive, jobs)), JOB_S):
            _signal(jobs, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.launcher.wait(30)
        return was_set, self.machine.left(), restored_ms

    def _kill_daemon(self, own: list[int]) -> None:
        if self.daemon is None:
            _signal(own, signal.SIGKILL)
            return
        self.daemon.kill()
        self.daemon.restart()

    def end(self) -> None:
        """Kill what is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.launcher.pid, signal.SIGKILL)
        self.launcher.wait()


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def measure(kills: int, seed: int) -> Figures:
    """So many kills, and what they left."""
    native, chance = find_native(), random.Random(seed)
    left, restored_ms = dict.fromkeys(KINDS, 0), list[float]()
    tried, set_when_killed = dict.fromkeys(KINDS, 0), 0
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        machine = Machine(native, Path(name))
        daemon = Daemon(native, machine.emulated)
        daemon.start("")
        try:
            for number in range(kills):
                kind = KINDS[number % len(KINDS)]
                of_system, works = number // len(KINDS) % 2 == 1, number // len(KINDS) % 4 >= 3
                trial = Trial(machine, native, daemon if of_system else None, works, Path(name))
                time.sleep(chance.uniform(0.0, LATEST_S))
                was_set, kept, took_ms = trial.kill(kind)
                trial.end()
                tried[kind] += 1
                left[kind] += kept
                set_when_killed += was_set
                restored_ms += [took_ms] if took_ms is not None else []
                if kept:
                    print(f"trial {number}: {kind}, {kept} clocks left", file=sys.stderr, flush=True)
        finally:
            daemon.end()
            machine.emulated.stop()
    figures: Figures = {"clock.left": count(sum(left.values()), kills)}
    for kind in KINDS:
        figures[f"clock.left.{kind.replace(' ', '_').lower()}"] = count(left[kind], tried[kind])
    figures["clock.set_when_killed"] = count(set_when_killed, kills)
    figures["clock.restored_ms"] = figure(restored_ms, "ms", 1)
    figures["clock.restored_worst_ms"] = one(round(max(restored_ms), 1), "ms", len(restored_ms))
    return figures


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build/figures/clock.json")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    figures = measure(arguments.kills, arguments.seed)
    show(figures)
    conditions = (
        "GPUs are emulated (t4x8), times are real; a kill 0 to 2 s after the launcher's start, so some come before "
        "the clock is set; half with the user's own powerccld, half with one of the system; a quarter of the jobs runs "
        "collectives on two GPUs, the others `sleep`; restored_ms: from the kill until no GPU has the clock, which is "
        "looked for every 10 ms"
    )
    write(arguments.out, figures, **about("make figures-clock", conditions))
    return 0


if __name__ == "__main__":
    sys.exit(main())
