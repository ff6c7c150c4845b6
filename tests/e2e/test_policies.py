# SPDX-License-Identifier: Apache-2.0
"""The policies that learn, on emulated GPUs whose clocks really change: what they save, and that they cost no time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import Powerccl

from powerccl.traces import records, tables
from powerccl.traces.folder import read_run

SCENARIOS = Path(__file__).parents[2] / "bench/scenarios"


class Replayed:
    """A scenario under a policy: step time and energy of its iterations once the policy has learnt, and its outcome."""

    def __init__(self, powerccl: Powerccl, name: str, policy: str, *options: str, warmup: int, machine: str = "t4x8"):
        out = powerccl.folder / f"{name}-{policy}.json"
        replay = ["scenario", str(SCENARIOS / f"{name}.scn"), "--iterations", "30", "-w", str(warmup)]
        under = ("--quiet", "--emulate", machine, "--platform", "t4x8", "--policy", policy, *options)
        done = powerccl("run", *under, "--", powerccl.bench, *replay, "--json", str(out))
        assert done.code == 0, done.err
        found: dict[str, Any] = json.loads(out.read_text())
        self.joules, self.step_ms = found["summary"]["joules_per_gpu"], found["summary"]["step_ms"]
        self.run = read_run(powerccl.runs[-1])
        self.outcome = json.loads((powerccl.runs[-1] / "summary.json").read_text()).get("policy_outcome")


def test_phase_saves_what_is_exposed(powerccl: Powerccl) -> None:
    """All of the exposed communication but its edges runs at a low clock, and computation does not notice."""
    observed = Replayed(powerccl, "exposed", "observe", warmup=3)
    managed = Replayed(powerccl, "exposed", "exposed", warmup=25)
    assert managed.joules < 0.97 * observed.joules
    assert managed.step_ms < 1.05 * observed.step_ms
    assert managed.outcome["windows_least"] == 1
    assert managed.outcome["covered_s"] > 0.06
    assert managed.outcome["marked"]


@pytest.mark.slow
def test_phase_leaves_hidden_communication_alone(powerccl: Powerccl) -> None:
    """Three of four buckets lie beside computation: lowering the clock there would cost half as much time again."""
    observed = Replayed(powerccl, "ddp", "observe", warmup=3)
    managed = Replayed(powerccl, "ddp", "exposed", warmup=20)
    assert managed.step_ms < 1.05 * observed.step_ms
    assert 0.005 < managed.outcome["covered_s"] < 0.025


def test_phase_finds_out_without_marks(powerccl: Powerccl) -> None:
    """Nobody tells what computation waits for: the job's own iterations do."""
    managed = Replayed(powerccl, "exposed", "exposed", "--no-preload", warmup=25)
    assert not managed.outcome["marked"]
    assert managed.outcome["covered_s"] > 0.05


@pytest.mark.slow
def test_phase_does_not_switch_where_that_takes_longer_than_the_phase(powerccl: Powerccl) -> None:
    """Clocks that take a tenth of a second to come are of no use to collectives of a millisecond."""
    slow = "t4x8:clock_transition_us=100000,set_clock_call_us=4500"
    observed = Replayed(powerccl, "tp", "observe", warmup=3, machine=slow)
    managed = Replayed(powerccl, "tp", "exposed", warmup=20, machine=slow)
    assert managed.step_ms < 1.05 * observed.step_ms
    assert managed.outcome["covered_s"] == 0
    assert len(tables.clocks(managed.run).filter(tables.clocks(managed.run)["rank"] == 0)) < 40


@pytest.mark.slow
@pytest.mark.parametrize("name", ["graph", "straggler"])
def test_auto_finds_one_clock(powerccl: Powerccl, name: str) -> None:
    """A job in CUDA graphs makes no calls, and one with a slow rank waits: one clock a GPU saves there."""
    observed = Replayed(powerccl, name, "observe", warmup=20)
    managed = Replayed(powerccl, name, "auto", warmup=200)
    assert managed.outcome["clock_mhz"] > 0
    assert name != "graph" or managed.outcome["covered_s"] > 0, "its replayed kernels are seen, and have windows"
    told = managed.run.ranks[0].kinds[records.BUDGET]
    assert len(told) >= 2, "told while the job runs, too"
    assert told["iterations"][0] < told["iterations"][-1]
    assert managed.joules < 0.95 * observed.joules
    assert managed.step_ms < 1.06 * observed.step_ms


@pytest.mark.slow
def test_auto_needs_no_profile(powerccl: Powerccl) -> None:
    """Of a machine without a profile it finds where the clock is by itself, and goes lower from there."""
    options = ("--platform", "none")
    observed = Replayed(powerccl, "exposed", "observe", warmup=20)
    managed = Replayed(powerccl, "exposed", "auto", *options, warmup=450)
    assert 0 < managed.outcome["clock_mhz"] < 1400
    assert managed.outcome["windows_most"] == 0
    assert managed.joules < 0.97 * observed.joules
    assert managed.step_ms < 1.05 * observed.step_ms


def test_auto_begins_without_a_profile(powerccl: Powerccl) -> None:
    """A job of half a minute is enough for a first clock."""
    job = (powerccl.bench, "scenario", str(SCENARIOS / "exposed.scn"), "--seconds", "24")
    done = powerccl("run", "--emulate", "t4x8", "--platform", "none", "--", *job)
    assert done.code == 0, done.err
    outcome = json.loads((powerccl.runs[-1] / "summary.json").read_text())["policy_outcome"]
    assert outcome["policy"] == "auto"
    assert outcome["parts"] == ["clock"]
    assert 300 < outcome["clock_mhz"] < 1590
    assert outcome["managed"] > 0
    told = " ".join(done.err.split())
    assert "MHz throughout" in told
