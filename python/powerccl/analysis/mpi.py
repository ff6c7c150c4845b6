# SPDX-License-Identifier: Apache-2.0
"""What the ranks did in MPI: time waiting, transferring and asleep, by call, communicator and rank."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from powerccl.analysis.cpu_energy import cpu_energy
from powerccl.analysis.findings import MpiComm, MpiImbalance, MpiRank, MpiRow, MpiSummary
from powerccl.quantities import plural
from powerccl.traces.folder import RunData
from powerccl.traces.mpi_functions import COLLECTIVES
from powerccl.traces.mpi_tables import mpi_process, mpi_totals, wait_method
from powerccl.traces.rank import RankTrace

_SUMS = ("calls", "bytes", "call_ns", "wait_ns", "sleep_ns")
_COLLECTIVE_NAMES = [f"MPI_{name}" for name in COLLECTIVES]


def summarise_mpi(run: RunData, wall_s: float | None) -> MpiSummary | None:
    """Findings of a run's MPI traces; None if there is none. `wall_s` is the whole job's, as far as it is known."""
    if not run.mpi:
        return None
    totals, processes = mpi_totals(run), mpi_process(run)
    ranks = len({trace.rank for trace in run.mpi})
    threads = _threads(processes, totals)
    threads_per_rank = sum(threads.get(rank, 1) for rank in {trace.rank for trace in run.mpi}) / ranks
    sums = _times(totals.select(pl.col(name).sum() for name in _SUMS).row(0, named=True))
    sleeps = int(processes["sleeps"].sum())
    longer_ns = int(processes["sleep_ns"].sum()) - int(processes["asked_ns"].sum())
    return MpiSummary(
        library=_most(trace.library for trace in run.mpi),
        ranks=ranks,
        processes=len(run.mpi),
        wait_mode=_most(trace.clock_client for trace in run.mpi),
        wait_method=wait_method(run),
        wall_s=wall_s,
        **sums,
        **_per_rank(sums, ranks),
        threads_per_rank=threads_per_rank,
        # Two jobs of one command may run at the same time.
        share_pct=min(sums["time_s"] / ranks / threads_per_rank / wall_s * 100, 100.0) if wall_s else None,
        cpu_s=_cpu_s(processes),
        sleeps=sleeps,
        oversleep_us=longer_ns / sleeps / 1e3 if sleeps else None,
        rows=_rows(totals, ranks),
        comms=_comms(totals),
        by_rank=_by_rank(run.mpi, totals, processes, threads),
        imbalance=_imbalance(totals),
        energy=cpu_energy(run),
        rank_names={trace.rank: trace.rank_name for trace in run.mpi if trace.rank_name},
    )


def each_alone(run: RunData) -> str:
    """What to say where a launcher's processes did not find each other; empty where they did."""
    if len(run.mpi) < 2 or any(trace.nranks != 1 for trace in run.mpi):
        return ""
    started = Path(run.info.command[0]).name if run.info and run.info.command else ""
    if not started.startswith(("mpiexec", "mpirun")) and not (run.info and run.info.launcher):
        return ""
    return (
        f"{plural(len(run.mpi), 'process', 'processes')}, each alone in its MPI_COMM_WORLD: the launcher and"
        f" the program seem to use different MPI libraries ({_most(trace.library for trace in run.mpi)})"
    )


def _most(values: Iterable[str]) -> str:
    """What they all say, or every different thing they say."""
    return ", ".join(dict.fromkeys(value for value in values if value))


def _times(sums: dict[str, Any]) -> dict[str, Any]:
    """The fields of MpiTimes from a row of sums."""
    time_s, wait_s = sums["call_ns"] / 1e9, sums["wait_ns"] / 1e9
    return {
        "calls": sums["calls"],
        "bytes": sums["bytes"],
        "time_s": time_s,
        "wait_s": wait_s,
        "transfer_s": time_s - wait_s,
        "sleep_s": sums["sleep_ns"] / 1e9,
    }


def _per_rank(times: dict[str, Any], ranks: int) -> dict[str, Any]:
    return {f"{name}_per_rank_s": times[f"{name}_s"] / ranks for name in ("time", "wait", "transfer", "sleep")}


