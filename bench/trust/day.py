# SPDX-License-Identifier: Apache-2.0
"""A day of eight GPUs at 20 ms: how long a report takes, and how much memory.

The samples are 35 million rows, 3 GB; traces hold a collective every four seconds.
TRUST_DAY_HOURS: how many hours (24).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
from bench.analysis import big_run
from bench.figures import Figures, one
from bench.trust.jobs import environment

from powerccl.launch.native import NativeFiles

GPUS = 8
PERIOD_NS = 20_000_000
HOUR_S = 3600
COLLECTIVE_NS = 4_000_000_000  # from one to the next: it is the samples' memory that is measured
MOST_RESIDENT_MIB = 8192  # a report that takes more is ended, before it takes the machine with it
LIMIT_S = 900


def write_samples(file: Path, seconds: int) -> None:
    """Eight GPUs at 200 to 300 W, whose counter is the integral of their power."""
    names = [big_run.uuid(rank) for rank in range(GPUS)]
    about = [f"# host: {big_run.HOST}", "# emulated: 1", f"# interval_ns: {PERIOD_NS}", f"# gpu_count: {GPUS}"]
    with file.open("wb") as out:
        out.write(("\n".join(about) + "\n").encode())
        total_uj = 0
        for first in range(0, seconds, HOUR_S):
            at = np.arange(first * 10**9, min(seconds, first + HOUR_S) * 10**9, PERIOD_NS, dtype=np.int64)
            power = 250_000 + (50_000 * np.sin(at / 3e9)).astype(np.int64)
            energy = total_uj + np.cumsum(power * (PERIOD_NS // 1000) // 1000)  # mW x us = nJ
            total_uj = int(energy[-1])
            rows = pl.DataFrame(
                {
                    "time_ns": np.repeat(at, GPUS),
                    "gpu": np.tile(np.arange(GPUS), len(at)),
                    "uuid": np.tile(np.array(names), len(at)),
                    "power_mw": np.repeat(power, GPUS),
                    "energy_uj": np.repeat(energy, GPUS),
                }
            ).with_columns(
                sm_clock_mhz=pl.lit(1590),
                mem_clock_mhz=pl.lit(5000),
                temperature_c=pl.lit(60),
                throttle_reasons=pl.lit("0x0"),
                utilization_pct=pl.lit(100),
            )
            rows.write_csv(out, include_header=first == 0)


def write_day(folder: Path, seconds: int) -> float:
    """A run folder; its true energy in joules, which the report must come to."""
    folder.mkdir()
    slots = big_run.SLOT_NS
    try:
        big_run.SLOT_NS = COLLECTIVE_NS
        big_run.write_traces(folder, seconds * 10**9 // COLLECTIVE_NS - 4, GPUS)
    finally:
        big_run.SLOT_NS = slots
    write_samples(folder / f"power-{big_run.HOST}.csv", seconds)
    info = {
        "command": ["python", "train.py"],
        "name": "day",
        "host": big_run.HOST,
        "start_ns": 1,
        "end_ns": seconds * 10**9,
        "exit_code": 0,
        "policy": "observe",
        "emulated": "synthetic",
        "interval_ms": 20,
    }
    (folder / "run.json").write_text(json.dumps(info))
    return 250.0 * GPUS * seconds


def resident_mib(pid: int) -> float:
    """What a process has in memory now; 0 where it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS:")), 0.0)


def measure(native: NativeFiles, folder: Path) -> Figures:
    """Write the day, and report it with all that a report has."""
    seconds = int(float(os.environ.get("TRUST_DAY_HOURS", "24")) * HOUR_S)
    day = folder / "day"
    true_j = write_day(day, seconds)
    print(f"{sum(file.stat().st_size for file in day.iterdir()) / 1e9:.2f} GB of samples and traces", file=sys.stderr)
    words = [sys.executable, "-m", "powerccl", "report", str(day), "-q", "--json", str(folder / "day.json")]
    begin_s = time.monotonic()
    process = subprocess.Popen(words, env=environment(native))
    deadline = begin_s + LIMIT_S
    while True:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"a report of {seconds} s takes more than {LIMIT_S} s")
        if resident_mib(process.pid) > MOST_RESIDENT_MIB:
            process.kill()
            raise RuntimeError(f"a report of {seconds} s takes more than {MOST_RESIDENT_MIB} MiB")
        time.sleep(0.05)
    spent_s = time.monotonic() - begin_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"report ends with {process.returncode}")
    energy = json.loads((folder / "day.json").read_text())["summary"]["energy"]["joules"]
    if energy is None or abs(energy / true_j - 1) > 0.01:
        raise RuntimeError(f"the day's energy is {energy} J instead of {true_j:g} J")
    return {
        "trust.day.peak_mib": one(round(used.ru_maxrss / 1024, 1), "MiB"),
        "trust.day.seconds": one(round(spent_s, 1), "s"),
        "trust.day.hours": one(seconds / HOUR_S, "h"),
    }
