# SPDX-License-Identifier: Apache-2.0
"""A recorded job's typical iteration as a program: one stream of computation, and collectives that wait for it.

Marks tell where computation waited for which collective, kernels when each ran. From that follows how far computation
had come when a collective began, and how far it comes before it needs the result. `simulate` lets the program run with
other costs of its collectives, so that a change is followed through all that depends on it.

It is that of the rank whose collectives take least: on others they wait for it. Times are in microseconds. So is the
progress of computation, which is what it takes while no collective runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.exposure import BUSY_STREAM, marked
from powerccl.analysis.iterations import cut
from powerccl.analysis.stragglers import match
from powerccl.traces import tables
from powerccl.traces.folder import RunData

Floats = npt.NDArray[np.float64]
Cut = tuple[int, tuple[int, int]]  # an iteration: its first row, and its edges in ns
Loss = Callable[[str, float], float]  # microseconds that computation loses to one call, by its pattern and bytes

MOST_OPERATIONS = 512  # of an iteration: more are no step of one model
FEWEST_ITERATIONS = 5  # a median of fewer says little
# A collective that begins within this after its call has waited for the host, not for the GPU: what a launch takes.
HOST_US = 150.0
QUEUED_US = 30.0  # between two collectives of a communicator, where the second had only waited for the first
EVENTS = 8  # of a collective: it is released, begins, ends and is waited for; more is no progress
MOST_LOST = 0.9  # of a collective's time: computation never stops for it altogether


@dataclass(frozen=True)
class Operation:
    """A collective of the iteration, medians over iterations.

    `transfer_us`: what it takes once the host's other ranks have come to it; for them it waits the rest of `lasts_us`.
    `released_us`: progress of computation at which it may begin; `needed_us`: at which computation waits for it, None
    if it never does. `hosted`: it began as soon as the host called it, so the GPU may have had nothing else to do.
    """

    pattern: str
    bytes: int
    ranks: int
    comm: int
    lasts_us: float
    transfer_us: float
    released_us: float
    needed_us: float | None
    hosted: bool = False


@dataclass(frozen=True)
class Step:
    """`time_us`: an iteration as recorded; `work_us`: its computation alone; `exposed_us`: what waited."""

    rank: int
    iterations: int
    time_us: float
    work_us: float
    exposed_us: float
    operations: list[Operation]
    edges_ns: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))


class NoStepError(ValueError):
    """Why a run has no typical iteration."""


# What to do where a run has none.
RECORD = "record every kernel, and a hundred iterations: POWERCCL_KERNEL_EVENTS=all powerccl run -- COMMAND"


def step_tables(run: RunData) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Calls, kernels and waits of a run as typical_step takes them.

    Raises:
        NoStepError: no kernel was timed.
    """
    calls, kernels = tables.calls(run), tables.kernels(run)
    if not len(kernels):
        raise NoStepError("no kernel of NCCL was timed")
    return calls, kernels.with_columns(waiting_ns=match(run, calls, kernels).waiting_ns), tables.waits(run)


def typical_step(calls: pl.DataFrame, kernels: pl.DataFrame, waits: pl.DataFrame, loss: Loss) -> Step:
    """The typical iteration of a run; `loss`: what computation loses to a call as it was carried out.

    Tables are those of traces.tables. `kernels` also has `waiting_ns`, of stragglers.match.

    Raises:
        NoStepError: nothing repeats, or no marks tell where computation waited.
    """
    if not len(waits):
        raise NoStepError("no marks tell where computation waited for communication")
    found: list[Step] = []
    why = "no kernel was timed"
    for (rank,), mine in kernels.group_by("rank", maintain_order=True):
        rows = [table.filter(pl.col("rank") == rank) for table in (calls, waits)]
        try:
            found.append(_of_rank(int(str(rank)), rows[0], mine, rows[1], loss))
        except NoStepError as error:
            why = str(error)
    if not found:
        raise NoStepError(why)
    return min(found, key=lambda step: sum(each.lasts_us for each in step.operations))


