# SPDX-License-Identifier: Apache-2.0
"""A job's iterations, from the sequence of what it communicates.

Where that repeats itself, a repeat is an iteration. It is cut at the widest gap between two operations. So it is cut
behind the last operation of a backward pass or of an optimizer, rather than in the midst of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.quantities import plural

SAMPLE = 1 << 14  # operations from the middle of the run in which an iteration is looked for
MOST_OPERATIONS = 2048  # of an iteration
ALIKE = 0.97
# Below the most alike: of an iteration with long rows of the same operation, each is mostly like the next one as well.
LESS_ALIKE = 0.002
DEPTH, FEW = 4, 12  # a job that changes is halved so often; operations, in which none is looked for
CHANGED = 0.25  # of the length: by how much an iteration may become another and still be the same
MOSTLY = 0.3  # of the time: iterations that make up less are of no use
SPREAD, STEADY = 1.5, 0.01  # times vary as little as at best, within so much of it; or hardly, against the length
REGULAR = 0.2  # mean deviation against the length

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass
class Cut:
    """Iterations of one rank: `edges` (n, 2), host ns from and to. `by`: kernels or calls.

    `operations`: of an iteration, the latest. `reason`: why there are none, or what else to know.
    """

    edges: Ints
    operations: int
    by: str
    reason: str = ""


def cut(calls: pl.DataFrame, kernels: pl.DataFrame) -> Cut:
    """Iterations of one rank from its calls and kernels (traces.tables).

    Without kernels of nearly all its calls, the host's calls tell them, which may run ahead of the GPU.
    """
    live = int((~calls["captured"]).sum())
    if len(kernels) and len(kernels) >= 0.99 * live:
        rows, by = kernels.sort("start_ns"), "kernels"
    else:
        rows, by = calls.filter(~pl.col("captured")).sort("start_ns"), "calls"
    none = np.empty((0, 2), dtype=np.int64)
    if len(rows) < 4:
        return Cut(none, 0, by, "too few operations")
    start = rows["start_ns"].to_numpy()
    stop = np.maximum.accumulate(rows["stop_ns"].to_numpy()) if by == "kernels" else start
    best = Cut(none, 0, by, "the sequence of communication does not repeat")
    # Sizes that vary, as those of experts do, hide a sequence that repeats itself otherwise.
    for labels in (("pattern", "comm", "bytes"), ("pattern", "comm")):
        names = rows.select(code=pl.struct(labels).rank("dense"))["code"].to_numpy().astype(np.int64)
        templates = _templates(names, start, stop, 0, len(names), DEPTH)
        edges = _edges(names, start, stop, templates, by)
        if len(edges) < 2 or _length(edges) <= _length(best.edges):
            continue
        lengths = [len(template) for template in templates]
        changed = f"the job changes from {plural(lengths[0], 'operation')} per iteration to {lengths[-1]}"
        best = Cut(edges, lengths[-1], by, changed if len(lengths) > 1 else "")
        if _length(edges) > MOSTLY * (stop[-1] - start[0]):
            break
    if by == "calls" and len(best.edges) and len(kernels):
        timed_ns = int((kernels["stop_ns"] - kernels["start_ns"]).median() or 0)  # type: ignore[arg-type]
        if timed_ns * best.operations > _length(best.edges) / len(best.edges):
            return Cut(
                none, 0, by, "the host enqueued far ahead of the GPU, and too few operations were timed on the GPU"
            )
    return best


def _length(edges: Ints) -> int:
    return int((edges[:, 1] - edges[:, 0]).sum())


def _templates(names: Ints, start: Ints, stop: Ints, first: int, last: int, depth: int) -> list[Ints]:
    """An iteration's names in the order they come up; of a stretch that does not repeat itself, of its halves."""
    middle = max(first, (first + last - SAMPLE) // 2)
    part = slice(middle, min(middle + SAMPLE, last))
    length = iteration_length(names[part], start[part])
    if length:
        return [_template(names[part], start[part], stop[part], length)]
    if not depth or last - first < 2 * FEW:
        return []
    half = (first + last) // 2
    templates = _templates(names, start, stop, first, half, depth - 1)
    for template in _templates(names, start, stop, half, last, depth - 1):
        if not any(np.array_equal(template, known) for known in templates):
            templates.append(template)
    return templates


def iteration_length(names: Ints, start_ns: Ints) -> int:
    """After how many operations the sequence repeats itself; 0: it does not. Its first tenth may be unlike the rest.

    Of the lengths at which names repeat, the shortest after which times vary about as little as at any. Four equal
    buckets make an iteration, not one. Where all operations are alike, only regular times show an iteration.
    """
    skip = len(names) // 10
    names, start_ns = names[skip:], start_ns[skip:]
    if len(names) and (names == names[0]).all():
        return _length_by_times(start_ns)
    lengths = range(1, min(MOST_OPERATIONS, len(names) // 4) + 1)
    alike = [float((names[length:] == names[:-length]).mean()) for length in lengths]
    least_alike = max(ALIKE, max(alike, default=0.0) - LESS_ALIKE)
    candidates: list[tuple[int, float, float]] = []
    for length in (each for each in lengths if alike[each - 1] >= least_alike):
        apart = (start_ns[length:] - start_ns[:-length]).astype(np.float64)
        usual = float(np.median(apart))
        candidates.append((length, float(np.mean(np.abs(apart - usual))), usual))
    least = min((spread for _, spread, _ in candidates), default=0.0)
    for length, spread, usual in candidates:
        if spread <= max(SPREAD * least, STEADY * usual):
            halves = np.array_split(start_ns[length:] - start_ns[:-length], 2)
            before, after = (float(np.median(half)) for half in halves)
            if abs(after - before) > CHANGED * usual:
                return 0  # two periods have a common multiple
            several = len(np.unique(names[:length])) > 1
            return length if several or spread <= REGULAR * usual else 0
    return 0


def _length_by_times(start_ns: Ints) -> int:
    """After how many operations that are all alike the intervals between them repeat; 0: they do not.

    Of lengths, the shortest whose places explain the intervals about as well as any do.
    """
    between = np.diff(start_ns).astype(np.float64)
    usual = float(np.mean(between)) if len(between) else 0.0
    lengths = range(1, min(MOST_OPERATIONS, len(between) // 4) + 1)
    spreads = [_spread(between, length) for length in lengths]
    enough = max(SPREAD * min(spreads, default=0.0), STEADY * usual)
    for length, spread in zip(lengths, spreads, strict=True):
        if spread <= enough:
            return _shortest_within(between, length, max(spread, STEADY * usual)) if spread <= REGULAR * usual else 0
    return 0


def _shortest_within(between: Floats, length: int, spread: float) -> int:
    """The shortest divisor of a length whose places are as far apart as the longer one's, within their spread.

    A few pauses among few iterations make several of them look more regular than one.
    """
    places = np.median(_by_place(between, length), axis=0)
    for divisor in (each for each in range(1, length) if length % each == 0):
        if _spread(places, divisor) <= spread:
            return divisor
    return length


def _by_place(between: Floats, length: int) -> Floats:
    """Intervals as iterations of this length, shape (iterations, length); a part at the end is left out."""
    return between[: len(between) // length * length].reshape(-1, length)


def _spread(between: Floats, length: int) -> float:
    """How far intervals are from the median of their place in iterations of this length, on average."""
    whole = _by_place(between, length)
    return float(np.mean(np.abs(whole - np.median(whole, axis=0))))


def _template(names: Ints, start: Ints, stop: Ints, length: int) -> Ints:
    """An iteration's operations, beginning behind the widest gap."""
    gaps = np.concatenate([[0], start[1:] - stop[:-1]])
    usable = len(names) // length * length
    widest = int(np.argmax(np.median(gaps[:usable].reshape(-1, length), axis=0)))
    at = (usable // length // 2 - 1) * length + widest
    rolled: Ints = names[at : at + length]
    return rolled


def _edges(names: Ints, start: Ints, stop: Ints, templates: list[Ints], by: str) -> Ints:
    """Where the templates are found, longer ones first, one behind the other; what is between belongs to none."""
    taken = np.zeros(len(names), dtype=bool)
    begins: list[tuple[int, int]] = []
    for template in sorted(templates, key=len, reverse=True):
        length = len(template)
        if len(names) < length:
            continue
        fits = np.ones(len(names) - length + 1, dtype=bool)
        for place, name in enumerate(template.tolist()):
            fits &= names[place : place + len(fits)] == name
        free = 0
        for place in np.flatnonzero(fits).tolist():
            if place >= free and not taken[place] and not taken[place + length - 1]:
                begins.append((place, place + length))
                taken[place : place + length] = True
                free = place + length
    at = np.array(sorted(begins), dtype=np.int64).reshape(-1, 2)
    if by == "calls":
        at = at[at[:, 1] < len(start)]
        return start[at]
    at = at[at[:, 0] > 0]
    return stop[at - 1]
