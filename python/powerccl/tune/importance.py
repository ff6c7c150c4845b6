# SPDX-License-Identifier: Apache-2.0
"""Which parameters matter: functional analysis of variance of a forest fitted to a study's trials.

Main effects are Optuna's fANOVA (Hutter, Hoos, Leyton-Brown 2014). Interactions are the share of variance that two
parameters have together beyond what each has alone, of the same kind of forest, by Monte Carlo over the space.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product
from math import log
from typing import TYPE_CHECKING, Any

import numpy as np

from powerccl.platforms.parameters import UNSET, Configuration, Space

if TYPE_CHECKING:
    from collections.abc import Sequence

    from powerccl.tune.racing import Spread
    from powerccl.tune.study import Outcome

LEAST_TRIALS = 12
TREES = 64
BACKGROUND = 256  # random configurations that a marginal is averaged over
MOST_PAIRS_OF = 6  # interactions are looked for among so many of the strongest
KEPT_SHARE = 0.9  # of the variance: what a narrowed search keeps
MOST_KEPT = 8
CONFIDENCE = 0.95  # that a difference is none of chance


@dataclass(frozen=True)
class Importance:
    """A parameter, or two together, and its share of the variance of the objective's logarithm.

    `best`: the value, of the first parameter, with the least expected objective; `gain` what that expects against
    NCCL's default, as a fraction (negative: better). `sure`: it changes the objective by more than chance does;
    `better`: so does `best`, against the default.
    """

    names: tuple[str, ...]
    share: float
    best: str = UNSET
    gain: float = 0.0
    sure: bool = False
    better: bool = False


def _encoded(space: Space, configurations: Sequence[Configuration]) -> Any:
    """One column a parameter: the index of its choice. Values are in order, so a tree's cuts make sense."""
    index = [{choice: i for i, choice in enumerate(p.choices)} for p in space.parameters]
    rows = [[index[i].get(c.get(p.name, UNSET), 0) for i, p in enumerate(space.parameters)] for c in configurations]
    return np.array(rows, dtype=np.float64)


def importances(space: Space, outcomes: Sequence[Outcome], spread: Spread, seed: int = 0) -> list[Importance]:
    """Main effects and interactions, the greatest first; empty with too few trials to tell.

    Failed trials count with the value that the search was told. `spread`: of rounds of one configuration. Where all
    trials together vary no more than that, nothing is `sure`.
    """
    usable = [outcome for outcome in outcomes if outcome.value > 0]
    if len(usable) < LEAST_TRIALS or len(space.parameters) < 1:
        return []
    from sklearn.ensemble import RandomForestRegressor

    x = _encoded(space, [outcome.configuration for outcome in usable])
    y = np.array([log(outcome.value) for outcome in usable])
    if float(y.std()) == 0:
        return []
    forest = RandomForestRegressor(n_estimators=TREES, min_samples_leaf=1, random_state=seed).fit(x, y)
    generator = np.random.default_rng(seed)
    counts = [len(p.choices) for p in space.parameters]
    background = np.column_stack([generator.integers(0, n, BACKGROUND) for n in counts]).astype(np.float64)
    variance = float(forest.predict(background).var()) or 1.0

    def marginal(columns: Sequence[int]) -> Any:
        """Expected objective at each combination of these columns' choices."""
        grid = list(product(*(range(counts[c]) for c in columns)))
        block = np.repeat(background[None], len(grid), axis=0)
        for row, choice in enumerate(grid):
            block[row, :, columns] = np.array(choice, dtype=np.float64)[:, None]
        flat = forest.predict(block.reshape(-1, background.shape[1]))
        return flat.reshape(len(grid), -1).mean(axis=1).reshape([counts[c] for c in columns])

    from scipy.stats import f, t

    rounds = np.array([max(outcome.rounds, 1) for outcome in usable])
    known = spread.freedom + 2  # degrees of freedom of the spread, with what was taken before anything was measured
    between = float(((y - y.mean()) ** 2 * rounds).sum()) / (len(y) - 1)
    beyond_chance = between > spread.value**2 * float(f.ppf(CONFIDENCE, len(y) - 1, known))

    def differ(column: int, one: int, other: int) -> bool:
        """Whether two choices' expected objectives are further apart than chance sets them, Bonferroni's way."""
        informed = [float(rounds[x[:, column] == choice].sum()) for choice in (one, other)]
        if min(informed) == 0:
            return False
        level = float(t.ppf(1 - (1 - CONFIDENCE) / 2 / max(counts[column] - 1, 1), known))
        apart = abs(float(alone[column][one] - alone[column][other]))
        return apart > level * spread.value * float(np.sqrt(1 / informed[0] + 1 / informed[1]))

    alone = [marginal([c]) for c in range(len(counts))]
    found = []
    for c, parameter in enumerate(space.parameters):
        best = int(alone[c].argmin())
        gain = float(np.exp(alone[c][best] - alone[c][0]) - 1)
        sure = beyond_chance and differ(c, best, int(alone[c].argmax()))
        better = beyond_chance and differ(c, best, 0)
        share = float(alone[c].var()) / variance
        found.append(Importance((parameter.name,), share, parameter.choices[best], gain, sure, better))
    strongest = sorted(range(len(counts)), key=lambda c: -float(alone[c].var()))[:MOST_PAIRS_OF]
    for a, b in combinations(sorted(strongest), 2):
        together = marginal([a, b])
        beyond = together - alone[a][:, None] - alone[b][None, :] + together.mean()
        names = (space.parameters[a].name, space.parameters[b].name)
        found.append(Importance(names, float(beyond.var()) / variance, sure=beyond_chance))
    return sorted(found, key=lambda each: -each.share)


def what_matters(found: Sequence[Importance]) -> list[str]:
    """Parameters that a second, narrowed search keeps: the strongest, and the partners of strong interactions."""
    mains = [each for each in found if len(each.names) == 1]
    total = sum(each.share for each in mains) or 1.0
    kept: list[str] = []
    seen = 0.0
    for each in mains:
        if kept and (seen >= KEPT_SHARE * total or len(kept) >= MOST_KEPT):
            break
        kept.append(each.names[0])
        seen += each.share
    for each in found:
        if len(each.names) == 2 and each.share > 0.05 and len(kept) < MOST_KEPT:
            kept += [name for name in each.names if name not in kept]
    return kept[:MOST_KEPT]
