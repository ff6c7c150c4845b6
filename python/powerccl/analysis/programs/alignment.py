# SPDX-License-Identifier: Apache-2.0
"""Where iterations of a run's ranks begin, so that all begin with the same calls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis.programs.calls import HOST_US, NoProgramError, RankCalls

Floats = npt.NDArray[np.float64]

SKIPPED = 2  # iterations of the beginning: kernels are compiled, memory is allocated
LIKELY_BEGINS = 16  # of an iteration: the widest gaps on the first rank, of which that counts which is widest on all


def align(ranks: list[RankCalls]) -> None:
    """Let all ranks begin with the same call of each communicator.

    Where a pipeline fills and drains there is no instant at which all ranks end an iteration. Calls tell anyway: the
    n-th of a communicator is the same on all its ranks.
    """
    times = [each.rows.select(pl.coalesce("start_ns", "called_ns"))["start_ns"].to_numpy() for each in ranks]
    latest_ns = max(int(of[each.first]) for of, each in zip(times, ranks, strict=True))
    reference = ranks[0]
    begin = max(int(np.searchsorted(times[0], latest_ns)), reference.first) + SKIPPED * reference.length
    if begin + reference.length >= reference.last:
        raise NoProgramError("ranks have too few iterations in common")
    gaps = np.roll(_gaps(reference), -((begin - reference.first) % reference.length))
    of_all = [_gaps(each) for each in ranks]
    likely: list[tuple[float, list[int]]] = []
    for offset in np.argsort(-gaps, kind="stable"):
        begins = _begins(ranks, begin + int(offset)) if reference.rows["opens"][begin + int(offset)] else None
        if begins is not None:
            places = [(at - each.first) % each.length for at, each in zip(begins, ranks, strict=True)]
            likely.append((sum(float(gaps[place]) for gaps, place in zip(of_all, places, strict=True)), begins))
        if len(likely) == LIKELY_BEGINS:
            break
    if not likely:
        raise NoProgramError("ranks have no call in common with which an iteration begins")
    for each, at in zip(ranks, max(likely)[1], strict=True):
        each.first = at


def _begins(ranks: list[RankCalls], at: int) -> list[int] | None:
    """By rank, the row with which it begins if the first one begins with row `at`; None: they contradict."""
    levels: dict[int, int] = {0: at}
    wanted: dict[int, int] = dict(_next_ordinals(ranks[0], at))
    left = set(range(1, len(ranks)))
    while left:
        number = next(
            (each for each in sorted(left) if set(np.unique(ranks[each].channel).tolist()) & wanted.keys()), -1
        )
        if number < 0:
            return None
        low, high = ranks[number].first, ranks[number].last
        for channel, ordinal in wanted.items():
            rows, places = np.nonzero(ranks[number].channel == channel)
            if not len(rows):
                continue
            place = int(np.searchsorted(ranks[number].ordinal[rows, places], ordinal))
            low = max(low, int(rows[place - 1]) + 1 if place else 0)
            high = min(high, int(rows[place]) if place < len(rows) else ranks[number].last)
        if low > high:
            return None
        levels[number] = high
        for channel, ordinal in _next_ordinals(ranks[number], high):
            if wanted.setdefault(channel, ordinal) != ordinal:
                return None
        left.remove(number)
    return [levels[number] for number in range(len(ranks))]


def _next_ordinals(each: RankCalls, at: int) -> Iterator[tuple[int, int]]:
    """Of each channel in the iteration, the ordinal of its next call from row `at` on."""
    channels = each.channel[at : at + each.length]
    for channel in np.unique(channels[channels >= 0]).tolist():
        row, place = np.argwhere(channels == channel)[0]
        yield channel, int(each.ordinal[at + row, place])


def _gaps(each: RankCalls) -> Floats:
    """Of each place in the iteration, from `first` on: the usual time in which nothing is called nor waited for."""
    start, stop, needed = (each.rows[name].cast(pl.Float64).to_numpy() for name in ("start_ns", "stop_ns", "needed_ns"))
    settled = np.fmax.accumulate(np.fmax(stop, needed))
    gaps = np.concatenate([[np.nan], start[1:] - settled[:-1]])[each.first : each.last]
    whole = gaps[: len(gaps) // each.length * each.length].reshape(-1, each.length)
    usual = np.nanmedian(np.where(np.isnan(whole), -1e18, whole), axis=0)
    return np.asarray(usual, dtype=np.float64)


def pause_us(each: RankCalls) -> float:
    """How long the host calls nothing between two iterations, where the GPU waits for its first call; else 0.

    It computes in a part of that time, at most as long as on the rank with the shortest such pause. In the rest of it
    the rank waits for others, as at a barrier of the host.
    """
    start, stop, called = (each.rows[name].cast(pl.Float64).to_numpy() for name in ("start_ns", "stop_ns", "called_ns"))
    at = np.arange(max(each.first, 1), each.last, each.length)
    if each.rows["captured"][int(at[0])] or not np.nanmedian((start - called)[at]) < HOST_US * 1e3:
        return 0.0
    return max(0.0, float(np.nanmedian((called[at] - stop[at - 1]) / 1e3)))
