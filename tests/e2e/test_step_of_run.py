# SPDX-License-Identifier: Apache-2.0
"""A recorded iteration: what other ways would save of it, and which are found by replaying it, on emulated GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from harness import Powerccl

from powerccl.commandline.summaries import summary_of

NCCL = {"POWERCCL_EMULATOR_NCCL_VERSION": "2.30.7"}  # has copy engines
# All-gathers ahead of computation on a stream of their own, as fully_shard makes them, and the norm of the gradients,
# which tells where an iteration begins, on a busy host too.
STEP = """
streams gather
all_gather 256M on gather{by}
repeat 6
  wait gather on compute
  wait compute on gather
  all_gather 256M on gather{by}
  compute 1.2
end
wait compute on gather
compute 1.2
all_reduce 4K on gather
"""


def replay(powerccl: Powerccl, by: str, *options: str, **environment: str) -> dict[str, Any]:
    """Record the step; what powerccl-bench says of it."""
    scenario, out = powerccl.folder / "step.scn", powerccl.folder / "bench.json"
    scenario.write_text(STEP.format(by=by))
    command = [powerccl.bench, "scenario", str(scenario), "--json", str(out), *options]
    done = powerccl("run", "-q", "--emulate", "h200x4", "--", *command, **NCCL, **environment)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(out.read_text())["summary"]
    return found


@pytest.fixture
def recorded(powerccl: Powerccl) -> Path:
    replay(powerccl, "", "--iterations", "100", POWERCCL_KERNEL_EVENTS="all")
    return powerccl.runs[-1]


def test_a_prediction_holds(powerccl: Powerccl, recorded: Path) -> None:
    """Predicted before the other way was run; both in turns, since a busy host slows either, and by how much varies."""
    done = powerccl("whatif", str(recorded), "--ways", "h200x4", "--json", "found.json")
    assert done.code == 0, done.err
    assert "256 MiB  copy-engine" in done.out
    (forecast,) = json.loads((powerccl.folder / "found.json").read_text())["forecasts"]
    turns = [[replay(powerccl, by, "--seconds", "1.5") for by in ("", " by copy-engine")] for _ in range(2)]
    for name, limit in (("time_saved_pct", 4.0), ("energy_saved_pct", 5.0)):
        key = "step_ms" if name == "time_saved_pct" else "joules_per_iteration"
        saved_pct = 100 * (1 - fmean(after[key] for _, after in turns) / fmean(before[key] for before, _ in turns))
        least, most = forecast[name]
        assert saved_pct > 1
        assert least - limit < saved_pct < most + limit, name


def test_a_table_of_other_gpus_is_refused(powerccl: Powerccl, recorded: Path) -> None:
    done = powerccl("whatif", str(recorded), "--ways", "auto")
    assert done.code == 1
    assert "no table of ways for the GPUs of this run" in done.err
    table = json.loads((Path(__file__).parents[2] / "python/powerccl/platforms/builtin/ways/h200x4.json").read_text())
    (powerccl.folder / "other.json").write_text(json.dumps({**table, "gpu": "NVIDIA B200"}))
    done = powerccl("whatif", str(recorded), "--ways", "./other.json")
    assert done.code == 1
    assert "measured on 4 x NVIDIA B200; the run was on NVIDIA H200" in done.err


# Shorter measurements than energy takes.
TUNE = """
import sys
from powerccl.commands import main
from powerccl.tune import replay_bench
replay_bench.QUICK_S = replay_bench.THOROUGH_S = 0.4
sys.argv = ["powerccl", "tune", *sys.argv[1:]]
main()
"""


def test_the_best_way_is_found_and_applied(powerccl: Powerccl, recorded: Path) -> None:
    """Found by replaying the iteration, confirmed, and given to a job of PyTorch by `run --tuned`."""
    asked = ["--beside", str(recorded), "--emulate", "h200x4", "--time", "75s", "--trials", "4"]
    forbidden = [word for name in ("MAX_CTAS", "SYM_CTAS", "PROTO") for word in ("--forbid", f"NCCL_{name}")]
    command = [*asked, *forbidden, "--objective", "time", "--name", "found"]
    for _ in range(2):  # copies are begun by host threads: on a busy machine another way may be best for once
        done = subprocess.run(
            [sys.executable, "-c", TUNE, *command],
            env={**powerccl.environment, **NCCL},
            cwd=powerccl.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "its replay" in done.stderr
        if found := "all-gather 256 MiB: copy-engine" in done.stdout:
            break
    assert found, done.stdout
    assert "run --ways auto" in done.stdout
    job = [sys.executable, "-c", "import os; print(os.environ.get('POWERCCL_WINDOWS_FROM'))"]
    ran = powerccl("run", "-q", "--emulate", "h200x4", "--tuned", "found", "--", *job, **NCCL)
    assert ran.code == 0, ran.err
    assert ran.out.strip() == f"{256 << 20}@4"
    assert summary_of(powerccl.runs[-1])
    again = powerccl("tune", "--verify", "found", "--emulate", "h200x4", **NCCL)
    assert again.code == 2
    assert "name such a run with --beside" in again.err


def test_what_beside_excludes_is_said(powerccl: Powerccl) -> None:
    done = powerccl("tune", "all_gather", "--beside", "runs/none", "--emulate", "h200x4")
    assert done.code == 2
    assert "--beside RUN says all of what is tuned" in done.err
    done = powerccl("tune", "--beside", "runs/none", "--emulate", "h200x4")
    assert done.code == 1
    assert "no run runs/none" in done.err
