# SPDX-License-Identifier: Apache-2.0
"""Runs of many ranks: what a report of a thousand takes, on one core."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.big_run import write_run
from support.figures import spread

from harm import Figures
from powerccl.launch.native import NativeFiles

RANKS, HOSTS, COLLECTIVES = 1000, 125, 100
TIMES = 3
# The second run is as long as jobs are, so that each GPU has 500 samples: their energy is told by kind then.
SECONDS = {"report_1000": 0.0, "report_1000.sampled_10s": 10.0}


def measure(_: NativeFiles, folder: Path) -> Figures:
    """Processor time and peak memory of `powerccl report` with its page and its JSON."""
    found: Figures = {}
    core = min(os.sched_getaffinity(0))
    for name, seconds in SECONDS.items():
        run = write_run(folder / name, COLLECTIVES, RANKS, seconds=seconds, hosts=HOSTS)
        taken = [report(run, folder, core) for _ in range(TIMES)]
        found[f"harm.{name}.cpu_s"] = spread([cpu_s for cpu_s, _ in taken], "s", 2)
        found[f"harm.{name}.rss_mib"] = spread([peak_mib for _, peak_mib in taken], "MiB", 0)
    return found


def report(run: Path, folder: Path, core: int) -> tuple[float, float]:
    """Seconds of processor time and MiB at most of one report on one core.

    Raises:
        RuntimeError: it failed.
    """
    written = {f"--{kind}": folder / f"{run.name}.{kind}" for kind in ("html", "json")}
    outputs = [str(part) for pair in written.items() for part in pair]
    command = [sys.executable, "-m", "powerccl", "report", str(run), *outputs]
    with subprocess.Popen(
        ["taskset", "--cpu-list", str(core), *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode or not all(path.stat().st_size for path in written.values()):
            said = process.stderr.read().decode(errors="replace") if process.stderr else ""
            raise RuntimeError(f"powerccl report ended with {process.returncode}: {said[-2000:]}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
