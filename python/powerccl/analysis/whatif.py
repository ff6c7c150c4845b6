# SPDX-License-Identifier: Apache-2.0
"""What each clock policy would have saved of a recorded run, and what it would have cost.

Energies are those of a model fitted to the run (whatif_power), with and without the policy, so that its faults largely
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

from powerccl.analysis import intervals as iv
from powerccl.analysis import whatif_peers as peers
from powerccl.analysis import whatif_policies as policies
from powerccl.analysis import whatif_replay as replays
from powerccl.analysis import whatif_sections as sections
from powerccl.analysis.energy import EnergyCurve, energy_curve
from powerccl.analysis.exposure import ESTIMATED, Exposure, aligned, exposure
from powerccl.analysis.whatif_findings import Forecast, GpuForecast, WhatIf
from powerccl.analysis.whatif_outcomes import Outcome, forecast_of, outcome_of, together
from powerccl.analysis.whatif_platform import ClockPlatform
from powerccl.analysis.whatif_power import (
    FEW_SAMPLES,
    MEMORY_BOUND_SHARE,
    Drawn,
    PowerModel,
    clocks_in,
    fit,
    model,
    steady_clock,
)
from powerccl.analysis.whatif_timeline import GpuTimeline, timelines, window
from powerccl.traces import tables
from powerccl.traces.folder import RunData

MEMORY_SHARES = (0.05, 0.30)  # what computation's share that does not follow the clock may be
BLOCKS = 20
CLOCK_STEP_MHZ = 15  # of NVIDIA's data centre GPUs
CLOCK_DOUBT = 0.02  # of a clock: how far one may be off that makes the same progress as a power governor
SEARCHED_SHARE = 0.6  # of the budget, that one clock may take: native/runtime/conductor.h, kPartOfBudget
MOST_OPERATIONS = 5_000  # of a GPU's: longer runs are replayed in a stretch from their middle

Values = npt.NDArray[np.float64]
Make = Callable[[int, PowerModel], replays.Replay]  # of the GPU that is so many-th


@dataclass
class _Gpu:
    line: GpuTimeline
    curve: EnergyCurve
    drawn: Drawn


def what_if(run: RunData, platform: ClockPlatform, budget_pct: float = 1.0) -> WhatIf:
    """Predict every policy for a run recorded under `observe`.

    Raises:
        ValueError: the run holds no communication or no energy to predict from; the text says which.
    """
    kernels, waits = tables.kernels(run), tables.waits(run)
    if not len(kernels) and not len(waits):
        raise ValueError("no communication was timed")
    curves = _curves(run)
    if not curves:
        raise ValueError("no power was sampled")
    curves, _ = aligned(waits, kernels, curves)
    # Where nothing was timed, bytes stand for time.
    times = kernels if len(kernels) else tables.calls(run).with_columns(duration_ns=pl.col("bytes"))
    alone_watts = _alone_watts(times, platform)
    seen = exposure(waits, kernels, curves, alone_watts)
    lines = timelines(run, seen.exposed, lambda pattern, size: platform.percall_mhz(pattern, size) > 0)
    peers.meet(run, lines)
    span = window(lines)
    if span is None:
        raise ValueError("no communication was timed")
    span = _stretch(lines, span)
    gpus = _fitted(run, lines, curves, span, platform, alone_watts)
    if not gpus:
        raise ValueError("no power was sampled while the job communicated")
    found = WhatIf(
        emulated=(run.info.emulated if run.info else "") or ("yes" if run.emulated else ""),
        folder=str(run.folder),
        name=run.info.name if run.info else run.folder.name,
        platform=platform.name,
        budget_pct=budget_pct,
        covered_s=(span[1] - span[0]) / 1e9,
        joules=float(sum(gpu.curve.within(np.array([span], dtype=np.int64)) for gpu in gpus)),
        communication_pct=_share([iv.clip(g.line.communicating, *span) for g in gpus], span),
        exposed_pct=_share([iv.clip(g.line.exposed, *span) for g in gpus], span),
        exposure_source=seen.source,
        exposure_why=seen.why,
        operations=sum(len(gpu.line.operations) for gpu in gpus),
        calls=sum(len(gpu.line.calls) for gpu in gpus),
    )
    late_mhz = _late_clock(run, gpus, span, platform)
    _predict(found, gpus, late_mhz, platform, seen, span)
    edges = [span[0], *sections.changes(max(lines, key=lambda line: len(line.operations)), span), span[1]]
    if len(edges) > 2:

        def fitted(start_ns: int, stop_ns: int) -> list[_Gpu]:
            parts = [_part(line, start_ns, stop_ns) for line in lines]
            return _fitted(run, parts, curves, (start_ns, stop_ns), platform, alone_watts)

        _predict_sections(found, run, edges, fitted, platform, seen)
    _say(found, gpus, lines, platform, seen)
    return found


def _part(line: GpuTimeline, start_ns: int, stop_ns: int) -> GpuTimeline:
    """What of a timeline is between two times."""
    return replace(
        line,
        operations=[o for o in line.operations if start_ns <= o.start_ns and o.stop_ns <= stop_ns],
        calls=[call for call in line.calls if start_ns <= call[0] <= stop_ns],
        exposed=iv.clip(line.exposed, start_ns, stop_ns),
        communicating=iv.clip(line.communicating, start_ns, stop_ns),
    )


def _predict_sections(
    found: WhatIf,
    run: RunData,
    edges: list[int],
    fitted: Callable[[int, int], list[_Gpu]],
    platform: ClockPlatform,
    seen: Exposure,
) -> None:
    """What policies that learn make of each part of a job that changes; the first of them they know."""
    parts: list[sections.Section] = []
    for span in pairwise(edges):
        gpus = fitted(*span)
        if len(gpus) != len(found.gpus):
            return  # too short to tell: the prediction for all of the run has to do
        mine = WhatIf(budget_pct=found.budget_pct)
        _predict(mine, gpus, _late_clock(run, gpus, span, platform), platform, seen, span)
        learnt = 1 - sections.LEARNING_NS / (span[1] - span[0]) if parts else 1.0
        parts.append(sections.Section(*span, mine, max(0.0, learnt)))
    sections.merge(found, parts)


def _curves(run: RunData) -> dict[str, EnergyCurve]:
    found: dict[str, EnergyCurve] = {}
    for log in run.power:
        for (uuid,), rows in log.samples.group_by(["uuid"]):
            power = rows["power_mw"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
            curve = energy_curve(rows["time_ns"].to_numpy(), power, rows["energy_uj"].to_numpy())
            if curve is not None:
                found[str(uuid)] = curve
    return found


def _alone_watts(kernels: pl.DataFrame, platform: ClockPlatform) -> float | None:
    """What communication alone draws at the highest clock, over the run's operations by their time."""
    total = weight = 0.0
    rows = kernels.group_by("pattern", "bytes").agg(pl.col("duration_ns").sum())
    for pattern, size, time_ns in rows.iter_rows():
        curve = platform.curve(pattern, size)
        if curve is not None and np.isfinite(curve.watts[-1]):
            total, weight = total + float(curve.watts[-1]) * time_ns, weight + time_ns
    return total / weight if weight else None


