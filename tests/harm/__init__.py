# SPDX-License-Identifier: Apache-2.0
"""Does PowerCCL ever harm a job, a GPU, a terminal or a root service? One module a topic.

Figures are called `harm.<topic>.<figure>`. `make figures-harm` runs all topics. They start emulated machines, daemons
and MPI libraries as the end-to-end tests do.
"""

from __future__ import annotations

from support.figures import Figure, Figures, count, one
from support.topics import Measure

__all__ = ["Figure", "Figures", "Measure", "count", "one"]
