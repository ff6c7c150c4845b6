# SPDX-License-Identifier: Apache-2.0
"""Energy of a run that has ended: as its report has it, so that one run has one figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from powerccl.analysis.energy import gpu_curve, missing_ns, window_of
from powerccl.traces.folder import read_samples

if TYPE_CHECKING:
    from powerccl.traces.run_info import RunInfo

Span = tuple[int, int]


class Used(NamedTuple):
    """What a GPU used from the start to the end of a run, and for how long that is not known."""

    joules: float | None
    missing_s: float


def used_by(folder: Path, info: RunInfo, recorded: dict[str, Span]) -> dict[tuple[str, str], Used]:
    """Energy by host and UUID. `recorded`: from when until when ranks recorded on each host, host ns."""
    used_of: dict[tuple[str, str], Used] = {}
    for log in read_samples(folder).power:
        for _, uuid in log.gpus:
            rows = log.of_gpu(uuid)
            if rows is None or not len(rows):
                continue
            span = _span(log.host, (int(rows["time_ns"][0]), int(rows["time_ns"][-1])), info, recorded)
            curve = gpu_curve(log, rows, span if log.host == info.host else None)
            if curve is None:
                used = Used(None, (span[1] - span[0]) / 1e9)
            else:
                joules = curve.within(window_of(curve, *span))
                used = Used(joules, missing_ns(curve, *span) / 1e9)
            used_of[log.host, uuid] = used
    return used_of


def _span(host: str, sampled: Span, info: RunInfo, recorded: dict[str, Span]) -> Span:
    """The run on a host: by run.json and its traces on the launcher's, by all that was recorded on others."""
    spans = [recorded[host]] if host in recorded else []
    spans.append(info.span if host == info.host and info.span else sampled)
    return min(start for start, _ in spans), max(stop for _, stop in spans)
