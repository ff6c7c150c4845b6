# SPDX-License-Identifier: Apache-2.0
"""One node's part of a simulated start: what stands above a job's ranks, in place of slurmstepd, prterun or a proxy.

It is run through a link that has the launcher's name, since ranks look for it by name. Its first argument is a
Start in JSON, its others are such as the launcher itself would have. Each rank is a forked process that makes its run
folders and writes their paths, a line each, into `RANKS/<rank>`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass
class Start:
    """One node's ranks: their environment, how late each comes, and the name of the command that each runs."""

    runs: str
    ranks: str
    environment: dict[str, str]
    each: dict[str, dict[str, str]]  # by rank: variables of its own
    late_s: dict[str, list[float]]  # by rank: before each of its runs
    names: dict[str, str] = field(default_factory=dict)


def start_node(
    links: Path, launcher: str, start: Start, *arguments: str, around: tuple[str, ...] = ()
) -> subprocess.Popen[bytes]:
    """Start a node's ranks under a process of that name; `around` are words before its command (`unshare`, …)."""
    links.mkdir(exist_ok=True)
    link = links / launcher
    if not link.exists():
        link.symlink_to(Path(sys.executable).resolve())
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*around, str(link), "-S", __file__, json.dumps(asdict(start)), *arguments]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)


def be_rank(start: Start, rank: str) -> None:
    """One rank: make the folder of each of its runs, as `powerccl run` does."""
    from powerccl.launch.folder import make_folder
    from powerccl.launch.launchers import detect_launcher

    found = []
    for late_s in start.late_s[rank]:
        time.sleep(late_s)
        launcher = detect_launcher({**start.environment, **start.each[rank]})
        found.append(str(make_folder(Path(start.runs), start.names.get(rank, "app"), launcher)))
    Path(start.ranks, rank).write_text("\n".join(found))


def main(start: dict[str, Any]) -> int:
    """Fork the ranks and wait for them."""
    node = Start(**start)
    children = []
    for rank in node.each:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                be_rank(node, rank)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
