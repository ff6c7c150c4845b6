#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What marks cost a step: its length while waits are marked against its length in pauses of the same run.

marks-cost.py --calls N [--block 5] [--before 8] [--least-bytes 1000000] RUN...

Bursts and pauses take turns every two seconds, so that a GPU's warmth, which moves steps by more than marks do, is the
same for both. For runs of exposed-time.py: `--calls` collectives a step of so many bytes or more, blocks of
steps with a synchronisation behind each, `--before` steps to warm up. Of a block all steps but the last are compared.
The first burst is left out: the GPU is not warm then. Prints a line and one JSON object a rank.
"""

import argparse
import json
from pathlib import Path

import polars as pl

from powerccl.analysis import intervals as iv
from powerccl.analysis.exposure import marked
from powerccl.traces import records, tables
from powerccl.traces.folder import read_run


def main() -> None:
    """Per run and rank: milliseconds a step, marked and not, and what that comes to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--block", type=int, default=5)
    parser.add_argument("--before", type=int, default=8)
    parser.add_argument("--least-bytes", type=int, default=1_000_000)
    parser.add_argument("runs", nargs="+", type=Path)
    options = parser.parse_args()
    calls = options.calls * options.block
    found = []
    for path in options.runs:
        run = read_run(path)
        kernels, waits = tables.kernels(run), tables.waits(run)
        for rank in sorted(run.ranks, key=lambda each: each.rank):
            its = pl.col("rank") == rank.rank
            start = kernels.filter(its & (pl.col("bytes") >= options.least_bytes)).sort("start_ns")["start_ns"]
            start_ns = start.to_numpy()[options.before * options.calls :]
            blocks = start_ns[: len(start_ns) // calls * calls].reshape(-1, calls)
            step_ms = (blocks[:, calls - options.calls] - blocks[:, 0]) / 1e6 / (options.block - 1)
            spans = marked(waits.filter(its)).get(rank.gpu)
            pauses = rank.kinds[records.PAUSE]
            if spans is None or not len(pauses):
                continue
            begins, ends = (iv.contains(spans, blocks[:, place]) for place in (0, -1))
            on = begins & ends & (blocks[:, 0] > spans[0, 1])
            off = ~begins & ~ends
            cost_pct = (float(step_ms[on].mean()) / float(step_ms[off].mean()) - 1) * 100
            marks, others = int(pauses["marked"][-1]), int(pauses["unmarked"][-1])
            first = int(pauses["marked"][0])
            row = {
                "run": path.name,
                "rank": rank.rank,
                "marked_ms": float(step_ms[on].mean()),
                "paused_ms": float(step_ms[off].mean()),
                "blocks": [int(on.sum()), int(off.sum())],
                "marked_cost_pct": cost_pct,
                "marked_share_pct": 100 * (marks - first) / (marks - first + others),
            }
            found.append(row)
            print(
                f"{path.name} rank {rank.rank}: {row['marked_ms']:.3f} ms a step marked, {row['paused_ms']:.3f} ms not:"
                f" {cost_pct:+.2f} %; {row['marked_share_pct']:.0f} % of waits marked behind the first burst"
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
