# SPDX-License-Identifier: Apache-2.0
"""powerccl-sim as a function: scenarios on a machine, under a policy."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

SIMULATOR = "bin/powerccl-sim"
DEVIATION = 1.4826  # standard deviations in a median deviation, of normally distributed values
LONGEST_S = 300.0  # of real time: what takes longer stands still


@dataclass(frozen=True)
class Simulated:
    """What came of it: milliseconds and joules of all GPUs of an iteration, in the mean."""

    iteration_ms: float
    joules: float
    exposed_ms: float
    switches_per_s: float
    iterations: int
    uneven: float  # standard deviation of an iteration's time, as a share: robust, by the median deviation


class SimulatorError(RuntimeError):
    """What powerccl-sim said."""


def simulate(
    program: Path,
    machine: str,
    scenarios: Sequence[str],
    policy: str,
    seconds: float,
    warm_up_s: float,
    options: Sequence[str] = (),
    table: str = "",
) -> Simulated:
    """Simulate it. `machine`: the text of a platform file; `table`: that of a policy table, for per-call.

    Raises:
        SimulatorError: the simulator failed, and says why.
    """
    with tempfile.TemporaryDirectory(prefix="powerccl-sim-") as name:
        folder = Path(name)
        (folder / "machine.conf").write_text(machine)
        files = [folder / f"rank-{rank}.scn" for rank in range(len(scenarios))]
        for file, text in zip(files, scenarios, strict=True):
            file.write_text(text)
        command = [str(program), *map(str, files), "--platform", str(folder / "machine.conf"), "--policy", policy]
        command += ["--seconds", f"{seconds:g}", "--warm-up", f"{warm_up_s:g}", "--json", str(folder / "found.json")]
        if table:
            (folder / "policy.table").write_text(table)
            command += ["--table", str(folder / "policy.table")]
        try:
            done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=LONGEST_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise SimulatorError(f"no result after {LONGEST_S:g} s") from error
        if done.returncode:
            raise SimulatorError(
                done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"exit {done.returncode}"
            )
        told = json.loads((folder / "found.json").read_text())
    return Simulated(
        told["iteration_ms"],
        told["joules_per_iteration"],
        told["exposed_ms"],
        told["switches_per_s"],
        told["iterations"],
        uneven(told["each_ms"]),
    )


def uneven(values: Sequence[float]) -> float:
    """The standard deviation of most of them against their median."""
    usual = median(values)
    return DEVIATION * median(abs(value - usual) for value in values) / usual
