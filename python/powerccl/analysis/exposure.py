# SPDX-License-Identifier: Apache-2.0
"""Exposed communication: when a GPU did nothing but communicate.

Marks (records WAIT) show when streams compute. Without them it is estimated from power: a GPU that computes while it
communicates draws more. The mean power of each operation of the iteration comes from a regression of the sampled energy
on the time spent in each. How far it is between the two is the share that was exposed. That share is taken to be the
operation's end, because computation waits for it.

Marks pause, lest they slow the job. What a pause held is taken from the same operations of the iterations around it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.energy import EnergyCurve
from powerccl.quantities import percent, plural
from powerccl.traces import tables

WAITS, ESTIMATED, NONE = "waits", "estimated", "none"
BUSY_STREAM = 0.2  # a stream that waits less than this often, against the one that waits most, is not what computes
MOST_OPERATIONS = 48  # of an iteration; more of them are not distinguished
AGES_NS = (15_000_000, 30_000_000, 60_000_000)  # computation's power depends on how long it has lasted
MIN_STEPS = 20  # of energy, below which a regression says nothing


@dataclass
class Exposure:
    """`exposed[gpu]`: sorted disjoint intervals, host ns. `source` is WAITS, ESTIMATED or NONE; `why` says it in words.

    `uncertainty_pct`: of the exposed time, how far an estimate may be off (standard error). `told_pct`: of the
    communication's time, in which waits were recorded; what was exposed in the rest is taken to be like it.
    """

    exposed: dict[str, iv.Intervals]
    source: str
    why: str = ""
    uncertainty_pct: float = 0.0
    recorded_pct: float = 100.0
    # Of GPUs whose marks paused: how long they communicated while waits were recorded, and in all.
    in_bursts_ns: int = 0
    lasts_ns: int = 0


def exposure(kernels: pl.DataFrame, curves: dict[str, EnergyCurve], alone_watts: float | None) -> Exposure:
    """Exposed communication of each GPU, estimated from kernels (with_operations) and energy curves.

    `alone_watts`: what a GPU draws that only communicates, of the platform's profile; None: not known.
    """
    if not len(kernels):
        return Exposure({}, NONE, "no kernel was timed")
    return _estimated(kernels, curves, alone_watts)


def with_operations(kernels: pl.DataFrame) -> pl.DataFrame:
    """Kernels with a column `operation`: which of its GPU's iteration each is."""
    numbers = np.zeros(len(kernels), np.int32)
    rows = kernels.select("gpu", "start_ns", "pattern", "comm", "size_class").with_row_index("row")
    for of_gpu in tables.by_gpu(rows.sort("start_ns", maintain_order=True)).values():
        numbers[of_gpu["row"].to_numpy()] = _kinds(of_gpu)
    return kernels.with_columns(operation=pl.Series(numbers))


def from_waits(waits: pl.DataFrame) -> dict[str, iv.Intervals]:
    """When all computing streams of a GPU stalled: the union of a stream's waits, intersected over its streams."""
    by_gpu: dict[str, iv.Intervals] = {}
    for (gpu,), rows in waits.group_by(["gpu"], maintain_order=True):
        streams = rows.group_by("rank", "stream", maintain_order=True).agg(
            pl.len(), pl.col("stall_ns"), pl.col("resume_ns")
        )
        busiest = streams["len"].to_numpy().max()
        common: iv.Intervals | None = None
        for count, stalls, resumes in streams.select("len", "stall_ns", "resume_ns").iter_rows():
            if count < BUSY_STREAM * busiest:
                continue
            stalled = iv.union(stalls, resumes)
            common = stalled if common is None else iv.intersection(common, stalled)
        by_gpu[str(gpu)] = common if common is not None else iv.EMPTY
    return by_gpu


