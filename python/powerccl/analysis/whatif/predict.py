# SPDX-License-Identifier: Apache-2.0
"""What each clock policy would have saved of a recorded run, and what it would have cost.

Energies are those of a model fitted to the run (whatif.power), with and without the policy, so that its faults largely
cancel; the run itself is measured. Intervals hold the spread over stretches of the run, the profile's, that of the
exposed time where it is estimated, and how far computation's share that does not follow the clock may be off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis.energy import EnergyCurve, energy_curves, job_samples, missing_ns
from powerccl.analysis.exposure import ESTIMATED, WAITS, Exposure, aligned, exposure
from powerccl.analysis.report_findings import Parts
from powerccl.analysis.shares import Sets, Working, of_parts, whole, working
from powerccl.analysis.whatif import honest, policies, sections
from powerccl.analysis.whatif.comparing import RARELY, left_alone, of_part
from powerccl.analysis.whatif.findings import Forecast, GpuForecast, WhatIf
from powerccl.analysis.whatif.joules import Doing
from powerccl.analysis.whatif.meetings import Meeting, latest, meet
from powerccl.analysis.whatif.outcomes import Outcome, forecast_of, outcome_of
from powerccl.analysis.whatif.paces import counted, paces
from powerccl.analysis.whatif.platform import ClockPlatform
from powerccl.analysis.whatif.power import MEMORY_BOUND_SHARE, PowerModel, fit, model
from powerccl.analysis.whatif.remarks import CLOCK_DOUBT, MEMORY_SHARES, remark, say
from powerccl.analysis.whatif.scene import Gpu, Scene, Way
from powerccl.analysis.whatif.timeline import GpuTimeline, timelines, usual, window
from powerccl.quantities import percent
from powerccl.traces import tables
from powerccl.traces.folder import RunData

BLOCKS = 20
# Of the budget, that one clock takes in the end: between native/policy/conductor.h's kPartOfBudget and kPartOnceKnown.
SEARCHED_SHARE = 0.7
UNKNOWN_SHARE = 0.01  # of the time: so much waiting for peers that are not known is worth a word
MOST_OPERATIONS = 12_000  # of all GPUs together: of longer parts of a run as many are replayed, from the middle

Values = npt.NDArray[np.float64]


@dataclass
class _Part:
    """A part of the run in which the job does not change."""

    span: tuple[int, int]
    scene: Scene


def what_if(run: RunData, platform: ClockPlatform, budget_pct: float = 1.0) -> WhatIf:
    """Predict every policy for a run recorded under `observe`.

    Raises:
        ValueError: the run holds no communication or no energy to predict from; the text says which.
    """
    kernels, waits = tables.kernels(run), tables.waits(run)
    if not len(kernels) and not len(waits):
        raise ValueError("no communication was timed")
    curves = energy_curves(run)
    if not curves:
        raise ValueError("no power was sampled")
    curves, _ = aligned(waits, kernels, curves)
    # Where nothing was timed, bytes stand for time.
    times = kernels if len(kernels) else tables.calls(run).with_columns(duration_ns=pl.col("bytes"))
    alone_watts = _alone_watts(times, platform)
    seen = exposure(waits, kernels, curves, alone_watts)
    lines = timelines(run, seen.exposed, lambda pattern, size: platform.percall_mhz(pattern, size) > 0)
    meetings = meet(run, lines)
    span = window(lines)
    if span is None:
        raise ValueError("no communication was timed")
    edges = [span[0], *sections.changes(max(lines, key=lambda line: len(line.operations)), span), span[1]]

    def part(start_ns: int, stop_ns: int) -> _Part | None:
        return _part(run, lines, meetings, curves, (start_ns, stop_ns), platform, alone_watts, seen)

    parts = [part(*each) for each in pairwise(edges)]
    if len(parts) > 1 and any(each is None for each in parts):
        parts = [part(*span)]  # one is too short to tell
    if parts[0] is None:
        raise ValueError("no power was sampled while the job communicated")
    known = [each for each in parts if each is not None]
    gpus = known[0].scene.gpus
    work = working(run, tables.calls(run), kernels)
    shares = of_parts(_worked(gpu.line, work, span) for gpu in gpus)
    found = WhatIf(
        emulated=(run.info.emulated if run.info else "") or ("yes" if run.emulated else ""),
        folder=str(run.folder),
        name=run.info.name if run.info else run.folder.name,
        platform=platform.name,
        budget_pct=budget_pct,
        covered_s=(span[1] - span[0]) / 1e9,
        joules=_sum([_joules(gpu.curve, span) for gpu in gpus]),
        communication_pct=shares.communicating_pct or 0.0,
        exposed_pct=shares.exposed_pct or 0.0,
        exposure_source=seen.source,
        exposure_why=seen.why,
        operations=sum(len(gpu.line.operations) for gpu in gpus),
        calls=sum(len(gpu.line.calls) for gpu in gpus),
    )
    predicted = []
    for number, each in enumerate(known):
        mine = WhatIf(budget_pct=budget_pct)
        _predict(mine, each, platform, seen)
        learnt = 1 - sections.LEARNING_NS / (each.span[1] - each.span[0]) if number else 1.0
        predicted.append(sections.Section(*each.span, mine, max(0.0, learnt)))
    longest = max(predicted, key=lambda section: section.stop_ns - section.start_ns).found
    found.policies, found.gpus = longest.policies, longest.gpus
    if len(predicted) > 1:
        sections.merge(found, predicted)
    for index, gpu in enumerate(gpus):
        found.gpus[index].joules = _joules(gpu.curve, span)
        found.gpus[index].exposed_pct = of_parts([_worked(gpu.line, work, span)]).exposed_pct or 0.0
    remark(found, gpus, [w for each in known for w in each.scene.windows], platform)
    waited_ns = sum(m.unknown_ns * len(m.members) for m in meetings)
    unknown = waited_ns > UNKNOWN_SHARE * (span[1] - span[0]) * len(lines)
    honest.unlearnt(found, _iterations(max(known, key=lambda each: each.span[1] - each.span[0])))
    honest.check(found, honest.limits_of([gpu for each in known for gpu in each.scene.gpus], platform))
    say(found, gpus, lines, platform, seen, unknown)
    return found


def _joules(curve: EnergyCurve, span: tuple[int, int]) -> float | None:
    """What was measured; None where samples are missing."""
    return None if missing_ns(curve, *span) else curve.within(np.array([span], dtype=np.int64))


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(sum(known)) if len(known) == len(values) else None


def _iterations(part: _Part) -> float:
    """How many there are in the part; 0: none was found."""
    counts = [
        int(((gpu.line.starts >= part.span[0]) & (gpu.line.starts < part.span[1])).sum()) / gpu.calls
        for gpu in part.scene.gpus
        if gpu.calls
    ]
    return max(counts, default=0.0)


def _part(
    run: RunData,
    lines: list[GpuTimeline],
    meetings: list[Meeting],
    curves: dict[str, EnergyCurve],
    span: tuple[int, int],
    platform: ClockPlatform,
    alone_watts: float | None,
    seen: Exposure,
) -> _Part | None:
    """A part with what its GPUs draw; None: too short to tell."""
    samples = {str(rows["uuid"][0]): rows.sort("time_ns") for _, rows in job_samples(run)}
    places = [i for i, line in enumerate(lines) if line.gpu in curves and line.operations]
    gpus, kept = [], []
    for place in places:
        line = lines[place]
        drawn = fit(line, curves[line.gpu], samples[line.gpu], span, platform, alone_watts)
        if drawn is not None:
            gpus.append(Gpu(line, curves[line.gpu], drawn, usual(line, span)))
            kept.append(place)
    if not gpus:
        return None
    idle = [gpu.drawn.idle_w for gpu in gpus if gpu.drawn.idle_w is not None]
    # The profile's is of a GPU at rest; one that idles before a job may still be warm, and few were sampled then.
    idle_w = platform.idle_watts
    if idle_w is None and idle:
        idle_w = float(np.median(idle))
    for gpu in gpus:
        gpu.drawn = replace(gpu.drawn, idle_w=idle_w)
    mine = [_among(meeting, kept) for meeting in meetings]
    last = latest([gpu.line for gpu in gpus], [m for m in mine if m])
    highest = platform.clock_max_mhz
    seen_at = [
        counted(gpu.line, *gpu.places(), its, samples[gpu.line.gpu], gpu.drawn, span, highest)
        for gpu, its in zip(gpus, last, strict=True)
    ]
    found = paces(seen_at, [gpu.drawn for gpu in gpus], highest)
    short = _stretch(gpus, span)
    block_edges = np.linspace(short[0], short[1], BLOCKS + 1).astype(np.int64).tolist()
    scene = Scene(gpus, [m for m in mine if m], platform, short, block_edges, found, seen.source == WAITS)
    return _Part(span, scene)


def _among(meeting: Meeting, kept: list[int]) -> Meeting | None:
    """The meeting of the GPUs that are kept."""
    number = {place: index for index, place in enumerate(kept)}
    members = [(number[place], index) for place, index in meeting.members if place in number]
    return replace(meeting, members=members) if members else None


def _alone_watts(kernels: pl.DataFrame, platform: ClockPlatform) -> float | None:
    """What communication alone draws at the highest clock, over the run's operations by their time."""
    total = weight = 0.0
    rows = kernels.group_by("pattern", "bytes", maintain_order=True).agg(pl.col("duration_ns").sum())
    for pattern, size, time_ns in rows.iter_rows():
        curve = platform.curve(pattern, size)
        if curve is not None and np.isfinite(curve.watts[-1]):
            total, weight = total + float(curve.watts[-1]) * time_ns, weight + time_ns
    return total / weight if weight else None


