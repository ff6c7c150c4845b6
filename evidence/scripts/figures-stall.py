"""What a stall at each clock call costs under `auto` and `per-call`, simulated. Real stalls were not measured.

figures-stall.py [--servers LIST] [--jobs N] [--out FILE] [--rows FILE]. A stall is the time for which everything that
runs on a GPU stands still when a call changes the lock of its clock (`set_clock_stall_us` of a platform). Whole jobs of
ten minutes, learning included, against `observe`. POWERCCL_NATIVE names the built programs.
"""

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from evidence.robustness import jobs, machines
from evidence.robustness.sweep import try_all
from evidence.robustness.trials import BUDGET_PCT, Length, Trial
from support.figures import Figures, about, bare, show, write

STALLS_MS = (0, 1, 5, 20, 50, 100)
POLICIES = ["auto", "per-call"]
SERVERS = ("a100x4", "h100x8", "h200x4")
JOB = "h100/llama-fsdp"
LENGTH = Length(seconds=600.0, warm_up_s=0.0)


def passes_ms(values: dict[int, float], limit: float) -> float | None:
    """The stall at which a value passes a limit, straight between those tried; None: at none of them."""
    before = 0.0, 0.0
    for stall_ms, value in sorted(values.items()):
        if value > limit:
            if stall_ms == 0:
                return 0.0
            share = (limit - before[1]) / (value - before[1])
            return round(before[0] + share * (stall_ms - before[0]), 2)
        before = stall_ms, value
    return None


def figures_of(trials: dict[tuple[str, int], Trial], policy: str) -> Figures:
    """By server, and the worst of the servers. Break-even: of the budget on time, and of energy."""
    found: Figures = {}
    name = policy.replace("-", "_")
    for server in dict.fromkeys(server for server, _ in trials):
        of = {stall_ms: trial for (at, stall_ms), trial in trials.items() if at == server}
        for stall_ms, trial in of.items():
            stem = f"stall.{server}.{name}.{stall_ms}ms"
            found[f"{stem}.slowdown_pct"] = bare(round(trial.slowdown_pct, 3), "%")
            found[f"{stem}.saved_pct"] = bare(round(trial.saved_pct, 3), "%")
        slow, lost = ({at: sign * getattr(trial, key) for at, trial in of.items()}
                      for sign, key in ((1, "slowdown_pct"), (-1, "saved_pct")))  # fmt: skip
        found[f"stall.{server}.{name}.break_even_ms"] = bare(passes_ms(slow, BUDGET_PCT), "ms", len(of))
        found[f"stall.{server}.{name}.energy_break_even_ms"] = bare(passes_ms(lost, 0.0), "ms", len(of))
    for stall_ms in sorted({stall_ms for _, stall_ms in trials}):
        at = [trial.slowdown_pct for (_, tried_ms), trial in trials.items() if tried_ms == stall_ms]
        ends = {"low": round(min(at), 3), "high": round(max(at), 3)}
        found[f"stall.{name}.{stall_ms}ms.slowdown_pct"] = bare(ends["high"], "%", len(at)) | ends
    return found


def main() -> None:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", default=",".join(SERVERS))
    parser.add_argument("--jobs", type=int, help="simulations at once; default: one for each core")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=Path, help="write every trial to this file, and go on from it")
    options = parser.parse_args()
    began, names = time.monotonic(), []
    wanted = []
    for server in options.servers.split(","):
        for stall_ms in STALLS_MS:
            names.append((server, stall_ms))
            changes = {"set_clock_stall_us": str(1000 * stall_ms)}
            wanted.append((machines.built_in(f"{server}-{stall_ms}ms", server, changes), jobs.built_in(JOB)))
    found = try_all(wanted, POLICIES, options.rows, LENGTH, options.jobs)
    trials = {name: of for name, of in zip(names, found, strict=True) if of}
    figures: Figures = {}
    for index, policy in enumerate(POLICIES):
        figures |= figures_of({name: of[index] for name, of in trials.items()}, policy)
    show(figures)
    print(f"{len(trials)} of {len(names)} rows, {time.monotonic() - began:.0f} s")
    conditions = (
        f"simulated: {JOB} for {LENGTH.seconds:g} s, learning included, against observe; no daemon limits how often "
        f"clocks change; break_even_ms: from there on the slowdown is above {BUDGET_PCT:g} %, energy_break_even_ms: no "
        "energy is saved, null: at no stall that was tried; stall.POLICY: the worst of the servers"
    )
    write(options.out, figures, **about("make figures-stall", conditions))


if __name__ == "__main__":
    main()
