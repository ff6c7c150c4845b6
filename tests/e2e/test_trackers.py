# SPDX-License-Identifier: Apache-2.0
"""Joules of training steps on emulated GPUs: they agree with the report, and come into each tracker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import EmulatedMachine, Powerccl

import powerccl as package

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# Steps of the job that powerccl-bench runs, as its lines say; the meter is in this process.
DRIVE = """
import json, subprocess, sys
from powerccl.integrations import StepMeter
meter, windows = StepMeter(), 0
with subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True) as bench:
    for line in bench.stdout:
        row = json.loads(line)
        if row["type"] == "iteration" and not row["warmup"]:
            windows += bool(meter.step(tokens=1000))
print(json.dumps({"windows": windows, "steps": meter.steps, **meter.close()}))
"""
# A busy machine's emulated steps vary, and the report leaves irregular ones out. `make figures-integrations` measures
# [integrations.step_error_pct] over longer runs.
STEP_ERROR_PCT = 3.0
SCENARIO = "compute 60\nall_reduce 48M\ncompute 20\nall_reduce 8M\n"


def test_steps_agree_with_the_report(powerccl: Powerccl, tmp_path: Path) -> None:
    (tmp_path / "job.scn").write_text(SCENARIO)
    (tmp_path / "drive.py").write_text(DRIVE)
    job = (powerccl.bench, "scenario", "job.scn", "--seconds", "6")
    done = powerccl("run", "-q", "--emulate", "t4x8", "--", sys.executable, "drive.py", *job)
    assert done.code == 0, done.err
    metered = json.loads(done.out)
    assert metered["windows"] >= 2
    run = package.open_run(powerccl.runs[-1])
    energy, length = run.iteration_energy, run.iteration_time
    assert energy and length
    error_pct = 100 * abs(metered["powerccl/mean_joules_per_step"] / energy.value - 1)
    assert error_pct <= STEP_ERROR_PCT, (metered, energy)
    assert metered["powerccl/mean_step_s"] == pytest.approx(length.value, rel=0.01)
    # 1000 tokens a step of each of eight ranks
    assert metered["powerccl/mean_joules_per_token"] == pytest.approx(metered["powerccl/mean_joules_per_step"] / 8000)


def test_without_powerccl_run_it_reads_the_driver(machine: EmulatedMachine) -> None:
    code = (
        "import time; from powerccl.integrations import StepMeter, sources\n"
        "sources.NvmlSource.window_ns = sources.NvmlSource.look_ns = 500_000_000\n"
        "meter = StepMeter(); end = time.monotonic() + 3\n"
        "while time.monotonic() < end: meter.step(tokens=1); time.sleep(0.02)\n"
        "print(meter.close()['powerccl/mean_watts'])\n"
    )
    environment = {**os.environ, **machine.environment, "LOCAL_WORLD_SIZE": "2"}
    environment.pop("POWERCCL_RUN_FOLDER", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert 2 * 5 < float(done.stdout) < 2 * 20  # two idle T4s
    assert "does not run under `powerccl run`" in done.stderr


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("wandb", marks=pytest.mark.large("torch", "wandb")),
        pytest.param("mlflow", marks=pytest.mark.large("torch", "mlflow")),
        pytest.param("lightning", marks=pytest.mark.large("torch", "lightning", "tensorboard")),
        pytest.param("transformers", marks=pytest.mark.large("torch", "transformers", "accelerate", "trackio")),
    ],
)
def test_the_example_reports_to_its_tracker(name: str, powerccl: Powerccl, tmp_path: Path) -> None:
    started = time.time()
    offline = {"HF_HUB_OFFLINE": "1", "TRACKIO_DIR": str(tmp_path / "trackio"), "OMP_NUM_THREADS": "1"}
    script = str(EXAMPLES / f"energy_{name}.py")
    done = powerccl("run", "-q", "--emulate", "t4x8", "--", sys.executable, script, **offline)
    assert done.code == 0, done.err
    assert "no joules" not in done.err
    logged = b"".join(
        path.read_bytes() + path.name.encode()
        for path in tmp_path.rglob("*")
        if path.is_file() and path.stat().st_mtime > started and "runs" not in path.relative_to(tmp_path).parts
    )
    assert b"joules_per_step" in logged and b"joules_per_token" in logged
