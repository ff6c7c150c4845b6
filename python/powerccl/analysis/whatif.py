# SPDX-License-Identifier: Apache-2.0
"""What each clock policy would have saved of a recorded run, and what it would have cost.

Energies are those of a model fitted to the run (whatif_power), with and without the policy, so that its faults largely
cancel; the run itself is measured. Intervals hold the spread over stretches of the run, the profile's, that of the
exposed time where it is estimated, and how far computation's share that does not follow the clock may be off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis import whatif_policies as policies
from powerccl.analysis import whatif_replay as replays
from powerccl.analysis.energy import EnergyCurve, energy_curve
from powerccl.analysis.exposure import ESTIMATED, Exposure, aligned, exposure
from powerccl.analysis.whatif_findings import Forecast, GpuForecast, Range, WhatIf
from powerccl.analysis.whatif_platform import ClockPlatform
from powerccl.analysis.whatif_power import MEMORY_BOUND_SHARE, Drawn, PowerModel, fit, model
from powerccl.analysis.whatif_timeline import GpuTimeline, timelines, window
from powerccl.traces import tables
from powerccl.traces.folder import RunData

MEMORY_SHARES = (0.05, 0.30)  # what computation's share that does not follow the clock may be
BLOCKS = 20
RESAMPLES = 400
MOST_OPERATIONS = 5_000  # of a GPU's: longer runs are replayed in a stretch from their middle

Values = npt.NDArray[np.float64]


@dataclass
class _Gpu:
    line: GpuTimeline
    curve: EnergyCurve
    drawn: Drawn


@dataclass
class _Outcome:
    """Of one GPU under one policy: joules and ns of each block, share of time at a low clock, driver calls."""

    joules: Values
    length_ns: Values
    low: float
    switches: int


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
    _predict(found, gpus, platform, seen, span)
    _say(found, gpus, lines, platform, seen)
    return found


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
    # GPUs of one model idle alike, and few were sampled while they did.
    idle_w = float(np.median(idle)) if idle else platform.idle_watts
    for gpu in fitted:
        gpu.drawn = replace(gpu.drawn, idle_w=idle_w)
    return fitted


def _share(sets: list[iv.Intervals], span: tuple[int, int]) -> float:
    return float(np.mean([iv.length_ns(intervals) for intervals in sets])) / (span[1] - span[0]) * 100


def _predict(found: WhatIf, gpus: list[_Gpu], platform: ClockPlatform, seen: Exposure, span: tuple[int, int]) -> None:
    edges = np.linspace(span[0], span[1], BLOCKS + 1).astype(np.int64).tolist()
    hosts = {gpu.line.host: 0 for gpu in gpus}
    for gpu in gpus:
        hosts[gpu.line.host] += 1
    models = [model(gpu.drawn, platform) for gpu in gpus]
    windows = [policies.windows(g.line, platform, hosts[g.line.host], span) for g in gpus]
    before = [_outcome(policies.observed(g.line, span, edges), m, platform) for g, m in zip(gpus, models, strict=True)]
    before_w = [float(b.joules.sum()) / float(b.length_ns.sum()) * 1e9 for b in before]

    def all_of(make: Callable[[int, PowerModel], replays.Replay], of: list[PowerModel]) -> list[_Outcome]:
        return [_outcome(make(i, of[i]), of[i], platform, before_w[i]) for i in range(len(gpus))]

    def percall(index: int, m: PowerModel) -> replays.Replay:
        return replays.percall(gpus[index].line, m, platform, span, edges)

    def as_it_was(index: int, _: PowerModel) -> replays.Replay:
        return policies.observed(gpus[index].line, span, edges)

    def phase(index: int, m: PowerModel) -> replays.Replay:
        return policies.phase(gpus[index].line, m, windows[index], span, edges)

    def at_clock(mhz: int) -> Callable[[int, PowerModel], replays.Replay]:
        return lambda index, m: policies.job(gpus[index].line, m, platform, mhz, span, edges)

    def both(mhz: int) -> Callable[[int, PowerModel], replays.Replay]:
        return lambda index, m: policies.capped_phase(gpus[index].line, m, windows[index], mhz, span, edges)

    unsure = [[model(g.drawn, platform, share) for g in gpus] for share in MEMORY_SHARES]
    unsure.append([replace(m, peers_compute=False) for m in models])
    doubt_pct = seen.uncertainty_pct if seen.source == ESTIMATED else 0.0

    def forecast(policy: str, make: Callable[[int, PowerModel], replays.Replay]) -> Forecast:
        sweep = [all_of(make, models), *(all_of(make, other) for other in unsure)]
        made = _forecast(policy, before, sweep, platform.spread_pct, doubt_pct, found.budget_pct)
        each.append([_forecast(policy, [before[i]], [s[i : i + 1] for s in sweep], platform.spread_pct, doubt_pct,
                               found.budget_pct) for i in range(len(gpus))])  # fmt: skip
        return made

    each: list[list[Forecast]] = []
    base_ns = sum(float(b.length_ns.sum()) for b in before)

    def search(make_at: Callable[[int], Callable[[int, PowerModel], replays.Replay]]) -> int | None:
        """The clock that saves most within the budget, from the highest down until none is within it."""
        best, best_j = None, sum(float(b.joules.sum()) for b in before)
        for mhz in sorted((c for c in platform.clocks_mhz if c < platform.clock_max_mhz), reverse=True):
            outcome = all_of(make_at(mhz), models)
            slow = sum(float(o.length_ns.sum()) for o in outcome) / base_ns - 1
            joules = sum(float(o.joules.sum()) for o in outcome)
            if slow * 100 > found.budget_pct:
                break
            if joules < best_j:
                best, best_j = mhz, joules
        return best

    by_call = forecast("percall", percall)
    by_phase = forecast("phase", phase)
    lowest = search(at_clock)
    by_job = forecast("job", at_clock(lowest) if lowest else as_it_was)
    by_job.clock_mhz = lowest
    cap = search(both)
    candidates: list[tuple[str, int | None, Callable[[int, PowerModel], replays.Replay], Forecast]] = []
    candidates += [("phase", None, phase, by_phase)] if by_phase.within_budget else []
    candidates += [("job", lowest, at_clock(lowest), by_job)] if lowest else []
    if cap is not None and any((w.mhz > 0).any() for w in windows):
        mark = len(each)
        together = forecast("auto", both(cap))
        del each[mark:]
        candidates.append(("phase and job", cap, both(cap), together))
    chosen = max(candidates, key=lambda c: c[3].saved_pct.value, default=None)
    if chosen and chosen[3].saved_pct.value > 0:
        automatic = forecast("auto", chosen[2])
        automatic.chosen, automatic.clock_mhz = chosen[0], chosen[1]
    else:
        automatic = forecast("auto", as_it_was)
        automatic.chosen = "neither"
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


def _outcome(
    replay: replays.Replay, of: PowerModel, platform: ClockPlatform, before_w: float | None = None
) -> _Outcome:
    joules, low = replays.energy(replay, of, platform, before_w)
    return _Outcome(joules, np.diff(replay.edges_ns), low, replay.switches)


def _forecast(
    policy: str,
    before: list[_Outcome],
    sweep: list[list[_Outcome]],
    spread_pct: float,
    doubt_pct: float,
    budget_pct: float,
) -> Forecast:
    """`sweep[0]` is the prediction, the others what it would be under other assumptions."""
    saved = _figure([o.joules for o in before], [[o.joules for o in s] for s in sweep], -1.0)
    slower = _figure([o.length_ns for o in before], [[o.length_ns for o in s] for s in sweep], 1.0)
    # Half of what a GPU draws while it communicates is not what the policy changes, so this is an upper bound.
    saved = _widened(saved, np.hypot(spread_pct, abs(saved.value) * doubt_pct / 100))
    after = sweep[0]
    after_s = sum(float(o.length_ns.sum()) for o in after) / 1e9
    before_s = sum(float(o.length_ns.sum()) for o in before) / 1e9
    watts = sum(float(o.joules.sum()) for o in before) / before_s - sum(float(o.joules.sum()) for o in after) / after_s
    return Forecast(
        policy=policy,
        saved_pct=saved,
        slowdown_pct=slower,
        saved_watts=round(watts, 3),
        low_clock_pct=round(float(np.mean([o.low for o in after])) * 100, 2),
        switches_per_s=round(sum(o.switches for o in after) / after_s, 3),
        within_budget=slower.value <= budget_pct,
    )


def _figure(before: list[Values], sweep: list[list[Values]], sign: float) -> Range:
    """The change in percent, times `sign`: blocks resampled, and the other assumptions' distance, in quadrature."""
    old = np.sum(before, axis=0)
    values = [sign * (float(np.sum(of)) / float(old.sum()) - 1) * 100 for of in sweep]
    new = np.sum(sweep[0], axis=0)
    random = np.random.default_rng(0)
    picks = random.integers(0, len(old), (RESAMPLES, len(old)))
    drawn = sign * (new[picks].sum(axis=1) / old[picks].sum(axis=1) - 1) * 100
    low, high = np.percentile(drawn, [2.5, 97.5])
    below = np.hypot(values[0] - low, max(0.0, values[0] - min(values)))
    above = np.hypot(high - values[0], max(0.0, max(values) - values[0]))
    return Range(round(values[0], 3), round(float(values[0] - below), 3), round(float(values[0] + above), 3))


def _widened(figure: Range, by: float) -> Range:
    below, above = np.hypot(figure.value - figure.low, by), np.hypot(figure.high - figure.value, by)
    return Range(figure.value, round(float(figure.value - below), 3), round(float(figure.value + above), 3))


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
    if seen.source == ESTIMATED:
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
    if len(gpus) < len(lines):
        found.notes.append(f"power is known of {len(gpus)} of {len(lines)} GPUs; the others are left out")
    if found.calls and found.operations < 0.95 * found.calls:
        found.notes.append(
            f"{found.operations} of {found.calls} calls were timed or waited for; the rest counts as hidden"
            " (POWERCCL_KERNEL_EVENTS=all times every call)"
        )
