# SPDX-License-Identifier: Apache-2.0
"""Columns of the tables of a run, and findings as tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from polars import selectors

from powerccl.analysis import intervals as iv
from powerccl.analysis.energy import EnergyCurve
from powerccl.analysis.report import plain

Schema = dict[str, "pl.DataType | type[pl.DataType]"]
MOMENT = pl.Datetime("ns", "UTC")
ITERATIONS: Schema = {
    "host": pl.String,
    **dict.fromkeys(("job", "iteration"), pl.Int64),
    **dict.fromkeys(("start", "end"), MOMENT),
    **dict.fromkeys(("start_s", "end_s", "duration_s", "joules", "joules_low", "joules_high"), pl.Float64),
}
COLLECTIVES: Schema = {
    "rank": pl.Int64,
    **dict.fromkeys(("host", "gpu"), pl.String),
    "call_id": pl.Int64,
    "pattern": pl.String,
    **dict.fromkeys(("bytes", "communicator_ranks"), pl.Int64),
    **dict.fromkeys(("algorithm", "protocol"), pl.String),
    "in_cuda_graph": pl.Boolean,
    **dict.fromkeys(("called", "start", "end"), MOMENT),
    **dict.fromkeys(("called_s", "start_s", "end_s", "duration_s", "waiting_s"), pl.Float64),
}
POWER: Schema = {
    **dict.fromkeys(("host", "gpu"), pl.String),
    "index": pl.Int64,
    "time": MOMENT,
    **dict.fromkeys(("time_s", "watts", "counter_joules"), pl.Float64),
    **dict.fromkeys(("sm_clock_mhz", "utilization_pct"), pl.Int64),
}


def stacked(tables: Iterable[pl.DataFrame], schema: Schema) -> pl.DataFrame:
    """Tables one below the other, with exactly these columns; empty ones where there are none."""
    rows = (table.select(*schema).cast(schema) for table in tables)  # type: ignore[arg-type]
    return pl.concat([pl.DataFrame(schema=schema), *rows])


def findings_table(of: type[Any], rows: Iterable[Any]) -> pl.DataFrame:
    """Findings of one kind as a table. A field that is itself a finding is no column."""
    kinds: dict[Any, Any] = {str: pl.String, int: pl.Int64, float: pl.Float64, bool: pl.Boolean}
    kinds |= {list[each]: pl.List(kind) for each, kind in kinds.items()}  # type: ignore[valid-type]
    kinds |= {each | None: kind for each, kind in kinds.items()}
    hints = get_type_hints(of)
    hints = {**{name: hints[name] for name in ("rank", "host", "gpu") if name in hints}, **hints}
    schema = {name: kinds[hint] for name, hint in hints.items() if hint in kinds}
    values = [msgspec.to_builtins(row, enc_hook=plain) for row in rows]
    table = pl.DataFrame([{name: row[name] for name in schema} for row in values], schema=schema)
    return table.with_columns(selectors.float().fill_nan(None))


def bounds_between(edges: iv.Intervals, curve: EnergyCurve) -> npt.NDArray[np.float64]:
    """The least and the most energy of each stretch, J, shape (2, stretches), by a counter's readings about its edges.

    Between two points of the curve, energy only rises, at moments that are not known. NaN where the curve has a gap.
    """
    points = curve.time_ns
    before = np.clip(np.searchsorted(points, edges, "right") - 1, 0, len(points) - 1)
    after = np.clip(np.searchsorted(points, edges, "left"), 0, len(points) - 1)
    below, above = curve.joules[before], curve.joules[after]
    bounds = np.stack([np.maximum(below[:, 1] - above[:, 0], 0.0), above[:, 1] - below[:, 0]])
    bounds[:, ~curve.covers(edges)] = np.nan
    return bounds
