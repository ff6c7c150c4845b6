# SPDX-License-Identifier: Apache-2.0
"""What a run costs and emits: its energy times a tariff.

None of it goes into summary.json. The tariff is of the user who reads, and the record is the same for all readers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from powerccl.analysis.cpu_energy import cpu_energy
from powerccl.analysis.energy import energy_curves, job_samples
from powerccl.analysis.findings import CpuEnergy, RunSummary
from powerccl.analysis.report_findings import Iterations
from powerccl.quantities import exact, number, plural
from powerccl.tariff import HOUR_S, Rate, Tariff, parse_time, time_text
from powerccl.traces.folder import RunData

JOULES_PER_KWH = 3.6e6
MONTH_DAYS = 30
MONTH_S = MONTH_DAYS * 86_400.0
# One iteration costs millionths of a currency. A thousand is minutes to hours of training.
MANY_ITERATIONS = 1000
RUN, WINDOW, ITERATIONS, MONTH = "run", "window", f"{MANY_ITERATIONS:,} iterations", f"{MONTH_DAYS} days"
MOST_HOURS = 3  # missing stretches that are named

Floats = npt.NDArray[np.float64]


class CostRow(msgspec.Struct, kw_only=True):
    """Energy, its cost and its emissions; with the PUE, if one is given. None: not known, or not asked for.

    Where energy is known at least, the first three are None. `error_pct`: half of the 95 % interval.
    """

    what: str  # RUN, or WINDOW where only a part of it was read; ITERATIONS, MONTH
    kwh: float | None = None
    cost: float | None = None
    co2e_kg: float | None = None
    kwh_at_least: float | None = None
    cost_at_least: float | None = None
    co2e_kg_at_least: float | None = None
    error_pct: float | None = None


class Cost(msgspec.Struct, kw_only=True):
    """A run under a tariff. `price_per_kwh` and `carbon_g_per_kwh`: means over the run's energy; None: not known."""

    currency: str = ""  # empty: no price is given
    carbon: bool = False  # whether a carbon intensity is given
    price_per_kwh: float | None = None
    carbon_g_per_kwh: float | None = None
    pue: float | None = None
    month_watts: float | None = None  # mean power that `30 days` goes on with, without the PUE
    rows: list[CostRow] = []
    covers: str = ""  # what is counted, and at which prices
    notes: list[str] = []  # why something is not known


@dataclass
class Rates:
    """Means over the energy of a run; None: not asked for, or not known. `falls`: some price in it is below 0."""

    price: float | None = None
    carbon_g: float | None = None
    falls: bool = False
    notes: list[str] = field(default_factory=list)


def cost_of(run: RunData, summary: RunSummary, tariff: Tariff, iterations: Sequence[Iterations] = ()) -> Cost | None:
    """Cost and emissions of a run, of its iterations and of a month; None: nothing was asked for."""
    if not tariff.given:
        return None
    rates, cpu = rates_of(run, summary, tariff), counted_cpu(run, summary)
    whole, least = _joules(summary, cpu)
    rows = [_row(WINDOW if run.window else RUN, whole, least, tariff, rates)]
    if not (whole or least):
        rates.notes.insert(0, summary.energy.reason or cpu.reason or "no energy was sampled")
    if (one := of_iteration(run, iterations)) and one.joules is not None:
        joules = MANY_ITERATIONS * (one.joules + (cpu.average_watts or 0.0) * (one.mean_s or 0.0))
        row = _row(ITERATIONS, joules, None, tariff, rates)
        error = 1.96 * MANY_ITERATIONS * (one.joules_error or 0.0)
        row.error_pct = 100 * error / joules if joules > 0 and error else None
        rows.append(row)
    watts, watts_at_least = _watts(summary, cpu)
    if watts or watts_at_least:
        month = [None if each is None else each * MONTH_S for each in (watts, watts_at_least)]
        rows.append(_row(MONTH, month[0], month[1], tariff, rates))
    return Cost(
        currency=tariff.price.unit if tariff.price else "",
        carbon=tariff.carbon is not None,
        price_per_kwh=rates.price,
        carbon_g_per_kwh=rates.carbon_g,
        pue=tariff.pue,
        month_watts=watts or watts_at_least,
        rows=rows,
        covers=covers(summary, cpu, tariff, rates),
        notes=rates.notes,
    )


