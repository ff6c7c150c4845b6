# SPDX-License-Identifier: Apache-2.0
"""The environment a job gets; variables are listed in native/wire/environment.def."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from powerccl.launch.native import EMULATED_LIBRARIES, NCCL_DOOR, NativeFiles

# What `run.json` keeps of the environment: what changes how a job communicates or which GPUs it sees.
RECORDED_PREFIXES = (
    "NCCL_",
    "POWERCCL_",
    "CUDA_",
    "TORCH_",
    "SLURM_JOB",
    "SLURM_NTASKS",
    "SLURM_NNODES",
    "OMP_",
    "OMPI_MCA_",
    "MPIR_CVAR_",
    "I_MPI_",
    "MV2_",
    "UCX_",
)
RECORDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "LD_PRELOAD", "LD_LIBRARY_PATH")


def emulated_environment(base: Mapping[str, str], native: NativeFiles, listening: Path) -> dict[str, str]:
    """The environment in which libcuda, libnvidia-ml and libnccl are the emulator's."""
    libraries = str(native.path(EMULATED_LIBRARIES[0]).parent)
    others = base.get("LD_LIBRARY_PATH", "")
    return {
        **base,
        "LD_LIBRARY_PATH": f"{libraries}:{others}" if others else libraries,
        "POWERCCL_EMULATOR_SOCKET": str(listening),
    }


def job_environment(
    base: Mapping[str, str], native: NativeFiles, folder: Path, policy: str, table: Path | None, clocks: str
) -> dict[str, str]:
    """The environment that lets the doors see a job and write into its run folder."""
    environment = {
        **base,
        "NCCL_PROFILER_PLUGIN": str(native.path(NCCL_DOOR)),
        "POWERCCL_RUN_FOLDER": str(folder),
        "POWERCCL_POLICY": policy,
        "POWERCCL_CLOCKS": clocks,
    }
    environment.pop("POWERCCL_POLICY_TABLE", None)
    if table:
        environment["POWERCCL_POLICY_TABLE"] = str(table)
    return environment


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of the environment that run.json keeps; nothing that may hold a secret."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name in RECORDED or name.startswith(RECORDED_PREFIXES)
    }
