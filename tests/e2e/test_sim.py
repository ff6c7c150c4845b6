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
    command = [str(powerccl.native.path("bin/powerccl-sim")), *arguments, "--platform", str(platform), "--seconds", "5"]
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
    done = simulated(powerccl, str(SCENARIOS / "graph.scn"))
    assert done.returncode == 1
    assert "graph.scn:3: graphs cannot be simulated yet" in done.stderr
    done = simulated(powerccl, str(SCENARIOS / "ddp.scn"), "--policy", "auto")
    assert done.returncode == 1
    assert "policy auto needs a policy table\nhint: --table FILE" in done.stderr
    done = simulated(powerccl, "none.scn")
    assert done.returncode == 1
    assert "none.scn" in done.stderr