def counted_cpu(run: RunData, summary: RunSummary) -> CpuEnergy:
    """The energy of the hosts' processors, where it is of this job: not beside modelled GPUs, nor of a window."""
    if summary.emulated:
        return CpuEnergy(reason="not counted beside modelled GPUs")
    return CpuEnergy(reason="not counted in a window") if run.window else cpu_energy(run)


def of_iteration(run: RunData, iterations: Sequence[Iterations]) -> Iterations | None:
    """The iterations of a job on one host. The clocks of hosts differ, so no iteration is cut across them."""
    return iterations[0] if len(iterations) == 1 and len({trace.host for trace in run.ranks}) == 1 else None


def kwh_of(joules: float, tariff: Tariff) -> float:
    """Kilowatt-hours, with the PUE."""
    return joules / JOULES_PER_KWH * (tariff.pue or 1.0)


def _joules(summary: RunSummary, cpu: CpuEnergy) -> tuple[float | None, float | None]:
    """Of GPUs and processors: the sum, or at least so much. Processors that were not sampled are not counted."""
    parts = []
    if summary.gpus:
        parts.append((summary.energy.joules, summary.energy.joules_at_least))
    if cpu.joules is not None or cpu.joules_at_least is not None:
        parts.append((cpu.joules, cpu.joules_at_least))
    known = [whole if whole is not None else least for whole, least in parts]
    total = sum(each for each in known if each is not None)
    if not any(each is not None for each in known):
        return None, None
    return (total, None) if all(whole is not None for whole, _ in parts) else (None, total)


def _watts(summary: RunSummary, cpu: CpuEnergy) -> tuple[float | None, float | None]:
    """Mean power of the work, or at least so much: of the whole run where the working time's power is not known."""
    energy, more = summary.energy, cpu.average_watts or 0.0
    if summary.shares.working_watts is not None:
        return summary.shares.working_watts + more, None
    if not summary.gpus:
        return cpu.average_watts, None
    joules = energy.joules if energy.joules is not None else energy.joules_at_least
    if joules is None or not summary.wall_s:
        return None, more or None
    watts = joules / summary.wall_s + more
    return (watts, None) if energy.joules is not None else (None, watts)


def _row(what: str, joules: float | None, least: float | None, tariff: Tariff, rates: Rates) -> CostRow:
    row = CostRow(what=what)
    if joules is not None:
        row.kwh, row.cost, row.co2e_kg = _amounts(kwh_of(joules, tariff), rates)
    elif least is not None:
        row.kwh_at_least, row.cost_at_least, row.co2e_kg_at_least = _amounts(kwh_of(least, tariff), rates)
        if rates.falls:  # more energy may have been paid for
            row.cost_at_least = None
    return row


def _amounts(kwh: float, rates: Rates) -> tuple[float, float | None, float | None]:
    cost = None if rates.price is None else kwh * rates.price
    return kwh, cost, None if rates.carbon_g is None else kwh * rates.carbon_g / 1e3


def covers(summary: RunSummary, cpu: CpuEnergy, tariff: Tariff, rates: Rates) -> str:
    """What the figures count, and at which prices."""
    parts = []
    if summary.energy.joules is not None or summary.energy.joules_at_least is not None:
        source = "energy counters" if summary.energy.source == "counter" else "power samples"
        source = "power samples and energy counters" if "+" in summary.energy.source else source
        parts.append(f"{source} of {plural(len(summary.gpus), 'GPU')}")
    if cpu.average_watts is not None:
        parts.append(f"CPU counters of {plural(cpu.hosts, 'host')} with all that runs there")
    elif parts:
        parts[0] += ", without CPUs"
    text = " and ".join(parts) or "nothing"
    pue = "no PUE applied" if tariff.pue is None else f"times the PUE {exact(tariff.pue)}"
    named = [_name(rate, mean) for rate, mean in ((tariff.price, rates.price), (tariff.carbon, rates.carbon_g)) if rate]
    return "; ".join([f"{text}; no wall meter", pue, *([f"at {' and '.join(named)}"] if named else [])])


def _name(rate: Rate, mean: float | None) -> str:
    """A rate as it was given; of a table, with its mean over the run."""
    if mean is None or not rate.hours:
        return rate.text
    return f"{rate.text} (mean {number(mean, f'{rate.unit}/kWh')})"


