# SPDX-License-Identifier: Apache-2.0
"""The time of a search, shared out to its stages: all of it together, from the first process to the proof."""

from __future__ import annotations

import time

# Shares of the time in which configurations are tried; what a stage leaves is the next one's.
SEARCH, SIMPLIFY, RULES = 0.70, 0.12, 0.18
PROOF = 0.15  # of all the time, for confirming; more where two candidates' rounds take more
MOST_FOR_PROOF = 0.5  # of what is left once the defaults are measured
END_S = 0.5  # to end ranks and server, and to write


class Budget:
    """`began` on time.monotonic(); `proof_s`: what confirming one candidate takes, and `least_s` at the least.

    Where time is short, the search has what `least_s` leaves: without a proof, whatever it finds is of no use.
    """

    def __init__(self, began: float, seconds: float, proof_s: float, least_s: float) -> None:
        self.over = began + seconds - END_S
        now = time.monotonic()
        left = max(self.over - now, 0.0)
        proof = min(max(PROOF * seconds, proof_s), max(MOST_FOR_PROOF * left, min(least_s, left)))
        self._end = self.over - proof
        self._trying = max(self._end - now, 0.0)

    def stage(self, *later: float) -> float:
        """Seconds that a stage has which begins now and leaves the shares `later` to the stages behind it."""
        return max(self._end - sum(later) * self._trying - time.monotonic(), 0.0)

    def proof(self) -> float:
        """Seconds that are left for confirming."""
        return max(self.over - time.monotonic(), 0.0)
