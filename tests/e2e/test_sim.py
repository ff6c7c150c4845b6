# SPDX-License-Identifier: Apache-2.0
"""powerccl-sim as it is called: results, and what it says where there are none."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from harness import Powerccl

from powerccl.platforms.policy_table import policy_table
from powerccl.platforms.store import load_profile

SCENARIOS = Path(__file__).parents[2] / "bench/scenarios"


def simulated(powerccl: Powerccl, *arguments: str) -> subprocess.CompletedProcess[str]:
    platform = powerccl.native.root / "share/platforms/t4x8.conf"
    seconds = () if "--seconds" in arguments else ("--seconds", "5")
    command = [str(powerccl.native.path("bin/powerccl-sim")), *arguments, "--platform", str(platform), *seconds]
    return subprocess.run(command, cwd=powerccl.folder, capture_output=True, text=True, check=False)


def test_a_policy_is_simulated(powerccl: Powerccl) -> None:
    table = powerccl.folder / "table"
    table.write_text(policy_table(load_profile("t4x8")))
    found = {}
    for policy in ("observe", "per-call"):
        options = ("--policy", policy, "--table", str(table), "--json", f"{policy}.json")
        done = simulated(powerccl, str(SCENARIOS / "exposed.scn"), *options)
        assert done.returncode == 0, done.stderr
        assert "simulated" in done.stdout
        found[policy] = json.loads((powerccl.folder / f"{policy}.json").read_text())
    assert found["observe"]["switches_per_s"] == 0
    assert found["per-call"]["switches_per_s"] > 5
    assert found["per-call"]["joules_per_iteration"] < 0.9 * found["observe"]["joules_per_iteration"]


def test_what_cannot_be_simulated_is_said(powerccl: Powerccl) -> None:
    (powerccl.folder / "ways.scn").write_text("compute 1\nall_gather 4M by copy-engine\n")
    done = simulated(powerccl, "ways.scn")
    assert done.returncode == 1
    assert "ways.scn:2: other ways than plain cannot be simulated yet" in done.stderr
    done = simulated(powerccl, str(SCENARIOS / "ddp.scn"), "--policy", "per-call")
    assert done.returncode == 1
    assert "policy per-call needs a policy table\nhint: --table FILE" in done.stderr
    done = simulated(powerccl, "none.scn")
    assert done.returncode == 1
    assert "none.scn" in done.stderr


def test_a_clock_is_held(powerccl: Powerccl) -> None:
    """Half the clock: computation takes longer, and all of the time."""
    found = []
    for clock in (0, 600):
        done = simulated(powerccl, str(SCENARIOS / "ddp.scn"), "--clock", str(clock), "--json", "held.json")
        assert done.returncode == 0, done.stderr
        found.append(json.loads((powerccl.folder / "held.json").read_text()))
    assert found[1]["iteration_ms"] > 1.4 * found[0]["iteration_ms"]
    assert found[1]["switches_per_s"] < 1
    assert len(found[0]["each_ms"]) == found[0]["iterations"] == len(found[0]["each_joules"])
    done = simulated(powerccl, str(SCENARIOS / "ddp.scn"), "--clock", "600", "--policy", "auto")
    assert (done.returncode, "leaves no clock to policy auto" in done.stderr) == (1, True)


def test_parts_of_a_policy_are_left_out(powerccl: Powerccl) -> None:
    options = ("--policy", "auto", "--seconds", "60", "--warm-up", "60", "--json", "run.json")
    joules = []
    for without in ((), ("--without", "slack")):
        done = simulated(powerccl, str(SCENARIOS / "straggler.scn"), *options, *without)
        assert done.returncode == 0, done.stderr
        joules.append(json.loads((powerccl.folder / "run.json").read_text())["joules_per_iteration"])
    assert joules[0] < 0.99 * joules[1]
    done = simulated(powerccl, str(SCENARIOS / "exposed.scn"), "--without", "everything")
    assert done.returncode != 0
    assert "everything" in done.stderr
