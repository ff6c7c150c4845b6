# SPDX-License-Identifier: Apache-2.0
"""What a report needs of all calls and kernels of a run, gathered a few ranks at a time.

Tables of all calls and kernels (RunTables) take some 200 bytes an operation. Of a large run there are tables of a few
GPUs at a time. What stays of them are counts, and a few columns of each kernel. A run that fits memory is one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.communication import KEY, Alike, CallCoverage, cover, moved, time_kinds
from powerccl.analysis.exposure import Exposure, together, with_operations
from powerccl.analysis.iterations import Cut
from powerccl.analysis.run_tables import RunTables, Window, run_tables
from powerccl.analysis.shares import Ends, cuts_of, ends_of
from powerccl.analysis.stragglers import Ints, Matched, Sequence, in_sequence, match
from powerccl.memory import give_back
from powerccl.traces import records, tables
from powerccl.traces.folder import RunData
from powerccl.traces.rank import RankTrace

COLUMNS = ("rank", "gpu", "start_ns", "stop_ns", "duration_ns", "kind")
KIND = (*KEY, "ranks", "bytes")  # what kernels have in common


@dataclass
class WholeRun:
    """All of a run, or of a window of it.

    `kernels`: those of the window, in the order of RunTables.kernels, with COLUMNS of it. Their `kind` is a row of
    `kinds`, which has the columns of KIND. `part`: tables of all columns, of the part of a large run whose records are
    kept. `marks`: as RunTables has them. `ends`, `cuts`: as shares.working takes them.
    """

    run: RunData
    window: Window | None
    kernels: pl.DataFrame
    kinds: pl.DataFrame
    coverage: CallCoverage
    sequence: Sequence | None  # until it was used
    marks: Exposure | None
    ends: Ends
    cuts: dict[tuple[str, int], Cut]
    part: RunTables

    @cached_property
    def rows_of(self) -> dict[int, slice]:
        """Which kernels are each rank's."""
        rank = self.kernels["rank"].to_numpy()
        begins = np.flatnonzero(np.append(True, rank[1:] != rank[:-1])[: len(rank)])
        ends = np.append(begins, len(rank))[1:]
        return {int(rank[begin]): slice(begin, end) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)}

    @cached_property
    def communicating(self) -> Communicating:
        """When each GPU was communicating: the union of its kernels, host time."""
        return Communicating(self)

    @cached_property
    def matched(self) -> Matched:
        """As stragglers.match."""
        sequence, self.sequence = self.sequence, None
        assert sequence is not None
        return match(self.run, sequence, self.kernels)

    @cached_property
    def spans(self) -> dict[str, tuple[int, int]]:
        """Of each GPU, its first kernel's start and its last one's end (host ns)."""
        spans: dict[str, tuple[int, int]] = {}
        for trace in self.run.ranks:
            if rows := self.rows_of.get(trace.rank):
                one = self.kernels[rows]
                first, last = int(one["start_ns"].to_numpy().min()), int(one["stop_ns"].to_numpy().max())
                before = spans.get(trace.gpu, (first, last))
                spans[trace.gpu] = (min(first, before[0]), max(last, before[1]))
        return spans

    @cached_property
    def totals(self) -> pl.DataFrame:
        """Of each of `kinds`: its columns, count, time_ns (in the window) and duration_ns of its kernels."""
        sums = self.kernels.group_by("kind", maintain_order=True).agg(
            count=pl.len(),
            time_ns=pl.col("inside_ns").cast(pl.Int64).sum(),
            duration_ns=pl.col("duration_ns").cast(pl.Int64).sum(),
        )
        return self.kinds.with_row_index("kind").join(sums, on="kind", maintain_order="left").drop("kind")

    @cached_property
    def timed(self) -> pl.DataFrame:
        """As communication.time_kinds."""
        return time_kinds(self.of_kinds())

    def of_kinds(self, *columns: str, **more: Ints) -> Iterator[Alike]:
        """The kernels of each pattern and size class, with these columns of `kernels` and values of all kernels."""
        codes = self.kinds.select(pl.struct(KEY).rank("dense").cast(pl.Int32)).to_series()
        values = {name: self.kernels[name].to_numpy() for name in ("kind", "duration_ns", "inside_ns", *columns)} | more
        counts = np.bincount(values["kind"], minlength=len(self.kinds))
        kinds = self.kinds.with_columns(moved(self.kinds).alias("moved"), count=pl.Series(counts))
        key_of = codes.to_numpy()[values["kind"]] if len(codes) else np.empty(0)
        for code in codes.unique(maintain_order=True).to_list():
            rows, own = np.flatnonzero(key_of == code), np.flatnonzero(codes.to_numpy() == code)
            place = np.zeros(len(codes), np.int64)
            place[own] = np.arange(len(own))
            duration, inside = (values[name][rows].astype(np.int64) for name in ("duration_ns", "inside_ns"))
            yield Alike(
                pattern=str(kinds["pattern"][int(own[0])]),
                size_class=int(kinds["size_class"][int(own[0])]),
                kinds=kinds[own],
                kind=place[values["kind"][rows]],
                duration_ns=duration,
                inside_ns=inside,
                more={name: values[name][rows] for name in (*columns, *more)},
            )


