# SPDX-License-Identifier: Apache-2.0
"""Runs of an emulated job, listed, named and compared by their names."""

from __future__ import annotations

import json

import pytest
from harness import Powerccl

JOB = ("--", "powerccl-bench", "all_reduce", "-b", "8M", "-e", "8M", "-n", "30")


def test_recorded_runs_are_listed_named_and_compared(powerccl: Powerccl) -> None:
    for name in ("before", "after", "before", "after"):
        ran = powerccl("run", "--emulate", "t4x8", "--policy", "observe", "--name", name, *JOB)
        assert ran.code == 0, ran.err
    quiet = powerccl("run", "-q", "--name", "failed", "--", "false")
    assert quiet.code == 1
    rows = json.loads(powerccl("runs", "--json", "-").out)["runs"]
    assert [row["name"] for row in rows] == ["failed", "after", "before", "after", "before"]
    assert rows[0]["exit_code"] == 1 and rows[0]["joules"] is None
    assert rows[1]["gpus"] == 8 and rows[1]["emulated"] == "t4x8" and rows[1]["joules"] > 0
    shown = powerccl("runs", "bef")
    assert shown.out.splitlines()[0].split() == ["2", "runs", "in", "runs/", "emulated", "t4x8"]
    assert powerccl("runs", "--failed").out.splitlines()[2].startswith("failed")

    summary = json.loads((powerccl.folder / "runs" / rows[1]["folder"] / "summary.json").read_text())
    assert rows[1]["joules"] == summary["energy"]["joules"]
    assert rows[1]["joules_per_iteration"] == summary["joules_per_iteration"]
    by_name = json.loads(powerccl("report", "after", "-q", "--json", "-").out)["summary"]
    assert by_name["energy"] == summary["energy"]
    for figure in ("iteration_s", "joules_per_iteration"):
        assert by_name[figure] == (summary[figure] and pytest.approx(summary[figure]))

    folders = [f"runs/{row['folder']}" for row in rows if row["name"] != "failed"]
    compared = json.loads(powerccl("compare", *folders, "--json", "-").out)
    assert [(side["name"], len(side["members"])) for side in compared["sides"]] == [("after", 2), ("before", 2)]
    wrong = powerccl("report", "befor", "-q")
    assert wrong.code == 0, "the beginning of one name"
    assert "did you mean 'before'?" in powerccl("report", "befroe").err