def _stretch(lines: list[GpuTimeline], span: tuple[int, int]) -> tuple[int, int]:
    """The part of a long run that is replayed: from its middle."""
    most = max(len(line.operations) for line in lines)
    if most <= MOST_OPERATIONS:
        return span
    margin = int((span[1] - span[0]) * (1 - MOST_OPERATIONS / most) / 2)
    span = (span[0] + margin, span[1] - margin)
    for line in lines:
        line.operations = [o for o in line.operations if o.start_ns >= span[0] and o.stop_ns <= span[1]]
        line.calls = [call for call in line.calls if span[0] <= call[0] <= span[1]]
    return span


def _fitted(
    run: RunData,
    lines: list[GpuTimeline],
    curves: dict[str, EnergyCurve],
    span: tuple[int, int],
    platform: ClockPlatform,
    alone_watts: float | None,
) -> list[_Gpu]:
    samples = {str(uuid): rows for log in run.power for (uuid,), rows in log.samples.group_by(["uuid"])}
    fitted = []
    for line in lines:
        curve = curves.get(line.gpu)
        if curve is None or not line.operations:
            continue
        drawn = fit(line, curve, samples[line.gpu].sort("time_ns"), span, platform, alone_watts)
        if drawn is not None:
            fitted.append(_Gpu(line, curve, drawn))
    idle = [gpu.drawn.idle_w for gpu in fitted if gpu.drawn.idle_w is not None]
    # The profile's is of a GPU at rest; one that idles before a job may still be warm, and few were sampled then.
    idle_w = platform.idle_watts
    if idle_w is None and idle:
        idle_w = float(np.median(idle))
    for gpu in fitted:
        gpu.drawn = replace(gpu.drawn, idle_w=idle_w)
    return fitted


