# SPDX-License-Identifier: Apache-2.0
"""Algorithm, protocol and channels for each pattern and size: rules for NCCL's tuner plugin.

Variables hold for a whole job; rules differ by call. One communicator tries a candidate of each case, so the search
takes as many communicators as one case has candidates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

from powerccl.bench.trials import Bench, Sample, TrialFailedError
from powerccl.bench.workload import Case
from powerccl.platforms.parameters import Configuration, Machine
from powerccl.platforms.rules import ANY, PATTERNS, PROTOCOLS, Rule
from powerccl.tune.objective import Objective

CHANNELS = (1, 2, 4, 8, 16, 32)
KEPT = 2  # (algorithm, protocol) pairs of each case whose channels are searched
LEAST_GAIN = 0.02  # what a rule has to promise to be put forward for confirmation

Choice = tuple[str, str, int]  # algorithm, protocol, channels (ANY: NCCL's)


@dataclass
class CaseSearch:
    """One case: what is still to be tried, and what was measured of each choice. None: NCCL's own choice."""

    case: Case
    waiting: list[Choice | None] = field(default_factory=list)
    found: dict[Choice | None, list[Sample]] = field(default_factory=dict)
    failed: dict[Choice, str] = field(default_factory=dict)

    def value(self, choice: Choice | None, objective: Objective) -> float:
        """The objective against NCCL's own choice; infinite for what could not be measured."""
        own, samples = self.found.get(None), self.found.get(choice)
        if not own or not samples:
            return float("inf")
        when = _mean_us(samples) / _mean_us(own)
        energy, before = _mean_joules(samples), _mean_joules(own)
        if not objective.needs_energy:
            return objective.value(when, None)
        return objective.value(when, energy / before) if energy and before else float("inf")

    def best(self, objective: Objective) -> Choice | None:
        """The best choice, None where NCCL's own is as good."""
        choices = [choice for choice in self.found if choice is not None]
        best = min(choices, key=lambda choice: self.value(choice, objective), default=None)
        return best if best is not None and self.value(best, objective) < 1 - LEAST_GAIN else None


def algorithms(pattern: str, links: Sequence[str]) -> list[str]:
    """Algorithms that NCCL may have for a pattern on these links, in the plugin's spelling."""
    names = ["ring"]
    if pattern == "all_reduce":
        names.append("tree")
    if "nvls" in links and pattern in ("all_reduce", "all_gather", "reduce_scatter"):
        names.append("nvls")
    return names


def search_rules(
    bench: Bench,
    configuration: Configuration,
    cases: Sequence[Case],
    machine: Machine,
    objective: Objective,
    seconds: float,
    progress: Callable[[int, int], None] = lambda _done, _left: None,
) -> list[CaseSearch]:
    """Try algorithms and protocols, then channels of the best; `progress(done, left)` in communicators.

    Ends early, with what it has, when `seconds` are over.
    """
    until = time.monotonic() + seconds
    searches = [
        CaseSearch(case, [None, *((a, p, ANY) for a, p in product(algorithms(case.pattern, machine.links), PROTOCOLS))])
        for case in cases
        if case.pattern in PATTERNS
    ]
    done = 0
    for stage in range(3):
        if stage == 1:
            for each in searches:
                good = sorted((c for c in each.found if c), key=lambda c: each.value(c, objective))[:KEPT]
                each.waiting = [(a, p, n) for a, p, _ in good for n in CHANNELS]
        elif stage == 2:  # the winner and NCCL's own again: a lucky round is found out
            for each in searches:
                best = each.best(objective)
                each.waiting = [None, best, None, best] if best else []
        while any(each.waiting for each in searches) and time.monotonic() < until:
            _try_next(bench, configuration, searches, machine, objective.needs_energy)
            done += 1
            progress(done, max(len(each.waiting) for each in searches))
    return searches


def _try_next(
    bench: Bench, configuration: Configuration, searches: Sequence[CaseSearch], machine: Machine, energy: bool
) -> None:
    """One communicator with the next candidate of every case."""
    turns = [(each, each.waiting.pop(0)) for each in searches if each.waiting]
    while turns:
        rules = [rule_of(each.case, choice, machine) for each, choice in turns if choice is not None]
        position = 0
        try:
            bench.open(configuration, rules)
            for position, (each, choice) in enumerate(turns):  # noqa: B007 - whose fault a failure is
                each.found.setdefault(choice, []).append(bench.measure(each.case, energy))
            bench.close()
            return
        except TrialFailedError as error:
            each, choice = turns[position]
            if choice is not None:
                each.failed[choice] = error.reason
            turns = turns[position + 1 :]


def rule_of(case: Case, choice: Choice, machine: Machine, low: int | None = None, high: int | None = None) -> Rule:
    """A rule for calls of the case's size (or from `low` to `high` bytes) on communicators of the machine's shape."""
    algorithm, protocol, channels = choice
    return Rule(
        pattern=case.pattern,
        min_bytes=case.size_bytes if low is None else low,
        max_bytes=case.size_bytes if high is None else high,
        algorithm=algorithm,
        protocol=protocol,
        channels=channels,
        ranks=machine.ranks,  # and any number of nodes: without shared memory NCCL takes each rank of a host for one
    )


def rules_for(chosen: Sequence[tuple[Case, Choice | None]], machine: Machine) -> list[Rule]:
    """Rules over size ranges. Each holds half way (in powers of two) to the next tuned size, at most a factor of 2.

    Sizes where NCCL's own choice is as good bound their neighbours.
    """
    rules = []
    for pattern in dict.fromkeys(case.pattern for case, _ in chosen):
        cases = sorted(
            ((c, choice) for c, choice in chosen if c.pattern == pattern), key=lambda each: each[0].size_bytes
        )
        sizes = [case.size_bytes for case, _ in cases]
        for index, (case, choice) in enumerate(cases):
            if choice is None:
                continue
            low, high = case.size_bytes // 2, case.size_bytes * 2
            if index:
                low = max(low, int((sizes[index - 1] * sizes[index]) ** 0.5) + 1)
            if index + 1 < len(sizes):
                high = min(high, int((sizes[index] * sizes[index + 1]) ** 0.5))
            rules.append(rule_of(case, choice, machine, low, high))
    return rules


def _mean_us(samples: Sequence[Sample]) -> float:
    return sum(each.time_us for each in samples) / len(samples)


def _mean_joules(samples: Sequence[Sample]) -> float | None:
    joules = [each.joules for each in samples if each.joules is not None]
    return sum(joules) / len(joules) if joules else None