def _stretch(gpus: list[Gpu], span: tuple[int, int]) -> tuple[int, int]:
    """The part of a long one that is replayed: from its middle, from the first operation of an iteration on."""
    count = sum(int(((gpu.line.starts >= span[0]) & (gpu.line.starts < span[1])).sum()) for gpu in gpus)
    if count <= MOST_OPERATIONS:
        return span
    margin = int((span[1] - span[0]) * (1 - MOST_OPERATIONS / count) / 2)
    begins = _begins(gpus[0], (span[0] + margin, span[1] - margin))
    return int(begins[0]) if len(begins) else span[0] + margin, span[1] - margin


def _begins(gpu: Gpu, span: tuple[int, int]) -> npt.NDArray[np.int64]:
    """When its iterations begin there; where none was found, its operations."""
    begins = gpu.line.starts[gpu.places()[0] == 0]
    return np.asarray(begins[(begins >= span[0]) & (begins < span[1])], dtype=np.int64)


def _worked(line: GpuTimeline, work: Working, span: tuple[int, int]) -> Parts:
    """What a GPU's working time consists of."""
    return whole(Sets(line.communicating, None, line.exposed, None, work.spans.get(line.rank, span)))


Made = Callable[[list[PowerModel]], list[Doing]]


def _models(scene: Scene, platform: ClockPlatform) -> list[list[PowerModel]]:
    """Of each GPU: as is most likely, then with other shares of memory."""
    each = [[model(g.drawn, platform, share) for g in scene.gpus] for share in (MEMORY_BOUND_SHARE, *MEMORY_SHARES)]
    if not scene.lots.any():
        return each
    # GPUs that compute as slowly as their lots allow are far below a power limit, which is of means: now and then one
    # runs at more than it did under it.
    return [[replace(m, steady_mhz=float(platform.clock_max_mhz)) for m in models] for models in each]


