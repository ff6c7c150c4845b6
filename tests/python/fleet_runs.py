# SPDX-License-Identifier: Apache-2.0
"""Run folders of a site, as `powerccl index` finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from synthetic import MS, write_info, write_power, writers

from powerccl.analysis.findings import (
    SUMMARY_FILE,
    Clocks,
    Communication,
    Energy,
    Gpu,
    PatternRow,
    RunSummary,
    Shares,
    write_summary,
)

KWH = 3.6e6


def run_of(
    folder: Path,
    day: str = "2026-11-01",
    joules: float | None = 2 * KWH,
    wall_s: int = 3600,
    host: str = "node1",
    emulated: str = "",
    **more: Any,
) -> Path:
    """A run of two GPUs with a summary."""
    folder.mkdir(parents=True)
    info = {"started_at": f"{day}T12:00:00+0000", "emulated": emulated, "name": "train", "host": host, **more}
    write_info(folder, wall_s * 10**9, **info)
    write_summary(
        RunSummary(
            emulated=emulated,
            wall_s=float(wall_s),
            finished=True,
            ranks=2,
            energy=Energy(joules=joules, joules_at_least=None if joules else KWH),
            communication=Communication(time_s=900.0, joules=KWH / 2),
            shares=Shares(span_s=3000.0, communicating_pct=30.0, exposed_pct=20.0),
            clocks=Clocks(),
            patterns=[
                PatternRow(
                    pattern="all_reduce",
                    size_class_bytes=1 << 20,
                    calls=10,
                    captured_calls=0,
                    timed=8,
                    median_bytes=1 << 20,
                    total_bytes=10 << 20,
                    time_s=1.0,
                    estimated_s=0.0,
                    median_us=100.0,
                    busbw_gbs=10.0,
                    joules_per_operation=2.0,
                )
            ],
            gpus=[
                Gpu(gpu=f"GPU-{host}-{at}", index=at, host=host, ranks=[at], name="H100", joules=joules and joules / 2)
                for at in range(2)
            ],
        ),
        folder / SUMMARY_FILE,
    )
    return folder


def late_run(folder: Path, ranks: int = 2) -> Path:
    """Twenty steps: 100 ms of computation at 70 W, on the last rank 150 ms, then an all-reduce of 100 ms at 45 W."""
    for trace in writers(folder, ranks):
        for step in range(20):
            begin, end = (250 * step + 100 + 50 * (trace.rank == ranks - 1)) * MS, (250 * step + 250) * MS
            trace.call(step + 1, begin - 10 * MS, 64 << 20, flags=0x40)
            trace.kernel(step + 1, begin, end, 64 << 20, delay_ns=0)
            trace.wait(step + 1, begin, end)
    write_power(folder, ranks, 5000 * MS, lambda _, now: 70.0 if now % (250 * MS) < 100 * MS else 45.0)
    # The synthetic traces say that they are emulated, and so does this run.json.
    write_info(folder, 5000 * MS, emulated="t4x8", started_at="2026-11-20T12:00:00+0000")
    return folder


def months(root: Path, **more: Any) -> None:
    """Two names of four runs a month, of which one uses more in the second, and takes as long."""
    for at in range(4):
        for name, after in (("worse", 1.3), ("same", 1.0)):
            of = {"name": name, "wall_s": 3600 + at, **more}
            run_of(root / f"{name}-old{at}", day=f"2026-10-{10 + at}", joules=KWH * (1 + at / 100), **of)
            run_of(root / f"{name}-new{at}", day=f"2026-11-{20 + at}", joules=after * KWH * (1 + at / 100), **of)
