"""`auto` against jobs and GPUs that change, in virtual time: whether it keeps its budget whatever happens.

figures-adversity.py [--seeds N] [--first SEED] [--hours H] [--kinds NAME ...] [--out FILE] [--rows FILE].
Iterations of known truth under the policy's own code, with the power of the platforms' boards in turn
(tests/native/policy/adversity.cpp). Each seed draws sizes and times anew. Seeds below 1000 are for development.
POWERCCL_NATIVE names the built programs.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.figures import about, bare, show, write

from powerccl.launch.native import find_native

BOARDS = ("a100x4", "h100x8", "h200x4", "t4x8")
BUDGET_PCT = 1.0
MORE_ENERGY_PCT = 0.3


def main() -> None:
    """Try every kind with every seed, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="of each kind")
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--kinds", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=Path, help="write every trial to this file")
    options = parser.parse_args()
    stage = Path(find_native().root)
    program = stage.parent / "tests/native/policy/powerccl_adversity"
    kinds = options.kinds or subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()

    def one(case: tuple[str, int]) -> dict[str, Any]:
        kind, seed = case
        board = BOARDS[seed % len(BOARDS)]
        platform = stage / f"share/platforms/{board}.conf"
        command = [str(program), str(platform), kind, str(seed), str(options.hours)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return {"kind": kind, "seed": seed, "board": board, **json.loads(done.stdout)}

    cases = [(kind, options.first + seed) for kind in kinds for seed in range(options.seeds)]
    with ThreadPoolExecutor(cpu_count()) as pool:
        rows = list(pool.map(one, cases))
    if options.rows:
        options.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for kind in kinds:
        of = [row for row in rows if row["kind"] == kind]
        slow, minute = max(row["slowdown_pct"] for row in of), max(row["worst_minute_pct"] for row in of)
        kept = sum(row["slowdown_pct"] <= BUDGET_PCT for row in of)
        saved, least = fmean(row["saved_pct"] for row in of), min(row["saved_pct"] for row in of)
        print(f"{kind:24} kept {kept:3} of {len(of)}, {slow:5.2f} % at most, worst minute {minute:5.2f} %, "
              f"saved {saved:5.2f} %, {least:5.2f} at least")  # fmt: skip
    number, told = len(rows), [row["holds"] for row in rows if row["reported"]]
    minutes = sorted(row["worst_minute_pct"] for row in rows)
    late = [row for row in rows if row["first_clock_s"] > max(20.0, 10 * row["length_s"])]
    figures = {
        "adversity.kinds": bare(len(kinds), "1", number),
        "adversity.within_budget_pct": bare(
            round(100 * sum(row["slowdown_pct"] <= BUDGET_PCT for row in rows) / number, 2), "%", number
        ),
        "adversity.worst_slowdown_pct": bare(round(max(row["slowdown_pct"] for row in rows), 2), "%", number),
        "adversity.worst_minute_pct": bare(round(minutes[-1], 2), "%", number),
        "adversity.worst_minute_99_pct": bare(round(minutes[int(0.99 * number)], 2), "%", number),
        "adversity.interval_holds_pct": bare(round(100 * sum(told) / max(len(told), 1), 1), "%", len(told)),
        "adversity.more_energy_rows": bare(sum(row["saved_pct"] < -MORE_ENERGY_PCT for row in rows), "1", number),
        "adversity.saved_pct": bare(round(fmean(row["saved_pct"] for row in rows), 2), "%", number),
        "adversity.late_first_clocks": bare(len(late), "1", number),
    }
    show(figures)
    conditions = (
        f"synthetic iterations of 50 ms to 1 s in virtual time, one rank, {options.hours:g} h each, "
        f"{options.seeds} seeds from {options.first}, budget {BUDGET_PCT:g} %, power of {', '.join(BOARDS)}; "
        "worst minute: of each row's minutes, "
        "against the same without a policy; more_energy_rows: more than 0.3 % above it; late: first clock after "
        "20 s and ten iterations"
    )
    write(options.out, figures, **about("make figures-adversity", conditions))


if __name__ == "__main__":
    main()
