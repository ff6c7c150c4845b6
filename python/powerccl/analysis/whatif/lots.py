# SPDX-License-Identifier: Apache-2.0
"""What ranks receive in all-to-alls tells how long they compute behind them, as native/policy/lots.h finds it out.

Whoever received less computes more slowly, and iterations are compared without what their lots explain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from powerccl.analysis.whatif.lanes import Job
from powerccl.analysis.whatif.slack import Rhythm

# As native/policy/lots.h has it.
FEWEST = 16  # iterations
EXPLAINED, PART_EXPLAINED, DIFFERS, LONG_ENOUGH = 0.7, 0.3, 0.03, 2.0
DOUBT, MARGIN, MOST, MOST_RUSH = 2.0, 0.005, 2.5, 1.2
OUTLIER = 1.5  # times the usual length, as native/policy/trial.h has it

Values = npt.NDArray[np.float64]


@dataclass
class Lots:
    """By lane and operation, how much longer the computation before it may take; None: nothing goes by lots there.

    Less than 1: it is what all others wait for.

    `left`: the share of how iterations' lengths vary that lots do not explain, as a standard deviation.
    """

    stretches: list[Values | None]
    left: float = 1.0

    def any(self) -> bool:
        """Whether computation goes by lots anywhere, and clocks can follow."""
        return any(each is not None for each in self.stretches)

    def tell(self) -> bool:
        """Whether iterations differ by their lots, however slow clocks are."""
        return self.any() or self.left < 1


@dataclass
class _Line:
    slope: float
    offset: float
    mean: float
    residual: float  # a standard deviation
    explained: float
    count: int


def _line(x: Values, y: Values) -> _Line | None:
    if len(x) < FEWEST or np.var(x) == 0 or np.var(y) == 0:
        return None
    slope, offset = np.polyfit(x, y, 1)
    left = y - offset - slope * x
    explained = 1 - float(np.var(left) / np.var(y))
    return _Line(float(slope), float(offset), float(y.mean()), float(left.std()), explained, len(x))


def lots_of(job: Job, rhythms: list[Rhythm | None], change_ns: float) -> Lots:
    """Found in the recorded stretch; `change_ns`: of a clock."""
    known = [r for r in rhythms if r is not None]
    if len(known) < len(job.lanes) or not any(o.received_kib for lane in job.lanes for o in lane.line.operations):
        return Lots([None] * len(job.lanes))
    expected = [_expected(job, lane, rhythm, change_ns) for lane, rhythm in enumerate(known)]
    of_meeting = [[(lane, expected[lane].get(index)) for lane, index in meeting.members] for meeting in job.meetings]
    stretches: list[Values | None] = []
    for number, lane in enumerate(job.lanes):
        factors = np.ones(len(lane.line.operations))
        for index, (us, off) in expected[number].items():
            told = [each for _, each in of_meeting[lane.meeting[index]]]
            if index + 1 == len(factors) or any(each is None for each in told):
                continue
            loads = np.array([each[0] for each in told if each is not None])
            most = float(loads.max())
            rush = min(most / math.sqrt(float(np.mean(loads**2))), MOST_RUSH)
            factors[index + 1] = min(max((most - off) / us, 1.0), MOST) / rush
        stretches.append(factors if (factors > 1).any() else None)
    return Lots(stretches, _left(job, known[0]))


def _expected(job: Job, number: int, rhythm: Rhythm, change_ns: float) -> dict[int, tuple[float, float]]:
    """By operation of a lane: ns of computation behind it by what was received, and the margin that is left."""
    operations = job.lanes[number].line.operations
    received = np.array([o.received_kib for o in operations], dtype=np.float64)[:-1]
    starts = np.array([o.start_ns for o in operations], dtype=np.float64)
    stops = np.array([o.stop_ns for o in operations], dtype=np.float64)
    pauses = np.maximum(starts[1:] - stops[:-1], 0)
    found: dict[int, tuple[float, float]] = {}
    for place in range(rhythm.calls):
        here = np.flatnonzero((rhythm.place[:-1] == place) & (received > 0))
        line = _line(received[here], pauses[here])
        if line is None or line.slope <= 0 or line.explained < EXPLAINED or line.mean < LONG_ENOUGH * change_ns:
            continue
        if np.std(pauses[here]) < DIFFERS * line.mean:
            continue
        off = max(DOUBT * line.residual, MARGIN * line.mean)
        found |= {int(i): (line.offset + line.slope * float(received[i]), off) for i in here}
    return {index: each for index, each in found.items() if each[0] > 0}


def _left(job: Job, rhythm: Rhythm) -> float:
    """From when all left the last operation of an iteration to the same of the next, against what was received."""
    lane = job.lanes[0]
    most = np.array(
        [
            max(job.lanes[other].line.operations[index].received_kib for other, index in job.meetings[meeting].members)
            for meeting in lane.meeting
        ],
        dtype=np.float64,
    )
    last = np.flatnonzero(rhythm.place == rhythm.calls - 1)
    stops = np.array([lane.line.operations[i].stop_ns for i in last], dtype=np.float64)
    sums = np.array([most[a:b].sum() for a, b in pairwise(last.tolist())])
    lengths = np.diff(stops)
    # An iteration of which something was not recorded, or that was held up, would be all that there is to explain.
    kept = lengths < OUTLIER * np.median(lengths) if len(lengths) else lengths > 0
    line = _line(sums[kept], lengths[kept]) if len(last) > FEWEST else None
    if line is None or line.slope <= 0 or line.explained < PART_EXPLAINED:
        return 1.0
    return float(np.sqrt(1 - line.explained))
