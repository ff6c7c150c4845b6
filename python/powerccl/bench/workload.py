# SPDX-License-Identifier: Apache-2.0
"""What is tuned: cases (pattern, size) with the share of time that each has, from a recorded run or as given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from powerccl.errors import PowercclError, UsageError, choose
from powerccl.patterns import PATTERNS, parse_bytes, size_class
from powerccl.quantities import byte_size

if TYPE_CHECKING:
    import polars as pl

MOST_CASES = 12
COVERED = 0.98  # of the time; what is beyond is left out
STEP = "step"  # the pattern of a case that is a whole recorded iteration; it has no size
DEFAULT_SIZES = "16K,1M,8M,64M"


class Case(msgspec.Struct, frozen=True):
    """One collective at one size (bytes, as NCCL tests count them), among `ranks`; `weight`: its share of time."""

    pattern: str
    size_bytes: int
    weight: float = 1.0
    ranks: int = 0  # 0: all of the machine
    calls: int = 0
    seconds: float = 0.0  # of all GPUs' mean; 0 where not known

    @property
    def name(self) -> str:
        """`all_reduce 64 MiB`, or what an iteration is called."""
        return "iteration" if self.pattern == STEP else f"{self.pattern} {byte_size(self.size_bytes)}"

    @property
    def key(self) -> str:
        """`all_reduce.67108864`, for storage."""
        return f"{self.pattern}.{self.size_bytes}"


class Workload(msgspec.Struct):
    """Cases with weights that sum to 1, the longest first, and where they are from."""

    cases: list[Case]
    source: str
    covered: float = 1.0  # share of the communication time that these cases stand for
    histogram: list[Case] = []  # every (pattern, size class, ranks) of the run

    @property
    def patterns(self) -> list[str]:
        """Patterns that occur, in the order of the cases."""
        return list(dict.fromkeys(case.pattern for case in self.cases))


def given(patterns: str, sizes: str) -> Workload:
    """A workload of every pattern at every size, all alike.

    Raises:
        PowercclError: a name or a size is not understood.
    """
    cases = []
    for pattern in (part.strip() for part in patterns.split(",")):
        choose("pattern", pattern, PATTERNS)
        for text in sizes.split(","):
            try:
                size = parse_bytes(text)
            except ValueError as error:
                raise UsageError(f"--sizes {sizes}: not a list of sizes", "list them, such as 16K,1M,64M") from error
            if size < 8:
                raise UsageError(f"--sizes {sizes}: {text} is too small", "use at least 8 bytes")
            cases.append(Case(pattern, size))
    return Workload(_weighted(cases, [1.0] * len(cases)), f"{patterns} at {sizes}")


def of_run(folder: Path, most: int = MOST_CASES) -> Workload:
    """What a recorded run spent its communication time on.

    Raises:
        PowercclError: the folder is none of a run, or nothing of NCCL is in it.
    """
    from powerccl.traces import tables
    from powerccl.traces.folder import read_run

    try:
        run = read_run(folder)
    except FileNotFoundError as error:
        raise PowercclError(f"no run folder {folder}", "record one: powerccl run -- COMMAND") from error
    histogram = _histogram(tables.calls(run), tables.kernels(run))
    if not histogram:
        why = f" ({run.problems[0]})" if run.problems else ""
        raise PowercclError(f"{folder} has no collectives of NCCL{why}", "name the folder of a job that uses NCCL")
    ranks = max(case.ranks for case in histogram)
    whole = [case for case in histogram if case.ranks == ranks]
    total = sum(_time(case) for case in histogram) or 1.0
    kept: list[Case] = []
    for case in whole[:most]:
        if kept and sum(_time(each) for each in kept) >= COVERED * sum(_time(each) for each in whole):
            break
        kept.append(case)
    covered = sum(_time(case) for case in kept) / total
    return Workload(_weighted(kept, [_time(case) for case in kept]), str(folder), covered, histogram)


def _time(case: Case) -> float:
    return case.seconds or case.calls * 1e-9  # a run without kernel times still tells how often


def _weighted(cases: list[Case], amounts: list[float]) -> list[Case]:
    total = sum(amounts) or 1.0
    return [msgspec.structs.replace(case, weight=amount / total) for case, amount in zip(cases, amounts, strict=True)]


def _histogram(calls: pl.DataFrame, kernels: pl.DataFrame) -> list[Case]:
    """One case a (pattern, size class, ranks), at its median size, the longest first."""
    import polars as pl

    from powerccl.analysis.communication import KEY, ran

    medians = kernels.group_by(KEY, maintain_order=True).agg(estimate_ns=pl.col("duration_ns").median())
    covered = calls.with_columns(rest=~ran(calls, kernels) & ~calls["captured"]).join(medians, on=KEY, how="left")
    gpus = max(calls["rank"].n_unique(), 1)
    key = ["pattern", "size_class", "ranks"]
    timed = kernels.group_by(key, maintain_order=True).agg(
        kernel_ns=pl.col("duration_ns").sum(), kernel_bytes=pl.col("bytes").median(), ran=pl.len()
    )
    called = covered.group_by(key, maintain_order=True).agg(
        calls=pl.len(), call_bytes=pl.col("bytes").median(), estimated_ns=pl.col("estimate_ns").filter("rest").sum()
    )
    cases = []
    for row in called.join(timed, on=key, how="full", coalesce=True).sort(key).iter_rows(named=True):
        if row["pattern"] not in PATTERNS or row["ranks"] < 2:
            continue
        size = int(row["call_bytes"] or row["kernel_bytes"] or 0)
        seconds = ((row["kernel_ns"] or 0) + (row["estimated_ns"] or 0)) / 1e9 / gpus
        if size_class(size):
            number = int(row["calls"] or row["ran"] or 0) // gpus
            cases.append(Case(row["pattern"], size, ranks=int(row["ranks"]), calls=max(number, 1), seconds=seconds))
    total = sum(_time(case) for case in cases) or 1.0
    cases = [msgspec.structs.replace(case, weight=_time(case) / total) for case in cases]
    return sorted(cases, key=_time, reverse=True)
