# SPDX-License-Identifier: Apache-2.0
"""Does PowerCCL ever harm a job, a GPU, a terminal or a root service? One module a topic, each with `measure`.

`measure(native, folder)` runs its cases in `folder`, which is empty and its own, and returns figures by their full
name (`harm.<topic>.<figure>`). A case that cannot run on this machine raises; it is never counted as passed.
`scripts/figures-harm` runs all topics and writes the result.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from powerccl.launch.native import NativeFiles

Figure = dict[str, float | int | str]
Figures = dict[str, Figure]
Measure = Callable[[NativeFiles, Path], Figures]


def count(value: int, n: int) -> Figure:
    """A number of cases, out of n that ran."""
    return {"value": value, "unit": "1", "low": value, "high": value, "n": n}


def one(value: float, unit: str, n: int = 1) -> Figure:
    """A figure without spread: the worst of n, or an exact number."""
    return {"value": value, "unit": unit, "low": value, "high": value, "n": n}
