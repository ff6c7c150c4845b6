# SPDX-License-Identifier: Apache-2.0
"""Does PowerCCL ever harm a job, a GPU, a terminal or a root service? One module a topic, as bench/topics.py has it.

Figures are called `harm.<topic>.<figure>`. `make figures-harm` runs all topics. They start emulated machines, daemons
and MPI libraries as the end-to-end tests do.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests/e2e"))

from bench.figures import Figure, Figures, count, one
from bench.topics import Measure

__all__ = ["Figure", "Figures", "Measure", "count", "one"]
