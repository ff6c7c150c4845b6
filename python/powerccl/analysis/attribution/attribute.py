# SPDX-License-Identifier: Apache-2.0
"""From a run to the energy of each kind of communication."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl
from threadpoolctl import threadpool_limits

from powerccl.analysis import intervals as iv
from powerccl.analysis.attribution.clocks import Seen, clock_levels
from powerccl.analysis.attribution.dating import LATER_TRIES, Dated, at, date, has_enough, lateness
from powerccl.analysis.attribution.extrapolate import extrapolate
from powerccl.analysis.attribution.kind_energy import EnergyFindings, KindEnergy
from powerccl.analysis.attribution.observations import Observations, observations
from powerccl.analysis.attribution.outside import Outside, outside
from powerccl.analysis.attribution.parts import Parts, late, parts
from powerccl.analysis.attribution.phases import ALONE, BESIDE, Kind, Phase, Timeline, timeline
from powerccl.analysis.attribution.regression import LAGS, Array, Fit, best_ratios, block_variance, fit
from powerccl.analysis.energy import gpu_samples
from powerccl.analysis.report_findings import Reference
from powerccl.analysis.whole_run import WholeRun, spans_of, whole_run
from powerccl.quantities import byte_size, mhz, microseconds, percent, plural, seconds
from powerccl.traces import tables
from powerccl.traces.folder import RunData
from powerccl.traces.power import MOST_REASONS, GpuLog, floats

MIN_STEPS = 20
# Samples of all GPUs: 11 minutes of eight GPUs at 20 ms. Each takes some 2 KiB, values for each part of a phase; half
# as many more take a report of a day over 1 GiB.
MOST_ROWS = 1 << 18
# GPUs whose samples are fitted, evenly spread over a larger job's: half a minute of one core. Half of them would make
# the mean of boards that differ by 6 % uncertain by 1.1 % instead of 0.8 %. Double takes a minute.
MOST_GPUS = 32
AROUND_NS = 2_000_000_000  # of a window: readings that tell when its own were made
BLOCK_NS, FEWEST_BLOCKS, MOST_BLOCKS = 1_500_000_000, 8, 60
UNSURE = 0.25  # of a figure: a wider interval to either side tells nothing
SAME_CLOCK = 0.1
POWER_LIMITED = 0x4  # nvmlClocksEventReasonSwPowerCap
LIMITED = 0.05  # of the samples
# A power limit ties the power of computation to how long everything takes. What is left of that in the residuals is not
# random. On emulated T4s intervals had to be so much wider to hold the truth (evidence/results/analysis-emulated.json).
SWINGING = 6.0
SWINGS = "a power limit changed the clock of computation: the intervals are wider for that reason"
MIXED = -0.5  # correlation of two energies' errors from which on they are mixed up


@dataclass(frozen=True)
class _Gpu:
    """One GPU's part of the regression."""

    gpu: str
    line: Timeline
    own: Parts
    quiet: Array
    dated: Dated
    observed: Observations
    limited: float  # share of the samples at which a power limit held the clock down


@dataclass(frozen=True)
class _Sum:
    """Joules of something over all GPUs, and half of their interval of 95 %; `seconds` over all GPUs."""

    joules: float
    half: float
    seconds: float


