# SPDX-License-Identifier: Apache-2.0
"""What a GPU was doing when, as far as its trace tells: a partition of its time into phases.

A phase is which kinds of communication run (a pattern and a size class each), and whether computation runs beside them.
None, one, or several kinds may run together. Whether computation runs is known from the job's own streams (records
WAIT): a GPU computes unless all its computing streams wait. Without such records it is not known, and nothing is said
of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv

Kind = tuple[str, int]  # pattern, size class in bytes
ALONE, BESIDE, UNKNOWN = "exposed", "beside computation", ""
MOST_KINDS = 40  # of one GPU; the rarest beyond are one kind to the regression


@dataclass(frozen=True, order=True)
class Phase:
    """`kinds`: what communicates; `how`: ALONE, BESIDE or UNKNOWN. Without kinds, BESIDE computes and ALONE stalls."""

    kinds: tuple[Kind, ...]
    how: str


COMPUTING = Phase((), BESIDE)
LATE = Phase((), "late")  # what would compute was launched late


@dataclass(frozen=True)
class Timeline:
    """One GPU from its first kernel to its last: phase `phases[label[i]]` from `edges_ns[i]` to `edges_ns[i + 1]`."""

    edges_ns: npt.NDArray[np.int64]
    label: npt.NDArray[np.int64]
    phases: list[Phase]

    def lengths_s(self) -> npt.NDArray[np.float64]:
        """Seconds of each phase."""
        return np.bincount(self.label, np.diff(self.edges_ns) / 1e9, len(self.phases)).astype(np.float64)

    def within(self, begin_ns: int, end_ns: int) -> Timeline | None:
        """The part of it in a window; None: there is none."""
        low, high = max(begin_ns, int(self.edges_ns[0])), min(end_ns, int(self.edges_ns[-1]))
        if low >= high:
            return None
        inside = self.edges_ns[(self.edges_ns > low) & (self.edges_ns < high)]
        edges = np.concatenate([[low], inside, [high]]).astype(np.int64)
        segment = np.searchsorted(self.edges_ns, edges[:-1], side="right") - 1
        return Timeline(edges, self.label[segment], self.phases)


def timeline(kernels: pl.DataFrame, exposed: iv.Intervals | None) -> Timeline | None:
    """Of one GPU's kernels (traces.tables.kernels) and its exposed communication; None: not known."""
    if not len(kernels):
        return None
    # By name: an Enum's order would depend on the reader's version.
    named = kernels.select(pl.col("pattern").cast(pl.String), "size_class", "start_ns", "stop_ns")
    of_kinds = named.partition_by("pattern", "size_class", as_dict=True)
    most = sorted(of_kinds, key=lambda kind: (-len(of_kinds[kind]), *kind))[:MOST_KINDS]
    keys = sorted((str(pattern), int(size)) for pattern, size in most)
    start, stop = named["start_ns"].to_numpy(), named["stop_ns"].to_numpy()
    first, last = int(start.min()), int(stop.max())
    stalls = iv.clip(exposed, first, last) if exposed is not None else iv.EMPTY
    edges = iv.distinct(start, stop, stalls)
    if len(edges) < 2:
        return None
    middle = edges[:-1] + np.diff(edges) // 2
    bits = np.zeros(len(middle), dtype=np.int64)
    for n, key in enumerate(keys):
        own = of_kinds[key]
        runs = iv.contains(iv.union(own["start_ns"].to_numpy(), own["stop_ns"].to_numpy()), middle)
        bits |= runs.astype(np.int64) << n
    how = np.zeros(len(middle), np.int64) if exposed is None else 1 + iv.contains(stalls, middle).astype(np.int64)
    how = np.where(bits == 0, np.maximum(how, 1), how)  # nothing communicates: whatever runs, computes
    codes, label = np.unique(bits * 3 + how, return_inverse=True)
    names = (UNKNOWN, BESIDE, ALONE)
    phases = [
        Phase(tuple(key for n, key in enumerate(keys) if int(code) // 3 >> n & 1), names[int(code) % 3])
        for code in codes
    ]
    return Timeline(edges, np.asarray(label, dtype=np.int64), phases)
