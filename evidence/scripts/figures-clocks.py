"""`auto` as users set it, simulated: budgets, one clock for a job, when the first clock comes, GPUs that differ.

figures-clocks.py [--out FILE]. On built-in platforms and scenarios. POWERCCL_NATIVE names the built programs.
"""

import argparse
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from evidence.robustness import jobs, machines
from evidence.robustness.machines import Machine
from support.figures import Figures, about, bare, show, write

from powerccl.launch.native import find_native
from powerccl.whatif.simulator import SIMULATOR, Simulated, simulate

Case = tuple[str, dict[str, str], str]  # a built-in platform, what is changed, a scenario
# Four H100s at their power limit had clocks of 1671 to 1778 MHz in FSDP2 (recorded). So have those that draw 6 % apart.
APART: Case = ("h100x8", {"gpus": "4", "gpu_spread": "0.06"}, "h100/llama-fsdp")
EQUAL: tuple[Case, ...] = (
    ("a100x4", {}, "fsdp"),
    ("h100x8", {}, "h100/llama-fsdp"),
    ("h200x4", {}, "ddp"),
    ("t4x8", {}, "ddp"),
)
BUDGETED: dict[str, Case] = {
    "h100x4_apart": APART,
    "a100x4": ("a100x4", {"gpu_spread": "0.03"}, "fsdp"),
    "h200x4": ("h200x4", {}, "ddp"),
}
BUDGETS_PCT = (1, 5, 10, 20)
# With large budgets a policy goes down for ten minutes: by 5 % a round, and rounds become longer.
LEARNING_S, MANAGED_S = 600.0, 120.0
WARM_UP_S, MEASURED_S = 60.0, 240.0  # as in figures-policies.py
LENGTHS_S = (0.1, 1, 2.9, 10)
UNNOTICED_PCT = 0.1  # of energy: less is not told from chance


def simulated(machine: Machine, text: str, budget_pct: float, learning_s: float, seconds: float) -> Simulated:
    """Under `auto` with that budget; 0: without a policy."""
    options = ["--max-slowdown", f"{budget_pct:g}"] if budget_pct else []
    policy = "auto" if budget_pct else "observe"
    return simulate(find_native().path(SIMULATOR), machine.conf, [text], policy, seconds, learning_s, options)


def layers(length_s: float) -> str:
    """An iteration of about that length: ten layers, whose gradients differ in size."""
    return "".join(f"compute {100 * length_s:g}\nall_reduce {20 + layer}M\n" for layer in range(10))


def main() -> None:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    figures: Figures = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:

        def begun(case: Case, budget_pct: float, learning_s: float, seconds: float) -> Future[Simulated]:
            machine, text = machines.built_in("", case[0], case[1]), jobs.built_in(case[2]).text
            return pool.submit(simulated, machine, text, budget_pct, learning_s, seconds)

        budgeted = {
            name: [begun(case, budget, LEARNING_S, MANAGED_S) for budget in (0, *BUDGETS_PCT)]
            for name, case in BUDGETED.items()
        }
        apart = [begun(APART, budget, WARM_UP_S, MEASURED_S) for budget in (0, 1)]
        equal = [begun(case, budget, LEARNING_S, MANAGED_S) for case in EQUAL for budget in (1, 20)]
        server = machines.built_in("", "h100x8", {})
        first = {
            length: pool.submit(simulated, server, layers(length), 1, 0, max(20.0, 15 * length)) for length in LENGTHS_S
        }
    rising = True
    for name, (plain, *managed) in budgeted.items():
        saved = [each.result().against(plain.result()) for each in managed]
        for budget, (energy, time) in zip(BUDGETS_PCT, saved, strict=True):
            figures[f"policies.budget.{name}.{budget}.saved_pct"] = bare(round(energy, 2), "%")
            figures[f"policies.budget.{name}.{budget}.slowdown_pct"] = bare(round(time, 2), "%")
        energies = [energy for energy, _ in saved]
        rising &= all(more >= less - UNNOTICED_PCT for less, more in pairwise(energies))
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
        f"{MEASURED_S:g} s, budget 1 %; spread: equal GPUs, budgets of 1 and 20 %; first clock: since the job began, "
        "by the length of an iteration; all by powerccl-sim"
    )
    write(options.out, figures, **about("make figures-clocks", conditions))


if __name__ == "__main__":
    main()