class Communicating(Mapping[str, iv.Intervals]):
    """Intervals by GPU, made when they are asked for: together they are as large as the kernels' times."""

    def __init__(self, built: WholeRun) -> None:
        self._rows: dict[str, list[slice]] = {}
        for trace in built.run.ranks:
            if trace.rank in built.rows_of:
                self._rows.setdefault(trace.gpu, []).append(built.rows_of[trace.rank])
        self._start, self._stop = (built.kernels[name].to_numpy() for name in ("start_ns", "stop_ns"))

    def __getitem__(self, gpu: str) -> iv.Intervals:
        return iv.union(
            *(np.concatenate([each[rows] for rows in self._rows[gpu]]) for each in (self._start, self._stop))
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def spans_of(kernels: pl.DataFrame) -> dict[str, tuple[int, int]]:
    """As WholeRun.spans, of a table of kernels."""
    spans = kernels.group_by("gpu", maintain_order=True).agg(pl.col("start_ns").min(), pl.col("stop_ns").max())
    return {str(gpu): (int(first), int(last)) for gpu, first, last in spans.iter_rows()}


def whole_run(run: RunData, window: Window | None = None, operations: bool = False) -> WholeRun:
    """Gather it; `window` takes a part of the run. `operations`: also what exposure.with_operations adds."""
    part = run_tables(run, window)
    added = [*(["inside_ns"] if window else []), *(["operation"] if operations else [])]
    gathered = _Gathered(run, window, {name: [] for name in (*COLUMNS, *added)})
    if run.in_part:
        for piece in pieces(run):
            tables_of = run_tables(piece, window)
            _drop(piece, records.KERNEL, records.WAIT, records.CALLBACK)  # they are in the tables now
            _ = tables_of.all_calls
            _drop(piece, records.CALL)
            gathered.add(tables_of)
            del tables_of
            give_back()
    else:
        gathered.add(part)
    return gathered.whole(part)


def pieces(run: RunData) -> Iterator[RunData]:
    """The run with a few ranks at a time and all of their records; ranks that share a GPU come together."""
    of_gpus: dict[str, list[RankTrace]] = {}
    for trace in run.ranks:
        of_gpus.setdefault(trace.gpu, []).append(trace)
    chosen: list[RankTrace] = []
    count = 0
    for traces in of_gpus.values():
        more = sum(trace.records for trace in traces)
        if chosen and count + more > run.at_a_time:
            yield replace(run, ranks=[trace.whole() for trace in chosen])
            chosen, count = [], 0
        chosen, count = [*chosen, *traces], count + more
    yield replace(run, ranks=[trace.whole() for trace in chosen])


def _drop(run: RunData, *kinds: int) -> None:
    for trace in run.ranks:
        trace.kinds |= {kind: np.empty(0, records.LAYOUTS[kind]) for kind in kinds}


@dataclass
class _Gathered:
    run: RunData
    window: Window | None
    columns: dict[str, list[pl.Series]]
    coverage: list[CallCoverage] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    marks: list[Exposure] = field(default_factory=list)
    kinds: list[pl.DataFrame] = field(default_factory=list)
    ends: Ends = field(default_factory=dict)
    cuts: dict[tuple[str, int], Cut] = field(default_factory=dict)

    def add(self, built: RunTables) -> None:
        calls, kernels = built.calls, built.kernels
        ends = ends_of(calls, kernels)
        self.ends |= ends
        self.cuts = cuts_of(built.run.ranks, ends, self.cuts, calls, kernels, self.window or self.run.window)
        self.coverage.append(cover(calls, kernels, tables.tags(built.run)))
        self.sequences.append(in_sequence(self.run, built.run.ranks, built.all_calls, built.all_kernels, built.inside))
        if built.marks:
            self.marks.append(built.marks)
        kinds = kernels.select(KIND).unique(maintain_order=True)
        first = sum(len(known) for known in self.kinds)
        self.kinds.append(kinds)
        numbered = kinds.with_columns(kind=pl.int_range(first, first + len(kinds), dtype=pl.UInt32, eager=True))
        narrow = kernels.with_columns(
            kernels.select(KIND).join(numbered, on=KIND, how="left", maintain_order="left")["kind"],
            pl.col("rank").cast(pl.Int32),
        )
        if "operation" in self.columns:
            narrow = with_operations(narrow)
        if (narrow["duration_ns"] < 1 << 32).all():
            narrow = narrow.with_columns(pl.col("duration_ns").cast(pl.UInt32))
        for name, parts in self.columns.items():
            parts.append(narrow[name])

    def whole(self, part: RunTables) -> WholeRun:
        # A column at a time, so that little is in memory twice.
        if pl.Int64 in {each.dtype for each in self.columns["duration_ns"]}:
            self.columns["duration_ns"] = [each.cast(pl.Int64) for each in self.columns["duration_ns"]]
        kernels = pl.DataFrame([pl.concat(self.columns.pop(name), rechunk=True) for name in [*self.columns]])
        return WholeRun(
            run=self.run,
            window=self.window,
            kernels=kernels if self.window else kernels.with_columns(inside_ns="duration_ns"),
            kinds=pl.concat(self.kinds),
            coverage=CallCoverage.together(self.coverage),
            sequence=Sequence.together(self.sequences),
            marks=together(self.marks) if self.marks else None,
            ends=self.ends,
            cuts=self.cuts,
            part=part,
        )
