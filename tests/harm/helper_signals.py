# SPDX-License-Identifier: Apache-2.0
"""Helpers and signals: each signal goes to every process of a step, as batch systems send it, and ends no helper.

A helper that SIGKILL ends is started again. The job blocks all signals, so that it lasts until it is killed. The
figures are among those of signals.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from harness import FOREIGN, EmulatedMachine, alive, descendants, eventually, machine_is_back, name_of, profile_of

from harm import Figures, count, one
from powerccl.launch.native import NativeFiles
from powerccl.traces.folder import read_run

AGENT, DAEMON, EMULATOR, WITNESS = "powerccl-agent", "powerccld", "powerccl-emulat", "powerccl-signal"  # 15 bytes
CATCHABLE = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
AGAIN_S = 1.0  # within which a killed helper has a successor
SETTLE_S = 0.05  # from a signal to its effect
BETWEEN_KILLS_S = 1.5
BLOCKING = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.execvp(sys.argv[1], sys.argv[1:])
"""
RANKS = "powerccl-bench"  # its ranks end at SIGINT whatever is blocked, and get no signal here
LOOP = ("sh", "-c", f"{RANKS} all_reduce -b 64M -e 64M -c 0 -n 100000 & wait")


@dataclass(frozen=True)
class Case:
    """Options of `powerccl run`, the job, and the helpers beside it."""

    options: tuple[str, ...]
    job: tuple[str, ...]
    helpers: tuple[str, ...]


WITHOUT_CLOCKS = Case(("--emulate", "t4x8"), ("sleep", "600"), (AGENT, EMULATOR, WITNESS))
WITH_CLOCKS = Case(
    ("--emulate", "t4x8", "--set-clocks", "--policy", "auto"), ("sleep", "600"), (AGENT, DAEMON, EMULATOR, WITNESS)
)


@dataclass
class Found:
    """What came of some steps."""

    sent: int = 0  # helpers times signals
    lost: int = 0  # helpers that a signal ended, or that had no successor in time
    gap_s: float = 0.0  # the longest without a sample of any GPU
    left: int = 0  # helpers that outlived their job
    clocks_left: int = 0  # GPUs whose clock was not restored
    steps: int = 0


