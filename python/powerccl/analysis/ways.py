# SPDX-License-Identifier: Apache-2.0
"""What a job could have if NCCL carried its collectives out otherwise, as ways/ finds it."""

from __future__ import annotations

import msgspec

from powerccl.estimate import Estimate


class Chosen(msgspec.Struct):
    """The way of one pattern and size, and how many calls an iteration has of it."""

    pattern: str
    size_bytes: int
    calls: int
    way: str


class WaysForecast(msgspec.Struct):
    """One choice of ways. Percentages of the iteration as recorded, least and most over surroundings; saved is above 0.

    `energy_saved_pct` None: power was not sampled, or the table has no energy.
    """

    name: str
    chosen: list[Chosen]
    time_saved_pct: tuple[float, float]
    energy_saved_pct: tuple[float, float] | None


class Possible(msgspec.Struct):
    """One pattern and size class of the job."""

    pattern: str
    size_bytes: int  # of a call, on average
    calls: int  # of each GPU, on average
    way: str  # the best that is never slower
    saved_s: Estimate  # of each GPU's time
    saved_joules: Estimate | None  # all GPUs; None: the table has no energy
    memory_bytes: int  # of each GPU: two buffers of that size


class WaysFindings(msgspec.Struct, kw_only=True):
    """All of the job."""

    table: str
    provenance: str
    span_s: float
    rows: list[Possible] = []  # what saves most first
    other_ways: int = 0  # calls that went another way already
    unmeasured: int = 0  # plain calls of a pattern, size or number of ranks that the table lacks
    calls: int = 0
    predicted: WaysForecast | None = None  # of the best ways together, followed through a typical iteration

    @property
    def saved_s(self) -> Estimate:
        """All rows together."""
        total = Estimate.between(0.0, 0.0)
        for row in self.rows:
            total = total.plus(row.saved_s)
        return total

    @property
    def saved_joules(self) -> Estimate | None:
        """All rows together; None: of some nothing is known."""
        total = Estimate.between(0.0, 0.0)
        for row in self.rows:
            if row.saved_joules is None:
                return None
            total = total.plus(row.saved_joules)
        return total
