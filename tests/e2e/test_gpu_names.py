# SPDX-License-Identifier: Apache-2.0
"""Which GPU a rank is on, however CUDA_VISIBLE_DEVICES names it; and MIG slices, which have no clock of their own."""

from __future__ import annotations

from pathlib import Path

from harness import Powerccl, profile_of

from powerccl.traces.folder import read_run

ALL_SLICED = "0,1,2,3"


def gpus_of(powerccl: Powerccl, visible: str, **environment: str) -> list[str]:
    """The GPUs of a job's two ranks, by its record."""
    ranks = ("-g", "2", "all_reduce", "-b", "1M", "-e", "1M", "-n", "1")
    environment["CUDA_VISIBLE_DEVICES"] = visible
    done = powerccl("run", "--emulate", "a100x4", "--", powerccl.bench, *ranks, **environment)
    assert done.code == 0, done.err
    run = read_run(powerccl.runs[-1])
    assert not run.problems
    return [rank.gpu_uuid for rank in run.ranks]


def test_a_gpu_is_the_same_however_it_is_named(powerccl: Powerccl) -> None:
    by_index = gpus_of(powerccl, "2,0")
    assert len(set(by_index)) == 2
    assert all(uuid.startswith("GPU-") for uuid in by_index)
    assert gpus_of(powerccl, ",".join(by_index[::-1])) == by_index[::-1]


def test_a_slice_is_named_by_its_own_uuid(powerccl: Powerccl) -> None:
    whole = gpus_of(powerccl, "2,0")
    slices = gpus_of(powerccl, "2,0", POWERCCL_EMULATOR_MIG=ALL_SLICED)
    assert all(uuid.startswith("MIG-") for uuid in slices)
    assert [uuid[6:] for uuid in slices] == [uuid[6:] for uuid in whole], "each of that GPU"
    # A UUID's beginning is enough where it is one device's alone.
    assert gpus_of(powerccl, f"{slices[0][:12]},0", POWERCCL_EMULATOR_MIG="2") == [slices[0], whole[1]]


def test_a_slice_sets_no_clock_and_says_so_once(powerccl: Powerccl, tmp_path: Path) -> None:
    profile = tmp_path / "a100.json"
    profile.write_bytes(profile_of("NVIDIA A100-SXM4-40GB", 4))
    asked = ("run", "--emulate", "a100x4", "--policy", "per-call", "--platform", str(profile), "--")
    job = (powerccl.bench, "all_reduce", "-b", "64M", "-e", "64M", "-n", "3")
    done = powerccl(*asked, *job, POWERCCL_EMULATOR_MIG=ALL_SLICED)
    assert done.code == 0, done.err
    assert done.err.count("becomes observe: this is a MIG slice") == 1, done.err
    run = read_run(powerccl.runs[-1])
    assert {rank.policy for rank in run.ranks} == {"observe"}
    assert all(rank.gpu_uuid.startswith("MIG-") for rank in run.ranks)
