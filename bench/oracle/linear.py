# SPDX-License-Identifier: Apache-2.0
"""A linear program put together piece by piece, solved by HiGHS."""

from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

Terms = list[tuple[int, float]]


class Linear:
    """Columns are at least 0; rows are `sum(coefficient * column) <= bound`, or equal to it."""

    def __init__(self) -> None:
        self.columns = 0
        self.blocks: dict[bool, list] = {False: [], True: []}
        self.bounds: dict[bool, list[float]] = {False: [], True: []}

    def add(self, count: int = 1) -> np.ndarray:
        """New columns' numbers."""
        first = self.columns
        self.columns += count
        return np.arange(first, first + count)

    def row(self, parts: list[tuple], bound: float, equal: bool = False) -> None:
        """parts: (columns, coefficients), each an array or a single value."""
        columns = np.concatenate([np.atleast_1d(c) for c, _ in parts])
        values = np.concatenate([np.broadcast_to(np.asarray(v, float), np.shape(np.atleast_1d(c))) for c, v in parts])
        self.blocks[equal].append((columns, values))
        self.bounds[equal].append(bound)

    def at_least(self, parts: list[tuple], bound: float) -> None:
        """The sum is no less than the bound."""
        self.row([(c, -np.asarray(v, float)) for c, v in parts], -bound)

    def _matrix(self, equal: bool) -> tuple[Any, Any]:
        blocks = self.blocks[equal]
        if not blocks:
            return None, None
        rows = np.concatenate([np.full(len(c), i) for i, (c, _) in enumerate(blocks)])
        columns = np.concatenate([c for c, _ in blocks])
        values = np.concatenate([v for _, v in blocks])
        shape = (len(blocks), self.columns)
        return coo_matrix((values, (rows, columns)), shape=shape).tocsr(), np.array(self.bounds[equal])

    def solve(self, costs: np.ndarray) -> tuple[float, np.ndarray]:
        """The least cost and a point that has it. Raises RuntimeError where there is none."""
        upper, upper_bounds = self._matrix(False)
        equal, equal_bounds = self._matrix(True)
        rows = {"A_ub": upper, "b_ub": upper_bounds, "A_eq": equal, "b_eq": equal_bounds}
        found = linprog(costs, **rows, method="highs")
        if found.status != 0:  # presolve takes what is barely feasible for infeasible
            found = linprog(costs, **rows, method="highs", options={"presolve": False})
        if found.status != 0:
            raise RuntimeError(f"the linear program has no optimum: {found.message}")
        return float(found.fun), found.x
