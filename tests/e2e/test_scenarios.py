# SPDX-License-Identifier: Apache-2.0
"""Scenarios under `powerccl run`: the suite's files on an emulated server, with and without a policy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from harness import Powerccl

from powerccl.analysis.findings import SUMMARY_FILE, read_summary
from powerccl.traces import tables
from powerccl.traces.folder import read_run

SCENARIOS = Path(__file__).parents[2] / "bench/scenarios"


def replay(powerccl: Powerccl, name: str, iterations: int, *options: str) -> dict[str, Any]:
    """What powerccl-bench writes of a few iterations of a scenario under `powerccl run`."""
    out = powerccl.folder / f"{name}.json"
    command = [powerccl.bench, "scenario", str(SCENARIOS / f"{name}.scn"), "--iterations", str(iterations), "-w", "1"]
    done = powerccl("run", "--quiet", *options, "--", *command, "--json", str(out))
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(out.read_text())
    assert found["finished"]
    assert found["summary"]["iterations"] == iterations
    return found


@pytest.mark.parametrize("policy", ["observe", "per-call"])
@pytest.mark.parametrize("name", ["ddp", "pp"])
def test_scenarios_run_under_policies(powerccl: Powerccl, name: str, policy: str) -> None:
    """All ranks' calls are recorded, and an iteration is as long as its file means it to be."""
    found = replay(powerccl, name, 5, "--emulate", "t4x8", "--policy", policy, "--platform", "t4x8")
    summary = found["summary"]
    # per-call slows what is still queued when it sets a clock: in ddp nearly to twice the time.
    assert 60 < summary["step_ms"] < (160 if policy == "observe" else 400)
    assert 0 < summary["exposed_ms"] <= summary["communication_ms"] < summary["step_ms"]
    assert summary["run_joules_per_gpu"] > 10
    calls = tables.calls(read_run(powerccl.runs[-1]))
    assert calls["rank"].n_unique() == 8
    expected = {"ddp": {"all_reduce"}, "pp": {"all_reduce", "send_receive"}}[name]
    assert expected <= set(calls["pattern"].unique())
    assert calls["managed"].any() == (policy == "per-call")


def test_an_emulated_run_learns_by_itself(powerccl: Powerccl) -> None:
    """Where clocks may be set and the machine is known, `auto` is what a run without --policy gets."""
    replay(powerccl, "exposed", 20, "--emulate", "t4x8", "--max-slowdown", "2")
    folder = powerccl.runs[-1]
    found = read_summary(folder / SUMMARY_FILE)
    assert (found.policy, found.clocks_mode) == ("auto", "lease")
    outcome = found.policy_outcome
    assert outcome is not None
    assert (outcome.budget_pct, outcome.calls, len(outcome.ranks)) == (2, 3, 8)
    assert outcome.iterations > 5  # seen; the first seconds are left alone to compare with
    assert 0.05 < outcome.iteration_s < 0.4
    assert 0 < outcome.covered_s < outcome.iteration_s
    table = (folder / "policy.table").read_text()
    assert re.search(r"\nswitch_call_us \d+\nswitch_transition_us 1000\n", table)


def test_platforms_can_be_changed(powerccl: Powerccl) -> None:
    """Links eight times as fast leave next to nothing exposed of an all-reduce."""
    slow = replay(powerccl, "straggler", 2, "--policy", "observe", "--emulate", "t4x8")
    fast = replay(powerccl, "straggler", 2, "--policy", "observe", "--emulate", "t4x8:link_scale=8")
    assert fast["summary"]["step_ms"] < slow["summary"]["step_ms"] - 15
    wrong = powerccl("run", "--emulate", "t4x8:link_scal=8", "--", powerccl.bench, "--version")
    assert wrong.code != 0
    assert "link_scal: unknown key" in wrong.err
