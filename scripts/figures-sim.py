"""The simulator beside the real-time emulator: the same scenarios, platforms and policies, one after the other.

figures-sim.py [--out FILE] [--rows PLATFORM/SCENARIO ...] [--seconds S] [--warm-up S] [--together N]. POWERCCL_NATIVE
names the built programs. A row takes twice the warm-up and the seconds of real time. An emulated server and its eight
ranks want three cores of their own, or they are late: on a machine with many, --together N measures N rows at once.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.figures import Figures, about, bare, write  # noqa: E402

from powerccl.launch.native import find_native  # noqa: E402
from powerccl.platforms.policy_table import policy_table  # noqa: E402
from powerccl.platforms.store import load_profile  # noqa: E402
from powerccl.simulation.machines import changed  # noqa: E402
from powerccl.simulation.simulator import SIMULATOR, simulate  # noqa: E402

ROWS = (
    *(f"t4x8/{name}" for name in ("ddp", "exposed", "fsdp", "pp", "tp", "zero1")),
    *("a100x4/exposed", "a100x4/straggler", "h200x4/exposed", "h200x4/fsdp"),
    *("h100x8/h100/llama-fsdp", "h100x8/h100/three-ways"),
)
Measured = tuple[float, float]  # ms and joules of an iteration
Saving = tuple[float, float, float]  # ms of an iteration before; energy saved and time added by the policy, percent


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
    bench += ["--seconds", str(options.seconds), "-w", str(options.warm_up_iterations)]
    managed = ["--platform", platform.partition(":")[0]] if policy == "per-call" else []
    command = [sys.executable, "-m", "powerccl", "run", "-q", "--emulate", platform, "--policy", policy]
    command += [*managed, "--runs-dir", str(folder / "runs"), "--", *bench]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    results = [each for each in json.loads(out.read_text())["results"] if not each["warmup"]]
    ms = sum(each["step_ms"] for each in results) / len(results)
    return ms, json.loads(out.read_text())["summary"]["joules_per_iteration"]


def compare(row: str, options: argparse.Namespace) -> dict[str, Saving]:
    """What the policy makes of one row, simulated and in real time."""
    platform, _, name = row.partition("/")
    scenario = ROOT / "bench/scenarios" / f"{name}.scn"
    its, found = argparse.Namespace(**vars(options)), {}
    for how in (simulated, real):
        with tempfile.TemporaryDirectory() as folder:
            before = how(platform, scenario, "observe", Path(folder), its)
            # The emulator's warm-up is given in iterations.
            its.warm_up_iterations = round(options.warm_up * 1e3 / before[0])
            after = how(platform, scenario, options.policy, Path(folder), its)
        found[how.__name__] = (before[0], 100 * (1 - after[1] / before[1]), 100 * (after[0] / before[0] - 1))
    return found


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
        for row, found in zip(options.rows, rows, strict=True):
            key = f"sim.{row.replace(':', '.').replace('/', '.')}"
            print(row, flush=True)
            for how, (ms, saved, slower) in found.items():
                print(f"  {how}: {ms:.2f} ms, saved {saved:.2f} %, slower {slower:.2f} %", flush=True)
                figures[f"{key}.{how}.iteration_ms"] = bare(round(ms, 3), "ms")
                figures[f"{key}.{how}.saved_pct"] = bare(round(saved, 3), "%")
                figures[f"{key}.{how}.slowdown_pct"] = bare(round(slower, 3), "%")
            (_, saved, slower), (_, real_saved, real_slower) = found["simulated"], found["real"]
            figures[f"{key}.error_points"] = bare(round(saved - real_saved, 3), "points")
            figures[f"{key}.slowdown_error_points"] = bare(round(slower - real_slower, 3), "points")
    times = f"{options.warm_up:g} s of warm-up and {options.seconds:g} s"
    conditions = f"{options.policy}, {times}, {os.cpu_count()} cores"
    write(options.out, figures, **about("make figures-sim", conditions))


if __name__ == "__main__":
    main()
