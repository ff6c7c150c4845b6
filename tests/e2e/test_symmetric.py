# SPDX-License-Identifier: Apache-2.0
"""Collectives on symmetric windows: kernels and copies for which NCCL raises no events, on emulated GPUs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from harness import Powerccl, points_are_right

from powerccl.bench.tables import Tables
from powerccl.traces import records, tables
from powerccl.traces.folder import RunData, read_run

NCCL = "POWERCCL_EMULATOR_NCCL_VERSION"
SWEEP = ("-b", "16M", "-e", "64M", "-f", "2", "-n", "8", "--no-energy")


def measured(
    powerccl: Powerccl, pattern: str, version: str, *options: str, machine: str = "h200x4", **environment: str
) -> RunData:
    """A run of the bench on symmetric windows under that NCCL."""
    command = [powerccl.bench, pattern, "-R", "2", *SWEEP]
    policy = options or ("--policy", "observe")
    done = powerccl(
        *("run", "--quiet", "--emulate", machine, *policy, "--", *command),
        POWERCCL_EMULATOR_NCCL_VERSION=version,
        **environment,
    )
    assert done.code == 0, done.err
    assert points_are_right(done.out)
    run = read_run(powerccl.runs[-1])
    assert not run.problems
    return run


def of_windows(run: RunData) -> pl.DataFrame:
    """The calls that were not made to bring the ranks together."""
    return tables.calls(run).filter(pl.col("bytes") >= 1 << 24)


def known_as(run: RunData, kind: str) -> pl.DataFrame:
    """The calls of that kind: all but the first of each size.

    For the first no kernel events may have been asked, and then what it is cannot be known.
    """
    calls = of_windows(run)
    assert len(calls) >= 4 * 3 * 9
    unknown = calls.filter(~pl.col(kind))
    assert len(unknown) <= 4 * 3
    assert not unknown["kernel_asked"].any()
    return calls.filter(pl.col(kind))


@pytest.mark.parametrize("version", ["2.28.9", "2.30.7", "2.32.3"])
@pytest.mark.parametrize("pattern", ["all_reduce", "all_gather", "reduce_scatter"])
def test_symmetric_kernels_are_timed(powerccl: Powerccl, pattern: str, version: str) -> None:
    run = measured(powerccl, pattern, version)
    calls = known_as(run, "symmetric")
    kernels = tables.kernels(run).join(calls.select("rank", "call_id"), on=["rank", "call_id"])
    assert len(kernels) == len(calls), "each has its time"
    assert set(kernels["algorithm"].cast(pl.String)) == {"symmetric"}
    bench = tables.kernels(run).filter(pl.col("bytes") == 1 << 26)["duration_ns"].median()
    assert isinstance(bench, float) and 100e3 < bench < 3e6


@pytest.mark.parametrize("version", ["2.28.9", "2.30.7", "2.32.3"])
def test_copy_engines_are_timed(powerccl: Powerccl, version: str) -> None:
    run = measured(powerccl, "all_gather", version, NCCL_CTA_POLICY="ZERO")
    # NCCL 2.28 tells no plugin of copies: preloaded functions see those calls.
    calls = known_as(run, "copy_engine")
    kernels = tables.kernels(run).join(calls.select("rank", "call_id"), on=["rank", "call_id"])
    assert len(kernels) == len(calls)


def stuck_low_ms(run: RunData) -> float:
    """The longest time for which a rank wanted a low clock after its last collective had ended."""
    longest = 0.0
    ends = dict(tables.kernels(run).group_by("rank", maintain_order=True).agg(pl.col("stop_ns").max()).iter_rows())
    for rank, requests in tables.clocks(run).group_by("rank", maintain_order=True):
        last: dict[str, Any] = requests.sort("asked_ns").row(-1, named=True)
        assert last["min_mhz"] == 0, "the clock is given back"
        longest = max(longest, (last["asked_ns"] - ends[rank[0]]) / 1e6)
    return longest


@pytest.mark.parametrize("version", ["2.28.9", "2.30.7", "2.32.3"])
@pytest.mark.parametrize("policy", ["per-call", "auto"])
def test_no_clock_stays_low_behind_them(powerccl: Powerccl, policy: str, version: str) -> None:
    options = ("--policy", policy, *(("--platform", "t4x8") if policy == "per-call" else ()))
    run = measured(powerccl, "all_gather", version, *options, machine="t4x8", NCCL_CTA_POLICY="ZERO")
    if policy == "per-call":
        assert of_windows(run)["managed"].any()
        assert stuck_low_ms(run) < 50
    assert all(rank.kinds[records.KERNEL].size for rank in run.ranks)


@pytest.mark.parametrize("way", ["symmetric", "copy-engine"])
def test_in_a_graph_they_are_left_alone(powerccl: Powerccl, way: str) -> None:
    """What is captured is counted as such; nothing is put into the capture, and no clock waits for its end."""
    scenario = powerccl.folder / "graph.scn"
    scenario.write_text(f"capture\n  compute 1\n  all_gather 64M by {way}\nend\ncompute 1\nall_gather 64M by {way}\n")
    command = [powerccl.bench, "scenario", str(scenario), "--iterations", "10"]
    options = ("--emulate", "t4x8", "--policy", "per-call", "--platform", "t4x8")
    done = powerccl("run", "--quiet", *options, "--", *command, POWERCCL_EMULATOR_NCCL_VERSION="2.30.7")
    assert done.code == 0, done.err
    run = read_run(powerccl.runs[-1])
    calls = of_windows(run)
    captured = calls.filter(pl.col("captured"))
    assert len(captured) == 8, "each rank captures once"
    assert not captured["managed"].any()
    assert len(calls) == 8 * (1 + 10 + 2)
    assert stuck_low_ms(run) < 50


def test_a_communicator_goes_before_its_windows(powerccl: Powerccl, tmp_path: Path) -> None:
    """As where a job ends in the midst of it: what was recorded until then is whole, and the job's own code stays."""
    code = (
        "import ctypes, os, sys; nccl = ctypes.CDLL('libnccl.so.2')\n"
        "class Id(ctypes.Structure): _fields_ = [('bytes', ctypes.c_char * 128)]\n"
        "cuda = ctypes.CDLL('libcuda.so.1'); assert cuda.cuInit(0) == 0\n"
        "context = ctypes.c_void_p(); assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0\n"
        "assert cuda.cuCtxSetCurrent(context) == 0\n"
        "name, comm, buffer, window = Id(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()\n"
        "assert nccl.ncclGetUniqueId(ctypes.byref(name)) == 0\n"
        "assert nccl.ncclCommInitRank(ctypes.byref(comm), 1, name, 0) == 0\n"
        "size = ctypes.c_size_t(1 << 24); assert nccl.ncclMemAlloc(ctypes.byref(buffer), size) == 0\n"
        "assert nccl.ncclCommWindowRegister(comm, buffer, size, ctypes.byref(window), 1) == 0\n"
        "assert nccl.ncclAllReduce(buffer, buffer, ctypes.c_size_t(1 << 20), 7, 0, comm, None) == 0\n"
        "assert cuda.cuStreamSynchronize(None) == 0\n"
        "assert nccl.ncclCommDestroy(comm) == 0\n"
        "assert nccl.ncclMemFree(buffer) == 0; sys.exit(7)\n"
    )
    (tmp_path / "job.py").write_text(code)
    done = powerccl(
        *("run", "--quiet", "--emulate", "h200x4", "--", sys.executable, str(tmp_path / "job.py")),
        POWERCCL_EMULATOR_NCCL_VERSION="2.30.7",
    )
    assert done.code == 7, done.err
    assert not read_run(powerccl.runs[-1]).problems


