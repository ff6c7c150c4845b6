# SPDX-License-Identifier: Apache-2.0
"""What is done about the best configuration that a search has found: its neighbours are tried, then it is made simple.

A sampler that draws from what was good goes on drawing what is bad, to learn from it. Once it is near, a step at a time
gets further with the same trials.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from powerccl.bench.trials import Bench
from powerccl.platforms.parameters import Configuration, Space
from powerccl.tune.study import Limits, Outcome, Study

ANY = ("any",)  # links of a parameter that is not of some kind of link
SIMPLER = 0.01  # what a variable less may cost, of the best


def refine(
    study: Study, bench: Bench, order: Sequence[str], limits: Limits, progress: Callable[[Outcome], None]
) -> None:
    """Change one variable of the best at a time to the next value, and go on from whatever is better, until none is.

    `order`: variables in the order in which they matter, the most first; those that are not in it come last. Ahead of
    all are those of the links in use: a few dozen trials tell badly what matters, and those do.
    """
    began = time.monotonic()
    while True:
        best = study.best()
        if best is None:
            return
        for neighbour in _neighbours(study.space, best.configuration, order):
            if limits.seconds is not None and time.monotonic() - began >= limits.seconds:
                return
            if limits.trials is not None and len(study.outcomes()) - 1 >= limits.trials:
                return
            study.attempt(bench, neighbour, "refined", progress)
            now = study.best()
            if now is not None and now.configuration != best.configuration:
                break  # from there, then
        else:
            return


def simplify(
    study: Study, bench: Bench, order: Sequence[str], limits: Limits, progress: Callable[[Outcome], None]
) -> Configuration | None:
    """The best configuration without what it is as good without, one variable after the other; None: there is no best.

    `order`: variables in the order in which they matter, the least first: that is the order they go in.
    """
    began = time.monotonic()
    best = study.best()
    if best is None:
        return None
    kept, bar = dict(best.configuration), best.value * (1 + SIMPLER)
    rank = {name: number for number, name in enumerate(order)}
    for name in sorted(kept, key=lambda each: rank.get(each, -1)):
        if limits.seconds is not None and time.monotonic() - began >= limits.seconds:
            break
        without = study.space.mend({key: value for key, value in kept.items() if key != name})
        if name in study.space.fixed or not without or without == kept:
            continue
        outcome = study.attempt(bench, without, "simplified", progress)
        if outcome.status == "done" and outcome.value <= bar:
            kept = without
    return kept


def _neighbours(space: Space, configuration: Configuration, order: Sequence[str]) -> Iterator[Configuration]:
    """Configurations that differ from this one in one variable, by one step; none twice."""
    rank = {name: number for number, name in enumerate(order)}
    given = [configuration]
    for parameter in sorted(space.parameters, key=lambda each: (each.links == ANY, rank.get(each.name, len(rank)))):
        for value in parameter.next_to(configuration.get(parameter.name, "")):
            changed = space.mend({**configuration, parameter.name: value})
            if changed not in given:
                given.append(changed)
                yield changed
