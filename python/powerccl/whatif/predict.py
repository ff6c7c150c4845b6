# SPDX-License-Identifier: Apache-2.0
"""What clock policies would save of a recorded run: the simulator replays the job, with and without each of them."""

from __future__ import annotations

import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from powerccl.analysis.energy import Times, energy_curves
from powerccl.analysis.programs.calls import NoProgramError
from powerccl.analysis.programs.recording import Recording
from powerccl.estimate import Estimate
from powerccl.launch.environment import LEAST_BUDGET_PCT
from powerccl.platforms.conf import changed, model_of, modelled
from powerccl.platforms.policy_table import policy_table
from powerccl.platforms.schema import PlatformProfile
from powerccl.quantities import exact, plural
from powerccl.reports.next_steps import MARGIN_POINTS
from powerccl.traces.folder import RunData
from powerccl.whatif import machines
from powerccl.whatif.forecasts import Case, Forecast, WhatIf
from powerccl.whatif.gpus import held_clocks, recorded_gpus
from powerccl.whatif.machines import LIKELY, MEMORY_SHARES, OTHERS, Unknown
from powerccl.whatif.model import MEASURED_S, WARM_UP_S, Model, fitted
from powerccl.whatif.scaling import scaled
from powerccl.whatif.simulator import Simulated, simulate

# Virtual seconds. A policy has found its clock after a minute in most jobs (docs/concepts/policies.md).
LEARNING_S, MANAGED_S = 60.0, 60.0
# Of the hosts' times, beside 1. Where `auto` comes to may depend on them, by some points of energy near its budget: the
# likely value is the median.
OTHER_SEEDS = (2, 3)
FAR_OFF_PCT = 15.0  # a replay that is farther from the recorded time is of another job
# Times what the model draws. Boards of one kind differ: computation by 15 %, memory and static power by 25 %, two of
# the same board by 6 %.
PLAUSIBLE = 1.4
MOST_S = 30.0  # of real time for all cases but the likely one: a prediction takes at most about twice as long
DOUBTFUL_PCT = 3.0  # one that is farther is worth a word
MOST_RANKS = 16  # of a simulated machine


@dataclass(frozen=True)
class Terms:
    """`overhead`: as for policy_table; the times replace the profile's, in microseconds."""

    budget_pct: float = 1.0
    overhead: str = "measured"
    call_us: float | None = None
    transition_us: float | None = None
    ranks: int = 0  # of the job; 0: as many as were recorded


def why_not(run: RunData) -> str:
    """Why what_if predicts nothing of a run; empty: it predicts something."""
    try:
        _check_size(run)
        Recording(run).programs(1.0)
    except NoProgramError as error:
        return str(error)
    return ""


def _check_size(run: RunData) -> None:
    if len(run.ranks) > MOST_RANKS:
        raise NoProgramError(f"it has {len(run.ranks)} ranks, and {MOST_RANKS} can be simulated")


