"""Whether the ranks of runs change clocks together: clocks-apart.py RUN... [--out FILE].

For each run: ranks, the length of an iteration, each rank's first clock, and the longest time between one rank's
request and the nearest one of another rank. Requests farther apart than a second belong to other rounds. The last
request of each rank is left out: it comes when its job ends.
"""

import argparse
import sys
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python"), str(ROOT / "tests")]

from support.figures import Figures, bare, show, write

from powerccl.traces import tables
from powerccl.traces.folder import read_run

SAME_ROUND_NS = 1e9


def figures_of(folder: Path) -> Figures:
    """The figures of one run, by names that begin with the job's."""
    run = read_run(folder)
    requests = tables.clocks(run).sort("asked_ns")
    by_rank = {rank: requests.filter(requests["rank"] == rank) for rank in sorted(requests["rank"].unique())}
    asked = {rank: rows["asked_ns"].to_list()[:-1] for rank, rows in by_rank.items()}
    apart = [
        nearest
        for rank, own in asked.items()
        for other, theirs in asked.items()
        if other != rank and theirs
        for at in own
        if (nearest := min(abs(at - each) for each in theirs)) < SAME_ROUND_NS
    ]
    name = f"policies.dry.{run.info.name if run.info else folder.name}"
    lengths_us = tables.budgets(run)["length_us"].to_list()
    found: Figures = {
        f"{name}.ranks": bare(len(run.ranks), "1"),
        f"{name}.iteration_ms": bare(round(fmean(lengths_us) / 1e3, 1) if lengths_us else None, "ms"),
        f"{name}.apart_ms": bare(round(max(apart) / 1e6, 2) if apart else None, "ms", len(apart)),
    }
    for rank, rows in by_rank.items():
        found[f"{name}.rank{rank}.first_clock_mhz"] = bare(rows["min_mhz"][0], "MHz")
    return found


def main() -> None:
    """Print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    figures = {name: value for folder in options.runs for name, value in figures_of(folder).items()}
    show(figures)
    write(options.out, figures)


if __name__ == "__main__":
    main()
