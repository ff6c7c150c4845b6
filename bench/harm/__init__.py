# SPDX-License-Identifier: Apache-2.0
"""Does PowerCCL ever harm a job, a GPU, a terminal or a root service? One module a topic, as bench/topics.py has it.

Figures are called `harm.<topic>.<figure>`. `make figures-harm` runs all topics.
"""

from __future__ import annotations

from bench.figures import Figure, Figures, count, one
from bench.topics import Measure

__all__ = ["Figure", "Figures", "Measure", "count", "one"]
