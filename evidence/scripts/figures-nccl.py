#!/usr/bin/env python3
"""Figures of what PowerCCL sees of each NCCL, from what evidence/scripts/prove-nccl-on-gpus left.

figures-nccl.py OUT [--out FILE]

With --job, OUT holds the run folders of one job under per-call instead, one of each way: nccl.symmetric.* is of all of
them. For each NCCL and way (plain, symmetric, copy): patterns seen, calls without a time, wrong results, the recorded
kernel times against CUDA events, and how long a clock was wanted low behind the last collective.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import polars as pl

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.figures import Figures, bare, write

from powerccl.traces import tables
from powerccl.traces.folder import RunData, read_run

LARGE = 16 << 20  # bytes; below, the pair's own time shows
SINGLE = 20  # operations of each pattern and size that the bench times one by one


def run_in(folder: Path) -> RunData | None:
    """The only run of a folder."""
    runs = sorted(folder.iterdir()) if folder.is_dir() else []
    return read_run(runs[0]) if runs else None


def results(path: Path) -> list[dict[str, Any]]:
    """What powerccl-bench measured; empty: it failed."""
    try:
        found: list[dict[str, Any]] = json.loads(path.read_text())["results"]
    except (OSError, ValueError, KeyError):
        return []
    return found


def timed(run: RunData) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The bench's calls with their kernels; and those without kernel events that lack a time though asked for."""
    calls = tables.calls(run).filter(pl.col("bytes") >= 1 << 20)
    kernels = tables.kernels(run).select("rank", "call_id", "duration_ns", "algorithm")
    both = calls.join(kernels, on=["rank", "call_id"], how="left", maintain_order="left")
    silent = pl.col("symmetric") | pl.col("copy_engine")
    return both, both.filter(pl.col("duration_ns").is_null() & pl.col("kernel_asked") & silent)


def against_events(both: pl.DataFrame, measured: list[dict[str, Any]]) -> float | None:
    """The largest difference of a pattern's median from CUDA events', percent, above LARGE, without kernel events."""
    worst = None
    for one in measured:
        if one["size_bytes"] < LARGE or one.get("event_us") is None:
            continue
        mine = both.filter(
            (pl.col("pattern").cast(pl.String) == one["pattern"])
            & (pl.col("bytes") == one["size_bytes"])
            & (pl.col("symmetric") | pl.col("copy_engine"))
        )
        # The bench times single operations last.
        last = mine.sort("call_id").group_by("rank", maintain_order=True).tail(SINGLE)
        medians = last.group_by("rank", maintain_order=True).agg(pl.col("duration_ns").median())["duration_ns"]
        if medians.is_empty() or medians.null_count():
            continue
        apart = abs(float(medians.max()) / 1e3 / one["event_us"] - 1) * 100  # type: ignore[arg-type]
        worst = apart if worst is None else max(worst, apart)
    return worst


def stuck_low_ms(run: RunData) -> float | None:
    """The longest time of a low clock wanted behind a rank's last collective; None: none was ever wanted."""
    ends = dict(tables.kernels(run).group_by("rank", maintain_order=True).agg(pl.col("stop_ns").max()).iter_rows())
    longest = None
    for (rank,), requests in tables.clocks(run).group_by("rank", maintain_order=True):
        last = requests.sort("asked_ns").row(-1, named=True)
        behind = (last["asked_ns"] - ends[rank]) / 1e6 if last["min_mhz"] == 0 else float("inf")
        longest = max(longest or 0.0, behind)
    return longest


def of_job(folder: Path) -> Figures:
    """Runs of a job under per-call: calls without a time, and for how long a low clock was wanted, a rank."""
    figures: Figures = {}
    calls, without, longest, runs = 0, 0, 0.0, 0
    print(f"{'run':34}  calls  untimed  low s a rank  of s  communication ms a rank  stuck low ms")
    for one in sorted(folder.iterdir()):
        run = read_run(one)
        both, untimed = timed(run)
        clocks = tables.clocks(run).sort("rank", "asked_ns")
        wanted = clocks.with_columns(until_ns=pl.col("asked_ns").shift(-1).over("rank"))
        ranks = max(len(run.ranks), 1)
        low = wanted.filter(pl.col("min_mhz") > 0)
        low_s = low.select((pl.col("until_ns") - pl.col("asked_ns")).sum()).item() / 1e9
        asked = clocks["asked_ns"].cast(pl.Float64)
        span_s = (float(asked.max()) - float(asked.min())) / 1e9  # type: ignore[arg-type]
        busy_ms = float(both["duration_ns"].sum()) / 1e6 / ranks
        stuck = stuck_low_ms(run) or 0.0
        name = one.name.split("-", 2)[2].removesuffix("-per-call")
        print(f"{name:34} {len(both):6} {len(untimed):8} {low_s / ranks:13.2f}", end=" ")
        print(f"{span_s:5.2f} {busy_ms:24.1f} {stuck:13.2f}")
        figures[f"nccl.job.{name}.low_s"] = bare(low_s / ranks, "s", ranks)
        figures[f"nccl.job.{name}.span_s"] = bare(span_s, "s", 1)
        figures[f"nccl.job.{name}.communication_ms"] = bare(busy_ms, "ms", ranks)
        if (both["symmetric"] | both["copy_engine"]).any():
            calls, without, longest, runs = calls + len(both), without + len(untimed), max(longest, stuck), runs + 1
    figures["nccl.symmetric.untimed"] = bare(without, "1", calls)
    figures["nccl.symmetric.stuck_low_ms"] = bare(longest, "ms", runs)
    return figures


def of_bench(folder: Path) -> Figures:
    """What prove-nccl-on-gpus left, by NCCL and way."""
    figures: Figures = {}
    print("NCCL     way        patterns  calls  untimed  wrong  off events %  stuck low ms")
    for log in sorted(folder.glob("*-observe.log")):
        version, way = log.name.removesuffix("-observe.log").rsplit("-", 1)
        run, measured = run_in(log.with_suffix("")), results(log.with_suffix(".json"))
        if run is None or not measured:
            print(f"{version:8} {way:10} failed: {log.read_text(errors='replace').strip().splitlines()[-1:]}")
            continue
        both, untimed = timed(run)
        wrong = sum(one["wrong"] or 0 for one in measured)
        name = f"nccl.{version}.{way}"
        patterns = both["pattern"].n_unique()
        off = against_events(both, measured)
        figures[f"{name}.seen"] = bare(patterns, "1", len(both))
        figures[f"{name}.wrong"] = bare(wrong, "1", len(measured))
        figures[f"{name}.untimed"] = bare(len(untimed), "1", len(both))
        figures[f"{name}.off_events"] = bare(off, "%", len(both))
        managed = run_in(log.with_name(f"{version}-{way}-per-call"))
        stuck = stuck_low_ms(managed) if managed else None
        figures[f"{name}.stuck_low_ms"] = bare(stuck, "ms", 1)
        ways = ", ".join(sorted(set(both["algorithm"].cast(pl.String).drop_nulls().to_list())))
        print(
            f"{version:8} {way:10} {patterns:8} {len(both):6} {len(untimed):8} {wrong:6} "
            f"{'-' if off is None else f'{off:.1f}':>13} {'-' if stuck is None else f'{stuck:.2f}':>13}  {ways}"
        )
    return figures


def main() -> int:
    """Prints a table, writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--job", action="store_true")
    options = parser.parse_args()
    figures = of_job(options.folder) if options.job else of_bench(options.folder)
    write(options.out, figures)
    return 0 if figures else 1


if __name__ == "__main__":
    sys.exit(main())
