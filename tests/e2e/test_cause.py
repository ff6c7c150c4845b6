# SPDX-License-Identifier: Apache-2.0
"""A run that recorded nothing states the true cause, the same in all outputs. `make figures-harm` runs all ways."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harm import cause
from mpi_libraries import Mpi

from powerccl.launch.native import NativeFiles

CHOSEN = (
    *("env -i before the launcher", "a static program with MPI", "gloo", "NCCL without a communicator"),
    "a full disk",
)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk, which takes root")
def test_the_cause_is_the_true_one(native: NativeFiles, tmp_path: Path) -> None:
    mpi = Mpi("debian_mpich")
    if missing := mpi.missing():
        pytest.skip(f"{mpi.id} is not installed: {missing}")
    environment = {**mpi.environment(), "POWERCCL_NATIVE": str(native.root)}
    for way in cause.ways(native, tmp_path):
        if way.name in CHOSEN:
            outputs = cause.run_way(way, tmp_path / way.name.replace(" ", "-"), environment)
            assert not cause.is_wrong(way, outputs), f"{way.name}: {outputs}"
