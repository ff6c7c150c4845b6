# SPDX-License-Identifier: Apache-2.0
"""The policy that learns, on emulated GPUs whose clocks really change: what it saves, and that it costs no time."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from harness import Powerccl

from powerccl.commandline.summaries import summary_of
from powerccl.traces import records, tables
from powerccl.traces.folder import read_run

SCENARIOS = Path(__file__).parents[2] / "bench/scenarios"


class Replayed:
    """A scenario under a policy: step time and energy of its iterations once the policy has learnt, and its outcome."""

    def __init__(self, powerccl: Powerccl, name: str, policy: str, warmup: int) -> None:
        out = powerccl.folder / f"{name}-{policy}.json"
        replay = ["scenario", str(SCENARIOS / f"{name}.scn"), "--iterations", "30", "-w", str(warmup)]
        done = powerccl(
            "run", "--quiet", "--emulate", "t4x8", "--policy", policy, "--", powerccl.bench, *replay, "--json", str(out)
        )
        assert done.code == 0, done.err
        found: dict[str, Any] = json.loads(out.read_text())
        self.joules, self.step_ms = found["summary"]["joules_per_gpu"], found["summary"]["step_ms"]
        self.run = read_run(powerccl.runs[-1])
        outcome = summary_of(powerccl.runs[-1]).policy_outcome
        assert outcome is not None
        self.outcome = outcome


@pytest.mark.slow
@pytest.mark.parametrize(("name", "warmup"), [("exposed", 450), ("straggler", 550)])
def test_auto_finds_one_clock(powerccl: Powerccl, name: str, warmup: int) -> None:
    """It finds where the clock is by itself, and goes lower from there."""
    observed = Replayed(powerccl, name, "observe", warmup=20)
    managed = Replayed(powerccl, name, "auto", warmup=warmup)
    assert 0 < managed.outcome.clock_mhz < 1400
    told = managed.run.ranks[0].kinds[records.BUDGET]
    assert len(told) >= 2, "told while the job runs, too"
    assert told["iterations"][0] < told["iterations"][-1]
    assert managed.joules < 0.97 * observed.joules
    assert managed.step_ms < 1.05 * observed.step_ms


@pytest.mark.slow
def test_auto_finds_the_iterations_of_graphs(powerccl: Powerccl) -> None:
    """A job in CUDA graphs makes no calls while it runs. Its launches are seen."""
    managed = Replayed(powerccl, "graph", "auto", warmup=300)
    assert managed.outcome.calls == 1
    assert managed.outcome.managed > 20


def test_auto_begins_in_half_a_minute(powerccl: Powerccl) -> None:
    """A job of half a minute is enough for a first clock."""
    job = (powerccl.bench, "scenario", str(SCENARIOS / "exposed.scn"), "--seconds", "24")
    done = powerccl("run", "--emulate", "t4x8", "--", *job)
    assert done.code == 0, done.err
    outcome = json.loads((powerccl.runs[-1] / "summary.json").read_text())["policy_outcome"]
    assert outcome["policy"] == "auto"
    assert 300 < outcome["clock_mhz"] < 1590
    assert outcome["managed"] > 0
    clocks = tables.clocks(read_run(powerccl.runs[-1]))
    assert set(clocks.filter(clocks["min_mhz"] > 0)["rank"]) == set(range(8))
    assert clocks.sort("asked_ns").group_by("rank").agg(pl.col("min_mhz").last())["min_mhz"].sum() == 0
    told = " ".join(done.err.split())
    assert re.search(r"auto: (\d+ to )?\d+ MHz · ", told)
