# SPDX-License-Identifier: Apache-2.0
"""Signals: the job gets each one once, whether it went to the wrapper alone, its group, its session or its terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harm import Figures, count
from powerccl.launch.native import NativeFiles

CODE = 7
BATCH = 8  # jobs at once: a job mostly waits
COUNT_S = 1.5
PATIENCE_S = 30
JOB = r"""
import collections, os, signal, sys, time
counts = collections.Counter()
catchable = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
signal.pthread_sigmask(signal.SIG_BLOCK, catchable)
open(sys.argv[1] + ".ready", "w").close()
end = time.monotonic() + float(sys.argv[2])
while (left := end - time.monotonic()) > 0:
    info = signal.sigtimedwait(catchable, left)
    if info:
        counts[int(info.si_signo)] += 1
open(sys.argv[1], "w").write(repr(dict(counts)))
sys.exit(7)
"""
Send = Callable[["Job", int], None]


@dataclass
class Job:
    """A wrapper with a job that counts, in a session of its own, on a terminal if it has one."""

    process: subprocess.Popen[bytes]
    result: Path
    terminal: int = -1

    def ready(self) -> bool:
        """Wait until the job counts."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.result.with_name(self.result.name + ".ready").exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def outcome(self) -> dict[int, int] | None:
        """How often the job got which signal; None if it did not end as it should."""
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            return None
        finally:
            if self.terminal >= 0:
                os.close(self.terminal)
        if code != CODE or not self.result.exists():
            return None
        counts: dict[int, int] = eval(self.result.read_text(), {"__builtins__": {}})
        return counts


def start(result: Path, native: NativeFiles, on_terminal: bool = False, options: tuple[str, ...] = ()) -> Job:
    """Start a job that counts its signals under `powerccl run`."""
    command = [sys.executable, "-m", "powerccl", "run", "--quiet", "--interval-ms", "0", *options, "--"]
    command += [sys.executable, "-c", JOB, str(result), str(COUNT_S)]
    environment = {**os.environ, "POWERCCL_NATIVE": str(native.root)}
    own, theirs = pty.openpty() if on_terminal else (-1, subprocess.DEVNULL)

    def take_terminal() -> None:
        import fcntl

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        cwd=result.parent,
        start_new_session=True,
        preexec_fn=take_terminal if on_terminal else None,
    )
    if on_terminal:
        os.close(theirs)
    return Job(process, result, own)


def to_us(job: Job, number: int) -> None:
    """To the wrapper alone."""
    os.kill(job.process.pid, number)


def to_group(job: Job, number: int) -> None:
    """To the process group."""
    os.killpg(job.process.pid, number)


def to_us_and_group(job: Job, number: int) -> None:
    """To the wrapper, then to its group, as timeout(1) does. The job alone would get one or two of them."""
    os.kill(job.process.pid, number)
    os.killpg(job.process.pid, number)


def to_session(job: Job, number: int) -> None:
    """To each process of the session, one after the other."""
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == job.process.pid:
                os.kill(pid, number)


def from_terminal(job: Job, number: int) -> None:
    """By a key, or a change of the terminal's size."""
    keys = {signal.SIGINT: b"\x03", signal.SIGQUIT: b"\x1c", signal.SIGTSTP: b"\x1a"}
    if number in keys:
        os.write(job.terminal, keys[signal.Signals(number)])
    else:
        termios.tcsetwinsize(job.terminal, (40, 100))


def combinations() -> Iterator[tuple[str, Send, int]]:
    """Every catchable signal to each target, and what a terminal sends."""
    catchable = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
    for number in catchable:
        yield "alone", to_us, number
        yield "group", to_group, number
        yield "session", to_session, number
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT):
        yield "us and group", to_us_and_group, number
    for _ in range(5):
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH):
            yield "terminal", from_terminal, number


def measure(native: NativeFiles, folder: Path) -> Figures:
    """Send them all, a few jobs at a time."""
    chosen = list(combinations())
    doubled = lost = others = 0
    for first in range(0, len(chosen), BATCH):
        batch = chosen[first : first + BATCH]
        jobs = [
            start(folder / f"job-{first + index}", native, target == "terminal")
            for index, (target, _, _) in enumerate(batch)
        ]
        for job, (_, send, number) in zip(jobs, batch, strict=True):
            if job.ready():
                send(job, number)
        for job, (target, _, number) in zip(jobs, batch, strict=True):
            counts = job.outcome()
            got = counts.get(number, 0) if counts is not None else 0
            most = 2 if target == "us and group" else 1
            if counts is None or set(counts) != {number} or got > most:
                print(f"signals: {number} to {target}: {counts}", file=sys.stderr)
                others += counts is not None and set(counts) > {number}
            doubled += got > most
            lost += got == 0
    return {
        "harm.signals.doubled": count(doubled, len(chosen)),
        "harm.signals.lost": count(lost, len(chosen)),
        "harm.signals.others": count(others, len(chosen)),  # that nobody sent
    }
