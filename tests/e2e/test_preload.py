# SPDX-License-Identifier: Apache-2.0
"""The NCCL library as `powerccl run` preloads it: where computation waits, and NCCL before 2.28, on emulated GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from harness import Powerccl

from powerccl.traces import records, tables
from powerccl.traces.folder import RunData, read_run

SCENARIOS = Path(__file__).parents[2] / "bench/scenarios"
OLD = "2.21.5"  # loads no plugin
MIDDLE = "2.27.3"  # its plugin interface (v4) tells neither of calls nor of streams


def replay(
    powerccl: Powerccl, name: str, *options: str, machine: str = "t4x8", bench: tuple[str, ...] = (), **environment: str
) -> tuple[dict[str, Any], RunData]:
    """What powerccl-bench says of five iterations of a scenario, and what was recorded."""
    out = powerccl.folder / "bench.json"
    command = [powerccl.bench, "scenario", str(SCENARIOS / f"{name}.scn"), "--iterations", "5", "-w", "1", *bench]
    options = ("--emulate", machine, "--policy", "observe", *options)
    done = powerccl("run", "--quiet", *options, "--", *command, "--json", str(out), **environment)
    assert done.code == 0, done.err
    run = read_run(powerccl.runs[-1])
    assert not [each for each in run.problems if "of kinds this version does not know" not in each]
    assert len(run.ranks) == 8
    found: dict[str, Any] = json.loads(out.read_text())
    assert found["finished"]
    return found, run


def exposed_ms(found: dict[str, Any], run: RunData) -> tuple[float, float]:
    """All ranks' exposed communication by the marks and by the bench, without the first iteration.

    Before its first kernel nobody knows which stream computes.
    """
    begin_ns = found["results"][0]["end_ns"]
    waits = tables.waits(run).filter(pl.col("stall_ns") >= begin_ns)
    marked = float((waits["resume_ns"] - waits["stall_ns"]).to_numpy().sum()) / 1e6
    return marked, sum(sum(each["exposed_ms_of_ranks"]) for each in found["results"][1:])


def counted(run: RunData) -> list[tuple[Any, ...]]:
    """How many calls of each kind each rank made."""
    calls = tables.calls(run).group_by("rank", "pattern", "bytes", "ranks", "captured", "grouped").len()
    return sorted(calls.rows())


def communicators(run: RunData) -> list[int]:
    """The sizes of all communicators, each counted once however many ranks told of it."""
    found = {(int(row["comm_id"]), int(row["nranks"])) for rank in run.ranks for row in rank.kinds[records.COMM]}
    return sorted(ranks for _, ranks in found if ranks > 0)


# fsdp waits for what it has only just begun, so that the host's haste shows: slower links make that little again.
@pytest.mark.parametrize("version", ["2.28.9", OLD])
@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("ddp", "t4x8"),
        ("fsdp", "t4x8:link_scale=0.25"),
        pytest.param("tp", "t4x8", marks=pytest.mark.slow),
        ("exposed", "t4x8"),
        ("zero1", "t4x8"),
    ],
)
def test_marks_say_what_is_exposed(powerccl: Powerccl, name: str, machine: str, version: str) -> None:
    """As much as the bench finds with its own events around everything it does."""
    found, run = replay(powerccl, name, machine=machine, POWERCCL_EMULATOR_NCCL_VERSION=version)
    marked, exposed = exposed_ms(found, run)
    assert exposed > 10
    assert marked == pytest.approx(exposed, rel=0.05)
    calls, waits = tables.calls(run), tables.waits(run)
    assert waits.join(calls, on=["rank", "call_id"], how="anti").is_empty()
    assert waits.select("rank", "call_id", "stream").is_unique().all()


def test_waits_end_with_their_kernels(powerccl: Powerccl) -> None:
    """On one clock: a stream goes on when the kernel it waited for has stopped."""
    _, run = replay(powerccl, "tp", POWERCCL_KERNEL_EVENTS="all")
    both = tables.waits(run).join(tables.kernels(run), on=["rank", "call_id"])
    assert len(both) > 1000
    late = both.with_columns(ms=(pl.col("resume_ns") - pl.col("stop_ns")) / 1e6)
    of_rank = pl.col("ms").median().over("rank")  # a busy host reads the two clocks of a rank apart
    assert late.select((pl.col("ms") - of_rank).abs().median()).item() < 0.2
    assert late.select(of_rank.abs().max()).item() < 5


def test_plugins_that_name_no_streams_are_helped(powerccl: Powerccl) -> None:
    """NCCL 2.27's plugin interface tells of kernels only; the preloaded functions add the streams."""
    found, run = replay(powerccl, "ddp", POWERCCL_EMULATOR_NCCL_VERSION=MIDDLE)
    assert {rank.library for rank in run.ranks} == {"nccl 2.27.3 profiler v4"}
    marked, exposed = exposed_ms(found, run)
    assert marked == pytest.approx(exposed, rel=0.05)