def _late_clock(run: RunData, gpus: list[_Gpu], span: tuple[int, int], platform: ClockPlatform) -> float | None:
    """The clock of computation that the other GPUs waited for; None: nobody is known to have waited."""
    samples = {str(uuid): rows for log in run.power for (uuid,), rows in log.samples.group_by(["uuid"])}
    latest = peers.latest(run, [gpu.line for gpu in gpus])
    highest = platform.clock_max_mhz
    clocks: list[Values] = []
    weights: list[Values] = []
    for gpu, (spans, weight) in zip(gpus, latest, strict=True):
        for one in np.unique(weight).tolist():
            found = clocks_in(samples[gpu.line.gpu], iv.clip(spans[weight == one], *span), gpu.drawn, highest)
            clocks.append(found)
            weights.append(np.full(len(found), one))
    every = np.concatenate([*clocks, np.zeros(0)])
    return steady_clock(every, highest, np.concatenate(weights)) if len(every) >= FEW_SAMPLES else None


def _share(sets: list[iv.Intervals], span: tuple[int, int]) -> float:
    return float(np.mean([iv.length_ns(intervals) for intervals in sets])) / (span[1] - span[0]) * 100


def _predict(
    found: WhatIf,
    gpus: list[_Gpu],
    late_mhz: float | None,
    platform: ClockPlatform,
    seen: Exposure,
    span: tuple[int, int],
) -> None:
    edges = np.linspace(span[0], span[1], BLOCKS + 1).astype(np.int64).tolist()
    hosts = {gpu.line.host: 0 for gpu in gpus}
    for gpu in gpus:
        hosts[gpu.line.host] += 1
    models = [model(gpu.drawn, platform, late_mhz=late_mhz) for gpu in gpus]
    usual = [peers.usual(g.line) for g in gpus]
    windows = [
        policies.windows(g.line, platform, hosts[g.line.host], span, calls)
        for g, calls in zip(gpus, usual, strict=True)
    ]
    before = [
        outcome_of(policies.observed(g.line, span, edges), m, platform) for g, m in zip(gpus, models, strict=True)
    ]
    before_w = [float(b.joules.sum()) / float(b.length_ns.sum()) * 1e9 for b in before]

    def all_of(make: Make, of: list[PowerModel]) -> list[Outcome]:
        made = [make(i, of[i]) for i in range(len(gpus))]
        outcomes = [outcome_of(each, m, platform, w) for each, m, w in zip(made, of, before_w, strict=True)]
        # Idle, a GPU is as warm as all else that it does makes it.
        warmth = platform.kelvin_per_watt * platform.leakage_watts_per_kelvin
        after_w = [float(o.joules.sum()) / float(o.length_ns.sum()) * 1e9 for o in outcomes]
        idle_w = [
            m.idle(each.clocks[-1][1], warmth * (after - before))
            for each, m, after, before in zip(made, of, after_w, before_w, strict=True)
        ]
        return together(outcomes, idle_w, of)

    def percall(index: int, m: PowerModel) -> replays.Replay:
        return replays.percall(gpus[index].line, m, platform, span, edges)

    def as_it_was(index: int, _: PowerModel) -> replays.Replay:
        return policies.observed(gpus[index].line, span, edges)

    def phase(index: int, _: PowerModel) -> replays.Replay:
        return policies.phase(gpus[index].line, windows[index], span, edges)

    none = [policies.no_windows(g.line, span) for g in gpus]
    spare = [peers.slack(g.line) for g in gpus]

    def one_clock(mhz: int, of: list[policies.Windows], stretch: list[float]) -> Make:
        def make(index: int, m: PowerModel) -> replays.Replay:
            mine = mhz if stretch[index] == 1 else policies.stretched(m, mhz, stretch[index], platform.clocks_mhz[0])
            return policies.held(gpus[index].line, m, platform, mine, m.late(mhz), of[index], span, edges)

        return make

    def at_clock(mhz: int) -> Make:
        return one_clock(mhz, none, spare)

    def both(mhz: int) -> Make:
        return one_clock(mhz, windows, spare)

    def as_it_is(mhz: int) -> Make:
        return one_clock(mhz, none, [1.0] * len(gpus))

    unsure = [[model(g.drawn, platform, share, late_mhz) for g in gpus] for share in MEMORY_SHARES]
    unsure.append([replace(m, peers_compute=False) for m in models])
    doubt_pct = seen.uncertainty_pct if seen.source == ESTIMATED else 0.0

    def forecast(policy: str, make: Make, *others: Make) -> Forecast:
        """`others`: what it may also come to."""
        sweep = [all_of(make, models), *(all_of(make, of) for of in unsure), *(all_of(o, models) for o in others)]
        terms = (platform.spread_pct, doubt_pct, found.budget_pct)
        each.append([forecast_of(policy, [before[i]], [s[i : i + 1] for s in sweep], *terms) for i in range(len(gpus))])
        return forecast_of(policy, before, sweep, *terms)

    each: list[list[Forecast]] = []
    base_ns = sum(float(b.length_ns.sum()) for b in before)

    def search(make_at: Callable[[int], Make]) -> int | None:
        """The lowest clock that takes no more than its part of the budget, as the runtime searches it."""
        low, high = platform.clocks_mhz[0] // CLOCK_STEP_MHZ, platform.clock_max_mhz // CLOCK_STEP_MHZ
        part = SEARCHED_SHARE * found.budget_pct / 100

        def slower(steps: int) -> float:
            outcomes = all_of(make_at(steps * CLOCK_STEP_MHZ), models)
            return sum(float(o.length_ns.sum()) for o in outcomes) / base_ns - 1

        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if slower(middle) > part else (low, middle)
        # Between two clocks it takes the one that is nearer to its part, but none that costs more than the budget.
        if high > platform.clocks_mhz[0] // CLOCK_STEP_MHZ:
            next_lower = slower(high - 1)
            if slower(high) + next_lower < 2 * part and next_lower * 100 <= found.budget_pct:
                high -= 1
        return high * CLOCK_STEP_MHZ if high < platform.clock_max_mhz // CLOCK_STEP_MHZ else None

    lowest = search(as_it_is)
    # Where power limits govern, what clock a job makes the same progress at is known no better than that.
    about = [] if lowest is None else [round(lowest * (1 + off)) for off in (-CLOCK_DOUBT, CLOCK_DOUBT)]
    by_call, by_phase = forecast("percall", percall), forecast("phase", phase)
    by_job = forecast("job", at_clock(lowest), *map(at_clock, about)) if lowest else forecast("job", as_it_was)
    windowed = any((w.mhz > 0).any() for w in windows)
    if lowest and windowed:
        automatic = forecast("auto", both(lowest), *map(both, about))
        automatic.chosen = "phase and job"
    elif lowest:
        automatic = forecast("auto", at_clock(lowest), *map(at_clock, about))
        automatic.chosen = "job"
    else:
        automatic = forecast("auto", phase if windowed else as_it_was)
        automatic.chosen = "phase" if windowed else "neither"
    by_job.clock_mhz = automatic.clock_mhz = lowest
    found.policies = [by_call, by_phase, by_job, automatic]
    _remark(found, gpus, windows, platform)
    found.gpus = [
        GpuForecast(
            gpu=gpu.line.gpu,
            rank=gpu.line.rank,
            host=gpu.line.host,
            joules=gpu.curve.within(np.array([span], dtype=np.int64)),
            exposed_pct=_share([iv.clip(gpu.line.exposed, *span)], span),
            compute_clock_mhz=gpu.drawn.compute_mhz,
            policies=[of_policy[index] for of_policy in each],
        )
        for index, gpu in enumerate(gpus)
    ]