def _of_rank(rank: int, calls: pl.DataFrame, kernels: pl.DataFrame, waits: pl.DataFrame, loss: Loss) -> Step:
    iterations = cut(calls, kernels)
    if iterations.by != "kernels" or len(iterations.edges) < FEWEST_ITERATIONS:
        raise NoStepError(iterations.reason or f"fewer than {FEWEST_ITERATIONS} iterations were timed")
    # By their middles: one may begin a little before the one before it ends, and so before its iteration.
    called = calls.select("call_id", called_ns="start_ns")
    kernels = kernels.sort(pl.col("start_ns") + pl.col("stop_ns")).join(called, on="call_id", how="left")
    waits = _of_computation(waits).join(kernels.select("call_id"), on="call_id", how="semi")
    needed = waits.group_by("call_id", maintain_order=True).agg(needed_ns=pl.col("stall_ns").min())
    rows = kernels.join(needed, on="call_id", how="left", maintain_order="left")
    hosted = ((rows["start_ns"] - rows["called_ns"]) < HOST_US * 1e3).fill_null(value=False).to_numpy()
    progress = _Progress(rows, waits, hosted, loss)
    edges = iterations.edges
    for spans in marked(waits).values():  # marks pause; what waited is not known then
        edges = edges[iv.contains(spans, edges[:, 0]) & iv.contains(spans, edges[:, 1] - 1)]
    template, cuts = _alike(rows, edges)
    if len(cuts) < FEWEST_ITERATIONS:
        raise NoStepError(f"fewer than {FEWEST_ITERATIONS} iterations were recorded as a whole and alike")
    cuts = _usual(cuts, progress)
    number = len(cuts)
    index = np.array([first for first, _ in cuts])[:, None] + np.arange(len(template))
    begins = np.array([begin for _, (begin, _) in cuts])
    ends = np.array([end for _, (_, end) in cuts])
    origin = progress.at(begins)[:, None]
    start = progress.at(rows["start_ns"].to_numpy())[index] - origin
    lasts = (rows["duration_ns"].to_numpy() / 1e3)[index]
    waited = (rows["waiting_ns"].clip(lower_bound=0).to_numpy() / 1e3)[index]
    at = rows["needed_ns"].cast(pl.Float64).to_numpy()[index]
    needs = np.where(np.isnan(at), np.nan, progress.at(np.nan_to_num(at)) - origin)
    # One that begins as the one before it ends may have been released long before: as early as in any iteration.
    behind = np.median(_behind(rows)[index], axis=0) < QUEUED_US
    released = np.maximum(np.where(behind, np.quantile(start, 0.1, axis=0), np.median(start, axis=0)), 0.0)
    operations = []
    for place, row in enumerate(template.iter_rows(named=True)):
        known = needs[:, place][~np.isnan(needs[:, place])]
        operations.append(
            Operation(
                pattern=str(row["pattern"]),
                bytes=int(row["bytes"]),
                ranks=int(row["ranks"]),
                comm=int(row["comm"]),
                lasts_us=float(np.median(lasts[:, place])),
                transfer_us=float(np.median(lasts[:, place] - waited[:, place])),
                released_us=float(released[place]),
                needed_us=max(float(np.median(known)), float(released[place])) if 2 * len(known) > number else None,
                hosted=bool(np.median(hosted[index[:, place]]) > 0.5),
            )
        )
    return Step(
        rank=rank,
        iterations=number,
        time_us=float(np.median(ends - begins)) / 1e3,
        work_us=float(np.median(progress.at(ends) - progress.at(begins))),
        exposed_us=float(np.median(progress.stalled(ends) - progress.stalled(begins))),
        operations=operations,
        edges_ns=np.stack([begins, ends], axis=1),
    )


def _behind(rows: pl.DataFrame) -> Floats:
    """Microseconds from the end of the collective before it in the same communicator."""
    before = rows.select(before=pl.col("stop_ns").shift(1).over("comm"))["before"]
    return ((rows["start_ns"] - before) / 1e3).fill_null(float("inf")).to_numpy()


def waits_by_stream(waits: pl.DataFrame) -> list[pl.DataFrame]:
    """The waits of each stream; the first one waits most often: it computes."""
    return sorted(waits.partition_by("stream", maintain_order=True), key=len, reverse=True)


def _of_computation(waits: pl.DataFrame) -> pl.DataFrame:
    streams = waits_by_stream(waits)
    if not streams:
        raise NoStepError("no marks tell where computation waited for communication")
    if len(streams) > 1 and len(streams[1]) > BUSY_STREAM * len(streams[0]):
        raise NoStepError("several streams compute")
    return streams[0]