@dataclass(frozen=True)
class _Fitted:
    """All GPUs' fits, and sums over them."""

    gpus: list[_Gpu]
    fits: list[Fit]
    widen: float  # of what the residuals say
    plain: list[Fit]  # blind to what makes power and time of computation depend on each other
    blocks_ns: npt.NDArray[np.int64]

    @property
    def student(self) -> float:
        """How many standard errors make an interval of 95 %, with so many blocks."""
        return 1.96 + 2.4 / max(len(self.blocks_ns), 1)

    def share(self, weight: Callable[[Phase], float]) -> list[Array]:
        """Seconds of each column of each GPU, phases counted by weight."""
        shares = []
        for gpu in self.gpus:
            weights = np.array([weight(phase) for phase in gpu.line.phases])
            own = gpu.own.seconds(weights > 0) * weights[gpu.own.columns()]
            shares.append(np.pad(own, (0, LAGS)))
        return shares

    def total(self, seconds: list[Array]) -> _Sum:
        """Of so many seconds of each column."""
        pairs = list(zip(self.fits, seconds, strict=True))
        joules = sum(float(each @ one.watts) for one, each in pairs)
        variance = self.widen**2 * block_variance(self.fits, seconds, self.blocks_ns)
        variance += sum(one.pull_variance(each) for one, each in pairs)
        for gpu, (one, each) in zip(self.gpus, pairs, strict=True):
            moved = one.weights(each) @ (gpu.dated.slope[one.used] @ one.watts[:-LAGS])
            variance += float(moved * gpu.dated.sd_ns) ** 2
        length = sum(float(each[: one.steps.parts].sum()) for one, each in pairs)
        blind = sum(float(each[: one.steps.parts] @ one.watts) for one, each in zip(self.plain, seconds, strict=True))
        # What could be seen to depend on computation's power moved the sum by so much; what could not may do as much.
        half = float(np.hypot(self.student * np.sqrt(max(variance, 0.0)), joules - blind))
        return _Sum(joules, half, length)

    def watts(self, summed: _Sum) -> tuple[float, float, float] | tuple[None, None, None]:
        """Mean power and its interval, unless that is so wide that nothing is known."""
        if summed.seconds <= 0 or not _sure(summed):
            return None, None, None
        value, half = summed.joules / summed.seconds, summed.half / summed.seconds
        return value, value - half, value + half

    def correlation(self, one: list[Array], other: list[Array]) -> float:
        """Of the errors of two sums."""
        cross = left = right = 0.0
        for each, a, b in zip(self.fits, one, other, strict=True):
            cross += float(a @ each.inverse @ b)
            left += float(a @ each.inverse @ a)
            right += float(b @ each.inverse @ b)
        return cross / float(np.sqrt(max(left * right, 1e-30)))


def attribute(
    run: RunData,
    window: tuple[int, int] | None = None,
    reference: Reference | None = None,
    built: WholeRun | None = None,
) -> EnergyFindings:
    """Energy of each kind of communication; `window` (host ns, from and to) takes a part of the run.

    `reference`: what the platform's profile says each kind draws alone, at the highest clock. `built`: the same run,
    where that was gathered already; if it has more than the window, sums are extrapolated to what it has.
    """
    # Matrices are small: more threads gain nothing, and on a busy node they wait for each other, spinning.
    with threadpool_limits(limits=1, user_api="blas"):
        return _attribute(run, window, reference, built)


