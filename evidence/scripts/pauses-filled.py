#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is made of the pauses of marking: pauses-filled.py --calls N [--leave-out MARKED UNMARKED] RUN...

Per rank, milliseconds a step (of N collectives of a megabyte or more): exposed with the pauses filled in, and as the
waits alone have it. `--leave-out`: for a run without pauses, whose truth is known; waits are left out as if MARKED of
them made a burst and UNMARKED of them a pause. Prints a line a rank and one JSON object.
"""

import argparse
import json
from pathlib import Path

import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.exposure import from_marks, from_waits
from powerccl.traces import tables
from powerccl.traces.folder import read_run


def main() -> None:
    """Per run and rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--leave-out", type=int, nargs=2, metavar=("MARKED", "UNMARKED"))
    parser.add_argument("runs", nargs="+", type=Path)
    options = parser.parse_args()
    found = []
    for path in options.runs:
        run = read_run(path)
        waits, kernels = tables.waits(run), tables.kernels(run).filter(pl.col("bytes") >= 1_000_000)
        whole = from_waits(waits)
        if options.leave_out:
            marked, unmarked = options.leave_out
            waits = waits.sort("rank", "stall_ns").with_columns(place=pl.int_range(pl.len()).over("rank"))
            waits = waits.filter(pl.col("place") % (marked + unmarked) < marked).with_columns(
                burst=pl.col("place") // (marked + unmarked) + 1, pauses=pl.lit(True)
            )
        filled, alone = from_marks(waits, kernels), from_waits(waits)
        for rank in sorted(run.ranks, key=lambda each: each.rank):
            steps = len(kernels.filter(pl.col("rank") == rank.rank)) / options.calls
            exposed = filled.exposed[rank.gpu]
            row = {
                "run": path.name,
                "rank": rank.rank,
                "recorded_pct": filled.recorded_pct,
                "filled_ms": iv.length_ns(exposed) / 1e6 / steps,
                "unfilled_ms": iv.length_ns(alone[rank.gpu]) / 1e6 / steps,
            }
            if options.leave_out:
                truth_ns = iv.length_ns(whole[rank.gpu])
                row["off_pct"] = 100 * (iv.length_ns(exposed) / truth_ns - 1)
                row["right_pct"] = 100 * iv.length_ns(iv.intersection(exposed, whole[rank.gpu])) / truth_ns
            found.append(row)
            print(
                " ".join(
                    f"{name} {value:.2f}" if isinstance(value, float) else str(value) for name, value in row.items()
                )
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
