# SPDX-License-Identifier: Apache-2.0
"""Scenarios under `powerccl run`: the suite's files on an emulated server, with and without a policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from harness import Done, Powerccl

from powerccl.bench.tables import Tables
from powerccl.commandline.summaries import summary_of
from powerccl.traces import tables
from powerccl.traces.folder import read_run

SCENARIOS = Path(__file__).parents[2] / "bench/scenarios"


def shown(done: Done) -> str:
    """What users see of the lines that powerccl-bench wrote."""
    tables_of_bench = Tables()
    return b"".join(tables_of_bench.feed(line.encode()) for line in done.out.splitlines(keepends=True)).decode()


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
    """Where clocks may be set, `auto` is what a run without --policy gets."""
    replay(powerccl, "exposed", 20, "--emulate", "t4x8", "--max-slowdown", "2")
    folder = powerccl.runs[-1]
    found = summary_of(folder)
    assert (found.policy, found.clocks_mode) == ("auto", "lease")
    outcome = found.policy_outcome
    assert outcome is not None
    assert (outcome.budget_pct, outcome.calls, len(outcome.ranks)) == (2, 3, 8)
    assert outcome.iterations > 5  # seen; the first seconds are left alone to compare with
    assert 0.05 < outcome.iteration_s < 0.4
    assert not (folder / "policy.table").exists()


def step_by(powerccl: Powerccl, way: str, *options: str, nccl: str = "2.30.7") -> tuple[Done, dict[str, Any]]:
    """A step on emulated H200s that gathers its weights that way, with nothing to hide the time behind."""
    lines = ["streams gather", "compute 2", "wait compute on gather", f"all_gather 256M on gather by {way}"]
    file, out = powerccl.folder / "step.scn", powerccl.folder / "step.json"
    file.write_text("\n".join([*lines, "wait gather on compute", "compute 2"]))
    bench = [powerccl.bench, "scenario", str(file), "--json", str(out), *options]
    done = powerccl("run", "--quiet", "--emulate", "h200x4", "--", *bench, POWERCCL_EMULATOR_NCCL_VERSION=nccl)
    return done, json.loads(out.read_text()) if done.code == 0 else {}


def test_collectives_go_the_way_that_is_named(powerccl: Powerccl) -> None:
    """Copy engines gather 256 MiB on these servers in a tenth less time than NCCL's channels."""
    found = {}
    for way in ("plain", "copy-engine"):
        done, found[way] = step_by(powerccl, way, "--seconds", "2")
        assert done.code == 0, done.err
        calls = tables.calls(read_run(powerccl.runs[-1])).filter(pl.col("bytes") >= 1 << 24)
        assert len(calls) > 4
        # Of the first no events may have been asked, and then what it was is not known.
        assert calls["copy_engine"].sum() >= (len(calls) - 4 if way == "copy-engine" else 0)
        assert way == "copy-engine" or not calls["copy_engine"].any()
        summary = found[way]["summary"]
        # Four GPUs, each between what idle ones and the busiest take.
        assert 4 * 50 < summary["joules_per_iteration"] / summary["step_ms"] * 1e3 < 4 * 800
        assert found[way]["scenario"]["iterations"] == summary["iterations"]
        assert 0.7 < summary["run_s"] < 6
        assert f"{summary['joules_per_iteration']:g} J of all GPUs" in shown(done)
    # The quickest of each: copies are begun by host threads, which a busy machine makes late.
    for name, share in (("communication_ms", 0.97), ("step_ms", 1)):
        plain, copies = (
            min(each[name] for each in found[way]["results"] if not each["warmup"]) for way in ("plain", "copy-engine")
        )
        assert copies < share * plain, name


