# SPDX-License-Identifier: Apache-2.0
"""Computation as it is at a low clock: a power governor makes the same work take now longer, now less long.

In a pipeline each stage waits for another's longest, so that what differs by chance costs time that a low clock saves.
"""

from __future__ import annotations

import numpy as np

from powerccl.analysis.whatif.lanes import START, Lane
from powerccl.analysis.whatif.slack import Rhythm

ALIKE = 2.0  # times its place's median, or part of it: what is further off is other work
FEWEST = 4  # of a place


def evened(lane: Lane, rhythm: Rhythm) -> list[float]:
    """Of what it computes before each item, how many times as long it takes where each iteration takes the same."""
    steps = np.diff(np.array(lane.progress, dtype=np.float64), prepend=0.0)
    leads_to = np.full(len(steps), -1)  # the operation, of each item
    operation = -1
    for item in range(len(steps) - 1, -1, -1):
        if lane.what[item] == START:
            operation = lane.index[item]
        leads_to[item] = operation
    known = leads_to >= 0
    took = np.bincount(leads_to[known], steps[known], minlength=len(lane.before))
    factors = np.ones(len(took))
    for place in np.unique(rhythm.place):
        mine = np.flatnonzero((rhythm.place == place) & (took > 0))
        middle = np.median(took[mine]) if len(mine) else 0.0
        mine = mine[(took[mine] < ALIKE * middle) & (took[mine] * ALIKE > middle)]
        if len(mine) >= FEWEST:
            factors[mine] = took[mine].mean() / took[mine]
    return [float(factors[operation]) if operation >= 0 else 1.0 for operation in leads_to.tolist()]
