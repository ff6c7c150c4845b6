#!/usr/bin/env python3
"""Set the kernel times of rank 0's trace beside CUDA events of the same operations: figures as a flat map.

EVENTS is what `powerccl-bench --events --json` or ddp-kernel-times.py wrote; RUN is the run folder of the same job.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import polars as pl

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.figures import Figures, bare, figure, write

from powerccl.traces.folder import read_run
from powerccl.traces.tables import kernels


def event_times_us(path: Path) -> dict[int, list[float]]:
    """CUDA-event times by bytes."""
    read = json.loads(path.read_text())
    found: dict[int, list[float]] = {}
    for row in read["results"] if isinstance(read, dict) else read:
        size = row.get("size_bytes", row.get("bytes"))
        found.setdefault(int(size), []).append(row["event_us"])
    return found


def main() -> None:
    """Print and write one figure a size: by how much the trace's median differs from the events'."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("events", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", required=True, help="what the figures are called after: kernel_times.<name>.<size>")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    table = kernels(read_run(options.run)).filter(pl.col("rank") == 0)
    figures: Figures = {}
    for size, events in sorted(event_times_us(options.events).items()):
        mine = table.filter(pl.col("bytes") == size)
        if mine.is_empty():
            continue
        traced_us = (mine["duration_ns"] / 1e3).to_list()
        event_us = statistics.median(events)
        percent = [100 * (value - event_us) / event_us for value in traced_us]
        key = f"kernel_times.{options.name}.{size}"
        difference = figures[f"{key}.difference_pct"] = figure(percent, "%", 2)
        figures[f"{key}.event_us"] = bare(round(event_us, 2), "us", len(events))
        middle_us, off = statistics.median(traced_us), difference["value"]
        print(f"{size:>12} bytes: events {event_us:10.2f} us, trace {middle_us:10.2f} us, {off:+} %")
    write(options.out, figures)


if __name__ == "__main__":
    main()