def what_if(
    run: RunData, gpu: str, simulator: Path, platforms: Path, profile: PlatformProfile | None, terms: Terms
) -> WhatIf:
    """Predict. `gpu`: as NVML prints it; `platforms`: the folder of the emulator's platform files.

    Raises:
        NoProgramError: nothing can be simulated of the run; the text says why.
        SimulatorError: the simulator failed.
    """
    _check_size(run)
    base, known = modelled(gpu, platforms)
    if profile:
        base = machines.with_profile(base, profile)
    switching = {"set_clock_call_us": terms.call_us, "clock_transition_us": terms.transition_us}
    base = changed(base, {key: f"{value:g}" for key, value in switching.items() if value is not None})

    recording = Recording(run)
    span = recording.programs(1.0).edges_ns
    watts = _watts(run, span)
    gpus = recorded_gpus(run, int(span[0, 0]), int(span[-1, 1]))
    base = machines.with_limit(base, gpus, known)
    held = bool(held_clocks(gpus))

    def plainly(conf: str, texts: list[str]) -> Simulated:
        return simulate(simulator, conf, texts, "observe", MEASURED_S, WARM_UP_S, sampled=held)

    # Where GPUs that differ are held at their clocks, kernels wait in each iteration. Elsewhere most waits are chance,
    # such as a busy host's, and the replay has none.
    programs = partial(recording.programs, waiting=held)
    jobs = _plausible([fitted(base, programs, watts, gpus, share, plainly) for share in MEMORY_SHARES])
    job, *_ = jobs
    as_recorded = job.plain
    off_pct = 100 * (job.plain.iteration_ms * 1e3 / job.run.time_us - 1)
    if abs(off_pct) > FAR_OFF_PCT:
        raise NoProgramError("the replay does not take as long as the recorded iterations did")
    if terms.ranks:
        confs = [machines.of_run(each.conf, scaled(each.run, terms.ranks)) for each in jobs]
        jobs = [
            replace(each, conf=conf, plain=plainly(conf, each.scenarios))
            for each, conf in zip(jobs, confs, strict=True)
        ]
        job, *_ = jobs
    table = policy_table(profile, terms.overhead) if profile and profile.clocks_set else ""
    prediction = WhatIf(
        emulated=run.modelled_by,
        folder=str(run.folder),
        name=run.info.name if run.info else run.folder.name,
        gpu=gpu,
        model=model_of(gpu),
        platform=profile.name if profile else "",
        ranks=len(run.ranks),
        budget_pct=terms.budget_pct,
        recorded_ms=job.run.time_us / 1e3,
        recorded_watts=watts / len(run.ranks) if watts else None,
        simulated_ms=as_recorded.iteration_ms,
        simulated_watts=as_recorded.watts / len(run.ranks),
        more_ranks=terms.ranks,
        more_ms=job.plain.iteration_ms if terms.ranks else None,
        exposed_pct=100 * job.plain.exposed_ms / job.plain.iteration_ms,
        iterations=len(job.run.edges_ns),
        notes=_notes(gpu, known, watts, off_pct, job.run.marked),
    )
    # A profile tells the clocks that collectives need.
    others = [each for each in OTHERS if each.knee == 1.0 or not table]
    if terms.ranks:
        ranks = plural(terms.ranks, "rank")
        prediction.notes.append(f"extrapolated to {ranks}: links are taken to be as fast as recorded")
    cases = [(LIKELY, each) for each in jobs] + [(each, job) for each in others]
    _predict(prediction, cases, simulator, table, terms)
    return prediction


def _plausible(jobs: list[Model]) -> list[Model]:
    """Those whose GPUs draw about what the model says, the likely one first; at least one."""
    by_likelihood = sorted(jobs, key=lambda each: abs(math.log(each.watts_times)))
    return [each for each in by_likelihood if 1 / PLAUSIBLE < each.watts_times < PLAUSIBLE] or by_likelihood[:1]