def _remark(found: WhatIf, gpus: list[_Gpu], windows: list[policies.Windows], platform: ClockPlatform) -> None:
    """Why a policy would do nothing, or give way."""
    by_call, by_phase, by_job, _ = found.policies
    live = [call for gpu in gpus for call in gpu.line.calls]
    managed = sum(platform.percall_mhz(pattern, size) > 0 for _, pattern, size, _ in live)
    if not live:
        by_call.remarks.append("does nothing: all calls are in CUDA graphs, which it does not see run")
    elif not managed:
        by_call.remarks.append("does nothing: no call is above its overhead point")
    elif managed < len(live):
        by_call.remarks.append(f"{managed} of {len(live)} calls are above their overhead point")
    seen = {(id(gpu), operation.call_id) for gpu in gpus for operation in gpu.line.operations}
    unseen = sum(
        platform.percall_mhz(pattern, size) > 0 and (id(gpu), call_id) not in seen
        for gpu in gpus
        for _, pattern, size, call_id in gpu.line.calls
    )
    if unseen:
        by_call.remarks.append(f"{unseen} of the calls it would manage were not seen to run and are left out")
    count = sum(len(w.spans) for w in windows)
    short, used = sum(w.short for w in windows), sum(int((w.mhz > 0).sum()) for w in windows)
    needed_ms = platform.switch.window_us(max(1, len(gpus))) / 1e3
    if not count:
        by_phase.remarks.append("does nothing: no communication is exposed")
    elif not used and all(operation.called_ns < 0 for gpu in gpus for operation in gpu.line.operations):
        by_phase.remarks.append("does nothing: what runs in CUDA graphs is not seen as it runs")
    elif not used and not any(peers.usual(gpu.line) for gpu in gpus):
        by_phase.remarks.append("does nothing: no iteration was found that repeats itself")
    elif not used and short == count:
        by_phase.remarks.append(f"does nothing: no exposed window outlasts a switch ({needed_ms:.1f} ms)")
    elif not used:
        by_phase.remarks.append("does nothing: the profile has no lower clock for what is exposed")
    elif used < count:
        by_phase.remarks.append(f"{used} of {count} exposed windows outlast a switch ({needed_ms:.1f} ms)")
    if by_job.clock_mhz is None:
        by_job.remarks.append(f"does nothing: every lower clock costs more than {found.budget_pct:g} % of time")
    for forecast in (by_call, by_phase):
        if not forecast.within_budget:
            gives_way = " and would give way" if forecast.policy == "phase" else ", which it does not keep"
            forecast.remarks.append(f"exceeds the budget of {found.budget_pct:g} %{gives_way}")


