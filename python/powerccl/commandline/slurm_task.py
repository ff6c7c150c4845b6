# SPDX-License-Identifier: Apache-2.0
"""A step of Slurm recorded from the prolog of its tasks: nothing is in front of its command.

The file packaging/slurm/task-prolog starts this on each node, once a step. It gives tasks the variables of the file
`environment`. The file packaging/slurm/task-epilog writes to the FIFO `end` when a node's last task has ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from powerccl.commandline.config import local_dir, read_config, runs_dir
from powerccl.errors import one_line
from powerccl.files import write_whole
from powerccl.launch.emulation import EmulatedServer
from powerccl.launch.record import prepare
from powerccl.launch.recording import Recording
from powerccl.launch.request import Request, UnrecordableError

# Slurm signals all processes of a step. The tasks end by that, and this process by their end, or by SIGKILL.
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
BEGINS_S = 10.0  # after which the task has executed its program; at half, a slow file system may take longer
LOOK_S = 0.2
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def main(place: Path, task: int) -> int:
    """Record the step of this environment; `task` is the process of a task that is about to begin."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    base = dict(os.environ)
    with contextlib.ExitStack() as stack:
        recording, environment = None, base
        try:
            write_whole(place / "tasks", str(tasks_on_node(base)))
            recording = _begin(base, stack)
            environment = recording.begin()
        except Exception as error:
            cause = error.error if isinstance(error, UnrecordableError) else error
            _say(f"{one_line(cause)}; the step runs unrecorded")
            if recording:
                recording.leave()
            recording, environment = None, base
        write_whole(place / "environment", exports(base, environment))
        if recording:
            recording.run_by(_command_of(task))
        (place / "end").read_bytes()
        if recording:
            recording.end(None, environment)
    shutil.rmtree(place, ignore_errors=True)
    return 0


def _begin(base: Mapping[str, str], stack: contextlib.ExitStack) -> Recording:
    config = read_config("runs-dir", "local-dir")
    name, runs, local = base.get("SLURM_JOB_NAME", ""), runs_dir(config), local_dir(config)
    request = Request([sys.executable], name=name, runs=runs, local_dir=local)
    return Recording(request, prepare(request, base, EmulatedServer("", stack), None, _say), _say)


def tasks_on_node(environment: Mapping[str, str]) -> int:
    """How many tasks the step has on this node: `2(x3),1` is two on each of three nodes, and one on a fourth."""
    counts: list[int] = []
    for part in environment.get("SLURM_STEP_TASKS_PER_NODE", "1").split(","):
        count, _, nodes = part.partition("(x")
        counts += [int(count)] * int(nodes.rstrip(")") or 1)
    return counts[int(environment.get("SLURM_NODEID", "0"))]


def exports(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """The lines with which a task prolog changes the environment of its task. A line cannot hold a line's end."""
    lines = [f"unset {name}" for name in before if name not in after]
    for name, value in after.items():
        if before.get(name) != value and "\n" not in value and _NAME.fullmatch(name):
            lines.append(f"export {name}={value}")
    return "".join(f"{line}\n" for line in lines)


def _command_of(task: int) -> list[str]:
    """The task's command line, once it has executed its program; empty: it ended before, or takes too long."""
    path = Path(f"/proc/{task}")
    deadline = time.monotonic() + BEGINS_S
    try:
        before = (path / "cmdline").read_bytes()
        while (words := (path / "cmdline").read_bytes()) == before and time.monotonic() < deadline:
            time.sleep(LOOK_S)
    except OSError:
        return []
    return [os.fsdecode(word) for word in words.split(b"\0")[:-1]] if words != before else []


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
