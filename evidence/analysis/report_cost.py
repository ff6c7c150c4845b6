# SPDX-License-Identifier: Apache-2.0
"""What a report of a large run costs: time and memory of `powerccl report`, in a process of its own.

Two runs, each of eight ranks: a million collectives, which are 16 million records and 1 GB of traces; and a day sampled
every 20 ms, which is 35 million samples of 3 GB, with a collective every four seconds. `in_detail_pct` says of how much
of the kernels the report has times; of more than 20 million records it counts all and has a window in detail.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.big_run import write_run
from support.figures import Figures, one, spread

RANKS = 8
TIMES = 3
DAY_S = 86_400
MOST_BYTES = 8 << 30  # a report that takes more is ended, before it takes the machine with it
PROGRAM = f"""
import resource, sys
from powerccl.commands import main
resource.setrlimit(resource.RLIMIT_DATA, ({MOST_BYTES}, {MOST_BYTES}))
try:
    main()
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def once(folder: Path, written: Path) -> tuple[float, float]:
    """Seconds and peak MiB of one report, terminal and file.

    Raises:
        RuntimeError: the report failed.
    """
    command = [sys.executable, "-c", PROGRAM, "report", str(folder), f"--{written.suffix[1:]}", str(written)]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"})
    seconds = time.monotonic() - begin
    if done.returncode or not written.exists() or "where the time went" not in done.stdout:
        raise RuntimeError(f"powerccl report ended with {done.returncode}: {done.stderr[-2000:]}")
    return seconds, int(done.stderr.split()[-1]) / 1024


def figures(collectives: int = 1_000_000, times: int = TIMES, day_s: int = DAY_S) -> Figures:
    """Of both runs, which are synthetic: value is the median.

    Raises:
        RuntimeError: a report failed, or the day's energy is not what was written.
    """
    found: Figures = {}
    with tempfile.TemporaryDirectory() as scratch:
        runs = {
            "1M": (write_run(Path(scratch) / "big", collectives, RANKS), Path(scratch) / "big.html"),
            "day": (write_run(Path(scratch) / "day", day_s // 4, RANKS, seconds=day_s), Path(scratch) / "day.json"),
        }
        for name, (folder, written) in runs.items():
            taken = [once(folder, written) for _ in range(times)]
            found[f"analysis.report_{name}.seconds"] = spread([seconds for seconds, _ in taken], "s", 2)
            found[f"analysis.report_{name}.peak_mib"] = spread([peak for _, peak in taken], "MiB", 2)
        found["analysis.report_1M.in_detail_pct"] = one(in_detail_pct(runs["1M"][0], Path(scratch) / "big.json"), "%")
        found["analysis.report_1M.html_mib"] = spread([runs["1M"][1].stat().st_size / (1 << 20)], "MiB", 2)
        energy = json.loads(runs["day"][1].read_text())["summary"]["energy"]["joules"]
        true = joules(runs["day"][0])
        if energy is None or abs(energy / true - 1) > 0.01:
            raise RuntimeError(f"the day's energy is {energy} J instead of {true:g} J")
    return found


def in_detail_pct(folder: Path, written: Path) -> float:
    """Of a run's kernels, those in the window that the report has in detail. All are counted by pattern and size."""
    once(folder, written)
    findings = json.loads(written.read_text())
    kernels = sum(row["kernels"] for row in findings["counts"])
    share = float(findings["summary"]["communication"]["timed_calls"]) / float(kernels)
    return round(share * 100, 2)


def joules(folder: Path) -> float:
    """What the counters of a run say, from its last samples."""
    (file,) = folder.glob("power-*.csv")
    with file.open("rb") as samples:
        samples.seek(-RANKS * 200, os.SEEK_END)
        last = samples.read().splitlines()[-RANKS:]
    return sum(int(line.split(b",")[4]) for line in last) / 1e6


if __name__ == "__main__":
    sys.stdout.write(json.dumps(figures(), indent=2) + "\n")
