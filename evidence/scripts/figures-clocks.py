"""`auto` as users set it, simulated: budgets, one clock for a job, when the first clock comes, GPUs that differ.

figures-clocks.py [--out FILE]. On built-in platforms and scenarios. POWERCCL_NATIVE names the built programs.
"""

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from evidence.robustness import jobs, machines
from support.figures import Figures, about, bare, show, write

from powerccl.launch.native import find_native
from powerccl.whatif.simulator import SIMULATOR, Simulated, simulate

# Four H100s at their power limit had clocks of 1671 to 1778 MHz in FSDP2 (recorded). So have those that draw 6 % apart.
APART = ("h100x8", {"gpus": "4", "gpu_spread": "0.06"}, "h100/llama-fsdp")
EQUAL = (("a100x4", "fsdp"), ("h100x8", "h100/llama-fsdp"), ("h200x4", "ddp"), ("t4x8", "ddp"))
BUDGETED = {"h100x4_apart": APART, "a100x4": ("a100x4", {"gpu_spread": "0.03"}, "fsdp"), "h200x4": ("h200x4", {}, "ddp")}
BUDGETS_PCT = (1, 5, 10, 20)
# With large budgets a policy goes down for ten minutes: by 5 % a round, and rounds become longer.
LEARNING_S, MANAGED_S = 600.0, 120.0
WARM_UP_S, MEASURED_S = 60.0, 240.0  # as in figures-policies.py
LENGTHS_S = (0.1, 1, 2.9, 10)
UNNOTICED_PCT = 0.1  # of energy: less is not told from chance


def simulated(base: str, changes: dict[str, str], text: str, budget_pct: float, seconds: tuple[float, float]) -> Simulated:
    """Under `auto` with that budget; 0: without a policy. `seconds`: learning, then measured."""
    conf = machines.built_in("", base, changes).conf
    options = ["--max-slowdown", f"{budget_pct:g}"] if budget_pct else []
    policy = "auto" if budget_pct else "observe"
    return simulate(find_native().path(SIMULATOR), conf, [text], policy, seconds[1], seconds[0], options)


def main() -> None:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    figures: Figures = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:

        def begun(base: str, changes: dict[str, str], text: str, budget: float, learning_s: float, seconds: float):  # type: ignore[no-untyped-def]
            return pool.submit(simulated, base, changes, text, budget, (learning_s, seconds))

        budgeted = {
            name: [
                begun(base, changes, jobs.built_in(job).text, budget, LEARNING_S, MANAGED_S) for budget in (0, *BUDGETS_PCT)
            ]
            for name, (base, changes, job) in BUDGETED.items()
        }
        base, changes, job = APART
        apart = [begun(base, changes, jobs.built_in(job).text, budget, WARM_UP_S, MEASURED_S) for budget in (0, 1)]
        equal = [
            begun(base, {}, jobs.built_in(job).text, budget, LEARNING_S, MANAGED_S)
            for base, job in EQUAL
            for budget in (1, 20)
        ]
        first = {
            length: begun("h100x8", {}, f"compute {1000 * length:g}\nall_reduce 64M\n", 1, 0, 15 * length + 30)
            for length in LENGTHS_S
        }
    rising = True
    for name, (plain, *managed) in budgeted.items():
        saved = [each.result().against(plain.result()) for each in managed]
        for budget, (energy, time) in zip(BUDGETS_PCT, saved, strict=True):
            figures[f"policies.budget.{name}.{budget}.saved_pct"] = bare(round(energy, 2), "%")
            figures[f"policies.budget.{name}.{budget}.slowdown_pct"] = bare(round(time, 2), "%")
        energies = [energy for energy, _ in saved]
        rising &= all(more >= less - UNNOTICED_PCT for less, more in zip(energies, energies[1:], strict=False))
    figures["policies.budget.monotone"] = bare(int(rising), "1", len(budgeted))
    saved_pct, slowdown_pct = apart[1].result().against(apart[0].result())
    figures["policies.h100x4_apart.auto.saved_pct"] = bare(round(saved_pct, 2), "%")
    figures["policies.h100x4_apart.auto.slowdown_pct"] = bare(round(slowdown_pct, 2), "%")
    clocks = [each.result().clocks_mhz for each in equal]
    figures["policies.spread_mhz"] = bare(max(max(each) - min(each) for each in clocks), "MHz", len(clocks))
    for length, each in first.items():
        figures[f"policies.first_clock.{length:g}s"] = bare(each.result().first_clock_s, "s")
    show(figures)
    conditions = (
        f"budgets: {LEARNING_S:g} s of learning, then {MANAGED_S:g} s; apart: {WARM_UP_S:g} s of learning, then "
        f"{MEASURED_S:g} s, budget 1 %; spread: equal GPUs, budgets of 1 and 20 %; first clock: since the job began, by "
        "the length of an iteration; all by powerccl-sim"
    )
    write(options.out, figures, **about("make figures-clocks", conditions))


if __name__ == "__main__":
    main()
