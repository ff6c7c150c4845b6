#!/usr/bin/env python3
"""Run a command on a host that is busy and stops now and then, as a shared virtual machine does.

busy_host.py [--loops N] [--stall S] COMMAND...: beside N busy loops a core, and processes of the highest priority that
together keep all cores for up to S seconds, every one to six seconds. Needs root for the priority. Exits as COMMAND.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable


def in_child(core: int, nice: int, work: Callable[[], None]) -> int:
    """A process that does this on one core for as long as its parent lives."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    os.sched_setaffinity(0, {core})
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    while os.getppid() == parent:
        work()
    os._exit(0)


def keep_busy(seconds: float) -> None:
    """Use a core for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def main() -> int:
    """Start what disturbs, run the command, end what disturbs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loops", type=int, default=1, metavar="N", help="busy loops a core (1)")
    parser.add_argument("--stall", type=float, default=0.6, metavar="S", help="longest stop of all cores in s (0.6)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.stall and os.geteuid():
        parser.error("only root stops all cores: run it as root, or with --stall 0")
    cores = sorted(os.sched_getaffinity(0))
    seed = time.monotonic_ns()
    children = []
    for core in cores:
        children += [in_child(core, 0, lambda: keep_busy(1)) for _ in range(options.loops)]
        chance = random.Random(seed)  # the same for all cores: they stop together

        def stop(chance: random.Random = chance) -> None:
            time.sleep(chance.uniform(1, 6))
            keep_busy(chance.uniform(0.2, 1) * options.stall)

        if options.stall:
            children.append(in_child(core, -20, stop))
    try:
        return subprocess.run(options.command, check=False).returncode
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
