# SPDX-License-Identifier: Apache-2.0
"""Process limits: a job starts and ends as without us, however few processes it may have.

Each case runs a job under a limit alone, then under `powerccl run`. The limit is a control group's (`pids.max`) or a
user's (RLIMIT_NPROC), which does not apply to root.
"""

from __future__ import annotations

import itertools
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from harness import FOREIGN

from harm import Figures, count
from powerccl.launch.native import NativeFiles

ROOT = Path(__file__).resolve().parents[2]
# Recording begins where 64 more processes have room: with 65 in all in a control group, with 64 of another user.
LIMITS = (1, 2, 3, 4, 6, 8, 16, 40, 63, 64, 65, 80, 400)
PIDS_ROOTS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
USER = 1_000_000 + os.getpid()  # has no other processes, which would count
OTHERS = 70  # processes: more than have to be left for a job to be recorded
PATIENCE_S = 60.0
# Starts threads until there is no place left, and says only whether those that it needs were there.
THREADS = """
import sys, threading
end = threading.Event()
try:
    for _ in range(int(sys.argv[1])):
        threading.Thread(target=end.wait).start()
    print("all")
except RuntimeError:
    print("too few")
end.set()
"""
JOBS = {
    "alone": ("/bin/echo", "done"),
    "a pipe": ("/bin/sh", "-c", "echo done | cat; exit 7"),
    "three at once": ("/bin/sh", "-c", "sleep 0.1 & sleep 0.1 & wait; echo done"),
    "not there": ("/nowhere/program",),
    "2 threads": (sys.executable, "-S", "-c", THREADS, "2"),
    "30 threads": (sys.executable, "-S", "-c", THREADS, "30"),
}


@dataclass(frozen=True)
class Outcome:
    """How a job ended, and what it printed."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Verdict:
    """A case: whether the job was another than alone, and whether nothing was recorded without a word."""

    case: str
    changed: bool
    silent: bool


@dataclass(frozen=True)
class Limited:
    """How a command starts under a limit: what its process does first, and the words before it."""

    enter: Callable[[], None]
    words: tuple[str, ...] = ()


@contextmanager
def control_group(limit: int) -> Iterator[Limited]:
    """A control group of at most so many processes.

    Raises:
        OSError: there is none to be had here.
    """
    root = next((each for each in PIDS_ROOTS if _has_pids(each)), None)
    if root is None:
        raise OSError("no control group for processes can be made here")
    folder = Path(tempfile.mkdtemp(prefix="powerccl-", dir=root))
    try:
        (folder / "pids.max").write_text(str(limit))
        yield Limited(lambda: _write(folder / "cgroup.procs", "0"))
    finally:
        folder.rmdir()


@contextmanager
def user_limit(limit: int) -> Iterator[Limited]:
    """Another user, with so many processes at most. It may read root's files, where this Python may be."""
    rights = "-all,+dac_override,+dac_read_search"
    words = ("setpriv", f"--reuid={USER}", "--clear-groups", f"--inh-caps={rights}", f"--ambient-caps={rights}")
    yield Limited(lambda: resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit)), (*words, "--"))


@contextmanager
def unseen_limit(limit: int) -> Iterator[Limited]:
    """The same in a PID namespace, where the user's other processes count and cannot be seen."""
    with user_limit(limit + OTHERS) as limited:
        others = [subprocess.Popen([*limited.words, "sleep", "600"], stdin=subprocess.DEVNULL) for _ in range(OTHERS)]
        try:
            for each in others:
                while Path(f"/proc/{each.pid}/comm").read_text() != "sleep\n":
                    time.sleep(0.005)
            yield Limited(limited.enter, ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *limited.words))
        finally:
            for each in others:
                each.kill()
                each.wait()


KINDS = {"pids.max": control_group, "ulimit -u": user_limit, "unseen": unseen_limit}


def _has_pids(root: Path) -> bool:
    """Whether groups made in this one can be limited."""
    controllers = root / "cgroup.subtree_control"
    with suppress(OSError):
        return "pids" in controllers.read_text().split() if controllers.exists() else (root / "tasks").exists()
    return False


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)


def run(command: list[str], limited: Limited, folder: Path, environment: dict[str, str]) -> Outcome:
    """Run a command under a limit."""
    done = subprocess.run(
        [*limited.words, *command],
        cwd=folder,
        env=environment,
        preexec_fn=limited.enter,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def verdict(native: NativeFiles, folder: Path, kind: str, limit: int, name: str) -> Verdict:
    """One job under one limit, alone and recorded."""
    job = list(JOBS[name])
    kept = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    environment = {**kept, "POWERCCL_NATIVE": str(native.root), "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(folder)}
    runs = folder / "-".join(f"runs {kind} {limit} {name}".split())
    ours = [sys.executable, "-m", "powerccl", "run", "-q", "--runs-dir", str(runs), "--", *job]
    with KINDS[kind](limit) as limited:
        alone = _shell(run(job, limited, folder, environment)) if Path(job[0]).exists() else Outcome(127, "", "")
        recorded = run(ours, limited, folder, environment)
    changed = (alone.code, alone.out) != (recorded.code, recorded.out)
    silent = alone.code != 127 and not any(runs.glob("*/run.json")) and "powerccl:" not in recorded.err
    if changed or silent:
        print(f"process limits: {kind} {limit}, {name}: {alone} became {recorded}", file=sys.stderr)
    return Verdict(f"{kind} {limit}: {name}", changed, silent)


def _shell(outcome: Outcome) -> Outcome:
    """With the exit code that a shell would give it."""
    code = outcome.code if outcome.code >= 0 else 128 - outcome.code
    return Outcome(code, outcome.out, outcome.err)


def verdicts(native: NativeFiles, folder: Path) -> list[Verdict]:
    """All cases."""
    cases = itertools.product(KINDS, LIMITS, JOBS)
    return [verdict(native, folder, kind, limit, name) for kind, limit, name in cases]


def measure(native: NativeFiles, folder: Path) -> Figures:
    """Run all cases."""
    found = verdicts(native, folder)
    return {
        "harm.process_limits.changed": count(sum(each.changed for each in found), len(found)),
        "harm.process_limits.silent": count(sum(each.silent for each in found), len(found)),
    }
