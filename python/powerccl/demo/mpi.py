# SPDX-License-Identifier: Apache-2.0
"""The demo's MPI job: a stencil on two ranks, one of which has more to do."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from powerccl.demo.job import run_job
from powerccl.demo.stencil import StencilRun, read_stencil, read_stencil_result
from powerccl.errors import PowercclError
from powerccl.launch.mpi import find_launchers
from powerccl.launch.native import BENCH_MPI, MPI_ADAPTER, NativeFiles
from powerccl.launch.request import Request

RANKS = 2
IMBALANCE_PCT = 50
TURNS = 3  # each of one run without the library and one with it
ITERATIONS = 12
STEP_US = 100_000  # of computation in an iteration: what is waited for should be long enough to sleep through
RESULT_FILE = "stencil.json"
_PATIENCE_S = 60
# For this job only: Open MPI refuses to be root's, and to run two ranks where it counts one core.
_OPEN_MPI = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def job_variables() -> dict[str, str]:
    """What the demo's job needs in its environment beside the user's own."""
    wanted = {**_OPEN_MPI, **(_AS_ROOT if os.geteuid() == 0 else {})}
    return {name: value for name, value in wanted.items() if name not in os.environ}


@dataclass(frozen=True)
class Stencil:
    """The job: its launcher, and the sweeps of an iteration, the same in every run."""

    launcher: str
    sweeps: int

    def command(self, native: NativeFiles, iterations: int, result: Path) -> list[str]:
        """Its command line."""
        command = [self.launcher, "-n", str(RANKS), str(native.path(BENCH_MPI)), "stencil"]
        command += ["--imbalance-pct", str(IMBALANCE_PCT), "--iterations", str(iterations)]
        command += ["--step-us", str(STEP_US)]
        command += ["--sweeps", str(self.sweeps)] if self.sweeps else []
        return [*command, "--json", str(result)]


def find_stencil(native: NativeFiles) -> tuple[Stencil | None, str]:
    """The job with an mpiexec whose ranks find each other, calibrated; None and the reason where there is none."""
    if not native.has(BENCH_MPI) or not native.has(MPI_ADAPTER):
        return None, "this build of PowerCCL has no MPI library"
    reason = "no mpiexec on this machine (pip install mpich installs one)"
    for launcher in find_launchers():
        with tempfile.TemporaryDirectory(prefix="powerccl-demo-") as folder:
            result = Path(folder) / RESULT_FILE
            reason = _try(Stencil(launcher, 0).command(native, 1, result))
            if reason:
                continue
            try:
                return Stencil(launcher, read_stencil_result(result).sweeps), ""
            except ValueError as error:
                reason = f"cannot read the benchmark's result ({error})"
    return None, reason


def _try(command: list[str]) -> str:
    """Why a launcher does not do, empty if it does."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
            env={**os.environ, **job_variables()},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]} cannot run the MPI benchmark ({type(error).__name__})"
    words = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode:
        return f"{command[0]} cannot run the MPI benchmark: {words[0] if words else f'exit {done.returncode}'}"
    return "" if Path(command[-1]).exists() else f"{command[0]} ran no MPI benchmark"


def run_stencil(
    native: NativeFiles, stencil: Stencil, mode: str, runs: Path, name: str, say: Callable[[str], None]
) -> Path:
    """Run it once under a wait mode (`off`: without the library) and return its run folder, with RESULT_FILE in it.

    Raises:
        PowercclError: it failed; its last words are in the message.
        KeyboardInterrupt: a signal ended it.
    """
    with tempfile.TemporaryDirectory(prefix="powerccl-demo-") as folder:
        written = Path(folder) / RESULT_FILE
        request = Request(
            command=stencil.command(native, ITERATIONS, written),
            name=name,
            runs=runs,
            mpi=mode,
            max_delay_pct=None,
            environment=job_variables(),
            output="output.log",
        )
        return run_job(request, "the MPI job", written, say)


def measure(
    native: NativeFiles,
    stencil: Stencil,
    runs: Path,
    status: Callable[[str], AbstractContextManager[object]],
    say: Callable[[str], None],
) -> tuple[list[StencilRun], list[StencilRun]]:
    """Run it in turns without and with the library: TURNS runs of each, or the turns before the first failure."""
    of_modes: tuple[list[StencilRun], list[StencilRun]] = ([], [])
    try:
        for turn in range(1, TURNS + 1):
            for mode, word, runs_of_mode in zip(("off", "auto"), ("without", "with"), of_modes, strict=True):
                with status(f"MPI: run {turn} of {TURNS} {word} …"):
                    folder = run_stencil(native, stencil, mode, runs, f"stencil-{mode}-{turn}", say)
                    runs_of_mode.append(read_stencil(folder, RESULT_FILE))
    except (PowercclError, ValueError, OSError) as error:  # the first part is kept if this one fails
        whole = len(of_modes[1])
        say(f"MPI figures of {whole} of {TURNS} turns: {error}" if whole else f"no MPI figures: {error}")
    whole = len(of_modes[1])
    return of_modes[0][:whole], of_modes[1]
