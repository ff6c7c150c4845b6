# SPDX-License-Identifier: Apache-2.0
"""A value with an interval."""

from __future__ import annotations

import msgspec


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value, and from where to where it may be; its field says of what. `n`: what it rests on, 0: not said."""

    value: float
    low: float
    high: float
    n: int = 0
    unit: str = ""

    @classmethod
    def between(cls, low: float, high: float) -> Estimate:
        """From the least to the most; its value is half way."""
        return cls((low + high) / 2, low, high)

    def plus(self, other: Estimate) -> Estimate:
        """Both together."""
        return Estimate(self.value + other.value, self.low + other.low, self.high + other.high)