def test_plain_calls_keep_their_events(powerccl: Powerccl) -> None:
    """Nothing of theirs is timed twice."""
    run = measured(powerccl, "all_reduce", "2.28.9", NCCL_WIN_ENABLE="0")
    calls = of_windows(run)
    assert not calls["symmetric"].any()
    kernels = tables.kernels(run)
    assert kernels.select("rank", "call_id").is_unique().all()
    flags = [rank.kinds[records.KERNEL]["flags"] & records.FLAG_HOST_TIMES for rank in run.ranks]
    assert not any(each.any() for each in flags)


def test_ways_are_measured_one_after_the_other(powerccl: Powerccl, tmp_path: Path) -> None:
    file = tmp_path / "ways.json"
    bench = [
        *(powerccl.bench, "all_reduce", "all_gather", "--way", "all", "-b", "16M", "-e", "16M", "-g", "2"),
        "--no-energy",
    ]
    done = powerccl("run", "--quiet", "--emulate", "h200x4", "--", *bench, "--json", str(file), **{NCCL: "2.30.7"})
    assert done.code == 0, done.err
    assert points_are_right(done.out)
    results = json.loads(file.read_text())["results"]
    ways = [(point["pattern"], point["way"]) for point in results]
    assert ways == [
        *(("all_reduce", "plain"), ("all_gather", "plain")),
        *(("all_reduce", "symmetric"), ("all_gather", "symmetric"), ("all_gather", "copy-engine")),
        *(("all_reduce", "efficiency"), ("all_gather", "efficiency")),
    ]
    # The table below compares them, pattern by pattern.
    shown = Tables()
    text = "".join(shown.feed(line.encode()).decode() for line in done.out.splitlines())
    rows = [line.split()[1:4] for line in text.splitlines() if line.startswith("#  ") and "16777216" in line]
    assert rows == [
        *(["all_reduce", "16777216", way] for way in ("plain", "symmetric", "efficiency")),
        *(["all_gather", "16777216", way] for way in ("plain", "symmetric", "copy-engine", "efficiency")),
    ]
    # And the record tells them apart.
    calls = of_windows(read_run(powerccl.runs[-1]))
    assert (
        calls["copy_engine"].any() and calls["symmetric"].any() and (~calls["copy_engine"] & ~calls["symmetric"]).any()
    )


def test_a_way_that_this_nccl_refuses_is_said(powerccl: Powerccl) -> None:
    bench = (
        *("bench", "--emulate", "h200x4", "all_gather", "--way", "copy-engine", "-b", "1M", "-e", "1M", "-g", "2"),
        "--no-energy",
    )
    done = powerccl(*bench, **{NCCL: "2.28.9"})
    assert done.code != 0
    assert "refuses the CTA policy 2" in done.err and "leave copy-engine out of --way" in done.err
