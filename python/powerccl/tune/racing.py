# SPDX-License-Identifier: Apache-2.0
"""Repeated measurement until a comparison is decided, instead of a fixed count.

A *round* is one communicator made and every case measured in it. Connections, buffers and their places in memory
differ between rounds, so stretches of one round say little about the next. Rounds are compared as logarithms
(ratios), with one spread for all configurations, pooled over those that have several rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log, sqrt
from statistics import NormalDist

MOST_ROUNDS = 6
ENOUGH_ROUNDS = 3  # of one that is not ahead by then: whether it is a little behind is not worth more
CONFIDENCE = 0.95
LEAST_SPREAD = 0.003  # of a round: nothing measures better than that
FIRST_SPREAD = 0.02  # taken before any configuration has two rounds


@dataclass
class Spread:
    """The pooled standard deviation of a round's logarithm."""

    squares: float = 0.0
    freedom: int = 0

    def learn(self, rounds: list[float]) -> None:
        """Take in all rounds of one configuration; once a configuration."""
        if len(rounds) < 2:
            return
        logs = [log(value) for value in rounds]
        mean = sum(logs) / len(logs)
        self.squares += sum((value - mean) ** 2 for value in logs)
        self.freedom += len(logs) - 1

    @property
    def value(self) -> float:
        """The standard deviation; with few degrees of freedom drawn towards FIRST_SPREAD."""
        pooled = (self.squares + 2 * FIRST_SPREAD**2) / (self.freedom + 2)
        return max(sqrt(pooled), LEAST_SPREAD)


@dataclass
class Entrant:
    """A configuration with the rounds it has run: the objective's value in each."""

    rounds: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        """Geometric mean of the rounds."""
        return exp(sum(log(value) for value in self.rounds) / len(self.rounds))


def compare(challenger: Entrant, champion: Entrant, spread: float, confidence: float = CONFIDENCE) -> int:
    """-1: the challenger is better, 1: it is worse, 0: that is not decided yet."""
    difference = log(challenger.value) - log(champion.value)
    width = NormalDist().inv_cdf((1 + confidence) / 2) * spread
    width *= sqrt(1 / len(challenger.rounds) + 1 / len(champion.rounds))
    if abs(difference) <= width:
        return 0
    return -1 if difference < 0 else 1


def goes_on(challenger: Entrant, champion: Entrant | None, spread: float) -> bool:
    """Whether another round may still make it the champion, or shows that it is none."""
    rounds = len(challenger.rounds)
    if champion is None or rounds >= MOST_ROUNDS:
        return False
    verdict = compare(challenger, champion, spread)
    if verdict:
        return verdict < 0 and rounds < 2  # better twice over: one lucky communicator would not have been
    return rounds < ENOUGH_ROUNDS or challenger.value < champion.value


def hopeless(value: float, champion: Entrant, spread: float) -> bool:
    """Whether a round that has come so far already is not worth its end: surely worse than the champion."""
    return log(value) - log(champion.value) > 4 * spread
