# SPDX-License-Identifier: Apache-2.0
"""powerccl-sim as a function: scenarios on a machine, under a policy."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import polars as pl

from powerccl.traces.folder import read_samples
from powerccl.whatif.gpus import clock_at_limit

SIMULATOR = "bin/powerccl-sim"
LONGEST_S = 300.0  # of real time: what takes longer stands still


@dataclass(frozen=True)
class Simulated:
    """Iterations from number `first` on: milliseconds and joules of all GPUs; `exposed_ms` of an iteration and GPU.

    `clocks_mhz`: those that `auto` has come to, of each rank. `first_clock_s`: since the job began; None: none was set.
    """

    first: int
    ms: list[float]
    joules: list[float]
    exposed_ms: float = 0.0
    switches_per_s: float = 0.0
    clocks_mhz: tuple[int, ...] = ()
    first_clock_s: float | None = None
    limited_mhz: tuple[float | None, ...] = ()  # as whatif.gpus.Gpu.clock_mhz; only where `sampled`

    @property
    def iteration_ms(self) -> float:
        """Of an iteration, in the mean."""
        return fmean(self.ms)

    @property
    def watts(self) -> float:
        """Of all GPUs, in the mean."""
        return 1e3 * sum(self.joules) / sum(self.ms)

    def against(self, plain: Simulated) -> tuple[float, float]:
        """Energy saved and time added, percent, over the iterations that both measured: these have the same draws.

        Raises:
            SimulatorError: there is no such iteration.
        """
        begin = max(self.first, plain.first)
        count = min(self.first + len(self.ms), plain.first + len(plain.ms)) - begin
        if count <= 0:
            spans = [f"{run.first} to {run.first + len(run.ms) - 1}" for run in (self, plain)]
            raise SimulatorError(f"no iteration in common: {spans[0]}, under observe {spans[1]}")
        span, plain_span = (slice(begin - run.first, begin - run.first + count) for run in (self, plain))
        ms, plain_ms = sum(self.ms[span]), sum(plain.ms[plain_span])
        joules, plain_joules = sum(self.joules[span]), sum(plain.joules[plain_span])
        return 100 * (1 - joules / plain_joules), 100 * (ms / plain_ms - 1)


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
    sampled: bool = False,
) -> Simulated:
    """Simulate it. `machine`: the text of a platform file; `table`: that of a policy table, for per-call.

    `sampled`: find the clocks that the power limit leaves, too.

    Raises:
        SimulatorError: the simulator failed, and says why.
    """
    with tempfile.TemporaryDirectory(prefix="powerccl-sim-") as name:
        folder = Path(name)
        files = [folder / f"rank-{rank}.scn" for rank in range(len(scenarios))]
        for file, text in zip(files, scenarios, strict=True):
            file.write_text(text)
        if table:
            (folder / "policy.table").write_text(table)
            options = [*options, "--table", str(folder / "policy.table")]
        times = ("--seconds", f"{seconds:g}", "--warm-up", f"{warm_up_s:g}")
        out = ["--json", f"{folder}/found.json", *(["--run-folder", f"{folder}/run"] if sampled else [])]
        call(program, machine, [*map(str, files), "--policy", policy, *times, *options, *out])
        document = json.loads((folder / "found.json").read_text())
        limited_mhz = _limited_mhz(folder / "run", warm_up_s) if sampled else ()
    return Simulated(
        document["first"],
        document["each_ms"],
        document["each_joules"],
        document["exposed_ms"],
        document["switches_per_s"],
        tuple(document["clocks_mhz"]),
        document["first_clock_s"],
        limited_mhz,
    )


def _limited_mhz(folder: Path, warm_up_s: float) -> tuple[float | None, ...]:
    """Of each GPU after the warm-up."""
    (log,) = read_samples(folder).power
    begin_ns = int(log.about["start_ns"]) + warm_up_s * 1e9
    samples = log.samples.filter(pl.col("time_ns") >= begin_ns)
    return tuple(clock_at_limit(of_gpu)[0] for of_gpu in samples.partition_by("gpu", maintain_order=True))


def call(program: Path, machine: str, options: Sequence[str]) -> None:
    """Call powerccl-sim for a machine.

    Raises:
        SimulatorError: it failed, and says why.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".conf", prefix="powerccl-sim-") as file:
        file.write(machine)
        file.flush()
        command = [str(program), "--platform", file.name, *options]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise SimulatorError(f"powerccl-sim has no result after {LONGEST_S:g} s") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise SimulatorError(said[0] if said else f"powerccl-sim ended with {done.returncode}")
