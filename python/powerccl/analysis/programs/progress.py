# SPDX-License-Identifier: Apache-2.0
"""The progress of a rank's computation: the time that it would have taken with no wait and no collective beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MOST_LOST = 0.9  # of a collective's time: computation never stops for it altogether


class Loss(NamedTuple):
    """What computation loses beside collectives: a share of its speed beside each kernel, together at most `most`.

    `share` takes a rank's kernels of traces.tables, with `called_ns` of their calls. `waiting`: a kernel that waits for
    its peers takes as much from computation as one that transfers.
    """

    share: Callable[[pl.DataFrame], Floats]
    most: float
    waiting: bool = False


class Progress:
    """How far computation has come at any time: time, less what it waited and what collectives took from it."""

    def __init__(self, kernels: pl.DataFrame, waits: pl.DataFrame, loss: Loss) -> None:
        """`kernels` have `in_turn`, with computation, which waits for each of them, and `called_ns` of their calls."""
        inside = kernels.filter("in_turn").select("start_ns", "stop_ns").to_numpy()
        begins = np.concatenate([waits["stall_ns"].to_numpy(), inside[:, 0]])
        self._stalls = iv.union(begins, np.concatenate([waits["resume_ns"].to_numpy(), inside[:, 1]]))
        began_ns = kernels["start_ns"].to_numpy()
        # A wait may have begun long before the first kernel was timed: nothing is before the origin.
        self._origin = int(np.concatenate([began_ns, self._stalls[:1, 0]]).min(initial=np.iinfo(np.int64).max // 2))
        # How long a rank waited in exchanges is not known.
        alone = (kernels["pattern"] == "send_receive").to_numpy()
        lasts = kernels["duration_ns"].to_numpy()
        usual = kernels.select(pl.col("duration_ns").quantile(0.05).over("bytes"))["duration_ns"].to_numpy()
        waited = (
            0.0 * lasts
            if loss.waiting
            else np.where(alone, np.maximum(lasts - usual, 0), np.maximum(kernels["waiting_ns"].to_numpy(), 0))
        )
        begin = self._running(began_ns + waited.astype(np.int64))
        end = self._running(kernels["stop_ns"].to_numpy())
        share = loss.share(kernels)
        beside = (end > begin) & (share > 0)
        places = np.concatenate([begin[beside], end[beside]])
        order = np.argsort(places, kind="stable")
        self._places = np.concatenate([[0.0], places[order]])
        together = np.cumsum(np.concatenate([share[beside], -share[beside]])[order])
        slope = np.concatenate([[0.0], np.clip(together, 0.0, loss.most)])
        self._lost = np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(self._places))])

    def stalled(self, time_ns: Ints) -> Floats:
        """Microseconds waited until then."""
        return np.asarray(iv.covered_before(self._stalls, time_ns.ravel()).reshape(time_ns.shape) / 1e3, np.float64)

    def at(self, time_ns: Ints) -> Floats:
        """Microseconds of progress until then."""
        running = self._running(time_ns)
        return np.asarray(running - np.interp(running, self._places, self._lost), dtype=np.float64)

    def _running(self, time_ns: Ints) -> Floats:
        return np.asarray((time_ns - self._origin) / 1e3 - self.stalled(time_ns), dtype=np.float64)
