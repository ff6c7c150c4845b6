# SPDX-License-Identifier: Apache-2.0
"""Samples and communication of a run's GPUs, thinned until they fit a page: extremes stay, so that nothing hides."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.report import Report

BUDGET_BYTES = 600_000  # compressed, of all GPUs
MOST_GPUS = 16
LEAST = 64  # samples of a GPU, below which the budget does not go
# Share of the run: if the working time takes more, the timeline opens on all of the run. At half of it, a start-up of
# half of the run would squeeze the iterations; nearer to 1, every timeline would open on a part.
MOST_SHOWN = 0.8
MARGIN = 0.02  # of the working time, shown before and after it, so that its edges can be seen
FULL = 1 << 18  # samples, and intervals, of a GPU to begin with

Ints = npt.NDArray[np.int64]


@dataclass
class Lane:
    """One GPU. Times are in units since the drawing's start; power in 0.1 W and clock in MHz, 0 where not known."""

    gpu: str
    rank: int
    time: Ints
    power: Ints
    clock: Ints
    start: Ints
    stop: Ints


@dataclass
class Drawing:
    """Lanes and what they are packed into: numbers of 4 and of 2 bytes, deflated; times and intervals as differences.

    `unit_us`: of a time; `offset_s`: of the drawing's start, from the run's. `closed_us`: gaps in communication up to
    this long are not drawn. `thinned`: samples are left out. `left_out`: GPUs that are not drawn. `steady`: the part of
    the drawing, in units, that a reader wants to see first; None: all of it.
    """

    lanes: list[Lane]
    unit_us: float
    offset_s: float
    length: int
    closed_us: float
    thinned: bool
    left_out: int
    steady: tuple[int, int] | None
    words: bytes
    halves: bytes