class Step:
    """A recorded job in a session of its own."""

    def __init__(self, native: NativeFiles, folder: Path, case: Case, environment: dict[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.case, self.runs = case, folder / "runs"
        command = [sys.executable, "-m", "powerccl", "run", "--runs-dir", str(self.runs), *case.options, "--"]
        with (folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [*command, sys.executable, "-c", BLOCKING, *case.job],
                stdin=subprocess.DEVNULL,
                stdout=err,
                stderr=err,
                env={**environment, "POWERCCL_NATIVE": str(native.root)},
                cwd=folder,
                start_new_session=True,
            )
        if not eventually(lambda: set(case.helpers) <= set(self.helpers()) and self.job() > 0):
            self.kill()
            raise RuntimeError((folder / "err").read_text())

    def helpers(self) -> dict[str, int]:
        """The helpers that live, by name."""
        below = [pid for pid in descendants(self.process.pid) if alive(pid)]
        return {name: pid for pid in below if (name := name_of(pid)) in self.case.helpers}

    def job(self) -> int:
        """The job's first process, once it is what it is to be."""
        name = self.case.job[0]
        return next((pid for pid in descendants(self.process.pid) if name_of(pid) == name), 0)

    def send(self, number: int) -> int:
        """Send a signal to every process of the step; how many helpers it ended."""
        before = self.helpers()
        for pid in (self.process.pid, *descendants(self.process.pid)):
            with suppress(ProcessLookupError):
                if name_of(pid) != RANKS:
                    os.kill(pid, number)
        time.sleep(SETTLE_S)
        ended = [name for name, pid in before.items() if not alive(pid)]
        if ended:
            print(f"helpers: signal {number} ended {', '.join(ended)}", file=sys.stderr)
            eventually(lambda: set(self.case.helpers) <= set(self.helpers()), 5.0)
        return len(ended) + len(self.case.helpers) - len(before)

    def kill_helper(self, name: str) -> bool:
        """Kill one helper; whether it had a successor in time."""
        killed = self.helpers()[name]
        os.kill(killed, signal.SIGKILL)
        again = eventually(lambda: self.helpers().get(name, killed) != killed, AGAIN_S)
        if not again:
            print(f"helpers: {name} was not started again", file=sys.stderr)
        return again

    def end(self) -> int:
        """Kill the job; how many helpers outlive it."""
        helpers = self.helpers()
        job = self.job()
        for pid in (job, *descendants(job)):
            os.kill(pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        eventually(lambda: not any(map(alive, helpers.values())), 10.0)
        left = sum(map(alive, helpers.values()))
        self.kill()
        return left

    def kill(self) -> None:
        """Whatever is left of it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def longest_gap_s(self) -> float:
        """Without a sample, of any GPU."""
        folder = next(self.runs.glob("[!.]*/"))
        longest_ns = 0
        for log in read_run(folder).power:
            for _, rows in log.samples.group_by("gpu"):
                longest_ns = max(longest_ns, int(np.diff(rows["time_ns"].to_numpy()).max()))
        return longest_ns / 1e9


def try_step(
    native: NativeFiles,
    folder: Path,
    case: Case,
    environment: dict[str, str],
    numbers: Iterable[int],
    kills: Iterable[str],
    found: Found,
) -> None:
    """One job that gets these signals, and whose helpers are killed in this order."""
    step = Step(native, folder, case, environment)
    try:
        for number in numbers:
            found.sent += len(case.helpers)
            found.lost += step.send(number)
        for name in kills:
            time.sleep(BETWEEN_KILLS_S)
            found.sent += 1
            found.lost += not step.kill_helper(name)
        time.sleep(BETWEEN_KILLS_S)
        found.left += step.end()
        found.gap_s = max(found.gap_s, step.longest_gap_s())
        found.steps += 1
    finally:
        step.kill()


def clean_environment(folder: Path) -> dict[str, str]:
    """The environment of this process, without what PowerCCL would read."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return {**kept, "XDG_CONFIG_HOME": str(folder / "config")}


def try_clocks(native: NativeFiles, folder: Path, found: Found) -> None:
    """Ranks whose clocks are set, on GPUs that outlive the job."""
    machine = EmulatedMachine(native, folder)
    try:
        profile = folder / "t4.json"
        profile.write_bytes(profile_of("Tesla T4", 8))
        options = ("--set-clocks", "--policy", "per-call", "--platform", str(profile))
        case = Case(options, LOOP, (AGENT, DAEMON, WITNESS))
        environment = {**clean_environment(folder), **machine.environment}
        try_step(native, folder / "clocks", case, environment, CATCHABLE, (DAEMON, AGENT, DAEMON, AGENT), found)
        if not machine_is_back(machine):
            found.clocks_left += sum(clock != min(machine.clocks_mhz()) for clock in machine.clocks_mhz())
    finally:
        machine.stop()


def measure(native: NativeFiles, folder: Path) -> Figures:
    """Every signal to every helper, then SIGKILL to those that can be started again."""
    found = Found()
    environment = clean_environment(folder)
    kills = (AGENT, WITNESS, AGENT, AGENT)
    try_step(native, folder / "without", WITHOUT_CLOCKS, environment, CATCHABLE, kills, found)
    try_step(native, folder / "with", WITH_CLOCKS, environment, CATCHABLE, (AGENT, DAEMON, WITNESS, DAEMON), found)
    try_clocks(native, folder, found)
    return {
        "harm.signals.helpers_lost": count(found.lost, found.sent),
        "harm.signals.helpers_left": count(found.left, found.steps),
        "harm.signals.gap_s": one(round(found.gap_s, 3), "s", found.steps),
        "harm.signals.clocks_left": count(found.clocks_left, 8),
    }
