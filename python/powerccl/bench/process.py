# SPDX-License-Identifier: Apache-2.0
"""What all experiments with powerccl-bench need: a machine to measure, a folder for what is measured, and an end."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from powerccl.errors import PowercclError
from powerccl.launch.emulation import Emulation, emulated_platform
from powerccl.launch.gpus import Gpus, query_gpus, query_gpus_in
from powerccl.launch.native import NativeFiles
from powerccl.launch.tuned import nccl_library


def environment_of(native: NativeFiles, emulate: str, stack: contextlib.ExitStack) -> Mapping[str, str]:
    """The environment in which powerccl-bench sees this machine's GPUs, or those of an emulated server.

    The server lives until `stack` is closed.
    """
    if not emulate:
        return os.environ
    emulation = Emulation(native, emulated_platform(native, emulate), None)
    return stack.enter_context(emulation).environment(os.environ)


def with_libraries(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which powerccl-bench finds NCCL and cuBLAS where PyTorch's wheels have put them.

    What the user names in NCCL_LIBRARY, CUBLAS_LIBRARY or LD_LIBRARY_PATH comes first.
    """
    made = dict(environment)
    if library := nccl_library(environment):
        made["NCCL_LIBRARY"] = library
    wheels = importlib.util.find_spec("nvidia")
    places = wheels.submodule_search_locations if wheels else None
    # Of CUDA 13, and of those before, which had a wheel for each library.
    folders = [Path(place, folder) for place in places or () for folder in ("cu13/lib", "cublas/lib")]
    with_cublas = [str(folder) for folder in folders if any(folder.glob("libcublas.so.*"))]
    made["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [environment.get("LD_LIBRARY_PATH", ""), *with_cublas]))
    return made


def gpus_to_profile(emulate: str, environment: Mapping[str, str], example: str) -> Gpus:
    """The GPUs of that environment.

    Raises:
        PowercclError: there are none; `example` is a command that needs none.
    """
    gpus = query_gpus_in(environment) if emulate else query_gpus()
    if not gpus.names:
        raise PowercclError(
            f"no GPU to profile: {gpus.describe()}", f"profile an emulated server instead: powerccl profile {example}"
        )
    return gpus


def make_work_folder(folder: Path, resume: bool = True, other: str = "file") -> None:
    """The folder of an experiment; without `resume`, empty.

    Raises:
        PowercclError: it cannot be made.
    """
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PowercclError(f"cannot write {folder}: {error.strerror}", f"name another {other} with --out") from error


def start_group(
    command: list[str], environment: Mapping[str, str], log: Path, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a powerccl-bench that leads a process group, with its lines in a pipe and its words behind those of `log`.

    Raises:
        PowercclError: it cannot be executed.
    """
    with log.open("ab") as words:
        try:
            return subprocess.Popen(
                command, stdin=stdin, stdout=subprocess.PIPE, stderr=words, env=environment, start_new_session=True
            )
        except OSError as error:
            raise PowercclError(f"cannot run {command[0]}: {error.strerror}", "reinstall powerccl") from error


def end_group(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Ask the leader of a process group to end, and kill what is left of the group after so many seconds."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    kill_group(process)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a powerccl-bench that leads its process group, with all its ranks."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
