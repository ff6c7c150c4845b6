# SPDX-License-Identifier: Apache-2.0
"""accounts.energy_error_pct: the energy that a run is given, against the emulator's own counters at its start and end.

A process that is no part of the run reads the counters all the time. Runs of 0.3 s to 25 s are real commands on the
emulator, at intervals of 19 ms to 10 s. Those of up to 10 minutes are files of samples from a known course of power.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from support.commands import run_command
from support.figures import Figures, one
from trust import fault

from powerccl.launch.emulation import Emulation, emulated_platform
from powerccl.launch.native import NativeFiles
from powerccl.live.job import Watcher

MS, S = 1_000_000, 1_000_000_000
# Counters that move every ms: their own step is no error of a run's energy then. Others as their platforms have them.
PLATFORMS = ("t4x8:refresh_ms=1", "t4x8:refresh_ms=1,energy_read_us=3000")
INTERVALS_MS = (19, 100, 500, 2000, 10_000)
SHORT_S, LONG_S = (0.3, 0.3, 0.6, 2.5), {2000: (12.0,), 10_000: (25.0,)}
POLL_S = 0.001
GPUS = 2  # the job's, and those whose counters are read
ITERATION_S = 0.09  # of the job, at least


def measure(native: NativeFiles, folder: Path) -> Figures:
    """Every platform with every interval and length of run, then long runs from files."""
    errors: list[float] = []
    for platform in PLATFORMS:
        with _served(native, platform, folder) as (environment, log):
            for interval_ms in INTERVALS_MS:
                lengths_s = (*SHORT_S, *LONG_S.get(interval_ms, ()))
                errors += [_of_command(environment, log, folder, interval_ms, length_s) for length_s in lengths_s]
    print(f"emulated: {max(errors):.3f} % at most, {np.median(errors):.3f} % in the middle", file=sys.stderr)
    errors += _of_files(folder)
    return {"accounts.energy_error_pct": one(round(max(errors), 4), "%", len(errors))}


# ---- Real commands


@contextlib.contextmanager
def _served(native: NativeFiles, platform: str, folder: Path) -> Iterator[tuple[dict[str, str], Path]]:
    """An emulated server, the environment of its users, and a file to which its counters are written all the time."""
    place = folder / platform.replace(":", "-").replace(",", "-").replace("=", "-")
    place.mkdir()
    with Emulation(native, emulated_platform(native, platform), place) as emulation:
        environment = {**emulation.environment(os.environ), "POWERCCL_NATIVE": str(native.root)}
        log = place / "counters"
        reader = subprocess.Popen([sys.executable, "-c", _READER, str(log)], env=environment)
        try:
            _wait(log)
            yield environment, log
        finally:
            reader.kill()
            reader.wait()


# Writes the counters' sum over these GPUs, mJ, with the times before and after reading them.
_READER = f"""
import ctypes, sys, time
nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
value = ctypes.c_ulonglong()
gpus = []
for index in range({GPUS}):
    gpus.append(ctypes.c_void_p())
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(gpus[-1]))
with open(sys.argv[1], "w", buffering=1) as log:
    while True:
        before_ns, total = time.monotonic_ns(), 0
        for gpu in gpus:
            nvml.nvmlDeviceGetTotalEnergyConsumption(gpu, ctypes.byref(value))
            total += value.value
        log.write(f"{{before_ns}} {{time.monotonic_ns()}} {{total}}\\n")
        time.sleep({POLL_S})
"""


def _wait(log: Path) -> None:
    deadline = time.monotonic() + 10
    while not (log.exists() and log.stat().st_size):
        if time.monotonic() > deadline:
            raise RuntimeError("the emulator's counters cannot be read")
        time.sleep(0.02)


def _of_command(environment: dict[str, str], log: Path, folder: Path, interval_ms: int, length_s: float) -> float:
    """The largest error, %, of what a run's outputs say."""
    run, info = _recorded(environment, folder, interval_ms, length_s)
    counters = np.loadtxt(log.read_text().splitlines()[:-1], dtype=np.int64)
    truth_j = float(np.diff(_at(counters, np.array([info["start_ns"], info["end_ns"]])))[0]) / 1e3
    summary = json.loads((run / "summary.json").read_text())["energy"]
    live = Watcher(run, totals=True).look(info["end_ns"], info["host"])
    worst = 0.0
    for name, joules in (("report", summary["joules"]), ("top and export", live.joules)):
        error = 100.0 if joules is None else abs(joules / truth_j - 1) * 100
        worst = max(worst, error)
        if error > 0.5:
            took_s = (info["end_ns"] - info["start_ns"]) / S
            fault(f"{name}, {took_s:.2f} s every {interval_ms} ms: {joules} J of {truth_j:.2f} J ({error:.2f} %)")
    return worst


