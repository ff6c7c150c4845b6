#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sets the exposed time in a trace beside the profiler's of the same job: compare-exposed-time.py RUN PREFIX-KIND.

PREFIX-KIND-<rank>.json is what evidence/scripts/exposed-time.py wrote. Prints a line a rank and one JSON object.

Exposed, from the profiler's own data: the compute stream (the one with most time in kernels that are not NCCL's) stands
idle before a kernel, a kernel of NCCL runs, and
- the host is not late: its launch of that kernel has been made. Before that there is nothing that could wait.
- the stream was given a wait for an event between the kernel before and this one. Between kernels with nothing between
  them a GPU takes a microsecond or so for itself, also where nothing communicates.
What the two conditions leave out is printed as well, and what it is if copies in other streams, which put together
what a collective sends, count as communication like NCCL's kernels.
"""

import argparse
import json
from bisect import bisect_right
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from powerccl.analysis import intervals as iv
from powerccl.analysis.exposure import from_waits
from powerccl.traces import tables
from powerccl.traces.folder import read_run


def ns(times_us: list[float]) -> "np.ndarray":
    """As whole nanoseconds."""
    return np.rint(np.array(times_us) * 1e3).astype(np.int64)


def of_profiler(told: dict[str, Any]) -> dict[str, Any]:
    """Intervals (ns since the profile's base): exposed, and idle with NCCL running for one of the two other reasons."""
    kernels = sorted(told["kernels"])
    busy_us: dict[int, float] = defaultdict(float)
    for _, lasts, stream, nccl, _, _ in kernels:
        busy_us[stream] += 0 if nccl else lasts
    compute = max(busy_us, key=lambda stream: busy_us[stream])
    ours = [each for each in kernels if each[2] == compute and not each[3]]
    communicates = [each for each in kernels if each[3]]
    running = iv.union(ns([each[0] for each in communicates]), ns([each[0] + each[1] for each in communicates]))
    launched_us = {correlation: begin + lasts for begin, lasts, correlation, _, _ in told["launches"]}
    waits = sorted(each[4] for each in told["waits"] if each[2] == compute and "Wait Event" in each[5])
    parts: dict[str, list[tuple[float, float]]] = {"exposed": [], "gaps": [], "late": []}
    end_us, before = (told["window_ns"][0] - told["base_ns"]) / 1e3, 0
    for begin, lasts, _, _, correlation, _ in ours:
        if begin > end_us:
            given = bisect_right(waits, correlation) > bisect_right(waits, before)
            ready_us = min(begin, max(end_us, launched_us.get(correlation, end_us)))
            parts["late"].append((end_us, ready_us))
            parts["exposed" if given else "gaps"].append((ready_us, begin))
        end_us = max(end_us, begin + lasts)
        before = correlation
    found = {}
    for name, spans in parts.items():
        spans = [span for span in spans if span[1] > span[0]]
        idle = iv.union(ns([span[0] for span in spans]), ns([span[1] for span in spans])) if spans else iv.EMPTY
        found[name] = iv.intersection(idle, running)
        if name == "exposed":
            beside = [each for each in kernels if each[2] != compute]
            sides = iv.union(ns([each[0] for each in beside]), ns([each[0] + each[1] for each in beside]))
            found["with_copies"] = iv.intersection(idle, sides)
    elsewhere = [each for each in kernels if not each[3]]
    computing = iv.union(ns([each[0] for each in elsewhere]), ns([each[0] + each[1] for each in elsewhere]))
    both = iv.union(np.concatenate([running[:, 0], computing[:, 0]]), np.concatenate([running[:, 1], computing[:, 1]]))
    return found | {"raw_ns": iv.length_ns(both) - iv.length_ns(computing), "running": running, "waits": len(waits)}


def main() -> None:
    """Per rank: milliseconds by the profiler, by the trace, and the difference."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("prefix", help="PREFIX-KIND, as evidence/scripts/exposed-time.py was given it")
    options = parser.parse_args()
    run = read_run(options.run)
    waits = tables.waits(run)
    found = []
    for rank in sorted(run.ranks, key=lambda each: each.rank):
        told = json.loads(Path(f"{options.prefix}-{rank.rank}.json").read_text())
        profiler = of_profiler(told)
        to_host = rank.start_ns - rank.start_realtime_ns
        begin, end = (time + to_host for time in told["window_ns"])
        exposed = from_waits(waits.filter(waits["rank"] == rank.rank))
        marked_ms = sum(iv.length_ns(iv.clip(each, begin, end)) for each in exposed.values()) / 1e6
        each_ms = {
            name: iv.length_ns(profiler[name]) / 1e6 for name in ("exposed", "with_copies", "gaps", "late", "running")
        }
        off_pct = (marked_ms / each_ms["exposed"] - 1) * 100
        row = {
            "rank": rank.rank,
            "profiler_ms": each_ms["exposed"],
            "marks_ms": marked_ms,
            "off_pct": off_pct,
            "share_pct": each_ms["exposed"] / ((end - begin) / 1e6) * 100,
            "launch_gaps_ms": each_ms["gaps"],
            "host_late_ms": each_ms["late"],
            "with_copies_ms": each_ms["with_copies"],
            "off_with_copies_pct": (marked_ms / each_ms["with_copies"] - 1) * 100,
            "no_other_kernel_ms": profiler["raw_ns"] / 1e6,
            "communication_ms": each_ms["running"],
            "stream_waits": profiler["waits"],
            "steps": told["steps"],
        }
        found.append(row)
        print(
            f"rank {rank.rank}: profiler {row['profiler_ms']:.2f} ms ({row['share_pct']:.1f} % of the time), marks "
            f"{marked_ms:.2f} ms, {off_pct:+.1f} %; left out: launch gaps {row['launch_gaps_ms']:.2f} ms, host late "
            f"{row['host_late_ms']:.2f} ms; no kernel but NCCL's: {row['no_other_kernel_ms']:.2f} ms; "
            f"with the copies: {row['with_copies_ms']:.2f} ms, {row['off_with_copies_pct']:+.1f} %"
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
