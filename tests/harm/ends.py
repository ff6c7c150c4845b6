# SPDX-License-Identifier: Apache-2.0
"""Ends of jobs: by themselves, by a signal and by a time limit, with and without a clock daemon of our own."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harm import Figures, count
from powerccl.launch.native import NativeFiles

ENDS = 2000
WITH_DAEMON = 400  # of them: each brings up an emulated server and a daemon, and takes a second
TOGETHER = 4
PATIENCE_S = 60
TIMED_OUT = 124  # of timeout(1)


@dataclass(frozen=True)
class End:
    """One job: how it is to end, after how long, and whether a private daemon runs beside it."""

    kind: str  # "itself", "signal", "limit"
    seconds: float
    number: int
    daemon: bool


def ends(number: int, with_daemon: int) -> list[End]:
    """A mixture with a fixed seed."""
    dice = random.Random(38)
    kinds = itertools.cycle(("itself", "signal", "limit"))
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGHUP, signal.SIGUSR1, signal.SIGSEGV)
    every = max(1, number // with_daemon) if with_daemon else number + 1
    return [
        End(next(kinds), dice.choice((0.0, 0.01, dice.uniform(0, 0.2))), dice.choice(numbers), index % every == 0)
        for index in range(number)
    ]


def run(end: End, folder: Path, native: NativeFiles) -> str:
    """Run it; what was wrong, empty if nothing."""
    folder.mkdir()
    mark = f"{folder.name}-{os.getpid()}"
    jobs = {
        "itself": f"sleep {end.seconds:.3f}; exit 7",
        "signal": f"sleep {end.seconds:.3f}; kill -{int(end.number)} $$; sleep 30",
        "limit": "exec sleep 30",
    }
    limit = 0.7 + end.seconds + (0.8 if end.daemon else 0.0)
    command = ["timeout", f"{limit:.3f}"] if end.kind == "limit" else []
    command += [sys.executable, "-m", "powerccl", "run", "--quiet", "--interval-ms", "0", "--runs-dir", str(folder)]
    command += ["--emulate", "t4x8", "--policy", "per-call"] if end.daemon else []
    command += ["--", "sh", "-c", jobs[end.kind]]
    environment = {**os.environ, "POWERCCL_NATIVE": str(native.root), "HARM_MARK": mark}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            code = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return "hung"
    expected = {"itself": 7, "signal": 128 + int(end.number), "limit": TIMED_OUT}[end.kind]
    if code != expected:
        return f"exit code {code} instead of {expected}"
    return "left a process" if left(mark) else ""


def left(mark: str) -> bool:
    """Whether a process of that run still lives."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"HARM_MARK={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                return True
        except OSError:  # noqa: PERF203 - it has ended meanwhile
            continue
    return False


def measure(native: NativeFiles, folder: Path) -> Figures:
    """Run all ends, a few at a time."""
    chosen = ends(ENDS, WITH_DAEMON)

    def one(index: int) -> str:
        found = run(chosen[index], folder / str(index), native)
        if found:
            print(f"ends: {chosen[index]}: {found}", file=sys.stderr)
        return found

    with ThreadPoolExecutor(TOGETHER) as pool:
        found = list(pool.map(one, range(len(chosen))))
    return {
        "harm.ends.run": count(len(found), len(found)),
        "harm.ends.hung": count(found.count("hung"), len(found)),
        "harm.ends.left": count(found.count("left a process"), len(found)),
        "harm.ends.changed": count(sum(text.startswith("exit") for text in found), len(found)),
    }