def _attribute(
    run: RunData, window: tuple[int, int] | None, reference: Reference | None, built: WholeRun | None
) -> EnergyFindings:
    built = built or whole_run(run, window)
    tables_of = built.part if window == built.window else built.part.within(window or (0, 1 << 62))
    kernels = tables_of.kernels
    if not len(kernels):
        return EnergyFindings(reason="no kernel of communication was timed" + " in the window" * (window is not None))
    names = sorted(built.communicating)
    if len(names) > MOST_GPUS:
        names = [names[at] for at in np.linspace(0, len(names) - 1, MOST_GPUS).round().astype(int).tolist()]
        kernels = kernels.filter(pl.col("gpu").cast(pl.String).is_in(names))
    whole = window
    window = _part(run, kernels, window, len(names) / len(built.communicating))
    if window and window != whole:
        inside = tables_of.within(window).kernels
        kernels = inside.filter(pl.col("gpu").cast(pl.String).is_in(names))
    exposed = built.marks.exposed if built.marks else {}
    sampled: list[_Sampled] = []
    missing: list[str] = []
    for (name,), rows in kernels.group_by(["gpu"], maintain_order=True):
        one = _sampled(run, str(name), rows, exposed.get(str(name)), window)
        if isinstance(one, str):
            missing.append(one)
        else:
            sampled.append(one)
    gpus = _later(_dated(sampled, None if _managed(run) else reference))
    known = {gpu.gpu for gpu in gpus}
    missing += [_too_seldom(one) for one in sampled if one.gpu not in known]
    steps = sum(len(gpu.dated.steps.joules) for gpu in gpus)
    if not gpus:
        return EnergyFindings(reason="; ".join(dict.fromkeys(missing)))
    if steps < MIN_STEPS * len(gpus):
        few = f"{plural(steps, 'energy step')} over {plural(len(gpus), 'GPU')} are too few to separate the kinds"
        return EnergyFindings(reason=few, steps=steps)
    fitted = _fit(gpus)
    of_part = run.in_part or whole != built.window or len(names) < len(built.communicating)
    beyond = outside(
        run,
        [gpu.gpu for gpu in gpus],
        built.spans if of_part else spans_of(kernels),
        built.window if of_part else window,
    )
    energy = _findings(fitted, kernels, beyond)
    _describe_clocks(energy, run, kernels)
    if of_part:
        extrapolate(energy, kernels, built, len(gpus), whole, beyond.joules - (beyond.idle_joules or 0.0))
    if missing:
        why = "; ".join(dict.fromkeys(missing))
        energy.reason = f"known for {len(gpus)} of {plural(len(gpus) + len(missing), 'GPU')}; for the others: {why}"
        _without_sums(energy)
    elif beyond.missing_s > 0:
        energy.reason = (
            f"samples are missing for {seconds(beyond.missing_s)} over all GPUs: the totals of energy are not known"
        )
        _without_sums(energy)
    elif window != whole and window and not of_part:
        part = seconds((window[1] - window[0]) / 1e9)
        energy.reason = f"measured over {part} in the middle of the run: the totals of energy are not known"
        _without_sums(energy)
    return energy


def _part(
    run: RunData, kernels: pl.DataFrame, window: tuple[int, int] | None, share: float = 1.0
) -> tuple[int, int] | None:
    """The window, or the middle of it, if the regression cannot take so many samples; `share`: of the GPUs."""
    first, last = int(kernels["start_ns"].to_numpy().min()), int(kernels["stop_ns"].to_numpy().max())
    if window:
        first, last = max(first, window[0]), min(last, window[1])
    inside = pl.col("time_ns").is_between(first, last)
    rows = sum(int(log.samples.select(inside.sum()).item()) for log in run.power)
    if rows * share <= MOST_ROWS:
        return window
    middle, half = (first + last) // 2, int((last - first) * (MOST_ROWS / (rows * share)) / 2)
    return middle - half, middle + half


def _without_sums(energy: EnergyFindings) -> None:
    """What an operation takes is known from what was sampled; what all of them took is not."""
    for kind in energy.kinds:
        kind.joules = None
    energy.joules_total = energy.joules_communication = energy.joules_computation = None
    energy.joules_communication_low = energy.joules_communication_high = None
    energy.joules_idle = energy.joules_unexplained = None


@dataclass(frozen=True)
class _Sampled:
    """One GPU's timeline, what it was made of, and what was sampled."""

    gpu: str
    kernels: pl.DataFrame
    observed: Observations
    seen: Seen
    limited: float


def _sampled(
    run: RunData, name: str, kernels: pl.DataFrame, exposed: iv.Intervals | None, window: tuple[int, int] | None
) -> _Sampled | str:
    """Or why there is nothing to go by."""
    found_log = gpu_samples(run, name)
    if found_log is None:
        return "no energy or power was sampled"
    log, rows = found_log
    if window:
        rows = rows.filter(pl.col("time_ns").is_between(window[0] - AROUND_NS, window[1] + AROUND_NS))
    time = rows["time_ns"].to_numpy()
    power = floats(rows, "power_mw")
    energy = rows["energy_uj"].to_numpy()
    first, last = int(kernels["start_ns"].to_numpy().min()), int(kernels["stop_ns"].to_numpy().max())
    if not len(time) or time[-1] < first or time[0] > last:
        return "nothing was sampled while the GPU communicated"
    if not np.isfinite(power).any() and not (energy >= 0).any():
        return "the samples hold neither power nor energy"
    known = log.of(rows)
    observed = observations(time, power, energy, known.gaps, known.breaks)
    line = timeline(kernels, exposed)
    whole, line = line, line.within(*window) if line is not None and window else line
    if whole is not None and line is not None and observed is not None and has_enough(observed, line):
        whole = late(whole, kernels)
        line = whole.within(*window) if window else whole
    if line is None:
        return "communication took no measurable time" + " in the window" * (window is not None)
    if observed is None:
        return f"{plural(len(time), 'sample')} with fewer than three changes of power or energy"
    clock = floats(rows, "sm_clock_mhz")
    return _Sampled(name, kernels, observed, Seen(line, time, clock), _limited(rows, line, known))