def draw(made: Report, budget_bytes: int = BUDGET_BYTES) -> Drawing:
    """What the timeline shows, at most `budget_bytes` of it."""
    run = made.run
    window = run.window or _span(made)
    unit_ns = max(1000, -(-(window[1] - window[0]) // (1 << 31)))
    communicating = made.communicating
    gpus = [each for each in _first(made) if _has_something(made, each[0], communicating, window)]
    drawn = [_lane(made, *each, communicating, window, unit_ns) for each in gpus[:MOST_GPUS]]
    most, closed, thinned = FULL, 0, False
    while True:
        parts = [_thin(lane, most) for lane in drawn]
        words, halves = _pack([part[0] for part in parts])
        closed = max([part[1] for part in parts], default=0)
        thinned = any(part[2] for part in parts)
        if len(words) + len(halves) <= budget_bytes or most <= LEAST:
            break
        most = min(most, max((max(len(lane.time), len(lane.start)) for lane in drawn), default=most)) * 2 // 3
    return Drawing(
        lanes=[part[0] for part in parts],
        unit_us=unit_ns / 1e3,
        offset_s=made.findings.window_s[0] if made.findings.window_s else 0.0,
        length=int((window[1] - window[0]) // unit_ns),
        closed_us=closed * unit_ns / 1e3,
        thinned=thinned,
        left_out=len(gpus) - len(drawn),
        steady=None if run.window else _steady(made.working, window, unit_ns),
        words=words,
        halves=halves,
    )


def _steady(working: tuple[int, int] | None, window: tuple[int, int], unit_ns: int) -> tuple[int, int] | None:
    """The working time with a margin on both sides; None where it fills the window anyway."""
    whole = window[1] - window[0]
    if working is None or working[1] - working[0] > MOST_SHOWN * whole:
        return None
    margin = int(MARGIN * (working[1] - working[0]))
    first, last = max(working[0] - margin, window[0]), min(working[1] + margin, window[1])
    return (int((first - window[0]) // unit_ns), int((last - window[0]) // unit_ns)) if first < last else None


def _first(made: Report) -> list[tuple[str, int]]:
    """GPUs with the first rank on each; those that were sampled where no rank left a trace."""
    rank_of_gpu = {trace.gpu: trace.rank for trace in reversed(made.run.ranks)}
    if rank_of_gpu:
        return sorted(rank_of_gpu.items(), key=lambda item: item[1])
    return [(gpu.gpu, index) for index, gpu in enumerate(made.findings.summary.gpus)]


def _span(made: Report) -> tuple[int, int]:
    info = made.run.info
    if info and info.span:
        return info.span
    times = [log.samples["time_ns"].to_numpy() for log in made.run.power if len(log.samples)]
    lows = [int(time.min()) for time in times]
    highs = [int(time.max()) for time in times]
    busy = [spans for spans in made.communicating.values() if len(spans)]
    lows += [int(spans[0, 0]) for spans in busy]
    highs += [int(spans[-1, 1]) for spans in busy]
    return (min(lows), max(highs)) if lows and max(highs) > min(lows) else (0, 1_000_000)


def _has_something(made: Report, gpu: str, communicating: Mapping[str, iv.Intervals], window: tuple[int, int]) -> bool:
    """Whether a GPU communicated or was sampled in the window."""
    if len(iv.clip(communicating.get(gpu, iv.EMPTY), *window)):
        return True
    samples = [rows["time_ns"] for log in made.run.power if (rows := log.of_gpu(gpu)) is not None]
    return any(bool(times.is_between(*window).any()) for times in samples)


def _lane(
    made: Report, gpu: str, rank: int, communicating: Mapping[str, iv.Intervals], window: tuple[int, int], unit_ns: int
) -> Lane:
    empty = np.empty(0, dtype=np.int64)
    time, power, clock = empty, empty, empty
    for log in made.run.power:
        rows = log.of_gpu(gpu)
        rows = None if rows is None else rows.filter(pl.col("time_ns").is_between(*window))
        if rows is not None and len(rows):
            time = (rows["time_ns"].to_numpy() - window[0]) // unit_ns
            power = np.clip(rows["power_mw"].fill_null(0).to_numpy() // 100, 0, 65535)
            clock = np.clip(rows["sm_clock_mhz"].fill_null(0).to_numpy(), 0, 65535)
            # Where samples are missing no line is drawn: a sample of nothing behind the last one breaks it.
            holes = (iv.clip(log.of(rows).gaps, *window)[:, 0] - window[0]) // unit_ns + 1
            places = np.searchsorted(time, holes)
            time = np.insert(time, places, holes)
            power, clock = np.insert(power, places, 0), np.insert(clock, places, 0)
    spans = iv.clip(communicating.get(gpu, iv.EMPTY), *window)
    start, stop = ((spans[:, side] - window[0]) // unit_ns for side in (0, 1))
    return Lane(gpu, rank, time, power, clock, start, stop)


def _thin(lane: Lane, most: int) -> tuple[Lane, int, bool]:
    """At most about `most` samples and intervals; the longest gap closed, in units, and whether samples went."""
    time, power, clock = lane.time, lane.power, lane.clock
    step = -(-4 * len(time) // most) if len(time) > most else 1
    if step > 1:
        whole = len(time) // step * step
        base = np.arange(0, whole, step)
        picks = [base + pick(series[:whole].reshape(-1, step), axis=1) for series in (power, clock) for pick in _ENDS]
        keep = np.unique(np.concatenate([*picks, [0, len(time) - 1]]))
        time, power, clock = time[keep], power[keep], clock[keep]
    start, stop, closed = lane.start, lane.stop, 0
    if len(start) > most:
        gaps = start[1:] - stop[:-1]
        closed = int(np.partition(gaps, len(start) - most)[len(start) - most])
        opens = np.concatenate([[True], gaps > closed])
        ends = np.concatenate([opens[1:], [True]])
        start, stop = start[opens], stop[ends]
    return Lane(lane.gpu, lane.rank, time, power, clock, start, stop), closed, step > 1


_ENDS = (np.argmin, np.argmax)


def _pack(lanes: list[Lane]) -> tuple[bytes, bytes]:
    words = [
        np.diff(series, prepend=0)
        for lane in lanes
        for series in (lane.time, np.stack([lane.start, lane.stop], axis=1).ravel())
    ]
    halves = [series for lane in lanes for series in (lane.power, lane.clock)]
    return tuple(  # type: ignore[return-value]
        zlib.compress(np.concatenate([*parts, []]).astype(kind).tobytes(), 9)
        for parts, kind in ((words, "<u4"), (halves, "<u2"))
    )
