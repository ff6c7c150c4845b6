# SPDX-License-Identifier: Apache-2.0
"""The tables of an index, a class each: docs/guides/fleet.md lists their columns. None is not known, never zero.

`run` is a number made from the folder's path. `modelled` names what emulated or simulated the GPUs; empty: real ones.
"""

from __future__ import annotations

import datetime
from typing import Any, NamedTuple

SCHEMA = 1  # raised where a query on the tables of the one before would be wrong


class Run(NamedTuple):
    """A run folder. Energies and times are those of summary.json; a run without a summary has none."""

    run: int
    folder: str
    name: str
    program: str
    user_name: str
    group_name: str
    day: datetime.date
    started_at: datetime.datetime | None
    host: str
    run_id: str
    wall_s: float | None
    exit_code: int | None
    signal: int | None
    finished: bool
    policy: str
    clocks: str
    platform: str
    library: str
    modelled: str
    ranks: int | None
    nodes: int | None
    gpus: int | None
    gpu_name: str
    joules: float | None
    joules_at_least: float | None
    watts: float | None
    working_s: float | None
    startup_s: float | None
    startup_joules: float | None
    communicating_pct: float | None
    exposed_pct: float | None
    communication_s: float | None
    communication_joules: float | None
    recording_pct: float | None
    processor_joules: float | None
    mpi_wait_s: float | None
    iteration_s: float | None
    iteration_joules: float | None
    summarised: bool
    analysed: bool
    removed: bool
    error: str
    stamp: str
    version: str
    indexed_at: datetime.datetime


class Gpu(NamedTuple):
    """A GPU of a run."""

    run: int
    day: datetime.date
    modelled: str
    host: str
    gpu: str
    gpu_index: int | None
    gpu_name: str
    ranks: int
    joules: float | None
    joules_at_least: float | None
    watts: float | None
    communication_s: float | None
    communication_joules: float | None
    communication_watts: float | None
    other_watts: float | None
    communication_clock_mhz: float | None
    other_clock_mhz: float | None
    throttle_reasons: str


class Rank(NamedTuple):
    """How a rank of an analysed run came to its collectives."""

    run: int
    day: datetime.date
    modelled: str
    rank: int
    host: str
    gpu: str
    gpu_index: int | None
    collectives: int
    last: int
    steady: bool
    behind_us: float | None
    cost_s: float | None
    waited_s: float | None
    waited_joules: float | None
    waited_at_most: bool
    watts_from: str


class Iteration(NamedTuple):
    """The iterations of a job's ranks on one host, of an analysed run."""

    run: int
    day: datetime.date
    modelled: str
    host: str
    ranks: int
    iterations: int
    operations: int
    median_s: float | None
    p5_s: float | None
    p95_s: float | None
    mean_s: float | None
    mean_error_s: float | None
    joules: float | None
    joules_error: float | None


class Collective(NamedTuple):
    """A pattern and size class of a run, over all ranks."""

    run: int
    day: datetime.date
    modelled: str
    pattern: str
    size_class_bytes: int
    calls: int
    timed: int
    total_bytes: int
    time_s: float | None
    median_us: float | None
    busbw_gbs: float | None
    joules: float | None


class Step(NamedTuple):
    """What to do next with an analysed run. `own`: the gain is known by the run itself, not by other machines."""

    run: int
    day: datetime.date
    modelled: str
    rule: str
    of_what: str
    own: bool
    gain_pct: float | None
    low_pct: float | None
    high_pct: float | None
    basis: str
    text: str
    command: str


# Details first: a run's row is written when all of its details are.
TABLES: dict[str, type[NamedTuple]] = {
    "gpus": Gpu,
    "ranks": Rank,
    "iterations": Iteration,
    "collectives": Collective,
    "steps": Step,
    "runs": Run,
}
Rows = dict[str, list[Any]]  # of each table, tuples of its class


def columns(table: str) -> dict[str, str]:
    """The columns of a table and their types: int, float, str, bool, date or datetime."""
    kinds = {name: kind.__forward_arg__ for name, kind in TABLES[table].__annotations__.items()}
    return {name: kind.removesuffix(" | None").removeprefix("datetime.") for name, kind in kinds.items()}


def polars_schema(table: str) -> dict[str, Any]:
    """The same for polars."""
    import polars as pl

    kinds = {
        "int": pl.Int64,
        "float": pl.Float64,
        "str": pl.String,
        "bool": pl.Boolean,
        "date": pl.Date,
        "datetime": pl.Datetime("us"),  # UTC, without a zone: SQL engines disagree on zones
    }
    return {name: kinds[kind] for name, kind in columns(table).items()}
