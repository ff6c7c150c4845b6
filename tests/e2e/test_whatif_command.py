# SPDX-License-Identifier: Apache-2.0
"""`powerccl whatif` against what a policy then really does, on an emulated server."""

from __future__ import annotations

import json
import random
from typing import Any

from harness import Powerccl
from test_scenarios import replay


def test_percall_saves_about_what_was_predicted(powerccl: Powerccl) -> None:
    """All communication exposed, the host waiting ahead of it: nothing is left to chance but how long switches take."""
    options = ("--emulate", "t4x8", "--platform", "t4x8", "--policy")
    before = replay(powerccl, "exposed", 25, *options, "observe")
    found = powerccl.folder / "found.json"
    done = powerccl("whatif", str(powerccl.runs[-1]), "--json", str(found))
    assert done.code == 0, done.err
    predicted: dict[str, Any] = json.loads(found.read_text())
    assert 65 < predicted["exposed_pct"] < 85
    percall = predicted["policies"][0]
    assert percall["policy"] == "per-call"
    after = replay(powerccl, "exposed", 25, *options, "per-call")
    joules = [run["summary"]["run_joules_per_gpu"] / run["summary"]["iterations"] for run in (before, after)]
    saved_pct = (1 - joules[1] / joules[0]) * 100
    assert saved_pct > 15
    assert abs(percall["saved_pct"]["value"] - saved_pct) < 3
    slower_pct = (after["summary"]["step_ms"] / before["summary"]["step_ms"] - 1) * 100
    assert abs(percall["slowdown_pct"]["value"] - slower_pct) < 5


def test_a_job_without_iterations_is_promised_what_it_gets(powerccl: Powerccl) -> None:
    """One pass over operations drawn at random: policies that learn manage nothing, and nothing is promised of them."""
    chance = random.Random(1)
    patterns = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
    lines = [
        f"compute {chance.uniform(1, 30):.1f}\n{chance.choice(patterns)} {chance.randint(1, 40)}M" for _ in range(40)
    ]
    (powerccl.folder / "once.scn").write_text("\n".join(lines) + "\n")
    bench = ("--", "powerccl-bench", "scenario", "once.scn", "--iterations", "1", "-w", "0", "-g", "4")
    for policy in ("observe", "fixed", "auto"):
        done = powerccl("run", "--emulate", "t4x8", "--platform", "t4x8", "--policy", policy, *bench)
        assert done.code == 0, done.err
        if policy != "observe":
            outcome = json.loads((powerccl.runs[-1] / "summary.json").read_text())["policy_outcome"]
            assert not outcome["managed"] and not outcome["clock_mhz"]
    told = powerccl.folder / "told.json"
    done = powerccl("whatif", str(powerccl.runs[0]), "--json", str(told))
    assert done.code == 0, done.err
    for row in json.loads(told.read_text())["policies"]:
        if row["policy"] in ("fixed", "auto"):
            assert row["saved_pct"] == {"value": 0.0, "low": 0.0, "high": 0.0}
            assert row["reason"] == "lowers no clock: no iteration found"
