# SPDX-License-Identifier: Apache-2.0
"""A recorded job on more GPUs: each rank does the same, and collectives over the whole job have more members.

That is weak scaling by data parallelism. The ranks of the run stand for the others. What more members cost follows from
a latency and a bandwidth, fitted to the run's own sizes. Links are taken to be as fast as those of the run.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from powerccl.analysis.programs.calls import NoProgramError
from powerccl.analysis.programs.program import Collective, Recorded
from powerccl.patterns import bus_factor
from powerccl.whatif.scenarios import shape_of

SIZES_APART = 4.0  # of the smallest and the largest size: closer ones tell no latency


def scaled(run: Recorded, ranks: int) -> Recorded:
    """The same with collectives as of so many ranks.

    Raises:
        NoProgramError: it is no multiple of the run's ranks, or no collective is over the whole job.
    """
    count = len(run.programs)
    if ranks < count or ranks % count:
        raise NoProgramError(f"{ranks} is no multiple of its {count} ranks")
    spanning = [each for program in run.programs for each in program.collectives if _spans(each, count)]
    if not spanning:
        raise NoProgramError("no collective is over all of its ranks, so that nothing tells what more of them cost")
    latency_us = {
        pattern: _latency_us([each for each in spanning if each.pattern == pattern])
        for pattern in {each.pattern for each in spanning}
    }

    def larger(each: Collective) -> Collective:
        if not _spans(each, count) or ranks == count:
            return each
        before, after = len(each.members), len(each.members) * ranks // count
        fixed = min(latency_us[each.pattern], each.transfer_us)
        moved = (each.transfer_us - fixed) * bus_factor(each.pattern, after) / bus_factor(each.pattern, before)
        return replace(each, transfer_us=fixed * math.log2(after) / math.log2(before) + moved)

    programs = [replace(of, collectives=[larger(each) for each in of.collectives]) for of in run.programs]
    return replace(run, programs=programs)


def _spans(each: Collective, count: int) -> bool:
    size, stride = shape_of(each.members)
    return size > 1 and size * stride == count and each.pattern != "send_receive"


def _latency_us(of: list[Collective]) -> float:
    """What collectives of one pattern take beside what goes with their size; 0 where sizes do not tell."""
    sizes = np.array([each.bytes for each in of], dtype=np.float64)
    if sizes.max() < SIZES_APART * sizes.min():
        return 0.0
    times = np.array([each.transfer_us for each in of])
    # Relative errors count: a large one is not known better than a small one.
    weights = 1 / np.maximum(times, 1e-3)
    slope, latency = np.polyfit(sizes, times, 1, w=weights)
    return float(max(0.0, min(latency, times.min()))) if slope > 0 else 0.0
