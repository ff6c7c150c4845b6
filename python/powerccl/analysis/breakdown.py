# SPDX-License-Identifier: Apache-2.0
"""Where each rank's time went: computation, communication beside it and alone, waiting for peers, idle."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np

from powerccl.analysis import intervals as iv
from powerccl.analysis.energy import EnergyCurve
from powerccl.analysis.exposure import NONE, Exposure
from powerccl.analysis.iteration_energy import curves_of, joules_between
from powerccl.analysis.iterations import Cut
from powerccl.analysis.kineto import Profiled
from powerccl.analysis.report_findings import IterationParts, Iterations, Parts, RankParts
from powerccl.analysis.shares import Floats, Sets, Working, measure
from powerccl.analysis.stragglers import Costs, Matched
from powerccl.analysis.whole_run import WholeRun
from powerccl.traces.folder import RunData
from powerccl.traces.rank import RankTrace

MOST_ROWS = 400  # of iterations; more are put together by neighbours
LEAST_MATCHED = 0.5  # of a rank's communication that must have been matched to say how long it waited


@dataclass
class Breakdown:
    """What was found: a row a rank, iterations of each host and job, and what stragglers cost."""

    ranks: list[RankParts] = field(default_factory=list)
    iterations: list[Iterations] = field(default_factory=list)
    costs: Costs = field(default_factory=Costs)


def break_down(
    run: RunData,
    built: WholeRun,
    matched: Matched,
    exposed: Exposure,
    curves: dict[str, EnergyCurve],
    profiled: dict[int, Profiled],
    work: Working,
) -> Breakdown:
    """Parts of each rank's time, in all and by iteration; `profiled` by rank, from profilers' traces."""
    breakdown = Breakdown()
    origin = run.info.start_ns if run.info else min((trace.start_ns for trace in run.ranks), default=0)
    # Of one rank at a time: its sets take as much memory as all that is known of its kernels.
    look = _Look(run, built, matched, exposed if exposed.source != NONE else None, profiled, work)
    together: dict[tuple[str, int], list[RankTrace]] = {}
    for trace in run.ranks:
        if trace.rank in built.rows_of and trace.rank in work.spans:
            together.setdefault((trace.host, trace.job), []).append(trace)
    for (host, job), traces in together.items():
        iterations = _iterations(host, work.cuts[host, job], traces, look, breakdown, curves, origin)
        if iterations.ranks:
            breakdown.iterations.append(iterations)
    breakdown.costs.add_to(matched.peers)
    return breakdown


@dataclass(frozen=True)
class _Look:
    """All that is known, to be looked at rank by rank."""

    run: RunData
    built: WholeRun
    matched: Matched
    exposed: Exposure | None
    profiled: dict[int, Profiled]
    work: Working

    def sets_of(self, trace: RankTrace) -> Sets | None:
        """A rank's sets; None: it has no working time."""
        profile, span, window = self.profiled.get(trace.rank), self.work.spans[trace.rank], self.run.window
        if profile is not None:
            span = (profile.start_ns, profile.stop_ns)
            if window:
                span = (max(span[0], window[0]), min(span[1], window[1]))
        if span[1] <= span[0]:
            return None
        rows = self.built.rows_of[trace.rank]
        start, stop = (self.built.kernels[name].to_numpy()[rows] for name in ("start_ns", "stop_ns"))
        waiting_ns = self.matched.waiting_ns[rows]
        known = waiting_ns >= 0
        lengths = stop - start
        enough_matched = lengths[known].sum() >= LEAST_MATCHED * max(int(lengths.sum()), 1)
        waiting = iv.union(start[known], start[known] + waiting_ns[known]) if enough_matched else None
        alone = self.exposed.exposed.get(trace.gpu) if self.exposed else None
        return Sets(
            communication=iv.clip(iv.union(start, stop), *span),
            waiting=None if waiting is None else iv.clip(waiting, *span),
            exposed=None if alone is None else iv.clip(alone, *span),
            computation=None if profile is None else iv.clip(profile.computation, *span),
            span=span,
        )

    def add_costs(self, costs: Costs, trace: RankTrace, sets: Sets) -> None:
        """What the rank lost to stragglers."""
        rows = self.built.rows_of[trace.rank]
        matched, start = self.matched, self.built.kernels["start_ns"].to_numpy()[rows]
        costs.add(sets, start, matched.waiting_ns[rows], matched.last_rank[rows], matched.others_ns[rows])


def _mean(parts: dict[str, Floats]) -> dict[str, float]:
    return {name: float(values.mean()) for name, values in parts.items()}


def _iterations(
    host: str,
    edges: Cut,
    traces: list[RankTrace],
    look: _Look,
    breakdown: Breakdown,
    curves: dict[str, EnergyCurve],
    origin: int,
) -> Iterations:
    """The host's iterations, and its ranks' rows and costs put into `breakdown`."""
    inside = Iterations(host=host, ranks=[], operations=edges.operations, by=edges.by, reason=edges.reason)
    stretches = edges.edges
    by_rank: list[dict[str, Floats]] = []
    for trace in traces:
        sets = look.sets_of(trace)
        if sets is None:
            continue
        inside.ranks.append(trace.rank)
        look.add_costs(breakdown.costs, trace, sets)
        measured = measure(sets, np.concatenate([[sets.span], stretches]))
        row = RankParts(
            rank=trace.rank,
            gpu=trace.gpu,
            host=host,
            by_profiler=sets.computation is not None,
            **msgspec.structs.asdict(Parts(**{name: float(values[0]) for name, values in measured.items()})),
        )
        if len(stretches):
            fits = (stretches[:, 0] >= sets.span[0]) & (stretches[:, 1] <= sets.span[1])
            each = {name: values[1:] for name, values in measured.items()}
            if fits.any():
                row.per_iteration = Parts(**_mean({name: values[fits] for name, values in each.items()}))
            if not row.by_profiler:
                by_rank.append(each)
        breakdown.ranks.append(row)
    if not len(stretches):
        return inside
    length = (stretches[:, 1] - stretches[:, 0]) / 1e9
    inside.found = len(length)
    inside.p5_s, inside.median_s, inside.p95_s = (float(v) for v in np.quantile(length, [0.05, 0.5, 0.95]))
    inside.mean_s, inside.mean_error_s = float(length.mean()), float(length.std(ddof=1)) / len(length) ** 0.5
    joules = joules_between(stretches, curves_of(traces, curves))
    known = joules[np.isfinite(joules)]
    if len(known) > 1:
        inside.joules, inside.joules_of = float(known.mean()), len(known)
        inside.joules_error = float(known.std(ddof=1)) / len(known) ** 0.5
    names = [name for name in by_rank[0] if all(name in each for each in by_rank)] if by_rank else []
    means = {name: np.mean([each[name] for each in by_rank], axis=0) for name in names}
    step = -(-len(length) // MOST_ROWS)
    for first in range(0, len(length), step):
        part = slice(first, first + step)
        inside.rows.append(
            IterationParts(
                first=first,
                count=len(length[part]),
                start_s=float(stretches[first, 0] - origin) / 1e9,
                joules=float(joules[part].mean()) if np.isfinite(joules[part]).all() else None,
                **({"span_s": float(length[part].mean())} | {n: float(v[part].mean()) for n, v in means.items()}),
            )
        )
    return inside