def _too_seldom(one: _Sampled) -> str:
    """Why changing readings are not enough: none, or too few, of their steps are between the first kernel and last."""
    length_s = float(one.seen.line.lengths_s().sum())
    every = f"the sensor updates every {microseconds(one.observed.beat_ns / 1e3)}"
    return f"{every}: too seldom for the {seconds(length_s)} from first to last communication"


def _dated(sampled: list[_Sampled], reference: Reference | None) -> list[_Gpu]:
    """With phases in parts, and with the clock where a power limit moved it."""
    limited = bool(sampled) and float(np.mean([one.limited for one in sampled])) > LIMITED
    by_clock = clock_levels([one.seen for one in sampled]) if limited else None
    dated_gpus = []
    for n, one in enumerate(sampled):
        line = one.seen.line
        if not has_enough(one.observed, line):
            continue
        own = parts(line, one.kernels, by_clock[n] if by_clock else None, reference)
        quiet = np.array([phase.how == ALONE for phase in line.phases], dtype=np.float64)
        dated = date(one.observed, own, quiet)
        dated_gpus += [_Gpu(one.gpu, line, own, quiet, dated, one.observed, one.limited)] if dated else []
    return dated_gpus


def _limited(rows: pl.DataFrame, line: Timeline, known: GpuLog) -> float:
    """In which share of the samples a power limit held the clock down."""
    reasons = known.reasons
    if len(reasons) < MOST_REASONS and not any(_holds(text.strip().lower()) for text in reasons):
        return 0.0
    own = rows.filter(pl.col("time_ns").is_between(int(line.edges_ns[0]), int(line.edges_ns[-1])))
    # Few masks come again and again.
    counts = own.group_by(pl.col("throttle_reasons").fill_null("").str.strip_chars(), maintain_order=True).len().rows()
    masks = [(text.lower(), count) for text, count in counts if _hex(text)]
    held = sum(count for text, count in masks if _holds(text))
    return float(held / max(sum(count for _, count in masks), 1))


def _holds(text: str) -> bool:
    """Whether a mask has a power limit among its reasons."""
    return _hex(text) and text.startswith("0x") and bool(int(text, 16) & POWER_LIMITED)


def _hex(text: str) -> bool:
    digits = text.lower().removeprefix("0x")
    return bool(digits) and set(digits) <= set("0123456789abcdef")


def _later(gpus: list[_Gpu]) -> list[_Gpu]:
    """With sensors that are later than their reads tell."""
    late_ns = lateness([(gpu.observed, gpu.own, gpu.quiet, gpu.dated) for gpu in gpus]) if gpus else 0.0
    if not late_ns:
        return gpus
    later = []
    for gpu in gpus:
        one = gpu.dated
        again = at(
            gpu.observed, gpu.own, gpu.quiet, one.late_ns + late_ns, one.mean_ns, one.sd_ns + late_ns / LATER_TRIES
        )
        later.append(replace(gpu, dated=again or one))
    return later


