# SPDX-License-Identifier: Apache-2.0
"""Energy of one operation of a kind, where its stretches are long against what the energy counter resolves."""

from __future__ import annotations

import numpy as np

from powerccl.analysis import intervals as iv
from powerccl.analysis.attribution import EnergyFindings
from powerccl.analysis.energy import EnergyCurve, clip_to
from powerccl.analysis.findings import PatternRow
from powerccl.analysis.stragglers import by_number
from powerccl.analysis.whole_run import WholeRun

# A stretch must last so many updates of the counter for its energy to be its own.
LONG_IN_UPDATES = 5.0
MOSTLY_LONG = 0.9  # of the operations


def fill_joules_per_operation(
    patterns: list[PatternRow], built: WholeRun, gpus: list[tuple[list[int], EnergyCurve]], findings: EnergyFindings
) -> None:
    """Fill joules_per_operation from stretches of one kind that outlast updates, back-to-back kernels as one.

    Where most of its operations are shorter, from the regression of all samples, if that can tell.
    """
    gpu_of = {rank: number for number, (ranks, _) in enumerate(gpus) for rank in ranks}
    known = {(kind.pattern, kind.size_class_bytes): kind for kind in findings.kinds if kind.resolved}
    long: dict[tuple[str, int], tuple[float, int]] = {}
    median_us = {(row.pattern, row.size_class_bytes): row.median_us or 0.0 for row in patterns}
    for alike in built.of_kinds("rank", "start_ns", "stop_ns") if gpus else []:
        joules, operations = 0.0, 0
        kind_key = (alike.pattern, alike.size_class)
        ranks, number = np.unique(alike.more["rank"], return_inverse=True)
        of_gpus = np.array([gpu_of.get(rank, -1) for rank in ranks.tolist()])[number]
        for index, places in by_number(of_gpus).items():
            if index < 0:
                continue
            _, curve = gpus[index]
            update_ns = max(curve.update_ns, 1e6 * (findings.update_ms or 0.0))
            start, stop = (alike.more[name][places] for name in ("start_ns", "stop_ns"))
            stretches = clip_to(curve, iv.union(start, stop + int(median_us[kind_key] * 100)), sharp=True)
            lasting = stretches[stretches[:, 1] - stretches[:, 0] >= LONG_IN_UPDATES * update_ns]
            inside = iv.contains(lasting, start) & iv.contains(lasting, stop - 1)
            joules += curve.within(iv.union(start[inside], stop[inside]))
            operations += int(inside.sum())
        long[kind_key] = (joules, operations)
    for row in patterns:
        key = (row.pattern, row.size_class_bytes)
        joules, operations = long.get(key, (0.0, 0))
        kind = known.get(key)
        if kind is not None and operations < MOSTLY_LONG * row.timed:
            row.joules_per_operation, row.joules_low, row.joules_high = kind.joules_per_operation, kind.low, kind.high
        elif operations:
            row.joules_per_operation = joules / operations
