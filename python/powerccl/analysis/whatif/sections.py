# SPDX-License-Identifier: Apache-2.0
"""Jobs that change: policies that learn learn each part anew, and save nothing meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerccl.analysis.exposure import period
from powerccl.analysis.whatif.findings import Forecast, Range, WhatIf
from powerccl.analysis.whatif.timeline import GpuTimeline
from powerccl.quantities import plural, seconds

LEARNING_NS = 10_000_000_000  # of an iteration and a clock: native/policy/conductor.h, kWarmNs, kReferenceNs, kTryNs
MOST_CALLS = 2048
FEW = 8  # operations that tell no rhythm
ALIKE, ODD = 0.15, 4  # by how much iterations of one rhythm differ; so many in a row that do not may be of another
LASTING, LEAST = 40, 10  # iterations that follow, most of which must be of another, too; fewer than that tell nothing
NEARLY_ALL, MOST = 0.9, 0.75

Values = npt.NDArray[np.float64]


@dataclass
class Section:
    """A part of the run, its prediction, and the share of its time in which what was learnt is put to use."""

    start_ns: int
    stop_ns: int
    found: WhatIf
    learnt: float


def changes(line: GpuTimeline, span: tuple[int, int]) -> list[int]:
    """When the job's rhythm became another, host ns; empty: never, or it never had one."""
    operations = [o for o in line.operations if span[0] <= o.start_ns < span[1]]
    labels = np.array([f"{o.pattern} {o.comm}" for o in operations])
    starts = np.array([o.start_ns for o in operations], dtype=np.int64)
    found: list[int] = []
    begin = 0
    while len(starts) - begin >= FEW:
        # Early operations tell the rhythm, later ones may be of another.
        count = max(FEW, (len(starts) - begin) // 4)
        length = period(labels[begin : begin + count].tolist(), starts[begin : begin + count], MOST_CALLS)
        if not length:
            return found if begin else []
        usual = float(np.median(starts[begin + length : begin + count] - starts[begin : begin + count - length]))
        took = starts[begin + length :] - starts[begin:-length]
        odd = (np.abs(took - usual) > ALIKE * usual) | (labels[begin + length :] != labels[begin:-length])
        runs = np.convolve(odd, np.ones(ODD * length), "valid") >= NEARLY_ALL * ODD * length
        before = np.append(0, np.cumsum(odd))
        until = np.minimum(np.arange(len(runs)) + LASTING * length, len(odd))
        lasts = before[until] - before[: len(runs)] >= MOST * (until - np.arange(len(runs)))
        # A stretch that was slow for some seconds, on a machine that was disturbed, is no other job.
        at = np.flatnonzero(runs & lasts & (until - np.arange(len(runs)) >= LEAST * length))
        if not len(at):
            return found
        begin += int(at[0]) + length
        found.append(int(starts[begin]))
    return found


def merge(found: WhatIf, sections: list[Section]) -> None:
    """Put the sections' predictions together, by what each took; only `per-call` learns nothing."""
    longest = max(sections, key=lambda s: s.stop_ns - s.start_ns)
    joules = _weights([gpu.joules for gpu in s.found.gpus] for s in sections)
    found.policies = [
        _merged([s.found.policies[k] for s in sections], longest.found.policies[k], sections, joules) for k in range(4)
    ]
    for gpu in found.gpus:
        # A rank whose trace ends early has no part in the later sections.
        here = [(s, its) for s in sections for its in s.found.gpus if its.gpu == gpu.gpu]
        mine = _weights([its.joules] for _, its in here)
        before = gpu.policies
        gpu.policies = [
            _merged([its.policies[k] for _, its in here], before[k], [s for s, _ in here], mine) for k in range(4)
        ]
    lost_s = sum((1 - s.learnt) * (s.stop_ns - s.start_ns) for s in sections) / 1e9
    found.notes.append(
        f"the job changes {plural(len(sections) - 1, 'time')}: exposed, fixed and auto learn again for"
        f" {seconds(lost_s)} of this recording, and save nothing meanwhile"
    )


def _weights(joules: Iterable[list[float | None]]) -> Values | None:
    """Energy of each section, all GPUs together; None: it is not known of all of them."""
    sections = list(joules)
    if any(value is None for of_gpus in sections for value in of_gpus):
        return None
    sums = np.array([sum(value or 0.0 for value in of_gpus) for of_gpus in sections])
    return sums if sums.sum() > 0 else None


def _merged(forecasts: list[Forecast], longest: Forecast, sections: list[Section], joules: Values | None) -> Forecast:
    """`joules` None: what a section used is not known, and each counts by its time."""
    budget_pct = sections[0].found.budget_pct
    learnt = np.array([1.0 if longest.policy == "per-call" else s.learnt for s in sections])
    time = np.array([s.stop_ns - s.start_ns for s in sections], dtype=np.float64)
    of_time = time * learnt / time.sum()
    of_energy = of_time if joules is None else joules * learnt / joules.sum()

    def weighed(ranges: list[Range], weights: Values) -> Range:
        parts = ((r.value for r in ranges), (r.low for r in ranges), (r.high for r in ranges))
        return Range(*(round(float(np.dot(weights, list(part))), 3) for part in parts))

    slower = weighed([f.slowdown_pct for f in forecasts], of_time)
    return Forecast(
        policy=longest.policy,
        saved_pct=weighed([f.saved_pct for f in forecasts], of_energy),
        slowdown_pct=slower,
        saved_watts=round(float(np.dot(of_time, [f.saved_watts for f in forecasts])), 3),
        low_clock_pct=round(float(np.dot(of_time, [f.low_clock_pct for f in forecasts])), 2),
        switches_per_s=round(float(np.dot(of_time, [f.switches_per_s for f in forecasts])), 3),
        clock_mhz=longest.clock_mhz,
        chosen=longest.chosen,
        within_budget=slower.value <= budget_pct,
        remarks=longest.remarks,
    )