def rates_of(run: RunData, summary: RunSummary, tariff: Tariff) -> Rates:
    """What a kWh of the run cost and emitted in the mean, by when its energy was used."""
    rates = Rates()
    energy_until: Callable[[Floats], Floats] | None = None
    span = None
    if any(rate and rate.hours for rate in (tariff.price, tariff.carbon)):
        span = _wall_span(run, summary)
        energy_until = _energy_until(run)
        if span and tariff.price:
            rates.falls = any(value < 0 for *_, value in _inside(tariff.price, *span))
        if span and not energy_until:
            rates.notes.append("no energy by time is known: it is spread evenly over the run")
    for rate in (tariff.price, tariff.carbon):
        if rate is None:
            continue
        value, why = (rate.constant, "") if not rate.hours else _mean(rate, span, energy_until)
        if rate is tariff.price:
            rates.price = value
        else:
            rates.carbon_g = value
        rates.notes += [why] if why else []
    return rates


def _mean(
    rate: Rate, span: tuple[float, float] | None, energy_until: Callable[[Floats], Floats] | None
) -> tuple[float | None, str]:
    """A rate's mean over a stretch of time (Unix seconds); None and why it is not known."""
    if span is None:
        return None, f"{rate.text}: when the run was is not known"
    first, last = span
    inside = _inside(rate, first, last)
    edges = [first, *(edge for begin, end, _ in inside for edge in (begin, end)), last]
    missing = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b - a > 0]
    if missing:
        hours = [(a // HOUR_S * HOUR_S, -(-b // HOUR_S) * HOUR_S) for a, b in missing]
        named = ", ".join(f"{time_text(a)} to {time_text(b)}" for a, b in hours[:MOST_HOURS])
        more = f" and {len(missing) - MOST_HOURS} more" if len(missing) > MOST_HOURS else ""
        return None, f"{rate.text} has no value for {named}{more}"
    values = np.array([value for _, _, value in inside])
    begins, ends = np.array([begin for begin, _, _ in inside]), np.array([end for _, end, _ in inside])
    weights = energy_until(ends) - energy_until(begins) if energy_until else ends - begins
    if not weights.sum() > 0:
        weights = ends - begins
    return float((weights * values).sum() / weights.sum()), ""


def _inside(rate: Rate, first_s: float, last_s: float) -> list[tuple[float, float, float]]:
    """The hours of a stretch of time, cut at its ends."""
    touching = [hour for hour in rate.hours if hour[0] < last_s and hour[1] > first_s]
    return [(max(begin, first_s), min(end, last_s), value) for begin, end, value in touching]


def _wall_span(run: RunData, summary: RunSummary) -> tuple[float, float] | None:
    """When the run, or its window, was: Unix seconds; None: not known."""
    offset_ns = _wall_offset_ns(run, run.info.host) if run.info else None
    if run.info is None or offset_ns is None or run.info.simulated:
        return None
    start_ns, stop_ns = run.window or run.info.span or (run.info.start_ns, 0)
    stop_ns = stop_ns or start_ns + round(1e9 * (summary.wall_s or 0.0))
    return ((start_ns + offset_ns) / 1e9, (stop_ns + offset_ns) / 1e9) if stop_ns > start_ns else None


def _wall_offset_ns(run: RunData, host: str) -> int | None:
    """From CLOCK_MONOTONIC of a host to Unix time: by run.json of its own host, by a rank's trace elsewhere."""
    info = run.info
    if info and info.host == host and info.start_ns > 0:
        started_s = parse_time(info.started_at)
        if started_s is not None:
            return round(started_s * 1e9) - info.start_ns
    here = (trace for trace in run.ranks if trace.host == host and trace.start_realtime_ns)
    return next((trace.start_realtime_ns - trace.start_ns for trace in here), None)


def _energy_until(run: RunData) -> Callable[[Floats], Floats] | None:
    """The energy of all GPUs up to each time in Unix seconds; None: no energy by time is known."""
    curves = energy_curves(run)
    offsets = {str(rows["uuid"][0]): _wall_offset_ns(run, log.host) for log, rows in job_samples(run)}
    known = [(curve, offset) for gpu, curve in curves.items() if (offset := offsets.get(gpu)) is not None]
    if not known:
        return None

    def energy_until(unix_s: Floats) -> Floats:
        of_each = [curve.at(np.rint(unix_s * 1e9).astype(np.int64) - offset) for curve, offset in known]
        return np.asarray(np.sum(of_each, axis=0), dtype=np.float64)

    return energy_until
