# SPDX-License-Identifier: Apache-2.0
"""`powerccl top` and `powerccl export` beside a job that runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness import Powerccl, eventually
from prometheus_client.parser import text_string_to_metric_families

SCENARIO = Path(__file__).parents[2] / "bench/scenarios/ddp.scn"


def test_a_job_is_seen_while_it_runs_and_when_it_has_ended(powerccl: Powerccl) -> None:
    """By its processes, from another folder, with shares, power and counts of the emulated training step."""
    runs = powerccl.folder / "runs"
    options = ("-q", "--emulate", "t4x8", "--policy", "observe", "--runs-dir", str(runs), "--name", "seen")
    command = (powerccl.bench, "scenario", str(SCENARIO), "--iterations", "90", "-w", "2")
    job = powerccl.start("run", *options, "--", *command)

    def look() -> dict[str, Any] | None:
        done = powerccl("top", "--once", "--json")
        assert done.code == 0, done.err
        view = json.loads(done.out)
        mine: list[dict[str, Any]] = [each for each in view["jobs"] if each["folder"].startswith(str(runs))]
        return mine[0] if mine else None

    found: dict[str, Any] = {}

    def runs_well() -> bool:
        nonlocal found
        found = look() or {}
        told = (rank["calls"] > 20 and rank["share_pct"] for rank in found.get("ranks", []))
        return len(found.get("ranks", [])) == 8 and all(told) and bool(found["power_w"])

    assert eventually(runs_well), found
    assert not found["ended"] and found["emulated"] == "t4x8"
    assert len(found["pids"]) >= 8
    # 58 % in the middle of the run; what was before its first step is in the first windows.
    assert 20 < found["share_pct"] < 75
    assert 8 * 10 < found["power_w"] < 8 * 75
    assert found["patterns"][0]["pattern"] == "all_reduce"
    done = powerccl("export", "--once")
    assert done.code == 0, done.err
    while_running = counts(done.out, found["folder"])
    assert while_running > 8 * 20
    ended = job.wait()
    assert ended.code == 0, ended.err
    done = powerccl("export", "--once", found["folder"])
    # 92 iterations of four all-reduces on each of eight ranks; none was lost between two looks.
    assert counts(done.out, found["folder"]) == 92 * 4 * 8
    text = powerccl("top", found["folder"]).out
    assert "ended, exit 0" in text and "emulated t4x8" in text


def counts(text: str, folder: str) -> float:
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "powerccl_collectives_total" and sample.labels["run"] == folder
    )
