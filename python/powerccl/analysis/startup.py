# SPDX-License-Identifier: Apache-2.0
"""Start-up and the work behind it: what both take, as far as the traces and samples show."""

from __future__ import annotations

import numpy as np

from powerccl.analysis.energy import EnergyCurve, missing_ns
from powerccl.analysis.findings import FIRST_COMMUNICATION, Shares, StartupPart
from powerccl.analysis.intervals import Intervals
from powerccl.analysis.shares import Working
from powerccl.traces import records
from powerccl.traces.folder import RunData

FIRST_COMMUNICATOR = "the first communicator"


def add_startup(shares: Shares, run: RunData, work: Working, curves: dict[str, EnergyCurve]) -> None:
    """Put the parts of start-up, their energy and the power of the work into the shares, which hold the lengths."""
    shares.working_watts = _working_watts(run, work, curves)
    if work.startup_ns is None or not run.info:
        return
    begin, end = work.startup_ns
    here = [trace for trace in run.ranks if trace.host == run.info.host or not run.info.host]
    communicators = [trace.kinds[records.COMM]["time_ns"] for trace in here]
    times = [
        (FIRST_COMMUNICATOR, [int(each.min()) for each in communicators if len(each)]),
        (FIRST_COMMUNICATION, work.first_ns),
    ]
    edges = [(until, min(max(min(marks), begin), end)) for until, marks in times if marks]
    edges = [edge for edge in edges if edge[1] < end] + [(work.startup_until, end)]
    gpus = {trace.gpu for trace in run.ranks}
    # Other hosts' clocks differ, so that energy until a moment is known of this host's GPUs alone.
    known = len(here) == len(run.ranks) and gpus <= set(curves)
    own = [curves[gpu] for gpu in sorted(gpus)] if known else []
    shares.startup_joules = _joules(own, begin, end)
    for until, at in edges:
        if at > begin:
            joules = _joules(own, begin, at) if shares.startup_joules is not None else None
            shares.startup_parts.append(StartupPart(until=until, time_s=(at - begin) / 1e9, joules=joules))
        begin = at


def _working_watts(run: RunData, work: Working, curves: dict[str, EnergyCurve]) -> float | None:
    """Of all GPUs together: the sum of their means over the working time of their ranks."""
    spans: dict[str, tuple[int, int]] = {}
    for trace in run.ranks:
        first, last = work.spans.get(trace.rank, (0, 0))
        before = spans.get(trace.gpu, (first, last))
        spans[trace.gpu] = (min(first, before[0]), max(last, before[1]))
    watts = 0.0
    for gpu, (first, last) in spans.items():
        joules = _joules([curves[gpu]], first, last) if gpu in curves and first < last else None
        if joules is None:
            return None
        watts += joules / (last - first) * 1e9
    return watts or None


def _joules(curves: list[EnergyCurve], begin: int, end: int) -> float | None:
    if not curves or any(missing_ns(curve, begin, end) for curve in curves):
        return None
    return float(sum(curve.within(_span(begin, end)) for curve in curves))


def _span(begin: int, end: int) -> Intervals:
    return np.array([[begin, end]], dtype=np.int64)