def marked(waits: pl.DataFrame) -> dict[str, iv.Intervals]:
    """When waits were recorded on each GPU: always, but for the pauses between bursts.

    A burst's first recorded wait begins it and its last one ends it. Only before the first and behind the last one
    nothing is missing, unless the job went on in a pause. GPUs that were never paused are left out.
    """
    covered: dict[str, iv.Intervals] = {}
    if not {"burst", "pauses"} <= set(waits.columns):
        return covered
    for (gpu, _), rows in waits.filter(pl.col("burst") > 0).group_by("gpu", "rank", maintain_order=True):
        bursts = (
            rows.group_by("burst", maintain_order=True)
            .agg(pl.col("stall_ns").min(), pl.col("resume_ns").max(), pl.col("pauses").any())
            .sort("burst")
        )
        begin, end = bursts["stall_ns"].to_numpy().copy(), bursts["resume_ns"].to_numpy().copy()
        if len(bursts) == 1 and not bursts["pauses"][0]:
            continue
        begin[0] = 0
        if not bursts["pauses"][-1]:
            end[-1] = np.iinfo(np.int64).max // 4
        spans = iv.union(begin, end)
        known = covered.get(str(gpu))
        covered[str(gpu)] = spans if known is None else iv.intersection(known, spans)
    return covered


def from_marks(waits: pl.DataFrame, kernels: pl.DataFrame, window: tuple[int, int] | None = None) -> Exposure:
    """The waits that were recorded and, in pauses, what the same operations of the iteration had exposed otherwise.

    `window`: host ns, that `told_pct` is of; all else is of the whole run.
    """
    exposed, known = from_waits(waits), marked(waits)
    in_bursts_ns = lasts_ns = 0
    of_gpus = tables.by_gpu(kernels) if known else {}
    for gpu, spans in known.items():
        if gpu not in of_gpus:
            continue
        rows = of_gpus[gpu].sort("start_ns")
        in_bursts = iv.contains(spans, rows["stop_ns"].to_numpy() - 1)
        lasts = rows["duration_ns"].to_numpy()
        if window:
            lasts = lasts * ((rows["start_ns"] < window[1]) & (rows["stop_ns"] > window[0])).to_numpy()
        in_bursts_ns += int(lasts[in_bursts].sum())
        lasts_ns += int(lasts.sum())
        if in_bursts.any() and not in_bursts.all():
            exposed[gpu] = _filled(rows, exposed.get(gpu, iv.EMPTY), spans, in_bursts)
    return together([Exposure(exposed, WAITS, in_bursts_ns=in_bursts_ns, lasts_ns=lasts_ns)])


def together(parts: list[Exposure]) -> Exposure:
    """What marks show of several parts of a run."""
    exposed = {gpu: spans for part in parts for gpu, spans in part.exposed.items()}
    in_bursts_ns, lasts_ns = sum(part.in_bursts_ns for part in parts), sum(part.lasts_ns for part in parts)
    why, recorded_pct = "measured by marks in the job's own streams", 100.0
    if in_bursts_ns < lasts_ns:
        recorded_pct = 100 * in_bursts_ns / lasts_ns
        why += f" for {percent(recorded_pct)} of the communication time, and assumed alike for the rest"
    return Exposure(exposed, WAITS, why, 0.0, recorded_pct, in_bursts_ns, lasts_ns)


def _filled(
    rows: pl.DataFrame, exposed: iv.Intervals, spans: iv.Intervals, in_bursts: npt.NDArray[np.bool_]
) -> iv.Intervals:
    """`exposed`, and of each kernel without a possible wait (not `told`) the share of its kind, as its end.

    The share in the bursts before and behind its pause, since a job's beginning is not like the rest; else in all.
    """
    start, stop = rows["start_ns"].to_numpy(), rows["stop_ns"].to_numpy()
    kinds = _kinds(rows)
    shape = (len(spans) + 1, int(kinds.max()) + 1)
    burst = np.maximum(np.searchsorted(spans[:, 0], stop - 1, side="right") - 1, 0)
    overlap = iv.covered_before(exposed, stop) - iv.covered_before(exposed, start)
    sums = []
    for length in (overlap, stop - start):
        each = np.zeros(shape)
        np.add.at(each, (burst[in_bursts], kinds[in_bursts]), length[in_bursts])
        sums.append(each[:-1] + each[1:])
    (around, lasted), rest = sums, ~in_bursts
    everywhere = np.array([part.sum(axis=0) for part in sums])
    overall = everywhere[0].sum() / max(everywhere[1].sum(), 1)
    usual = np.where(everywhere[1] > 0, everywhere[0] / np.maximum(everywhere[1], 1), overall)
    share = np.where(lasted > 0, around / np.maximum(lasted, 1), usual)
    guessed = _tails(rows.filter(pl.Series(rest)), np.minimum(share[burst[rest], kinds[rest]], 1.0))
    recorded = iv.intersection(exposed, spans)
    return iv.union(*np.concatenate([recorded, guessed]).T)


