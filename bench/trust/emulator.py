# SPDX-License-Identifier: Apache-2.0
"""Emulated times of bench, idle and with eight busy loops beside, moving data and not: the model's, or marked invalid.

The model's time is that of `-c 0` on the idle machine; where no point of it is told, the topic fails. Load of others
on the machine counts as load, so it should be idle when this runs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.figures import Figures, count, one
from bench.trust import fault
from bench.trust.jobs import powerccl

from powerccl.launch.native import NativeFiles

LOAD = 8
NEAR = 0.02
INVALID_CODE = 3
SWEEPS = (  # the first example of `bench --help`, an inner-node link, and a fast one
    ("t4x8", ("all_reduce", "-b", "1M", "-e", "64M", "-f", "8")),
    ("t4x8", ("all_gather", "-b", "128K", "-e", "8M", "-f", "8", "-g", "4")),
    ("h200x4", ("all_reduce", "-b", "1M", "-e", "64M", "-f", "8")),
    ("a100x8-two-nodes", ("reduce_scatter", "-b", "1M", "-e", "8M", "-f", "8")),
)
Point = tuple[str, int]


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many processes that do nothing but turn."""
    started = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()


def invalid(point: dict[str, Any]) -> bool:
    """Whether a result says that it is none."""
    return bool(point.get("invalid") or point.get("invalid_reason") or point.get("valid") is False)


def sweep(native: NativeFiles, platform: str, words: tuple[str, ...], check: int, folder: Path) -> tuple[int, Any]:
    """One sweep: exit code and results."""
    file = folder / "sweep.json"
    file.unlink(missing_ok=True)
    options: list[str | Path] = ["-n", "3", "-w", "1", "-c", str(check), "--json", file]
    said = powerccl(native, ["bench", "--emulate", platform, *words, *options], folder, limit_s=180)
    if not file.exists():
        raise RuntimeError(f"{platform} {' '.join(words)}: {said.code} {said.err[-300:]}")
    return said.code, json.loads(file.read_text())["results"]


def measure(native: NativeFiles, folder: Path) -> Figures:
    """Each sweep four times."""
    model: dict[tuple[int, Point], float] = {}
    errors, wrong, marked, points = [], 0, 0, 0
    for loops, check in ((0, 0), (0, 1), (LOAD, 0), (LOAD, 1)):
        with busy(loops):
            for number, (platform, words) in enumerate(SWEEPS):
                code, results = sweep(native, platform, words, check, folder)
                for point in results:
                    points += 1
                    key = number, (point["pattern"], point["size_bytes"])
                    name = f"{platform} {point['pattern']} {point['size_bytes']} -c {check} at load {loops}"
                    if (loops, check) == (0, 0):
                        model[key] = point["time_us"]
                    if invalid(point):
                        marked += 1
                        if code != INVALID_CODE:
                            wrong += 1
                            fault(f"{name}: marked invalid, and exit code {code}")
                        elif loops == 0:
                            fault(f"{name}: invalid on an idle machine")
                            errors.append(100.0)
                        continue
                    error = abs(point["time_us"] / model[key] - 1)
                    if loops == 0:
                        # The loop between two CUDA events runs in model time: what the host's clock adds is error.
                        own = point["device_time_us"] or point["time_us"]
                        errors.append(100 * max(error, abs(point["time_us"] / own - 1)))
                    if error > NEAR:
                        wrong += 1
                        fault(f"{name}: {point['time_us']:.0f} us of {model[key]:.0f} us, not marked")
    if not errors:
        raise RuntimeError("no point was told on the idle machine")
    print(f"idle: median error {statistics.median(errors):.2f} %, {marked} of {points} marked", file=sys.stderr)
    return {
        "trust.emulator.wrong_unmarked": count(wrong, points),
        "trust.emulator.idle_error_pct": one(round(max(errors), 3), "%", len(errors)),
        "trust.emulator.marked_invalid": count(marked, points),
    }
