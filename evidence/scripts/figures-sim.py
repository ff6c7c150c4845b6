"""The simulator beside the real-time emulator: the same scenarios, platforms and policies, one after the other.

figures-sim.py [--out FILE] [--rows PLATFORM/SCENARIO ...] [--seconds S] [--warm-up S] [--together N]. POWERCCL_NATIVE
names the built programs. A row takes twice the warm-up and the seconds of real time. What a policy learns is a matter
of chance at a power limit, so the simulator runs with several seeds, and its mean counts. An emulated server of eight
ranks wants three cores of its own, or it is late: rows have two GPUs. On a machine with many cores --together N
measures N rows at once.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.figures import Figure, Figures, about, bare, write

from powerccl.launch.native import find_native
from powerccl.platforms.conf import changed
from powerccl.platforms.policy_table import policy_table
from powerccl.platforms.store import load_profile
from powerccl.whatif.simulator import SIMULATOR, simulate

# Pipeline and tensor parallelism need four ranks, and the straggler is the fourth.
ROWS = (
    *(f"t4x8:gpus=2/{name}" for name in ("ddp", "exposed", "fsdp", "zero1")),
    *(f"t4x8:gpus=4/{name}" for name in ("pp", "tp")),
    *("a100x4/straggler", "a100x4:gpus=2/exposed", "h200x4:gpus=2/exposed", "h200x4:gpus=2/fsdp"),
    *("h100x8:gpus=2/h100/llama-fsdp", "h100x8:gpus=2/h100/serve"),
)
SEEDS = range(1, 9)


@dataclass(frozen=True)
class Measured:
    """An iteration of all GPUs."""

    ms: float
    joules: float


@dataclass(frozen=True)
class Saving:
    """What the policy does to a job, and an iteration without it."""

    ms: float
    saved_pct: float
    slower_pct: float


def saving(before: Measured, after: Measured) -> Saving:
    """The one beside the other."""
    return Saving(before.ms, 100 * (1 - after.joules / before.joules), 100 * (after.ms / before.ms - 1))


def simulated(platform: str, scenario: Path, policy: str, options: argparse.Namespace, seed: int) -> Measured:
    """By powerccl-sim."""
    native = find_native()
    name, _, changes = platform.partition(":")
    settings = dict(each.split("=", 1) for each in changes.split(",") if each)
    conf = changed((native.root / f"share/platforms/{name}.conf").read_text(), settings)
    table = policy_table(load_profile(name)) if policy == "per-call" else ""
    times = (options.seconds, options.warm_up)
    asked = (native.path(SIMULATOR), conf, [scenario.read_text()], policy, *times, ["--seed", str(seed)], table)
    found = simulate(*asked)
    return Measured(found.iteration_ms, found.watts * found.iteration_ms / 1e3)


def real(platform: str, scenario: Path, policy: str, options: argparse.Namespace, warm_up_iterations: int) -> Measured:
    """By the emulator, whose warm-up is given in iterations."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "real.json"
        bench = [f"{find_native().root}/bin/powerccl-bench", "scenario", str(scenario), "--json", str(out)]
        bench += ["--seconds", str(options.seconds), "-w", str(warm_up_iterations)]
        managed = ["--platform", platform.partition(":")[0]] if policy == "per-call" else []
        command = [sys.executable, "-m", "powerccl", "run", "-q", "--emulate", platform, "--policy", policy]
        command += [*managed, "--runs-dir", f"{folder}/runs", "--", *bench]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        document = json.loads(out.read_text())
    results = [each["step_ms"] for each in document["results"] if not each["warmup"]]
    return Measured(fmean(results), document["summary"]["joules_per_iteration"])


def compare(row: str, options: argparse.Namespace) -> tuple[list[Saving], Saving]:
    """What the policy makes of one row: simulated with each seed, and in real time."""
    platform, _, name = row.partition("/")
    scenario = ROOT / "bench/scenarios" / f"{name}.scn"
    each = []
    for seed in SEEDS:
        before, after = (simulated(platform, scenario, of, options, seed) for of in ("observe", options.policy))
        each.append(saving(before, after))
    iterations = round(options.warm_up * 1e3 / each[0].ms)
    before, after = (real(platform, scenario, of, options, iterations) for of in ("observe", options.policy))
    return each, saving(before, after)


def figures_of(key: str, seeds: list[Saving], real_one: Saving) -> Iterator[tuple[str, Figure]]:
    """The simulator's mean and range, what the emulator has, and the difference."""
    for name, unit in (("ms", "ms"), ("saved_pct", "%"), ("slower_pct", "%")):
        all_of = [getattr(each, name) for each in seeds]
        mean, its = fmean(all_of), getattr(real_one, name)
        ends = {"low": round(min(all_of), 3), "high": round(max(all_of), 3)}
        yield f"{key}.{name}.simulated", {"value": round(mean, 3), **ends, "unit": unit, "n": len(seeds)}
        yield f"{key}.{name}.real", bare(round(its, 3), unit)
        if unit == "%":
            yield f"{key}.{name}.error_points", bare(round(mean - its, 3), "points")


def main() -> None:
    """Print a row each, and write figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", nargs="*", default=ROWS)
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--warm-up", type=float, default=60)
    parser.add_argument("--together", type=int, default=1)
    options = parser.parse_args()
    figures: Figures = {}
    with ThreadPoolExecutor(options.together) as pool:
        rows = pool.map(lambda row: compare(row, options), options.rows)
        for row, (seeds, real_one) in zip(options.rows, rows, strict=True):
            saved, slower = [each.saved_pct for each in seeds], [each.slower_pct for each in seeds]
            print(row)
            its = f"{seeds[0].ms:.2f} ms, saved {fmean(saved):.2f} % ({min(saved):.2f} to {max(saved):.2f})"
            print(f"  simulated: {its}, slower {fmean(slower):.2f} % ({min(slower):.2f} to {max(slower):.2f})")
            its = f"{real_one.ms:.2f} ms, saved {real_one.saved_pct:.2f} %, slower {real_one.slower_pct:.2f} %"
            print(f"  real:      {its}", flush=True)
            figures.update(figures_of(f"sim.{row.replace(':', '.').replace('/', '.')}", seeds, real_one))
    times = f"{options.warm_up:g} s of warm-up and {options.seconds:g} s"
    conditions = f"{options.policy}, {times}, {len(SEEDS)} seeds, {os.cpu_count()} cores"
    write(options.out, figures, **about("make figures-sim", conditions))


if __name__ == "__main__":
    main()
