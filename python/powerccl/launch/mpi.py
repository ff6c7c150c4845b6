# SPDX-License-Identifier: Apache-2.0
"""MPI around a job: its launchers, and the variables that bring the adapter in."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from powerccl.errors import PowercclError
from powerccl.launch.environment import can_preload
from powerccl.launch.native import MPI_ADAPTER, NativeFiles

MODES = ("auto", "published", "observe", "off")
LAUNCHER_NAMES = ("mpiexec", "mpirun", "mpiexec.hydra", "mpiexec.mpich", "mpiexec.openmpi")
SYNONYMS = ("mpirun", "mpiexec.hydra")
DEFAULT_MODE = "auto"
DEFAULT_MAX_DELAY_PCT = 1.0
MAX_DELAY_RANGE_PCT = (0.1, 50.0)
# What makes each library's own progress loop yield when it finds nothing to do, which is where the adapter waits.
YIELDING = {
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "I_MPI_WAIT_MODE": "1",
}


def choose_mode(asked: str, environment: Mapping[str, str]) -> str:
    """POWERCCL_MPI for the job: what was asked for, else what the user's environment says; `off` there wins.

    Raises:
        PowercclError: the environment names a mode that there is not.
    """
    wish = environment.get("POWERCCL_MPI", "")
    if wish and wish not in MODES:
        raise PowercclError(f"POWERCCL_MPI={wish}: unknown mode", f"known: {', '.join(MODES)}")
    if wish == "off":
        return "off"
    return asked or wish or DEFAULT_MODE


def mpi_environment(
    base: Mapping[str, str], native: NativeFiles, mode: str, max_delay_pct: float | None, preload: bool = True
) -> tuple[dict[str, str], str]:
    """The variables that the preloaded MPI library reads, and why it is not preloaded, if so.

    The library does nothing in a process that never calls MPI_Init. A way of yielding that the user chose is kept.
    `max_delay_pct`: how late a wait may end, of its length; None leaves what the user's environment says.
    """
    if mode == "off":
        return {"POWERCCL_MPI": "off"}, ""
    if not preload:
        return {}, "--no-preload or POWERCCL_PRELOAD=0 preloads nothing"
    if not native.has(MPI_ADAPTER):
        return {}, f"{native.root} has no {MPI_ADAPTER}; run `make native`, or reinstall powerccl"
    adapter = native.path(MPI_ADAPTER)
    if not can_preload(adapter):
        return {}, f"LD_PRELOAD cannot name {adapter}, whose path has a space or colon"
    added = {name: value for name, value in YIELDING.items() if name not in base}
    added["POWERCCL_MPI"] = mode
    if max_delay_pct is not None:
        added["POWERCCL_MPI_MAX_DELAY"] = f"{max_delay_pct:g}"
    return added, ""


def find_launchers() -> list[str]:
    """Launchers on PATH and in this Python's environment, each file and kind of a folder once."""
    places = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.prefix) / "bin")])
    launchers: dict[Path, str] = {}
    for name in LAUNCHER_NAMES:
        path = shutil.which(name, path=places)
        beside = any(Path(path or "").parent == Path(other).parent for other in launchers.values())
        if path and not (beside and name in SYNONYMS):
            launchers.setdefault(Path(path).resolve(), path)
    return list(launchers.values())
