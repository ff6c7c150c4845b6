# SPDX-License-Identifier: Apache-2.0
"""What is known of a rank's typical iteration. Times are in microseconds, medians over the iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Collective:
    """One call of the iteration, of whatever pattern. `members`: ranks of the job, ascending.

    `transfer_us`: what it takes once all have come. `released_us`: progress of computation from which on it may begin;
    `needed_us`: progress at which computation waits for it, None where it never does. `graph`: which launch of a CUDA
    graph in the iteration it is part of, None: of none. `hosted`: it began as soon as the host called it.
    """

    pattern: str
    bytes: int
    members: tuple[int, ...]
    transfer_us: float
    released_us: float
    needed_us: float | None
    graph: int | None = None
    hosted: bool = False
    sends_to: int | None = None  # of a send-receive: ranks of the job
    receives_from: int | None = None
    waited_us: float = 0.0  # for other ranks of the host, before its transfer
    comm: int = 0  # collectives of one communicator follow each other


@dataclass(frozen=True)
class Program:
    """A rank's iteration. `work_us`: its computation; `uneven`: standard deviation of that, as a share."""

    rank: int
    work_us: float
    uneven: float
    collectives: list[Collective]
    exposed_us: float = 0.0  # in which computation waited


@dataclass(frozen=True)
class Recorded:
    """All ranks, and how long an iteration took. `edges_ns`: of the iterations looked at, on the first rank."""

    programs: list[Program]
    time_us: float
    edges_ns: npt.NDArray[np.int64]
    marked: bool = True  # marks showed where computation waited


def stretched(run: Recorded, times: Sequence[float]) -> Recorded:
    """The same with computation that takes so many times as long on each rank; collectives stay as they are."""

    def longer(each: Collective, by: float) -> Collective:
        needed = None if each.needed_us is None else by * each.needed_us
        return replace(each, released_us=by * each.released_us, needed_us=needed)

    programs = [
        replace(of, work_us=by * of.work_us, collectives=[longer(each, by) for each in of.collectives])
        for of, by in zip(run.programs, times, strict=True)
    ]
    return replace(run, programs=programs)
