"""`auto` against jobs and GPUs that change, in virtual time: whether it keeps its budget whatever happens.

figures-adversity.py [--seeds N] [--first SEED] [--kinds NAME ...] [--out FILE]. An hour of iterations of known truth
each under the policy's own code, with the power of boards in turn (tests/native/policy/adversity.cpp). Each seed draws
anew. Seeds below 1000 are for development. POWERCCL_NATIVE names the built programs.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path
from typing import Any

import polars as pl

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.figures import about, bare, show, write

from powerccl.launch.native import find_native

BOARDS = ("a100x4", "h100x8", "h200x4", "t4x8")


def main() -> None:
    """Try every kind with every seed, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="of each kind")
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--kinds", nargs="*")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    stage = Path(find_native().root)
    program = str(stage.parent / "tests/native/policy/powerccl_adversity")
    kinds = options.kinds or subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()

    def one(case: tuple[str, int]) -> dict[str, Any]:
        kind, seed = case
        platform = stage / f"share/platforms/{BOARDS[seed % len(BOARDS)]}.conf"
        command = [program, str(platform), kind, str(seed), "1"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return {"kind": kind, **json.loads(done.stdout)}

    with ThreadPoolExecutor(cpu_count()) as pool:
        cases = [(kind, options.first + seed) for kind in kinds for seed in range(options.seeds)]
        rows = pl.DataFrame(list(pool.map(one, cases)))
    slow, minute, saved = (pl.col(name) for name in ("slowdown_pct", "worst_minute_pct", "saved_pct"))
    late = (pl.col("first_clock_s") > 20) & (pl.col("first_clock_s") > 10 * pl.col("length_s"))
    found = {
        "within_budget_pct": 100 * (slow <= 1).mean(),
        "worst_slowdown_pct": slow.max(),
        "worst_minute_pct": minute.max(),
        "worst_minute_99_pct": minute.quantile(0.99, "higher"),
        "interval_holds_pct": 100 * pl.col("holds").filter(pl.col("reported")).mean(),
        "more_energy_rows": (saved < -0.3).sum(),
        "saved_pct": saved.mean(),
        "late_first_clocks": late.sum(),
    }
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=200):
        print(rows.group_by("kind", maintain_order=True).agg(**found))
    counts = {"interval_holds_pct": int(rows["reported"].sum())}
    figures = {
        f"adversity.{name}": bare(round(value, 2), "%" if name.endswith("pct") else "1", counts.get(name, len(rows)))
        for name, value in rows.select(**found).row(0, named=True).items()
    }
    show(figures)
    conditions = (
        f"synthetic iterations of 50 ms to 1 s in virtual time, one rank, 1 h each, {len(kinds)} kinds of change, "
        f"{options.seeds} seeds from {options.first}, budget 1 %; power of {', '.join(BOARDS)}; interval_holds: of "
        "rows that report; more_energy_rows: by more than 0.3 %; late: first clock after 20 s and ten iterations"
    )
    write(options.out, figures, **about("make figures-adversity", conditions))


if __name__ == "__main__":
    main()