def _predict(found: WhatIf, part: _Part, platform: ClockPlatform, seen: Exposure) -> None:
    scene, gpus = part.scene, part.scene.gpus
    models, *unsure = _models(scene, platform)
    before = [outcome_of(doing, m, platform) for doing, m in zip(scene.as_it_was(), models, strict=True)]
    before_w = [float(b.joules.sum()) / float(b.length_ns.sum()) * 1e9 for b in before]

    def outcomes(doings: list[Doing], of: list[PowerModel]) -> list[Outcome]:
        return [outcome_of(each, m, platform, w) for each, m, w in zip(doings, of, before_w, strict=True)]

    doubt_pct = seen.uncertainty_pct if seen.source == ESTIMATED else 0.0
    each: list[list[Forecast]] = []

    def forecast(policy: str, make: Made, *others: Made, share: float = 1.0) -> Forecast:
        """`others`: what it may also come to; `share`: of the job that it has."""
        sweep = [outcomes(make(of), of) for of in [models, *unsure]]
        sweep += [outcomes(other(models), models) for other in others]
        terms = (platform.spread_pct, doubt_pct, found.budget_pct)
        of_each = [forecast_of(policy, [before[i]], [s[i : i + 1] for s in sweep], *terms) for i in range(len(gpus))]
        each.append([of_part(one, share) for one in of_each])
        return of_part(forecast_of(policy, before, sweep, *terms), share)

    lots = scene.lots.stretches if scene.lots.any() else None

    def way(mhz: int, windowed: bool, stretches: list[Values | None] | None = None) -> Made:
        return lambda of: scene.managed(of, Way(mhz, stretches, lots if mhz or stretches else None), windowed)

    step = policies.CLOCK_STEP_MHZ
    just = _searched(scene, models, platform, found.budget_pct / 100)
    # The runtime has quarters of a step by turns: on average half of one above what just would do.
    lowest = None if just is None else just + (step // 8 if just > platform.clocks_mhz[0] else 0)
    spare = scene.take_up_slack(models, lowest or 0, found.budget_pct / 100).stretches
    windowed = any((w.mhz > 0).any() for w in scene.windows)
    if lowest is not None and spare is not None:
        # Slack takes time that one clock then does not have; where that is worth less, it is given back.
        kept = _kept(scene, models, platform, found.budget_pct / 100, Way(lowest, spare))
        ways = [Way(lowest), Way(kept, spare)]
        joules = [
            sum(float(o.joules.sum()) for o in outcomes(scene.managed(models, w, windowed), models)) for w in ways
        ]
        lowest, spare = (lowest, None) if joules[0] < joules[1] else (kept, spare)
    # Where power limits govern, what clock a job makes the same progress at is known no better than that.
    about = [] if lowest is None else [round(lowest * (1 + off)) for off in (-CLOCK_DOUBT, CLOCK_DOUBT)]
    clock = lowest or 0
    share = (
        1.0
        if lowest is None or not gpus[0].calls
        else 1 - left_alone(_begins(gpus[0], part.span), found.budget_pct / 100, scene.lots.left)
    )
    by_call = forecast("per-call", scene.percall)
    by_phase = forecast("exposed", way(0, windowed), share=1 - RARELY)
    by_job = forecast("fixed", way(clock, False, spare), *(way(mhz, False, spare) for mhz in about), share=share)
    automatic = forecast(
        "auto", way(clock, windowed, spare), *(way(mhz, windowed, spare) for mhz in about), share=share
    )
    parts = ["exposed"] * windowed + (["fixed"] if lowest is not None else ["slack"] * (spare is not None))
    automatic.chosen = " and ".join(parts) or "neither"
    if share < 1 - RARELY:
        why = f"iterations vary: {percent(100 * (1 - share))} of them are reference blocks, to compare clocks"
        by_job.remarks.append(why)
        automatic.remarks.append(why)
    by_job.clock_mhz = automatic.clock_mhz = None if lowest is None else -(-lowest // step) * step
    found.policies = [by_call, by_phase, by_job, automatic]
    found.gpus = [
        GpuForecast(
            gpu=gpu.line.gpu,
            rank=gpu.line.rank,
            host=gpu.line.host,
            joules=_joules(gpu.curve, part.span),
            exposed_pct=0.0,  # of the whole job: filled in there
            compute_clock_mhz=gpu.drawn.compute_mhz,
            policies=[of_policy[index] for of_policy in each],
        )
        for index, gpu in enumerate(gpus)
    ]


def _kept(scene: Scene, models: list[PowerModel], platform: ClockPlatform, budget: float, way: Way) -> int:
    """The lowest clock from that of `way` on that keeps the search's part of the budget with what slack costs, too."""
    low, high = way.mhz, platform.clock_max_mhz
    most_ns = (1 + SEARCHED_SHARE * budget) * scene.length_ns(scene.base)
    while low < high:
        middle = (low + high) // 2
        too_slow = scene.length_ns(scene.course(models, Way(middle, way.stretches))) > most_ns
        low, high = (middle + 1, high) if too_slow else (low, middle)
    return high


def _searched(scene: Scene, models: list[PowerModel], platform: ClockPlatform, budget: float) -> int | None:
    """The clock that costs just the search's part of the budget, None: none below the highest does."""
    low, high = platform.clocks_mhz[0], platform.clock_max_mhz
    part, base_ns = SEARCHED_SHARE * budget, scene.length_ns(scene.base)
    while low < high:
        middle = (low + high) // 2
        way = Way(middle, lots=scene.lots.stretches if scene.lots.any() else None)
        too_slow = scene.length_ns(scene.course(models, way)) > (1 + part) * base_ns
        low, high = (middle + 1, high) if too_slow else (low, middle)
    return high if high <= platform.clock_max_mhz - policies.CLOCK_STEP_MHZ else None