def _say(found: WhatIf, gpus: list[_Gpu], lines: list[GpuTimeline], platform: ClockPlatform, seen: Exposure) -> None:
    """What was taken for granted, and what was not seen."""
    low, high = MEMORY_SHARES
    found.assumptions += [
        f"{MEMORY_BOUND_SHARE * 100:g} % of computation's time does not follow the clock"
        f" ({low * 100:g} to {high * 100:g} % in the intervals)",
        "late peers are late because they compute (in the intervals also: for other reasons)",
    ]
    if any(forecast.clock_mhz for forecast in found.policies):
        found.assumptions.append(f"one clock is found as exactly as {CLOCK_DOUBT * 100:g} % (in the intervals)")
    if seen.source == ESTIMATED or seen.told_pct < 100:
        found.assumptions.append(f"exposed communication: {seen.why}")
    if all(gpu.drawn.idle_w is None for gpu in gpus):
        found.assumptions.append("no idle GPU was sampled: half of communication's constant power taken for the floor")
    switch = platform.switch
    if not switch.transition_known:
        found.assumptions.append(
            f"a clock follows {switch.transition_us / 1e3:g} ms after the call (not in the profile)"
        )
    limited = any(gpu.drawn.limited for gpu in gpus)
    if limited and platform.behind_watts is None:
        found.assumptions.append("computation held by a power limit is taken to be no other behind a low clock")
    elif limited:
        found.assumptions.append(
            f"computation behind a low clock draws {platform.behind_watts:g} W, as its limit allows"
        )
    if not platform.kelvin_per_watt:
        found.assumptions.append(
            "that a GPU which draws less is cooler and leaks less is not counted (not in the profile)"
        )
    if not found.notes and not any(peers.usual(gpu.line) for gpu in gpus):
        found.notes.append(
            "no iteration was found that repeats itself: phase, job and auto learn nothing of such a job"
        )
    if len(gpus) < len(lines):
        found.notes.append(f"power is known of {len(gpus)} of {len(lines)} GPUs; the others are left out")
    if found.calls and found.operations < 0.95 * found.calls:
        found.notes.append(
            f"{found.operations} of {found.calls} calls were timed or waited for; the rest counts as hidden"
            " (POWERCCL_KERNEL_EVENTS=all times every call)"
        )