@pytest.mark.parametrize("name", ["ddp", "pp", "moe"])
def test_an_old_nccl_is_recorded_as_a_new_one(powerccl: Powerccl, name: str) -> None:
    """The same calls, and kernels that take as long."""
    _, new = replay(powerccl, name, POWERCCL_KERNEL_EVENTS="all")
    _, old = replay(powerccl, name, POWERCCL_KERNEL_EVENTS="all", POWERCCL_EMULATOR_NCCL_VERSION=OLD)
    assert {rank.library for rank in old.ranks} == {f"nccl {OLD} preload"}
    assert counted(old) == counted(new)
    assert communicators(old) == communicators(new)
    kernels = [tables.kernels(run) for run in (old, new)]
    assert len(kernels[0]) == len(kernels[1]) == len(tables.calls(new))
    lengths = [table["duration_ns"].sum() for table in kernels]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.2)  # who waits for whom differs from run to run


def test_policies_work_with_an_old_nccl(powerccl: Powerccl) -> None:
    """per-call sets a clock at the call, and puts it back behind the kernel."""
    _, run = replay(powerccl, "ddp", "--policy", "per-call", "--platform", "t4x8", POWERCCL_EMULATOR_NCCL_VERSION=OLD)
    assert tables.calls(run)["managed"].all()
    clocks = tables.clocks(run)
    assert (clocks["min_mhz"] > 0).any()
    assert (clocks["min_mhz"] == 0).any()


def test_auto_sees_what_runs_of_an_old_nccl(powerccl: Powerccl) -> None:
    """Without a plugin, it finds the iteration from the functions that stand before NCCL's."""
    _, run = replay(
        powerccl, "exposed", "--policy", "auto", bench=("--iterations", "40"), POWERCCL_EMULATOR_NCCL_VERSION=OLD
    )
    budgets = tables.budgets(run)
    assert budgets["calls"].to_list() == [3] * 8
    assert (budgets["iterations"] > 0).all()


@pytest.mark.parametrize("version", ["2.28.9", OLD])
def test_graphs_are_left_alone(powerccl: Powerccl, version: str) -> None:
    """Nothing is put into a capture, and what it captured is marked as such."""
    _, run = replay(powerccl, "graph", POWERCCL_EMULATOR_NCCL_VERSION=version)
    assert tables.calls(run)["captured"].all()
    assert tables.waits(run).is_empty()


def test_calls_beside_a_graph_are_timed_and_those_in_it_are_not(powerccl: Powerccl) -> None:
    """NCCL may slow each recorded call of a graph, and calls that it counts apart can hang its communicators."""
    file = powerccl.folder / "beside.scn"
    file.write_text("compute 1\nall_reduce 2M\ncapture\nrepeat 3\ncompute 1\nall_reduce 1M\nend\nend")
    bench = [powerccl.bench, "scenario", str(file), "--iterations", "20"]
    done = powerccl("run", "--emulate", "h100x8:gpus=2", "--policy", "observe", "--", *bench)
    assert done.code == 0, done.err
    kernels = tables.kernels(read_run(powerccl.runs[-1]))
    assert set(kernels["bytes"]) == {2 << 20}
    assert len(kernels) >= 2 * 15
    summary = json.loads((powerccl.runs[-1] / "summary.json").read_text())
    assert summary["communication"]["untimed_captured_calls"] == 2 * 3
    assert "6 calls in CUDA graphs not timed" in str(summary["notes"])


@pytest.mark.parametrize("version", ["2.28.9", OLD])
def test_ranks_may_share_a_process(powerccl: Powerccl, version: str) -> None:
    """Streams and calls of eight GPUs in one process are kept apart."""
    found, run = replay(powerccl, "zero1", bench=("--threads",), POWERCCL_EMULATOR_NCCL_VERSION=version)
    assert len({rank.pid for rank in run.ranks}) == 1
    marked, exposed = exposed_ms(found, run)
    assert marked == pytest.approx(exposed, rel=0.05)


def test_without_preload_there_are_calls_but_no_marks(powerccl: Powerccl) -> None:
    """As before; an old NCCL then tells nothing."""
    _, run = replay(powerccl, "ddp", "--no-preload")
    assert len(tables.calls(run)) == 8 * 4 * 6
    assert tables.waits(run).is_empty()
    _, run = replay(powerccl, "ddp", POWERCCL_PRELOAD="0")
    assert tables.waits(run).is_empty()


def test_what_the_user_preloads_stays(powerccl: Powerccl) -> None:
    """It comes first."""
    ask = ("sh", "-c", "echo $LD_PRELOAD")
    adapter = str(powerccl.native.path("lib/libpowerccl-nccl.so"))
    mpi = str(powerccl.native.path("lib/libpowerccl-mpi.so"))
    assert powerccl("run", "-q", "--", *ask, LD_PRELOAD="libm.so.6").out.split() == [f"libm.so.6:{adapter}:{mpi}"]
    assert powerccl("run", "-q", "--mpi", "off", "--", *ask).out.split() == [adapter]
    without = powerccl("run", "-q", "--no-preload", "--", *ask, LD_PRELOAD="libm.so.6")
    assert without.out.split() == ["libm.so.6"]
