# SPDX-License-Identifier: Apache-2.0
"""The calls, kernels and waits of a run, built once: summary, energy, tables and page all read these.

One rule says what a window has:

- every kernel that runs in the window for some time;
- the call of each of these kernels, whenever the host made it: hosts run ahead of their GPUs;
- of calls without a kernel record, those that the host made in the window.

Sums of time end at the window's edges (`inside_ns`). Figures of one operation, such as its bytes, its median time and
its bandwidth, are of whole operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis.communication import ran
from powerccl.analysis.exposure import Exposure, from_marks
from powerccl.analysis.waits import aligned
from powerccl.traces import tables
from powerccl.traces.folder import RunData

Window = tuple[int, int]  # host times, ns, from and to


@dataclass(frozen=True)
class RunTables:
    """`kernels` are those of the window, `inside` says which of `all_kernels` these are.

    `kernels` also has `inside_ns`: how much of its duration is in the window. `waits` are of the whole run, and end
    where their kernels do. `marks`: exposed communication of the whole run as marks in the job's streams show it; None:
    there are none. A window inside a pause of the marks needs those before and behind it.
    """

    run: RunData
    window: Window | None
    all_kernels: pl.DataFrame
    kernels: pl.DataFrame
    inside: npt.NDArray[np.bool_]
    waits: pl.DataFrame
    marks: Exposure | None

    # Built when they are first used: the regression of energy, which takes most memory, needs no calls.
    @cached_property
    def all_calls(self) -> pl.DataFrame:
        """The calls of the whole run."""
        return tables.calls(self.run)

    @cached_property
    def calls(self) -> pl.DataFrame:
        """The calls of the window."""
        if self.window is None:
            return self.all_calls
        here, recorded = (ran(self.all_calls, kernels) for kernels in (self.kernels, self.all_kernels))
        return self.all_calls.filter(here | (~recorded & self.all_calls["start_ns"].is_between(*self.window)))

    def within(self, window: Window) -> RunTables:
        """A part of the run, from the same tables."""
        begin, end = window
        runs = (pl.col("start_ns") < end) & (pl.col("stop_ns") > begin)
        inside = self.all_kernels.select(runs).to_series()
        cut_ns = pl.min_horizontal("stop_ns", end) - pl.max_horizontal("start_ns", begin)
        kernels = self.all_kernels.filter(inside).with_columns(inside_ns=pl.min_horizontal("duration_ns", cut_ns))
        return replace(self, window=window, kernels=kernels, inside=inside.to_numpy())


def run_tables(run: RunData, window: Window | None = None) -> RunTables:
    """The tables of a run; `window` takes a part of it."""
    kernels = tables.kernels(run)
    waits = aligned(tables.waits(run), kernels)
    built = RunTables(
        run=run,
        window=None,
        all_kernels=kernels,
        kernels=kernels.with_columns(inside_ns="duration_ns"),
        inside=np.ones(len(kernels), np.bool_),
        waits=waits,
        marks=from_marks(waits, kernels, window) if len(waits) else None,
    )
    return built.within(window) if window else built
