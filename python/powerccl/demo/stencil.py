# SPDX-License-Identifier: Apache-2.0
"""The demo's MPI job, run several times without and with the library: medians with their ranges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec

from powerccl.analysis.findings import MpiSummary
from powerccl.analysis.summary import summarise
from powerccl.estimate import Estimate
from powerccl.files import read_json
from powerccl.traces.folder import read_run


class StencilSummary(msgspec.Struct):
    """Seconds of the measured iterations, CPU seconds of all ranks in them, and what came out.

    `sweeps` is the work in an iteration, calibrated where it was not given.
    """

    run_s: float
    cpu_s: float
    sweeps: int
    checksum: float


class StencilResult(msgspec.Struct):
    """What powerccl-bench-mpi writes (docs/reference/bench.md), as far as it matters here."""

    summary: StencilSummary


class StencilRun(msgspec.Struct):
    """One run: the job's own times, and what its traces say (None without the library)."""

    result: StencilSummary
    mpi: MpiSummary | None


def read_stencil(folder: Path, result_file: str) -> StencilRun:
    """A run from its folder.

    Raises:
        ValueError: the benchmark's result cannot be read.
        OSError: it is not there.
    """
    return StencilRun(read_stencil_result(folder / result_file), summarise(read_run(folder)).mpi)


def read_stencil_result(path: Path) -> StencilSummary:
    """The benchmark's result.

    Raises:
        ValueError: it cannot be read.
        OSError: it is not there.
    """
    return read_json(path, StencilResult).summary


def stencil_figures(without: Sequence[StencilRun], managed: Sequence[StencilRun]) -> dict[str, Estimate]:
    """Figures by short name. Savings are of pairs run one after the other, so that a slow minute counts for both."""
    figures = {}
    for word, runs in (("without", without), ("with", managed)):
        figures[f"{word}.run_s"] = _figure([run.result.run_s for run in runs], "s")
        figures[f"{word}.cpu_s"] = _figure([run.result.cpu_s for run in runs], "s")
    seen = [run.mpi for run in managed if run.mpi]
    if seen:
        figures["with.wait_s"] = _figure([mpi.wait_s for mpi in seen], "s")
        figures["with.sleep_s"] = _figure([mpi.sleep_s for mpi in seen], "s")
    pairs = [(before.result, after.result) for before, after in zip(without, managed, strict=True)]
    saved = [(1 - after.cpu_s / before.cpu_s) * 100 for before, after in pairs if before.cpu_s]
    slower = [(after.run_s / before.run_s - 1) * 100 for before, after in pairs if before.run_s]
    figures["cpu_saved_pct"] = _figure(saved, "%")
    figures["slowdown_pct"] = _figure(slower, "%")
    return figures


def same_result(without: Sequence[StencilRun], managed: Sequence[StencilRun]) -> bool:
    """Whether all runs computed the same, to the last bit."""
    return len({run.result.checksum for run in [*without, *managed]}) == 1


def _figure(values: list[float], unit: str) -> Estimate:
    """Median and range."""
    values = values or [0.0]
    return Estimate(round(median(values), 4), round(min(values), 4), round(max(values), 4), len(values), unit)
