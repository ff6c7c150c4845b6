# SPDX-License-Identifier: Apache-2.0
"""A tuned profile applied to a job: `powerccl run --tuned`.

All ranks must be given the same, or NCCL hangs. Whatever would make one launcher apply a profile and another not ends
the job before it starts. Rules travel in the environment itself, never as a file that ranks might read at two moments.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from powerccl.errors import PowercclError
from powerccl.launch.environment import TUNER, TUNER_TABLE, with_plugin
from powerccl.launch.gpus import query_gpus, query_gpus_in
from powerccl.launch.native import NativeFiles
from powerccl.platforms.rules import inline_rules
from powerccl.platforms.tuned import TunedProfile, check_tuned, load_tuned

_RANKS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")  # what a launcher says of the job
_ASK_VERSION = """
import ctypes, sys
number = ctypes.c_int()
ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(number))
print(number.value)
"""
RECORDED = "POWERCCL_TUNED"  # name and digest of what was applied, for run.json and for eyes


def load_for_job(name: str, environment: Mapping[str, str], emulated: bool) -> TunedProfile:
    """The profile `NAME`, or `NAME@DIGEST` to have just that content, if it is of this machine.

    `environment`: the job's. Raises:
        PowercclError: it is not to be had, has another digest, or is of another machine, NCCL or rank count.
    """
    wanted, at, digest = name.partition("@")
    profile = load_tuned(wanted)
    if at and digest != profile.digest:
        raise PowercclError(
            f"tuned profile '{wanted}' has digest {profile.digest}, not {digest}",
            "install the same profile on all hosts",
        )
    gpus = query_gpus_in(environment) if emulated else query_gpus()
    if not gpus.names:
        raise PowercclError(
            f"tuned profile '{profile.name}' is for {profile.ranks} x {profile.gpu}; this machine: {gpus.describe()}",
            "run without --tuned on a machine without a GPU",
        )
    ranks = next((int(environment[n]) for n in _RANKS if environment.get(n, "").isdigit()), None)
    if len(gpus.names) * profile.nodes < profile.ranks:
        ranks = len(gpus.names)
    check_tuned(profile, gpus.name, ranks, nccl_version(environment))
    return profile


def tuned_environment(
    base: Mapping[str, str], native: NativeFiles, profile: TunedProfile, say: Callable[[str], None]
) -> dict[str, str]:
    """The job's environment with the profile's variables and rules; what the user has set is kept, and said."""
    environment = dict(base)
    for name, value in profile.variables.items():
        if base.get(name, value) != value:
            say(f"your {name}={base[name]} is kept, although '{profile.name}' was tuned with {value}")
        environment.setdefault(name, value)
    for name, value in profile.environment.items():
        if base.get(name) != value:
            here = base.get(name, "not set")
            say(f"'{profile.name}' was tuned with {name}={value}; in your environment it is {here}")
    if profile.rules:
        environment = with_plugin(environment, TUNER, native)
        environment[TUNER_TABLE] = inline_rules(profile.rules)
    environment[RECORDED] = f"{profile.name}@{profile.digest}"
    return environment


def nccl_library(environment: Mapping[str, str]) -> str:
    """The libnccl.so.2 that is not found by its name alone; empty for the one that is.

    NCCL_LIBRARY names one, or LD_PRELOAD does. PyTorch's wheel has NCCL as a wheel beside it, and loads that before any
    in LD_LIBRARY_PATH.
    """
    if environment.get("POWERCCL_EMULATOR_SOCKET"):
        return ""
    if environment.get("NCCL_LIBRARY"):
        return environment["NCCL_LIBRARY"]
    for path in environment.get("LD_PRELOAD", "").replace(":", " ").split():
        if Path(path).name.startswith("libnccl.so"):
            return path
    try:
        package = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return ""
    folders = package.submodule_search_locations if package else None
    libraries = [path for folder in folders or () for path in Path(folder).glob("lib/libnccl.so.2")]
    return str(libraries[0]) if libraries else ""


def nccl_version(environment: Mapping[str, str]) -> str:
    """The NCCL that a job with that environment most likely loads, such as `2.28.9`; empty if it is not known."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK_VERSION, nccl_library(environment) or "libnccl.so.2"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=30,
            env=dict(environment),
            check=False,
        )
        number = int(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return ""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
