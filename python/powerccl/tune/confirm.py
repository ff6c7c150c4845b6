# SPDX-License-Identifier: Apache-2.0
"""Proof before use: candidates against NCCL's defaults in interleaved rounds, each case with its interval.

A round makes a new communicator for the defaults and for each candidate. The order is random, so that drift
(temperature, neighbours) affects all of them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt
from statistics import fmean, stdev

from powerccl.bench.trials import Bench, Sample, TrialFailedError
from powerccl.bench.workload import Case
from powerccl.platforms.parameters import Configuration
from powerccl.platforms.rules import Rule
from powerccl.platforms.tuned import Confirmed

FEWEST_ROUNDS, LEAST_ROUNDS, MOST_ROUNDS = 2, 4, 12
CONFIDENCE = 0.95  # of the reported intervals
SURE = 0.99  # of those that end it early: looking after every round finds more by chance


@dataclass
class Candidate:
    """What is to be confirmed, and what came of it: `proof` a case each, or why NCCL failed under it."""

    variables: Configuration
    rules: list[Rule] = field(default_factory=list)
    proof: list[Confirmed] = field(default_factory=list)
    failed: str = ""


def confirm(
    bench: Bench,
    defaults: Configuration,
    candidates: Sequence[Candidate],
    cases: Sequence[Case],
    energy: bool,
    seconds: float = float("inf"),
    progress: Callable[[int], None] = lambda _: None,
    seed: int = 1,
) -> None:
    """Fill in the candidates' proof: rounds until all intervals are decided, MOST_ROUNDS, or another exceeds `seconds`.

    At least FEWEST_ROUNDS are made. An interval all on one side of 1 is decided, from LEAST_ROUNDS on.

    Raises:
        TrialFailedError: NCCL failed under the defaults; nothing is confirmed then.
    """
    began = time.monotonic()
    order = random.Random(seed)
    before: dict[str, list[Sample]] = {case.key: [] for case in cases}
    after: list[dict[str, list[Sample]]] = [{case.key: [] for case in cases} for _ in candidates]
    for number in range(MOST_ROUNDS):
        sides: list[int | None] = [None, *(i for i, each in enumerate(candidates) if not each.failed)]
        order.shuffle(sides)
        for side in sides:
            if side is None:
                _round(bench, defaults, [], cases, energy, before)
                continue
            try:
                _round(bench, candidates[side].variables, candidates[side].rules, cases, energy, after[side])
            except TrialFailedError as error:
                candidates[side].failed = error.reason
        progress(number + 1)
        left = [samples for each, samples in zip(candidates, after, strict=True) if not each.failed]
        decided = all(_decided(before[key], samples[key]) for samples in left for key in before)
        spent = time.monotonic() - began
        over = number + 1 >= FEWEST_ROUNDS and spent * (number + 2) / (number + 1) > seconds
        if over or (number + 1 >= LEAST_ROUNDS and decided):
            break
    for each, samples in zip(candidates, after, strict=True):
        if not each.failed:
            each.proof = [_confirmed(case, before[case.key], samples[case.key]) for case in cases]


def _round(
    bench: Bench,
    variables: Configuration,
    rules: Sequence[Rule],
    cases: Sequence[Case],
    energy: bool,
    kept: dict[str, list[Sample]],
) -> None:
    bench.open(variables, rules)
    try:
        measured = [(case.key, bench.measure(case, energy, thorough=True)) for case in cases]
    finally:
        bench.close()
    for key, sample in measured:
        kept[key].append(sample)


def ratio(
    before: Sequence[Sample], after: Sequence[Sample], energy: bool, confidence: float = CONFIDENCE
) -> tuple[float, float, float] | None:
    """After over before, geometric mean over rounds, with its interval; None where something is missing."""
    logs = []
    for old, new in zip(before, after, strict=True):
        one, two = (old.joules, new.joules) if energy else (old.time_us, new.time_us)
        if not one or not two:
            return None
        logs.append(log(two) - log(one))
    if not logs:
        return None
    mean = fmean(logs)
    if len(logs) < 2:
        return exp(mean), 0.0, float("inf")
    from scipy.stats import t

    width = float(t.ppf((1 + confidence) / 2, len(logs) - 1)) * stdev(logs) / sqrt(len(logs))
    return exp(mean), exp(mean - width), exp(mean + width)


def _decided(before: Sequence[Sample], after: Sequence[Sample]) -> bool:
    interval = ratio(before, after, energy=False, confidence=SURE)
    return interval is not None and (interval[1] > 1 or interval[2] < 1)


def _confirmed(case: Case, before: Sequence[Sample], after: Sequence[Sample]) -> Confirmed:
    when = ratio(before, after, energy=False)
    assert when is not None
    confirmed = Confirmed(
        case.pattern,
        case.size_bytes,
        default_us=round(fmean(each.time_us for each in before), 3),
        tuned_us=round(fmean(each.time_us for each in after), 3),
        time=round(when[0], 5),
        time_low=round(when[1], 5),
        time_high=round(when[2], 5),
        rounds=len(before),
    )
    energy = ratio(before, after, energy=True)
    if energy is None:
        return confirmed
    from msgspec.structs import replace

    return replace(
        confirmed,
        default_joules=fmean(each.joules or 0.0 for each in before),
        tuned_joules=fmean(each.joules or 0.0 for each in after),
        energy=round(energy[0], 5),
        energy_low=round(energy[1], 5),
        energy_high=round(energy[2], 5),
    )
