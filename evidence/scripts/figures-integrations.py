"""Joules of steps as a job sees them, beside the report of the same run, on an emulated server; and what they cost it.

figures-integrations.py [--out FILE] [--seconds S] [--rounds N]. POWERCCL_NATIVE names the built programs. Four minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.figures import Figures, about, show, spread, write

import powerccl
from powerccl.launch.native import find_native

SCENARIOS = ("ddp", "exposed", "fsdp")
# The meter is in this process, and powerccl-bench says when a step has ended.
DRIVE = """
import json, subprocess, sys, time
from powerccl.integrations import StepMeter
meter, took_ns = StepMeter(), []
with subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True) as bench:
    for line in bench.stdout:
        row = json.loads(line)
        if row["type"] == "iteration" and not row["warmup"]:
            begin_ns = time.thread_time_ns()
            meter.step(tokens=1)
            took_ns.append(time.thread_time_ns() - begin_ns)
print(json.dumps({**meter.close(), "own_pct": sum(took_ns) / 1e7 / (sum(took_ns) / 1e9 + float(sys.argv[-1]))}))
"""


def measure(scenario: str, seconds: float) -> dict[str, float]:
    """One run: how far joules a step are from the report's, and what the meter took of a thread, both in percent."""
    bench = str(find_native().path("bin/powerccl-bench"))
    with tempfile.TemporaryDirectory() as folder:
        job = [sys.executable, "-c", DRIVE, bench, "scenario", str(ROOT / f"bench/scenarios/{scenario}.scn")]
        command = [sys.executable, "-m", "powerccl", "run", "-q", "--emulate", "t4x8", "--policy", "observe"]
        done = subprocess.run(
            [*command, "--runs-dir", folder, "--name", "job", "--", *job, "--seconds", str(seconds)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
            stdout=subprocess.PIPE,
            check=True,
        )
        metered = json.loads(done.stdout)
        energy = powerccl.open_run(next(Path(folder).iterdir())).iteration_energy
    assert energy, "no iterations were found"
    error_pct = 100 * abs(metered["powerccl/mean_joules_per_step"] / energy.value - 1)
    return {"error_pct": error_pct, "own_pct": metered["own_pct"]}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    runs = [measure(scenario, options.seconds) for _ in range(options.rounds) for scenario in SCENARIOS]
    figures: Figures = {
        "integrations.step_error_pct": spread([run["error_pct"] for run in runs], "%"),
        "integrations.step_cost_pct": spread([run["own_pct"] for run in runs], "%"),
    }
    show(figures)
    conditions = (
        f"Emulated t4x8, {', '.join(SCENARIOS)}, {options.seconds:g} s each. step_error_pct: mean joules a step of"
        " StepMeter against the report's joules an iteration. step_cost_pct: processor time of StepMeter.step against"
        " the run's time, samples of eight GPUs."
    )
    write(options.out, figures, **about("make figures-integrations", conditions))


if __name__ == "__main__":
    main()
