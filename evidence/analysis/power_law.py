# SPDX-License-Identifier: Apache-2.0
"""Power of a platform file by clock, as Gpu::watts_at (native/testbed/physics/gpu.cpp) has it."""

from __future__ import annotations

import numpy as np

from powerccl.platforms.conf import points_of, value_of


class PowerLaw:
    """The law of a platform's or a board's file."""

    def __init__(self, conf: str) -> None:
        """Read the file's text."""
        self.conf = conf
        curve = points_of(conf, "voltage_v")
        self._mhz, self._volts = [float(at) for at, _ in curve], [volts for _, volts in curve]

    def number(self, key: str) -> float:
        """A key's value."""
        return float(value_of(self.conf, key))

    def f_v2(self, clock_mhz: float) -> float:
        """Clock times voltage squared, in MHz V^2."""
        return clock_mhz * float(np.interp(clock_mhz, self._mhz, self._volts)) ** 2

    def terms(self, clock_mhz: float) -> tuple[float, float, float]:
        """Watts of an idle GPU, and what a matrix product and a copy add, at a clock."""
        square = self.f_v2(clock_mhz)
        return (
            self.number("static_w") + self.number("tree_w") * square,
            self.number("compute_w") * square,
            self.number("memory_static_w") + self.number("memory_w") * square,
        )