def _alike(rows: pl.DataFrame, edges: npt.NDArray[np.int64]) -> tuple[pl.DataFrame, list[Cut]]:
    """The sequence that most iterations have, and where those begin in `rows`, with their edges."""
    middle = ((rows["start_ns"] + rows["stop_ns"]) // 2).to_numpy()
    names = rows.select(code=pl.struct("pattern", "comm", "bytes").rank("dense"))["code"].to_numpy()
    groups: dict[bytes, list[Cut]] = {}
    for (first, last), (begin, end) in zip(np.searchsorted(middle, edges).tolist(), edges.tolist(), strict=True):
        if 0 < last - first <= MOST_OPERATIONS:
            groups.setdefault(names[first:last].tobytes(), []).append((first, (begin, end)))
    if not groups:
        raise NoStepError(f"no iteration of at most {MOST_OPERATIONS} collectives was timed as a whole")
    key, most = max(groups.items(), key=lambda item: len(item[1]))
    return rows.slice(most[0][0], len(key) // names.itemsize), most


def _usual(cuts: list[Cut], progress: _Progress) -> list[Cut]:
    """The half whose time is nearest the median and, of these, the half that waited about as long as is usual.

    The parts of an iteration then belong together. Medians of each part over all would make up none that there was.
    """
    for length in (lambda edges: edges[:, 1] - edges[:, 0], lambda edges: np.diff(progress.stalled(edges))[:, 0]):
        values = length(np.array([edges for _, edges in cuts])).astype(np.float64)
        away = np.abs(values - np.median(values))
        kept = np.sort(np.argsort(away, kind="stable")[: max(FEWEST_ITERATIONS, len(cuts) // 2)])
        cuts = [cuts[index] for index in kept]
    return cuts


class _Progress:
    """How far computation has come at any time: time, less what it waited and what collectives took from it."""

    def __init__(self, rows: pl.DataFrame, waits: pl.DataFrame, hosted: npt.NDArray[np.bool_], loss: Loss) -> None:
        self._origin = int(rows["start_ns"].min())  # type: ignore[arg-type]
        self._stalls = iv.union(waits["stall_ns"].to_numpy(), waits["resume_ns"].to_numpy())
        begin, end = (self._running(rows[name].to_numpy()) for name in ("start_ns", "stop_ns"))
        beside = end - begin
        lasts = rows["duration_ns"].to_numpy() / 1e3
        each = np.array([loss(pattern, size) for pattern, size in rows.select("pattern", "bytes").iter_rows()])
        share = np.divide(beside, lasts, out=np.zeros_like(beside), where=lasts > 0)
        lost = np.where(hosted, 0.0, np.minimum(each * share, MOST_LOST * beside))
        # Each loss is spread evenly over the time beside its collective: a slope between two places.
        keep = (beside > 0) & (lost > 0)
        slopes = lost[keep] / beside[keep]
        places = np.concatenate([begin[keep], end[keep]])
        order = np.argsort(places, kind="stable")
        self._places = np.concatenate([[0.0], places[order]])
        slope = np.concatenate([[0.0], np.cumsum(np.concatenate([slopes, -slopes])[order])])
        self._lost = np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(self._places))])

    def stalled(self, time_ns: npt.ArrayLike) -> Floats:
        """Microseconds waited until then."""
        times = np.asarray(time_ns, dtype=np.int64)
        return np.asarray(iv.covered_before(self._stalls, times.ravel()).reshape(times.shape) / 1e3, dtype=np.float64)

    def at(self, time_ns: npt.ArrayLike) -> Floats:
        """Progress until then, of any times."""
        running = self._running(time_ns)
        return np.asarray(running - np.interp(running, self._places, self._lost), dtype=np.float64)

    def _running(self, time_ns: npt.ArrayLike) -> Floats:
        times = np.asarray(time_ns, dtype=np.int64)
        return np.asarray((times - self._origin) / 1e3 - self.stalled(times), dtype=np.float64)


@dataclass(frozen=True)
class Cost:
    """What one collective takes: by itself, beside computation, and what computation loses then; microseconds."""

    alone_us: float
    beside_us: float
    lost_us: float


@dataclass
class Simulated:
    """`time_us`: an iteration; `exposed_us`: what of it computation waited.

    `beside`: of each collective, the share that was carried out beside computation.
    """

    time_us: float
    exposed_us: float
    beside: list[float]


def simulate(step: Step, costs: Sequence[Cost], iterations: int = 5) -> Simulated:
    """Run the iteration so often, and look at the last but one: it is steady, and another one follows.

    Raises:
        NoStepError: the iteration can never end, or takes no time.
    """
    run = _Run(step, costs, iterations)
    for _ in range(EVENTS * iterations * (len(step.operations) + 1)):
        if not run.advance():
            return run.found()
    raise NoStepError("its collectives never end")


class _Run:
    def __init__(self, step: Step, costs: Sequence[Cost], iterations: int) -> None:
        number = len(step.operations)
        self._costs, self._number, self._iterations = costs, number, iterations
        self._released = [i * step.work_us + each.released_us for i in range(iterations) for each in step.operations]
        self._done = [0.0] * (number * iterations)  # share of each
        self._beside = [0.0] * (number * iterations)
        self._queues = [
            [i * number + k for i in range(iterations) for k in range(number) if step.operations[k].comm == comm]
            for comm in sorted({each.comm for each in step.operations})
        ]
        needs = [
            (i * step.work_us + each.needed_us, i * number + k)
            for i in range(iterations)
            for k, each in enumerate(step.operations)
            if each.needed_us is not None
        ]
        self._end = iterations * step.work_us
        self._needs = sorted((min(at, self._end), index) for at, index in needs)
        self._time = self._progress = self._exposed = 0.0
        # Where the last but one iteration begins and ends; and when, and what was exposed until then.
        self._edges = [(iterations - 2) * step.work_us, (iterations - 1) * step.work_us]
        self._marks: list[tuple[float, float]] = []

    def advance(self) -> bool:
        """To the next thing that begins or ends; False: all is done."""
        tiny = 1e-6
        self._queues = [queue[1:] if queue and self._done[queue[0]] >= 1 - 1e-9 else queue for queue in self._queues]
        while self._needs and self._done[self._needs[0][1]] >= 1 - 1e-9:
            self._needs.pop(0)
        heads = [queue[0] for queue in self._queues if queue]
        active = [head for head in heads if self._released[head] <= self._progress + tiny]
        computed = self._progress >= self._end - tiny
        if computed and not self._needs:
            return False
        waits = bool(self._needs) and self._needs[0][0] <= self._progress + tiny
        blocked = waits or computed
        if self._edges and self._edges[0] <= self._progress + tiny and not waits:
            self._edges.pop(0)
            self._marks.append((self._time, self._exposed))
        costs = [self._costs[head % self._number] for head in active]
        pace = [1 / max(cost.alone_us if blocked else cost.beside_us, tiny) for cost in costs]
        speed = 0.0
        if not blocked:
            lost = sum(cost.lost_us / max(cost.beside_us, tiny) for cost in costs)
            speed = max(1 - MOST_LOST, 1 - lost)
        steps = [(1 - self._done[head]) / each for head, each in zip(active, pace, strict=True)]
        if speed > 0:
            marks = [self._end, *(at for at, _ in self._needs[:1])]
            marks += [self._released[head] for head in heads if head not in active]
            marks += self._edges[:1]
            steps += [(mark - self._progress) / speed for mark in marks if mark > self._progress + tiny]
        if not steps:  # waits for what nothing releases: the record is not that of such a program
            raise NoStepError("its collectives wait for each other")
        passed = max(min(steps), 0.0)
        for head, each in zip(active, pace, strict=True):
            self._done[head] += passed * each
            if not blocked:
                self._beside[head] += passed * each
            if self._done[head] >= 1 - 1e-9:
                self._done[head] = 1.0
        self._time += passed
        self._progress += passed * speed
        self._exposed += passed if waits else 0.0
        return True

    def found(self) -> Simulated:
        """What the last but one iteration came to."""
        if len(self._marks) != 2:
            raise NoStepError("its computation takes no time")
        (began, before), (ended, exposed) = self._marks
        mine = slice((self._iterations - 2) * self._number, (self._iterations - 1) * self._number)
        return Simulated(ended - began, exposed - before, self._beside[mine])