def _threads(processes: pl.DataFrame, totals: pl.DataFrame) -> dict[int, int]:
    """How many threads of each rank called MPI at a time; of a rank's processes, the one with most counts."""
    said = processes.select("rank", "threads")
    # A process that was killed may have reported its calls only.
    seen = (
        totals.group_by("trace", "rank", maintain_order=True)
        .agg((pl.col("thread").max() + 1).alias("threads"))
        .select("rank", "threads")
    )
    most = pl.concat([said, seen]).group_by("rank", maintain_order=True).agg(pl.col("threads").max())
    return {int(rank): max(int(threads), 1) for rank, threads in most.iter_rows()}


def _cpu_s(processes: pl.DataFrame) -> float | None:
    if not len(processes):
        return None
    return int(processes.select(pl.sum_horizontal("user_ns", "system_ns").sum()).item()) / 1e9


def _grouped(totals: pl.DataFrame, *keys: str) -> pl.DataFrame:
    return totals.group_by(keys, maintain_order=True).agg(pl.col(name).sum() for name in _SUMS)


def _rows(totals: pl.DataFrame, ranks: int) -> list[MpiRow]:
    groups = _grouped(totals, "function", "size_class_bytes").sort("call_ns", descending=True)
    rows = []
    for row in groups.iter_rows(named=True):
        times = _times(row)
        names = {"function": row["function"], "size_class_bytes": row["size_class_bytes"]}
        rows.append(MpiRow(**names, **times, **_per_rank(times, ranks)))
    return rows


def _comms(totals: pl.DataFrame) -> list[MpiComm]:
    groups = _grouped(totals, "job", "comm_id").sort("call_ns", descending=True)
    comms = []
    for row in groups.iter_rows(named=True):
        of_it = totals.filter((pl.col("comm_id") == row["comm_id"]) & (pl.col("job") == row["job"]))
        named = of_it.filter(pl.col("comm_name") != "")["comm_name"]
        comms.append(
            MpiComm(
                comm_id=row["comm_id"],
                name=named[0] if len(named) else "",
                nranks=of_it["nranks"][0],
                ranks=sorted(of_it["rank"].unique(maintain_order=True).to_list()),
                **_times(row),
            )
        )
    return comms


def _by_rank(
    traces: list[RankTrace], totals: pl.DataFrame, processes: pl.DataFrame, threads: dict[int, int]
) -> list[MpiRank]:
    sums = {row["rank"]: _times(row) for row in _grouped(totals, "rank").iter_rows(named=True)}
    nothing = _times(dict.fromkeys(_SUMS, 0))
    ranks = []
    for rank in sorted({trace.rank for trace in traces}):
        own = [trace for trace in traces if trace.rank == rank]
        times = sums.get(rank, nothing)
        span_s = sum(trace.last_ns() - trace.start_ns for trace in own) / 1e9
        ranks.append(
            MpiRank(
                rank=rank,
                host=own[0].host,
                pid=own[0].pid,
                span_s=span_s or None,
                threads=threads.get(rank, 1),
                execution_s=max(span_s * threads.get(rank, 1) - times["time_s"], 0.0) if span_s else None,
                cpu_s=_cpu_s(processes.filter(pl.col("rank") == rank)),
                **times,
            )
        )
    return ranks


def _imbalance(totals: pl.DataFrame) -> list[MpiImbalance]:
    """Per collective and communicator all of whose ranks left a trace, by the wait it explains."""
    collective = totals.filter(pl.col("function").is_in(_COLLECTIVE_NAMES) & (pl.col("nranks") > 1))
    names = ["function", "job", "comm_id", "comm_name", "nranks"]
    per_rank = _grouped(collective, *names, "rank")
    imbalances = []
    for (function, _, comm_id, name, nranks), rows in per_rank.group_by(names, maintain_order=True):
        longest_ns = rows["call_ns"].to_numpy().max()
        if len(rows) != nranks or longest_ns <= 0:
            continue
        waits_ns = rows["wait_ns"].to_numpy()
        spread_ns = waits_ns.max() - waits_ns.min()
        imbalances.append(
            MpiImbalance(
                function=str(function),
                comm_id=int(str(comm_id)),
                comm_name=str(name),
                nranks=int(str(nranks)),
                calls=int(rows["calls"].to_numpy().max()),
                imbalance_pct=float(spread_ns / longest_ns * 100),
                latest_rank=int(rows["rank"][int(waits_ns.argmin())]),
                wait_min_s=float(waits_ns.min() / 1e9),
                wait_max_s=float(waits_ns.max() / 1e9),
                time_max_s=float(longest_ns / 1e9),
            )
        )
    return sorted(imbalances, key=lambda one: one.wait_min_s - one.wait_max_s)
