# SPDX-License-Identifier: Apache-2.0
"""Time and energy of an iteration of the whole job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from powerccl.analysis import intervals as iv
from powerccl.analysis.energy import EnergyCurve
from powerccl.analysis.findings import RunSummary
from powerccl.analysis.shares import Floats, Working
from powerccl.traces.folder import RunData
from powerccl.traces.rank import RankTrace


def add_iteration(summary: RunSummary, run: RunData, work: Working, curves: dict[str, EnergyCurve]) -> None:
    """Put time and energy of an iteration into the summary, of one job in which communication repeats itself.

    The time is the median of the first rank's host, as ranks keep step. The energy is the sum of the hosts' means, as
    the report has them: over the iterations without a gap in the samples.
    """
    hosts = dict.fromkeys((trace.host, trace.job) for trace in run.ranks)
    cuts = [work.cuts[host] for host in hosts if host in work.cuts and len(work.cuts[host].edges)]
    alike = len({job for _, job in hosts}) == 1 and len({cut.operations for cut in cuts}) == 1
    if not alike or len(cuts) != len(hosts):
        return  # jobs beside each other, or hosts that differ, have no iteration in common
    summary.iteration_s = float(np.quantile(np.diff(cuts[0].edges, axis=1) / 1e9, 0.5))
    means = []
    for (host, _), cut in zip(hosts, cuts, strict=True):
        joules = joules_between(cut.edges, curves_of((trace for trace in run.ranks if trace.host == host), curves))
        known = joules[np.isfinite(joules)]
        means.append(float(known.mean()) if len(known) > 1 else None)
    known_means = [mean for mean in means if mean is not None]
    if len(known_means) == len(means):
        summary.joules_per_iteration = sum(known_means)


def curves_of(traces: Iterable[RankTrace], curves: Mapping[str, EnergyCurve]) -> list[EnergyCurve]:
    """Those of the ranks' GPUs, each once, as ranks may share one; empty where one is missing: no sum is known then."""
    gpus = dict.fromkeys(trace.gpu for trace in traces)
    return [curves[gpu] for gpu in gpus] if set(gpus) <= set(curves) else []


def joules_between(stretches: iv.Intervals, curves: list[EnergyCurve]) -> Floats:
    """Energy of each iteration over all curves; NaN where one of them does not tell."""
    total = np.zeros(len(stretches)) if curves else np.full(len(stretches), np.nan)
    for curve in curves:
        total += curve.at(stretches[:, 1]) - curve.at(stretches[:, 0])
        total[~curve.covers(stretches)] = np.nan
    return total
