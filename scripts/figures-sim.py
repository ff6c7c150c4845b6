"""The simulator beside the real-time emulator: the same scenarios, platforms and policies, one after the other.

figures-sim.py [--out FILE] [--rows PLATFORM/SCENARIO ...] [--seconds S] [--warm-up S]. POWERCCL_NATIVE names the built
programs. A row takes twice the warm-up and the seconds of real time, and wants a quiet machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.figures import Figures, about, bare, write  # noqa: E402

from powerccl.launch.native import find_native  # noqa: E402
from powerccl.platforms.policy_table import policy_table  # noqa: E402
from powerccl.platforms.store import load_profile  # noqa: E402
from powerccl.simulation.machines import changed  # noqa: E402
from powerccl.simulation.simulator import SIMULATOR, simulate  # noqa: E402

ROWS = ("t4x8/ddp", "t4x8/exposed", "t4x8/fsdp", "t4x8/tp")
ITERATION_S = 0.1  # about: a warm-up in real time is given in iterations
Measured = tuple[float, float]  # ms and joules of an iteration


def simulated(platform: str, scenario: Path, policy: str, folder: Path, options: argparse.Namespace) -> Measured:
    """By powerccl-sim, which needs no folder."""
    del folder
    native = find_native()
    name, _, changes = platform.partition(":")
    settings = dict(each.split("=", 1) for each in changes.split(",") if each)
    conf = changed((native.root / f"share/platforms/{name}.conf").read_text(), settings)
    table = policy_table(load_profile(name)) if policy == "per-call" else ""
    times = (options.seconds, options.warm_up)
    found = simulate(native.path(SIMULATOR), conf, [scenario.read_text()], policy, *times, table=table)
    return found.iteration_ms, found.watts * found.iteration_ms / 1e3


def real(platform: str, scenario: Path, policy: str, folder: Path, options: argparse.Namespace) -> Measured:
    """By the emulator."""
    out = folder / "real.json"
    bench = [f"{find_native().root}/bin/powerccl-bench", "scenario", str(scenario), "--json", str(out)]
    bench += ["--seconds", str(options.seconds), "-w", str(round(options.warm_up / ITERATION_S))]
    managed = ["--platform", platform.partition(":")[0]] if policy == "per-call" else []
    command = [f"{Path(sys.executable).parent}/powerccl", "run", "-q", "--emulate", platform, "--policy", policy]
    command += [*managed, "--runs-dir", str(folder / "runs"), "--", *bench]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    results = [each for each in json.loads(out.read_text())["results"] if not each["warmup"]]
    ms = sum(each["step_ms"] for each in results) / len(results)
    return ms, json.loads(out.read_text())["summary"]["joules_per_iteration"]


def main() -> None:
    """Print a row each, and write figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", nargs="*", default=ROWS)
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--warm-up", type=float, default=60)
    options = parser.parse_args()
    figures: Figures = {}
    for row in options.rows:
        platform, _, name = row.rpartition("/")
        scenario = ROOT / "bench/scenarios" / f"{name}.scn"
        print(row, flush=True)
        found: dict[str, tuple[float, float]] = {}
        for how in (real, simulated):
            with tempfile.TemporaryDirectory() as folder:
                before = how(platform, scenario, "observe", Path(folder), options)
                after = how(platform, scenario, options.policy, Path(folder), options)
            found[how.__name__] = (100 * (1 - after[1] / before[1]), 100 * (after[0] / before[0] - 1))
            saved, slower = found[how.__name__]
            print(f"  {how.__name__}: {before[0]:.2f} ms, saved {saved:.2f} %, slower {slower:.2f} %", flush=True)
            key = f"sim.{platform.replace(':', '.')}.{name}.{how.__name__}"
            figures[f"{key}.iteration_ms"] = bare(round(before[0], 3), "ms")
            figures[f"{key}.saved_pct"] = bare(round(saved, 3), "%")
            figures[f"{key}.slowdown_pct"] = bare(round(slower, 3), "%")
    times = f"{options.warm_up:g} s of warm-up and {options.seconds:g} s"
    conditions = f"{options.policy}, {times}, {os.cpu_count()} cores"
    write(options.out, figures, **about("make figures-sim", conditions))


if __name__ == "__main__":
    main()
