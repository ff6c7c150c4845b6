# SPDX-License-Identifier: Apache-2.0
"""A run folder as tables and figures."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from powerccl.analysis.communication import ran
from powerccl.analysis.energy import energy_curves, job_samples
from powerccl.analysis.findings import Gpu, PatternRow, RunSummary
from powerccl.analysis.iteration_energy import curves_of, joules_between
from powerccl.analysis.report import Report, ReportFindings, report
from powerccl.analysis.report_findings import RankParts
from powerccl.api.tables import (
    COLLECTIVES,
    ITERATIONS,
    MOMENT,
    POWER,
    bounds_between,
    findings_table,
    stacked,
)
from powerccl.commandline.references import own_reference
from powerccl.commandline.runs import find_run
from powerccl.errors import PowercclError
from powerccl.estimate import Estimate
from powerccl.tariff import parse_time
from powerccl.traces.folder import RunData, read_info

Ints = npt.NDArray[np.int64]
LATEST = "latest"
CONFIDENCE = 1.96  # standard errors to each side of a mean: a 95 % interval


class Run:
    """A run, read once when the first table or figure is asked for.

    A moment is given twice. A column without a unit is the wall clock of the host, in UTC. A column that ends in `_s`
    is in seconds from the run's start. Energy is in joules, power in watts. Null means not known, never zero.
    """

    def __init__(self, folder: Path) -> None:
        """`folder`: of a run that `powerccl run` recorded. Use `powerccl.open_run`."""
        self.folder = folder

    def __repr__(self) -> str:
        return f"<powerccl run {self.folder}>"

    @cached_property
    def _report(self) -> Report:
        about = RunData(self.folder)
        read_info(about)
        made = report(self.folder, own_reference(about))
        summary = made.findings.summary
        if not (summary.ranks or summary.gpus or summary.mpi or made.run.info):
            raise PowercclError(
                f"{self.folder} is no run folder: it has no run.json, no trace and no samples",
                "name a folder that `powerccl run` made, such as those in runs/",
            )
        return made

    @property
    def findings(self) -> ReportFindings:
        """Everything that `powerccl report --json` writes, except for what other ways would save."""
        return self._report.findings

    @property
    def summary(self) -> RunSummary:
        """The content of summary.json: energy, communication, shares, clocks and notes of the whole run."""
        return self.findings.summary

    @property
    def window_s(self) -> tuple[float, float] | None:
        """Of a run too large to be read whole: the part of all tables, in seconds from its start. None: all."""
        return self.findings.window_s

    @property
    def started(self) -> datetime | None:
        """When the job started, UTC; None: the run does not say."""
        wall_ns = self._origin_wall_ns
        return None if wall_ns is None else datetime.fromtimestamp(wall_ns / 1e9, timezone.utc)

    @property
    def iteration_time(self) -> Estimate | None:
        """Mean time of an iteration in s, with a 95 % interval of the mean; None: no iterations were found.

        Where several hosts or jobs have iterations, it is that of the slowest.
        """
        means = [
            _interval(each.mean_s, each.mean_error_s, each.found, "s")
            for each in self.findings.iterations
            if each.mean_s is not None and each.mean_error_s is not None
        ]
        return max(means, key=lambda mean: mean.value, default=None)

    @property
    def iteration_energy(self) -> Estimate | None:
        """Mean joules of an iteration, all GPUs of the run, with a 95 % interval of the mean.

        None: not known, as where a host has no samples, or where the run has several jobs. The interval is of the
        differences between iterations.
        """
        hosts = self.findings.iterations
        several = len({job for _, job in self._report.cuts}) > 1
        if not hosts or several or any(each.joules is None or each.joules_error is None for each in hosts):
            return None
        value = sum(each.joules or 0.0 for each in hosts)
        error = sum((each.joules_error or 0.0) ** 2 for each in hosts) ** 0.5
        return _interval(value, error, min(each.joules_of for each in hosts), "J")

    @property
    def communication_energy(self) -> Estimate | None:
        """Joules of all GPUs while they communicated, with how far the attribution may be off; None: not known."""
        communication = self.summary.communication
        if communication.joules is None:
            return None
        half = communication.uncertainty_joules or 0.0
        return Estimate(
            communication.joules, max(communication.joules - half, 0.0), communication.joules + half, unit="J"
        )

    @cached_property
    def iterations(self) -> pl.DataFrame:
        """One row an iteration of a job on a host: host, job, iteration, start, end, duration and joules.

        `joules` is of the job's GPUs on the host. `joules_low` and `joules_high` bound it: the energy counter had these
        values before and after the edges. They are null where no counter was read often enough.
        """
        run = self._report.run
        curves = energy_curves(run)
        tables = []
        for iterations in self.findings.iterations:
            traces = [trace for trace in run.ranks if trace.rank in iterations.ranks]
            host, job = iterations.host, traces[0].job
            edges = self._report.cuts[host, job].edges
            of_job = curves_of(traces, curves)
            bounds = [bounds_between(edges, curve) for curve in of_job if curve.source == "counter"]
            bounded = bool(of_job) and len(bounds) == len(of_job)
            low, high = np.sum(bounds, axis=0) if bounded else np.full((2, len(edges)), np.nan)
            tables.append(
                pl.DataFrame(
                    {
                        "host": pl.Series([host] * len(edges), dtype=pl.String),
                        "job": pl.Series([job] * len(edges), dtype=pl.Int64),
                        "iteration": pl.Series(range(len(edges)), dtype=pl.Int64),
                        **self._times(host, start=edges[:, 0], end=edges[:, 1]),
                        "duration_s": (edges[:, 1] - edges[:, 0]) / 1e9,
                        "joules": joules_between(edges, of_job),
                        "joules_low": low,
                        "joules_high": high,
                    },
                    nan_to_null=True,
                )
            )
        return stacked(tables, ITERATIONS)

    @cached_property
    def collectives(self) -> pl.DataFrame:
        """One row a collective operation of a rank: what was called, and when its kernel ran on the GPU.

        `start`, `end`, `duration_s` and `waiting_s` are null where the kernel was not timed. `waiting_s`: until the
        last peer had come.
        """
        made = self._report
        calls, kernels = made.calls, made.kernels
        waiting = np.where(made.waiting_ns < 0, np.nan, made.waiting_ns / 1e9)
        called = calls.unique(["rank", "call_id"], keep="first", maintain_order=True)
        called = called.select("rank", "call_id", "captured", called_ns="start_ns")
        timed = kernels.with_columns(
            duration_s=pl.col("duration_ns") / 1e9, waiting_s=pl.Series(waiting, nan_to_null=True)
        ).join(called, on=["rank", "call_id"], how="left")
        untimed = calls.filter(~ran(calls, kernels))
        nothing = {name: pl.lit(None, timed.schema[name]) for name in timed.columns if name not in untimed.columns}
        untimed = untimed.with_columns(**nothing).with_columns(
            called_ns="start_ns", start_ns=pl.lit(None, pl.Int64), stop_ns=pl.lit(None, pl.Int64)
        )
        rows = pl.concat([timed, untimed.select(timed.columns)])
        hosts = {trace.rank: trace.host for trace in made.run.ranks}
        tables = []
        for (host,), of_host in (
            rows.with_columns(host=pl.col("rank").replace_strict(hosts, default=None, return_dtype=pl.String))
            .partition_by("host", as_dict=True, maintain_order=True)
            .items()
        ):
            times = self._times(
                str(host), called=of_host["called_ns"], start=of_host["start_ns"], end=of_host["stop_ns"]
            )
            tables.append(
                of_host.select(
                    "rank",
                    "host",
                    pl.col("gpu").cast(pl.String),
                    "call_id",
                    "pattern",
                    "bytes",
                    pl.col("ranks").alias("communicator_ranks"),
                    "algorithm",
                    "protocol",
                    pl.col("captured").alias("in_cuda_graph"),
                    "duration_s",
                    "waiting_s",
                ).with_columns(**times)
            )
        return stacked(tables, COLLECTIVES).sort("rank", "called_s", "start_s", maintain_order=True)

    @cached_property
    def gpus(self) -> pl.DataFrame:
        """One row a GPU of the job: energy, mean power and clock, in all and while it communicated."""
        return findings_table(Gpu, self.summary.gpus)

    @cached_property
    def ranks(self) -> pl.DataFrame:
        """One row a rank: where the time between its first and last communication went, in seconds."""
        return findings_table(RankParts, self.findings.ranks)

    @cached_property
    def patterns(self) -> pl.DataFrame:
        """One row a pattern and size class, over all ranks: calls, bytes, time, joules an operation."""
        return findings_table(PatternRow, self.summary.patterns)

    @cached_property
    def power(self) -> pl.DataFrame:
        """One row a sample of a GPU of the job: power, energy counter, SM clock and utilisation.

        `counter_joules` is the driver's total, which begins anywhere. It is null where a sample did not read it.
        """
        tables = []
        for log, rows in job_samples(self._report.run):
            counter = pl.col("energy_uj")
            tables.append(
                rows.select(
                    pl.lit(log.host).alias("host"),
                    pl.col("uuid").alias("gpu"),
                    pl.col("gpu").cast(pl.Int64).alias("index"),
                    (pl.col("power_mw") / 1e3).alias("watts"),
                    pl.when(counter >= 0).then(counter / 1e6).alias("counter_joules"),
                    pl.col("sm_clock_mhz").cast(pl.Int64),
                    pl.col("utilization_pct").cast(pl.Int64),
                ).with_columns(**self._times(log.host, time=rows["time_ns"]))
            )
        return stacked(tables, POWER)

    @cached_property
    def _wall_offset_ns(self) -> dict[str, int]:
        """What to add to CLOCK_MONOTONIC of each host to have its wall clock.

        Agents and ranks noted both at one moment. Of a run with neither, run.json tells it to a second.
        """
        run = self._report.run
        offsets: dict[str, int] = {}
        for log in run.power:
            mono, wall = (log.about.get(key, "") for key in ("start_ns", "start_realtime_ns"))
            if mono.isdecimal() and wall.isdecimal() and len(wall) < 20:
                offsets.setdefault(log.host, int(wall) - int(mono))
        for trace in [*run.ranks, *run.mpi]:
            if trace.start_realtime_ns > 0:
                offsets.setdefault(trace.host, trace.start_realtime_ns - trace.start_ns)
        info = run.info
        if info and info.host not in offsets and info.start_ns:
            began_s = parse_time(info.started_at)
            if began_s is not None:
                offsets[info.host] = int(began_s * 1e9) - info.start_ns
        return offsets

    @cached_property
    def _origin(self) -> tuple[str, int] | None:
        """The run's start: a host and ns of its CLOCK_MONOTONIC; None: nothing tells it."""
        run = self._report.run
        if run.info and run.info.start_ns:
            return run.info.host, run.info.start_ns
        first = min(run.ranks or run.mpi, key=lambda trace: trace.start_ns, default=None)
        return (first.host, first.start_ns) if first else None

    @property
    def _origin_wall_ns(self) -> int | None:
        origin = self._origin
        offset = self._wall_offset_ns.get(origin[0]) if origin else None
        return None if origin is None or offset is None else origin[1] + offset

    def _times(self, host: str, **moments_ns: Ints | pl.Series) -> dict[str, pl.Series]:
        """Columns of moments on a host's clock: wall clock as `name`, seconds from the run's start as `name_s`."""
        offset, origin, begin = self._wall_offset_ns.get(host), self._origin, self._origin_wall_ns
        columns: dict[str, pl.Series] = {}
        for name, moments in moments_ns.items():
            moment = pl.Series(name, moments, dtype=pl.Int64)
            wall = moment * None if offset is None else moment + offset
            if origin and origin[0] == host:
                since = moment - origin[1]
            else:  # hosts agree on the wall clock alone
                since = moment * None if offset is None or begin is None else wall - begin
            columns[name] = wall.cast(MOMENT)
            columns[f"{name}_s"] = since / 1e9
        return columns


def find(name: str) -> Run:
    """`powerccl.open_run` of a folder, of the name of a run, or of the last run.

    Raises:
        PowercclError: there is no such run.
    """
    run = Run(find_run("" if name == LATEST else name, Path("runs"), quiet=True))
    run.summary  # noqa: B018 - errors come where a user opens the run, and not where a table is first used
    return run


def _interval(value: float, error: float, count: int, unit: str) -> Estimate:
    half = CONFIDENCE * error
    return Estimate(value, value - half, value + half, n=count, unit=unit)