def test_replays_of_a_graph_take_no_longer_because_they_are_recorded(powerccl: Powerccl) -> None:
    """NCCL calls the host before each recorded kernel of a graph, beside the kernels before it."""
    file, out = powerccl.folder / "graph.scn", powerccl.folder / "graph.json"
    file.write_text("capture\nrepeat 40\ncompute 0.3 memory 100%\nall_reduce 1M\nend\nend")
    bench = [powerccl.bench, "scenario", str(file), "--json", str(out), "--iterations", "30", "-w", "3"]
    done = powerccl("run", "--quiet", "--emulate", "h100x8:gpus=2", "--", *bench, POWERCCL_KERNEL_EVENTS="all")
    assert done.code == 0, done.err
    quickest = min(each["step_ms"] for each in json.loads(out.read_text())["results"] if not each["warmup"])
    kernels = tables.kernels(read_run(powerccl.runs[-1]))
    assert len(kernels) == 2 * 33 * 40, "all are recorded"
    # 0.3 ms of computation and 0.03 ms of communication; host functions would take another 0.04 ms each.
    assert 40 * 0.31 < quickest < 40 * 0.35


@pytest.mark.parametrize("kind", ["matmul", "memory", "both"])
def test_computation_takes_its_time_whatever_it_consists_of(powerccl: Powerccl, kind: str) -> None:
    done, found = step_by(powerccl, "symmetric", "--compute", kind, "--iterations", "8")
    assert done.code == 0, done.err
    # Two of 2 ms at the reference clock; GPUs go a little above it, and a busy host makes them later.
    assert 3.5 < found["summary"]["compute_ms"] < 6
    assert found["compute"] == {
        "kind": kind,
        "declared": True,
        "iterations_per_ms": None,
        "unit_ms": None,
        "blocks": None,
        "threads": None,
    }
    # So short a run tells nothing of its energy, and says so.
    assert found["summary"]["joules_per_iteration"] is None
    assert "not known (the run takes less than a second" in shown(done)


def test_graphs_and_groups_go_ways_too(powerccl: Powerccl) -> None:
    """Each way in each group has a communicator of its own, also behind a CUDA graph."""
    file = powerccl.folder / "groups.scn"
    file.write_text(
        "group pair 2\nall_gather 64M in pair by symmetric\nall_gather 64M in pair by copy-engine\n"
        "all_gather 64M in pair\ncapture\nall_gather 32M by copy-engine\nend\n"
    )
    bench = [powerccl.bench, "scenario", str(file), "--iterations", "6", "-w", "2"]
    environment = {"POWERCCL_EMULATOR_NCCL_VERSION": "2.30.7", "POWERCCL_KERNEL_EVENTS": "all"}
    done = powerccl("run", "--quiet", "--emulate", "h200x4", "--", *bench, **environment)
    assert done.code == 0, done.err
    run = read_run(powerccl.runs[-1])
    assert not run.problems
    calls = tables.calls(run).filter(pl.col("bytes") >= 1 << 24)
    assert calls["symmetric"].any() and calls["copy_engine"].any()
    assert (~calls["symmetric"] & ~calls["copy_engine"]).any()
    assert calls["comm"].n_unique() >= 4


def test_a_way_that_cannot_be_gone_is_refused(powerccl: Powerccl) -> None:
    done, _ = step_by(powerccl, "copy-engine", nccl="2.28.9")
    assert done.code != 0
    assert "refuses the CTA policy 2" in done.err and "or the scenario" in done.err
    done, _ = step_by(powerccl, "magic")
    assert done.code != 0
    assert "step.scn:4: no way is called 'magic'" in done.err and "copy-engine" in done.err


def test_platforms_can_be_changed(powerccl: Powerccl) -> None:
    """Links eight times as fast leave next to nothing exposed of an all-reduce."""
    slow = replay(powerccl, "straggler", 2, "--policy", "observe", "--emulate", "t4x8")
    fast = replay(powerccl, "straggler", 2, "--policy", "observe", "--emulate", "t4x8:link_scale=8")
    assert fast["summary"]["step_ms"] < slow["summary"]["step_ms"] - 15
    wrong = powerccl("run", "--emulate", "t4x8:link_scal=8", "--", powerccl.bench, "--version")
    assert wrong.code != 0
    assert "link_scal: unknown key" in wrong.err
