#!/usr/bin/env python3
"""Measure a report at scale: of 4,096 ranks on 512 hosts, and of 8,000,000 kernels of eight ranks, once restarted.

All runs are generated, and alike each time (tests/support/big_run.py): 100 and 1,000,000 collectives of all ranks,
with samples of power every 20 ms. A report prints its text and writes HTML and JSON. `seconds` is wall time with the
command's start, `processor_s` user and system time of it, `peak_mib` the largest resident memory of the process.
`covered_pct`: of the run's kernels, those that the report has times of.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT), str(ROOT / "tests")]

from support.big_run import write_run
from support.figures import Figures, about, one, show, spread, write

from powerccl.quantities import plural

ROUNDS = 3
RUNS = {  # collectives, ranks, hosts, seconds (0: as long as the collectives take), starts of all ranks
    "report_4096": (100, 4096, 512, 10.0, 1),
    "report_8m": (1_000_000, 8, 1, 0.0, 1),
    "report_restarted": (1_000_000, 8, 1, 0.0, 2),
}
COMMAND = "make figures-scale"
# A child of its own, so that RUSAGE_CHILDREN is of one report alone.
PROGRAM = """
import json, resource, subprocess, sys, time
begin = time.monotonic()
done = subprocess.run([sys.executable, "-m", "powerccl", *sys.argv[1:]], capture_output=True, text=True, check=False)
seconds = time.monotonic() - begin
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([done.returncode, done.stderr[-2000:], seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))
"""


def once(folder: Path, page: Path, findings: Path) -> tuple[float, float, float]:
    """Seconds, processor seconds and peak MiB of one report.

    Raises:
        RuntimeError: the report failed.
    """
    command = [sys.executable, "-c", PROGRAM, "report", str(folder), "--html", str(page), "--json", str(findings)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    code, said, *used = json.loads(done.stdout)
    if code:
        raise RuntimeError(f"powerccl report ended with {code}: {said}")
    seconds, processor_s, peak_mib = used
    return seconds, processor_s, peak_mib


def figures(name: str, scratch: Path, rounds: int) -> Figures:
    """Of one of RUNS; the value is the median."""
    collectives, ranks, hosts, seconds, starts = RUNS[name]
    folder = write_run(scratch / name, collectives, ranks, hosts=hosts, seconds=seconds, starts=starts)
    page, findings = scratch / "page.html", scratch / "findings.json"
    taken = []
    for _ in range(rounds):
        taken.append(once(folder, page, findings))
        print(f"{name}: {taken[-1]}, load {os.getloadavg()[0]:.1f}", flush=True)
    timed = json.loads(findings.read_text())["summary"]["communication"]["timed_calls"]
    columns = zip(("seconds", "processor_s", "peak_mib"), ("s", "s", "MiB"), zip(*taken, strict=True), strict=True)
    return {
        **{f"scale.{name}.{what}": spread(values, unit, 2) for what, unit, values in columns},
        f"scale.{name}.covered_pct": one(round(100 * timed / (collectives * ranks), 3), "%"),
        f"scale.{name}.html_mib": one(round(page.stat().st_size / (1 << 20), 2), "MiB"),
        f"scale.{name}.json_mib": one(round(findings.stat().st_size / (1 << 20), 2), "MiB"),
    }


def main() -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"{', '.join(RUNS)}; all without")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=ROOT / "build/figures/scale.json")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="also write them as evidence/results keeps figures")
    options = parser.parse_args()
    found: Figures = {}
    loads = [os.getloadavg()[0]]
    begin = time.monotonic()
    for name in options.runs or RUNS:
        with tempfile.TemporaryDirectory(prefix="powerccl-") as scratch:
            found |= figures(name, Path(scratch), options.rounds)
        loads.append(os.getloadavg()[0])
    show(found)
    write(options.out, found)
    conditions = (
        "generated runs: 4,096 ranks on 512 hosts with 100 collectives in 10 s; eight ranks with 1,000,000 collectives "
        "in 1,000 s, which are 8,000,000 kernels and 16,000,000 records, and the same with all ranks started again in "
        "the middle; samples of power every 20 ms; text, HTML and "
        f"JSON; {plural(options.rounds, 'round')}, median. Processes that waited for 2 processors, the last minute's "
        f"mean before and after each run: {', '.join(f'{load:.1f}' for load in loads)}; "
        f"{time.monotonic() - begin:.0f} s in all"
    )
    write(options.keep, found, **about(COMMAND, conditions))
    return 0


if __name__ == "__main__":
    sys.exit(main())
