# SPDX-License-Identifier: Apache-2.0
"""What the emulator says its GPUs drew, and what analysis makes of their slow counters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import Powerccl

from powerccl.analysis.attribution import attribute
from powerccl.traces.folder import read_run

SCENARIO = Path(__file__).parents[2] / "bench/scenarios/exposed.scn"


def test_attributed_energy_is_what_was_drawn(powerccl: Powerccl, tmp_path: Path) -> None:
    """Counters at 100 ms, two sizes of all-reduce in one iteration of 112 ms, 12 s."""
    truth_file = tmp_path / "truth.json"
    options = ("--quiet", "--emulate", "t4x8:refresh_ms=100", "--policy", "observe", "--interval-ms", "19")
    command = (powerccl.bench, "scenario", str(SCENARIO), "--iterations", "100", "-w", "2")
    done = powerccl("run", *options, "--", *command, POWERCCL_EMULATOR_TRUTH=str(truth_file))
    assert done.code == 0, done.err
    run = read_run(powerccl.runs[-1])
    truth = json.loads(truth_file.read_text())
    assert truth["emulated"] == "t4x8"
    joules: dict[int, float] = {}
    for state in truth["states"]:
        for each in state["running"]:
            assert each["pattern"] == "all_reduce"
            size = each["size_class_bytes"]
            joules[size] = joules.get(size, 0.0) + state["joules"]
    count = {each["size_class_bytes"]: 0 for each in truth["operations"]}
    for each in truth["operations"]:
        count[each["size_class_bytes"]] += each["count"]
    assert count == {8 << 20: 2 * 102 * 8, 64 << 20: 102 * 8}
    kinds = {kind.size_class_bytes: kind for kind in attribute(run).kinds}
    large = kinds[64 << 20]
    assert large.operations == count[64 << 20]
    assert large.joules_per_operation == pytest.approx(joules[64 << 20] / count[64 << 20], rel=0.05)