def _fit(gpus: list[_Gpu]) -> _Fitted:
    limited = float(np.mean([gpu.limited for gpu in gpus]))
    widen = SWINGING if limited > LIMITED else 1.0
    ratios = best_ratios([gpu.dated.steps.plain() for gpu in gpus], widen)
    plain = [fit(gpu.dated.steps.plain(), ratios, widen) for gpu in gpus]
    lagged = []
    for gpu, one in zip(gpus, plain, strict=True):
        steps = gpu.dated.steps
        lagged.append(steps.lagged(steps.joules - steps.seconds[:, : steps.parts] @ one.watts))
    ratios = best_ratios(lagged, widen)
    fits = [fit(steps, ratios, widen) for steps in lagged]
    first = min(int(gpu.dated.steps.begin_ns[0]) for gpu in gpus)
    last = max(int(gpu.dated.steps.begin_ns[-1]) for gpu in gpus)
    count = int(np.clip((last - first) / BLOCK_NS, FEWEST_BLOCKS, MOST_BLOCKS))
    return _Fitted(gpus, fits, widen, plain, np.linspace(first, last, count + 1).astype(np.int64)[1:-1])


def _findings(fitted: _Fitted, kernels: pl.DataFrame, beyond: Outside) -> EnergyFindings:
    measured = sum(float(one.steps.joules.sum()) for one in fitted.fits)
    explained = sum(float((one.steps.seconds @ one.watts).sum()) for one in fitted.fits)
    rest = np.concatenate([one.residuals() for one in fitted.fits])
    mean = measured / max(len(rest), 1)
    phases = sorted({phase for gpu in fitted.gpus for phase in gpu.line.phases})
    communication = fitted.total(fitted.share(lambda phase: 1.0 if phase.kinds else 0.0))
    computation = fitted.total(fitted.share(lambda phase: 0.0 if phase.kinds else 1.0))
    watts, low, high = fitted.watts(computation)
    return EnergyFindings(
        kinds=_kinds(fitted, kernels, phases),
        idle_watts=beyond.idle_watts,
        idle_low=beyond.idle_low,
        idle_high=beyond.idle_high,
        computation_watts=watts,
        computation_low=low,
        computation_high=high,
        joules_total=communication.joules + computation.joules + measured - explained + beyond.joules,
        joules_communication=communication.joules,
        joules_communication_low=communication.joules - communication.half if _sure(communication) else None,
        joules_communication_high=communication.joules + communication.half if _sure(communication) else None,
        joules_computation=computation.joules,
        joules_idle=beyond.idle_joules,
        joules_unexplained=measured - explained + beyond.joules - (beyond.idle_joules or 0.0),
        residual_pct=100 * float(np.sqrt(np.mean(rest**2))) / mean if mean > 0 else None,
        steps=sum(len(one.steps.joules) for one in fitted.fits),
        misread=sum(int((~one.used).sum()) for one in fitted.fits),
        update_ms=float(np.mean([gpu.observed.beat_ns for gpu in fitted.gpus])) / 1e6,
        caveat=SWINGS if fitted.widen > 1 else "",
        source="+".join(sorted({gpu.observed.source for gpu in fitted.gpus})),
    )


def _kinds(fitted: _Fitted, kernels: pl.DataFrame, phases: list[Phase]) -> list[KindEnergy]:
    """The longest first."""
    names = {gpu.gpu for gpu in fitted.gpus}
    rows = (
        kernels.filter(pl.col("gpu").cast(pl.String).is_in(list(names)))
        .group_by(pl.col("pattern").cast(pl.String), "size_class", maintain_order=True)
        .agg(
            operations=pl.len(),
            whole=(pl.col("inside_ns").clip(lower_bound=1) / pl.col("duration_ns").clip(lower_bound=1)).sum(),
            time_ns=pl.col("inside_ns").sum(),
        )
        .sort("time_ns", descending=True)
    )
    return [
        _kind(fitted, (str(pattern), int(size)), int(operations), float(whole), float(time_ns) / 1e9, phases)
        for pattern, size, operations, whole, time_ns in rows.iter_rows()
    ]