def _predict(prediction: WhatIf, cases: list[tuple[Unknown, Model]], simulator: Path, table: str, terms: Terms) -> None:
    """The likely case is the first."""
    policies = [*(["per-call"] if table else []), "auto"]
    # Where computation is uneven, only the same iterations can be compared.
    even = not any(program.uneven for program in cases[0][1].run.programs)

    def one(each: tuple[tuple[Unknown, Model], str], seed: int = 1) -> Simulated:
        (what, job), policy = each
        learns = policy == "auto" or not even
        conf, warm_up_s = machines.with_unknown(job.conf, what), LEARNING_S if learns else WARM_UP_S
        options = ["--max-slowdown", f"{terms.budget_pct:g}", "--seed", f"{seed}"]
        seconds = MANAGED_S if learns else 2 * MEASURED_S
        return simulate(simulator, conf, job.scenarios, policy, seconds, warm_up_s, options, table)

    def all_of(cases: list[tuple[Unknown, Model]]) -> list[dict[str, Simulated]]:
        names = ("observe", *policies)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            runs = list(pool.map(one, [(case, policy) for case in cases for policy in names]))
        return [dict(zip(names, runs[at:], strict=False)) for at in range(0, len(runs), len(names))]

    began = time.monotonic()
    came = all_of(cases[:1])
    enough = 1 + int(MOST_S / max(time.monotonic() - began, 1e-3))
    plain = came[0]["observe"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        autos = [came[0]["auto"], *pool.map(lambda seed: one((cases[0], "auto"), seed), OTHER_SEEDS)]
    came[0]["auto"] = sorted(autos, key=lambda each: _compared(each, plain, even))[len(autos) // 2]
    if enough < len(cases):
        prediction.notes.append(f"the job is large: {enough} of {plural(len(cases), 'case')} were simulated")
    cases = cases[:enough]
    came += all_of(cases[1:])
    for policy in policies:
        likely, plain = came[0][policy], came[0]["observe"]
        both = [_compared(each[policy], each["observe"], even) for each in came]
        saved, slower = [of for of, _ in both], [of for _, of in both]
        margin = MARGIN_POINTS if policy == "auto" else 0.0
        prediction.policies.append(
            Forecast(
                policy=policy,
                saved_pct=Estimate(saved[0], min(saved) - margin, max(saved) + margin),
                slowdown_pct=Estimate(slower[0], min(slower), max(slower)),
                saved_watts=(plain.watts - likely.watts) / prediction.ranks,
                switches_per_s=likely.switches_per_s,
                within_budget=slower[0] <= max(terms.budget_pct, LEAST_BUDGET_PCT),
            )
        )
        if policy == "auto":
            prediction.cases = [
                Case(what=_words(*case), saved_pct=saved, slowdown_pct=slower)
                for case, (saved, slower) in zip(cases[1:], both[1:], strict=True)
            ]


def _compared(managed: Simulated, plain: Simulated, even: bool) -> tuple[float, float]:
    """Energy saved and time added, percent."""
    if not even:
        saved, slower = managed.against(plain)
    else:
        slower = 100 * (managed.iteration_ms / plain.iteration_ms - 1)
        saved = 100 * (1 - managed.watts * managed.iteration_ms / (plain.watts * plain.iteration_ms))
    return round(saved, 3), round(slower, 3)


def _watts(run: RunData, edges_ns: Times) -> float | None:
    """What all GPUs of the run drew over its iterations; None: not known of each."""
    curves = energy_curves(run)
    span = np.array([[edges_ns[0, 0], edges_ns[-1, 1]]])
    known = [curves[trace.gpu] for trace in run.ranks if trace.gpu in curves]
    if len(known) < len(run.ranks) or not all(curve.covers(span).all() for curve in known):
        return None
    return sum(curve.within(span) for curve in known) / float(np.diff(span)[0, 0]) * 1e9


def _words(what: Unknown, job: Model) -> str:
    if what == LIKELY:
        follows = exact(round(100 * (1 - job.memory_share)), "%")
        return f"{follows} of the time of computation follows the clock"
    if what.knee != 1.0:
        return f"collectives keep their bandwidth down to a clock {exact(abs(100 * (what.knee - 1)), '%')} " + (
            "lower" if what.knee < 1 else "higher"
        )
    return f"the voltage falls to {exact(100 * (what.level or 0), '%')} of its highest"


def _notes(gpu: str, known: bool, watts: float | None, off_pct: float, marked: bool) -> list[str]:
    notes = []
    if not marked:
        notes.append("no marks tell where computation waited: all communication was taken to be exposed")
    if not known:
        notes.append(f"there is no model of {gpu or 'this GPU'}: it was simulated as {model_of(gpu)}")
    if watts is None:
        notes.append("power was not sampled throughout: the model's own was taken")
    if abs(off_pct) > DOUBTFUL_PCT:
        notes.append(f"replayed as it was, the job takes {exact(round(off_pct, 1), '%')} more time than recorded")
    return notes
