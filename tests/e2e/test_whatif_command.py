# SPDX-License-Identifier: Apache-2.0
"""`powerccl whatif` against what a policy then really does, on an emulated server."""

from __future__ import annotations

import json
from typing import Any

from harness import Powerccl
from test_scenarios import SCENARIOS, replay
from test_sim_folder import simulate


def test_per_call_does_about_what_was_predicted(powerccl: Powerccl) -> None:
    """All communication exposed, the host waiting ahead of it: nothing is left to chance but how long switches take."""
    options = ("--emulate", "t4x8", "--platform", "t4x8", "--policy")
    before = replay(powerccl, "exposed", 25, *options, "observe")
    found = powerccl.folder / "found.json"
    done = powerccl("whatif", str(powerccl.runs[-1]), "--json", str(found))
    assert done.code == 0, done.err
    predicted: dict[str, Any] = json.loads(found.read_text())
    assert abs(predicted["simulated_ms"] / predicted["recorded_ms"] - 1) < 0.05
    assert 65 < predicted["exposed_pct"] < 85
    per_call, automatic = predicted["policies"]
    assert (per_call["policy"], automatic["policy"]) == ("per-call", "auto")
    assert automatic["saved_pct"]["low"] <= automatic["saved_pct"]["value"] <= automatic["saved_pct"]["high"]
    assert automatic["slowdown_pct"]["value"] < 1.5
    after = replay(powerccl, "exposed", 25, *options, "per-call")
    joules = [run["summary"]["run_joules_per_gpu"] / run["summary"]["iterations"] for run in (before, after)]
    saved_pct = (1 - joules[1] / joules[0]) * 100
    assert saved_pct > 15
    assert abs(per_call["saved_pct"]["value"] - saved_pct) < 3
    slower_pct = (after["summary"]["step_ms"] / before["summary"]["step_ms"] - 1) * 100
    assert abs(per_call["slowdown_pct"]["value"] - slower_pct) < 5


def test_without_a_profile_it_predicts_auto_alone(powerccl: Powerccl) -> None:
    replay(powerccl, "ddp", 50, "--emulate", "a100x4", "--policy", "observe")
    done = powerccl("whatif", str(powerccl.runs[-1]), "--platform", "none")
    assert done.code == 0, done.err
    assert "per-call" not in done.out
    assert "simulated, not measured" in done.out
    assert "the voltage falls to" in done.out


def test_gpus_that_differ_at_their_power_limit_save_about_what_was_predicted(powerccl: Powerccl) -> None:
    """The others wait for the slowest in collectives, whose kernels slow what they compute meanwhile."""
    platform, job = "h100x8.conf:gpus=4,gpu_spread=0.06", "h100/llama-fsdp"
    simulate(powerccl, job, "run", "--seconds", "10", "--warm-up", "20", platform=platform)
    done = powerccl("whatif", "run", "--platform", "none", "--json", "predicted.json")
    assert done.code == 0, done.err
    (automatic,) = json.loads((powerccl.folder / "predicted.json").read_text())["policies"]
    plain, managed = (
        simulate(powerccl, job, policy, "--policy", policy, "--seconds", "60", "--warm-up", "60", platform=platform)[
            "joules_per_iteration"
        ]
        for policy in ("observe", "auto")
    )
    assert abs(automatic["saved_pct"]["value"] - 100 * (1 - managed / plain)) < 1.2


def test_a_pipeline_is_replayed_with_its_messages(powerccl: Powerccl) -> None:
    scenario = str(SCENARIOS / "pp.scn")
    bench = ("--", "powerccl-bench", "scenario", scenario, "--iterations", "40")
    done = powerccl("run", "--emulate", "a100x4", "--policy", "observe", *bench, POWERCCL_KERNEL_EVENTS="all")
    assert done.code == 0, done.err
    done = powerccl("whatif", str(powerccl.runs[-1]), "--json", "found.json")
    assert done.code == 0, done.err
    found = json.loads((powerccl.folder / "found.json").read_text())
    assert abs(found["simulated_ms"] / found["recorded_ms"] - 1) < 0.05


def test_a_run_without_iterations_is_refused(powerccl: Powerccl) -> None:
    (powerccl.folder / "once.scn").write_text("compute 10\nall_reduce 4M\ncompute 20\nall_gather 2M\n")
    bench = ("--", "powerccl-bench", "scenario", "once.scn", "--iterations", "1", "-w", "0", "-g", "4")
    done = powerccl("run", "--emulate", "t4x8", "--policy", "observe", *bench)
    assert done.code == 0, done.err
    done = powerccl("whatif", str(powerccl.runs[-1]))
    assert done.code == 1
    assert "cannot be simulated: the calls of rank 0 do not repeat" in done.err
