# SPDX-License-Identifier: Apache-2.0
"""What the power of a part of a run is expected to be a sum of.

A GPU that waits draws its power at rest, and one that computes draws the power of its clock. Communication adds about
the same to either. A platform profile may say what each kind draws alone, and a GPU at rest. Then that much is known
beforehand. Parts and phases may differ from it: by how much is for the regression to find.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerccl.analysis.attribution.clocks import Levels
from powerccl.analysis.attribution.phases import ALONE, BESIDE, Kind, Phase
from powerccl.analysis.link import watts_alone
from powerccl.analysis.report_findings import Reference

Numbers = npt.NDArray[np.int64]
Array = npt.NDArray[np.float64]

REST_DOUBT = 0.1  # of a profile's power at rest
COLD_DOUBT = 0.25  # the same, where it is not known how much more warmer dies draw: those of jobs are
KIND_DOUBT = 0.15  # of what a kind adds to it


@dataclass(frozen=True)
class Features:
    """`each` (parts, features): how much of each feature a part has.

    A feature counts `watts`, give or take `doubt` (one standard deviation); NaN: not known. What nothing is known of
    is taken to be `share` times the mean power, weakly. For each W that the mean power is above `at_watts`, rest
    (the first feature) draws `warming` more.
    """

    each: Array
    watts: Array
    doubt: Array
    share: Array
    at_watts: float
    warming: float

    def expected(self, mean_watts: float) -> Array:
        """W of each part, where the mean over all is this."""
        watts = np.where(np.isfinite(self.watts), self.watts, self.share * mean_watts)
        watts[0] += self.warming * (mean_watts - self.at_watts) if np.isfinite(self.watts[0]) else 0.0
        return np.asarray(self.each @ watts)


def features(phases: list[Phase], clocks: Array, reference: Reference | None) -> Features:
    """Of parts: from their phases, their shares of time at each clock (parts, levels; no levels: not known)."""
    named = sorted(set(phases))
    number = np.array([named.index(phase) for phase in phases])
    known = np.array([phase.how in (ALONE, BESIDE) for phase in named])
    waits = np.array([phase.how == ALONE for phase in named])
    rest_watts = reference.idle_watts if reference else None
    warming = reference.warming if reference else None
    columns, watts, share = [(known & waits)[number]], [_or_nan(rest_watts)], [1.0]
    doubt = [COLD_DOUBT if warming is None else REST_DOUBT]
    for n in np.flatnonzero(~known):  # whether it computes is not known
        columns.append(number == n)
        watts.append(np.nan)
        doubt.append(np.nan)
        share.append(1.0)
    computes = (known & ~waits)[number]
    for level in clocks.T if clocks.shape[1] else [np.ones(len(phases))]:
        columns.append(computes * level)
        watts.append(np.nan)
        doubt.append(np.nan)
        share.append(1.0)
    for kind in sorted({kind for phase, sure in zip(named, known, strict=True) if sure for kind in phase.kinds}):
        # Kinds that run together share the links.
        parts = [(kind in phase.kinds) / max(len(phase.kinds), 1) for phase in named]
        columns.append((known * np.array(parts))[number])
        watts.append(_added(reference, kind, rest_watts))
        doubt.append(KIND_DOUBT)
        share.append(0.0)
    added = [each for each, of_all in zip(watts, share, strict=True) if not of_all and np.isfinite(each)]
    return Features(
        np.column_stack(columns).astype(np.float64),
        np.array(watts),
        np.array(doubt) * np.abs(watts),
        np.array(share),
        at_watts=_or_nan(rest_watts) + float(np.mean(added)) if added else 0.0,
        warming=(warming or 0.0) if added else 0.0,
    )


def _added(reference: Reference | None, kind: Kind, rest_watts: float | None) -> float:
    """W that a kind draws alone above a GPU at rest; NaN: not known."""
    alone = watts_alone(reference, *kind) if reference else None
    return np.nan if alone is None or rest_watts is None else alone - rest_watts


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value


def mean_shares(edges: Numbers, label: Numbers, levels: Levels | None) -> Array:
    """Of the time of each part at each clock; without levels where clocks are not known. Shape (parts, levels)."""
    count = int(label.max()) + 1
    if levels is None:
        return np.zeros((count, 0))
    seconds = np.diff(edges) / 1e9
    total = np.maximum(np.bincount(label, seconds, count), 1e-12)
    shares = levels.shares(edges)
    return np.column_stack([np.bincount(label, seconds * each, count) / total for each in shares.T])