def _recorded(
    environment: dict[str, str], folder: Path, interval_ms: int, length_s: float
) -> tuple[Path, dict[str, Any]]:
    runs = folder / "runs"
    iterations = math.ceil(length_s / ITERATION_S)
    step = folder / "step.scn"
    step.write_text("streams comm\ncompute 30\ncompute 60\nsync compute\nall_reduce 10M on comm\n")
    job = ["powerccl-bench", "scenario", str(step), "-g", str(GPUS), "-w", "0", "--iterations", str(iterations)]
    command = [sys.executable, "-m", "powerccl", "run", "--runs-dir", str(runs), "--name", "job", "--policy", "observe"]
    before = set(runs.glob("*"))
    said = run_command([*command, "--interval-ms", str(interval_ms), "--", *job], environment, 60 + 4 * length_s)
    if said.code:
        raise RuntimeError(f"{' '.join(job)}: {said.err[-400:]}")
    (run,) = set(runs.glob("*")) - before
    return run, json.loads((run / "run.json").read_text())


def _at(counters: Any, time_ns: Any) -> Any:
    middle = (counters[:, 0] + counters[:, 1]) // 2
    origin = middle[0]
    return np.interp((time_ns - origin).astype(float), (middle - origin).astype(float), counters[:, 2].astype(float))


# ---- Files of samples


def _of_files(folder: Path) -> list[float]:
    """Errors of long runs whose counters move every 100 ms, by how often they are sampled."""
    from powerccl.analysis.summary import summarise
    from powerccl.traces.folder import read_run

    errors = []
    random = np.random.default_rng(1)
    for length_s in (60, 200, 600):
        for interval_ms in INTERVALS_MS:
            run = folder / f"file-{length_s}-{interval_ms}"
            truth_j = _write_file(run, length_s, interval_ms, random)
            joules = summarise(read_run(run)).energy.joules
            errors.append(100.0 if joules is None else abs(joules / truth_j - 1) * 100)
            if errors[-1] > 0.5:
                fault(f"file of {length_s} s every {interval_ms} ms: {joules} J of {truth_j:.2f} J")
    return errors


def _write_file(run: Path, length_s: int, interval_ms: int, random: np.random.Generator) -> float:
    """A run of one GPU whose power changes twice a second; returns its counter's gain, J."""
    run.mkdir()
    start_ns = 50 * S + int(random.integers(0, 100 * MS))
    end_ns = start_ns + length_s * S + int(random.integers(0, S))
    steps = np.arange(0, end_ns + 10 * S, S // 2)
    watts = random.uniform(60, 700, len(steps))
    joules = np.concatenate([[0.0], np.cumsum(watts[:-1] * 0.5)])

    def counter_uj(time_ns: int) -> int:
        return int(1e6 * np.interp(time_ns // (100 * MS) * (100 * MS), steps, joules))

    first_ns, last_ns = start_ns - 3 * MS, end_ns + 3 * MS
    times = [first_ns, *range(start_ns + interval_ms * MS, end_ns, interval_ms * MS), last_ns]
    rows = [f"{at},0,GPU-0,{int(watts[at // (S // 2)] * 1e3)},{counter_uj(at)},1000,1000,40,0x0,99" for at in times]
    columns = "time_ns,gpu,uuid,power_mw,energy_uj,sm_clock_mhz,mem_clock_mhz,temperature_c,throttle_reasons"
    head = ["# host: n", f"# interval_ns: {interval_ms * MS}", "# gpu0_uuid: GPU-0", f"{columns},utilization_pct"]
    assert all(b > a for a, b in pairwise(times))
    (run / "power-n.csv").write_text("\n".join([*head, *rows, ""]))
    info = {"command": ["job"], "host": "n", "start_ns": start_ns, "end_ns": end_ns, "exit_code": 0}
    (run / "run.json").write_text(json.dumps(info))
    return (counter_uj(end_ns) - counter_uj(start_ns)) / 1e6