def period(
    labels: list[str] | npt.NDArray[np.int64], start_ns: npt.NDArray[np.int64], most: int = MOST_OPERATIONS
) -> int:
    """After how many operations the sequence repeats itself, 0: never within `most`.

    Both what is communicated and how far apart must repeat: four equal buckets make an iteration, not one.
    """
    names = np.unique(np.asarray(labels), return_inverse=True)[1]
    for length in range(1, min(most, len(names) // 4) + 1):
        if (names[length:] == names[:-length]).mean() < 0.97:
            continue
        apart = start_ns[length:] - start_ns[:-length]
        usual = float(np.median(apart))
        if float(np.mean(np.abs(apart - usual) < 0.05 * usual)) > 0.9:
            return length
    return 0


def by_age(intervals: iv.Intervals) -> list[iv.Intervals]:
    """The set in parts by how long each interval has lasted: power governors take their time."""
    edges = [0, *AGES_NS, np.iinfo(np.int64).max // 4]
    start, stop = intervals[:, 0], intervals[:, 1]
    return [iv.union(np.minimum(start + young, stop), np.minimum(start + old, stop)) for young, old in pairwise(edges)]


def _estimated(kernels: pl.DataFrame, curves: dict[str, EnergyCurve], alone_watts: float | None) -> Exposure:
    """One kind an operation of the iteration; GPUs share the kinds, and all their energy steps make one regression."""
    per_gpu = {
        str(gpu): rows.sort("start_ns")
        for (gpu,), rows in kernels.group_by(["gpu"], maintain_order=True)
        if str(gpu) in curves
    }
    kinds = {gpu: rows["operation"].to_numpy() for gpu, rows in per_gpu.items()}
    seconds, energy = _steps(_by_kind(per_gpu, kinds), curves)
    columns = seconds.shape[1]
    count = columns - len(AGES_NS) - 1
    everything = {
        gpu: iv.union(rows["start_ns"].to_numpy(), rows["stop_ns"].to_numpy()) for gpu, rows in per_gpu.items()
    }
    said = "the job's streams have no marks"
    if len(energy) < max(MIN_STEPS, 2 * columns) or alone_watts is None:
        reason = "too few energy samples exist" if alone_watts is not None else "the profile has no power"
        return Exposure(everything, ESTIMATED, f"{said} and {reason}: all communication counts as exposed", 100.0)
    # A little pull to the overall mean keeps kinds that hardly occur alone from swinging against each other.
    mean = float(energy.sum() / seconds.sum())
    pull = 0.05 * float(np.sqrt((seconds**2).sum(axis=0).mean()))
    rows = np.vstack([seconds, pull * np.eye(columns)])
    watts = np.linalg.lstsq(rows, np.concatenate([energy, np.full(columns, pull * mean)]), rcond=None)[0]
    residual = float(np.std(energy - seconds @ watts))
    error = residual * np.sqrt(np.abs(np.diag(np.linalg.pinv(rows.T @ rows))))
    elsewhere = float(np.average(watts[count:], weights=np.maximum(seconds[:, count:].sum(axis=0), 1e-9)))
    # What the kinds themselves draw at least is closer to this run's temperature than the profile is.
    least = float(np.min(watts[:count])) if count else alone_watts
    alone = min(alone_watts, least) if least > 0.85 * alone_watts else alone_watts
    alone = max(alone, least) if least < 1.1 * alone_watts else alone
    if elsewhere < 1.1 * alone:
        why = f"{said} and computation draws no more power than communication: all communication counts as exposed"
        return Exposure(everything, ESTIMATED, why, 100.0)
    share = np.clip((elsewhere - watts[:count]) / (elsewhere - alone), 0.0, 1.0)
    share[share < 0.1] = 0.0
    share[share > 0.9] = 1.0
    exposed = {gpu: _tails(rows, share[kinds[gpu]]) for gpu, rows in per_gpu.items()}
    weight = seconds[:, :count].sum(axis=0)
    total = float((weight * share).sum())
    doubt = float(np.sqrt(((weight * error[:count] / (elsewhere - alone)) ** 2).sum()))
    why = f"{said}: estimated from the power during each of {plural(count, 'operation')} of an iteration"
    return Exposure(exposed, ESTIMATED, why, min(100.0, 100 * doubt / total) if total > 0 else 0.0)


def _by_kind(
    per_gpu: dict[str, pl.DataFrame], kinds: dict[str, npt.NDArray[np.int64]]
) -> dict[str, list[iv.Intervals]]:
    """When each kind of kernel ran on each GPU."""
    count = 1 + max((int(k.max()) for k in kinds.values() if len(k)), default=-1)
    by_gpu: dict[str, list[iv.Intervals]] = {}
    for gpu, rows in per_gpu.items():
        start, stop = rows["start_ns"].to_numpy(), rows["stop_ns"].to_numpy()
        # Where kernels overlap, the later one has the time: it is what the earlier one's end leads to.
        cut = np.minimum(stop, np.append(start[1:], np.iinfo(np.int64).max))
        by_gpu[gpu] = [iv.union(start[kinds[gpu] == kind], cut[kinds[gpu] == kind]) for kind in range(count)]
    return by_gpu


def _kinds(rows: pl.DataFrame) -> npt.NDArray[np.int64]:
    """Which kind each kernel is: its place in the iteration where that repeats, else its pattern and size class."""
    length = period(_codes(rows, "pattern", "comm"), rows["start_ns"].to_numpy())
    if length:
        return np.arange(len(rows), dtype=np.int64) % length
    return _codes(rows, "pattern", "comm", "size_class")


def _codes(rows: pl.DataFrame, *columns: str) -> npt.NDArray[np.int64]:
    """Numbers from 0 that tell rows apart by these columns, in the order of their values."""
    ranked = rows.select(code=pl.struct(columns).rank("dense"))["code"].to_numpy()
    return ranked.astype(np.int64) - 1


def _steps(
    states: dict[str, list[iv.Intervals]], curves: dict[str, EnergyCurve]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Seconds of each state, then of none of them by age, and joules, of each step of the curves.

    Of the time from a GPU's first state to its last one's end, all GPUs below each other.
    """
    tables: list[npt.NDArray[np.float64]] = []
    energies: list[npt.NDArray[np.float64]] = []
    for gpu, parts in states.items():
        busy = iv.union(*np.concatenate(parts).T) if any(len(part) for part in parts) else iv.EMPTY
        curve = curves.get(gpu)
        if curve is None or not len(busy):
            continue
        inside = (curve.time_ns >= busy[0, 0]) & (curve.time_ns <= busy[-1, 1])
        time, joules = curve.time_ns[inside], curve.joules[inside]
        sharp = replace(curve, time_ns=time, joules=joules).sharp if len(time) > 1 else np.zeros(0, np.bool_)
        if sharp.sum() < 2:
            continue
        rest = iv.minus(np.array([[busy[0, 0], busy[-1, 1]]]), busy)
        everything = [*parts, *by_age(rest)]
        tables.append(np.column_stack([np.diff(iv.covered_before(part, time))[sharp] / 1e9 for part in everything]))
        energies.append(np.diff(joules)[sharp])
    width = max((len(parts) for parts in states.values()), default=0) + 1 + len(AGES_NS)
    if not tables:
        return np.zeros((0, width)), np.zeros(0)
    return np.vstack(tables), np.concatenate(energies)


def _tails(rows: pl.DataFrame, share: npt.NDArray[np.float64]) -> iv.Intervals:
    start, stop = rows["start_ns"].to_numpy(), rows["stop_ns"].to_numpy()
    return iv.union(stop - np.rint((stop - start) * share).astype(np.int64), stop)
