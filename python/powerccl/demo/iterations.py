# SPDX-License-Identifier: Apache-2.0
"""A replayed training job: what powerccl-bench says of its iterations, and what the run folder says they cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from powerccl.analysis import intervals as iv
from powerccl.analysis.communication import communication_intervals
from powerccl.analysis.energy import energy_curves, split
from powerccl.analysis.findings import RunSummary
from powerccl.analysis.summary import summarise
from powerccl.analysis.whole_run import whole_run
from powerccl.files import read_json
from powerccl.traces.folder import RunData, read_run


class Iteration(msgspec.Struct):
    """One iteration as powerccl-bench writes it (docs/reference/bench.md); host times in ns."""

    iteration: int
    warmup: bool
    step_ms: float
    communication_ms: float
    start_ns: int
    end_ns: int


class TrainResult(msgspec.Struct):
    """What is read of `powerccl-bench scenario --json`."""

    finished: bool
    emulated: bool
    ranks: int
    gpu: str
    results: list[Iteration]
    error: str | None = None


@dataclass
class Training:
    """A training run's measured iterations, less the warm-up and those in which samples are missing.

    step_s, joules (all GPUs), communication_joules: one value an iteration. window_ns: first start to last end.
    """

    folder: Path
    run: RunData
    iterations: list[Iteration]
    summary: RunSummary
    window_ns: tuple[int, int]
    step_s: npt.NDArray[np.float64]
    joules: npt.NDArray[np.float64]
    communication_joules: npt.NDArray[np.float64]


def read_train_result(path: Path) -> TrainResult:
    """Read `powerccl-bench scenario --json`.

    Raises:
        OSError, msgspec.MsgspecError: there is none, or it is of another kind.
    """
    return read_json(path, TrainResult)


def read_training(folder: Path, result: TrainResult) -> Training:
    """Put the iterations and the run folder together.

    Raises:
        ValueError: no measured iteration, or no energy samples to go with them.
    """
    iterations = [iteration for iteration in result.results if not iteration.warmup]
    if not iterations:
        raise ValueError("no iteration was measured")
    run = read_run(folder)
    window = (iterations[0].start_ns, iterations[-1].end_ns)
    built = whole_run(run, window)
    communicating = communication_intervals(built.part.all_kernels)
    spans = np.array([[i.start_ns, i.end_ns] for i in iterations], dtype=np.int64)
    total = np.zeros(len(spans))
    communication = np.zeros(len(spans))
    curves = {uuid: curve for uuid, curve in energy_curves(run).items() if uuid in communicating}
    if not curves:
        raise ValueError("no power samples of GPUs that communicated")
    sampled = np.ones(len(spans), np.bool_)
    for uuid, curve in curves.items():
        fine = split(curve, communicating[uuid]).curve
        total += fine.at(spans[:, 1]) - fine.at(spans[:, 0])
        communication += [fine.within(iv.clip(communicating[uuid], int(a), int(b))) for a, b in spans]
        sampled &= fine.covers(spans)
    # Of an iteration in which samples are missing the energy is not known.
    iterations = [iteration for iteration, known in zip(iterations, sampled, strict=True) if known]
    if not iterations:
        raise ValueError("samples are missing in every iteration")
    return Training(
        folder=folder,
        run=run,
        iterations=iterations,
        summary=summarise(run, window, built=built),
        window_ns=window,
        step_s=np.array([i.step_ms / 1e3 for i in iterations]),
        joules=total[sampled],
        communication_joules=communication[sampled],
    )