def _kind(
    fitted: _Fitted, kind: Kind, operations: int, whole_operations: float, time_s: float, phases: list[Phase]
) -> KindEnergy:
    """`whole_operations`: how many whole ones the time in the window makes."""

    def part(how: str | None) -> list[Array]:
        return fitted.share(
            lambda phase: 1 / len(phase.kinds) if kind in phase.kinds and how in (None, phase.how) else 0.0
        )

    kind_energy = KindEnergy(
        pattern=kind[0], size_class_bytes=kind[1], operations=operations, time_s=time_s / max(len(fitted.gpus), 1)
    )
    whole = part(None)
    total, alone, beside = fitted.total(whole), fitted.total(part(ALONE)), fitted.total(part(BESIDE))
    if total.seconds <= 0:
        seen = any(kind in phase.kinds for phase in phases)
        kind_energy.reason = "no energy step covers it" if seen else "too rare to separate from other kinds"
        return kind_energy
    if alone.seconds + beside.seconds > 0.5 * total.seconds:
        kind_energy.exposed_share = min(1.0, alone.seconds / (alone.seconds + beside.seconds))
        kind_energy.exposed_watts, kind_energy.exposed_low, kind_energy.exposed_high = fitted.watts(alone)
        kind_energy.beside_watts, kind_energy.beside_low, kind_energy.beside_high = fitted.watts(beside)
    if not _sure(total):
        kind_energy.reason = _why(fitted, kind, whole, total, phases)
        return kind_energy
    # Where it and others run together, each has a part of the time, and an operation all of its parts.
    kind_energy.resolved = True
    kind_energy.joules = total.joules
    kind_energy.watts = total.joules / total.seconds
    kind_energy.joules_per_operation = total.joules / whole_operations
    kind_energy.low = (total.joules - total.half) / whole_operations
    kind_energy.high = (total.joules + total.half) / whole_operations
    return kind_energy


def _sure(summed: _Sum) -> bool:
    return summed.joules > 0 and summed.half <= UNSURE * summed.joules


def _why(fitted: _Fitted, kind: Kind, own: list[Array], total: _Sum, phases: list[Phase]) -> str:
    """Why a kind's energy is not known, and what it may be mixed with."""
    worst, partner = MIXED, ""
    others = sorted({entry for phase in phases for entry in phase.kinds if entry != kind})
    for other in others:
        rest = fitted.share(lambda phase, other=other: 1.0 if other in phase.kinds else 0.0)  # type: ignore[misc]
        correlation = fitted.correlation(own, rest)
        if correlation < worst:
            worst, partner = correlation, f"{other[0].replace('_', '-')} of {byte_size(other[1])}"
    rest = fitted.share(lambda phase: 0.0 if phase.kinds else 1.0)
    if fitted.correlation(own, rest) < worst:
        partner = "computation without communication"
    wide = 100 * total.half / max(abs(total.joules), 1e-9)
    text = f"the uncertainty is ±{percent(wide)}" if wide < 1000 else "the samples do not determine it"
    return f"{text}: the data cannot separate it from {partner}, which is always close in time" if partner else text


def _managed(run: RunData) -> bool:
    """Whether clocks were set: communication then ran at others than the highest."""
    return len(tables.clocks(run).filter(~pl.col("dry") & (pl.col("result") == 0))) > 0


def _describe_clocks(energy: EnergyFindings, run: RunData, kernels: pl.DataFrame) -> None:
    """Say of which kinds the clock was not the same throughout: their figures are means over clocks."""
    if not _managed(run):
        return
    for kind in energy.kinds:
        rows = kernels.filter(
            (pl.col("pattern").cast(pl.String) == kind.pattern) & (pl.col("size_class") == kind.size_class_bytes)
        )
        seen: list[Array] = []
        for (gpu,), own in rows.group_by(["gpu"], maintain_order=True):
            sampled = gpu_samples(run, str(gpu))
            if sampled is None:
                continue
            table = sampled[1]
            inside = iv.contains(
                iv.union(own["start_ns"].to_numpy(), own["stop_ns"].to_numpy()), table["time_ns"].to_numpy()
            )
            clock = floats(table, "sm_clock_mhz")[inside]
            seen.append(clock[np.isfinite(clock)])
        clocks = np.concatenate(seen) if seen else np.zeros(0)
        if len(clocks) < MIN_STEPS:
            continue
        low, high = np.quantile(clocks, [0.05, 0.95])
        if low < (1 - SAME_CLOCK) * high:
            text = f"the mean over clocks from {low:.0f} to {mhz(high)}"
            kind.reason = f"{kind.reason}; {text}" if kind.reason else text
