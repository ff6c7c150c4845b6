# SPDX-License-Identifier: Apache-2.0
"""What this machine can do: all checks of `powerccl doctor`, and those of what is installed. None changes anything."""

from __future__ import annotations

import ctypes
import os
import platform as machine
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

from powerccl.doctor.checks import Check, check_daemon, check_energy, check_gpus, check_power, check_ways
from powerccl.doctor.gpu_power import query_power
from powerccl.doctor.mpi import check_mpi
from powerccl.doctor.nccl import check_nccl
from powerccl.errors import PowercclError
from powerccl.launch import native as files
from powerccl.launch.emulation import Emulation
from powerccl.launch.gpus import query_gpus, query_gpus_in
from powerccl.launch.native import NativeFiles, find_native
from powerccl.leases.client import socket_path

PYTHON_PACKAGES = ("click", "rich", "msgspec", "numpy", "polars", "plotly", "jinja2")
NEEDED_GLIBC = (2, 17)


def check_machine() -> list[Check]:
    """All checks, in the order a job needs things."""
    checks = list(_python())
    native: NativeFiles | None = None
    try:
        native = find_native()
        checks += _native(native)
    except PowercclError as error:
        checks.append(Check("native files", "broken", error.message, error.hint))
    gpus = query_gpus()
    daemon = check_daemon(socket_path(os.environ))
    checks += check_gpus(gpus, leases=daemon.state == "ok")
    power = query_power()
    checks += check_energy(power)
    checks += check_power(power)
    checks += check_ways(gpus.names)
    checks.append(daemon)
    checks += check_nccl(native, len(gpus.names))
    checks += check_mpi(native)
    checks.append(_emulation(native))
    return checks


def _python() -> Iterator[Check]:
    kind, version = machine.libc_ver()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if kind != "glibc":
        yield Check(
            "libc",
            "missing",
            kind or "not glibc",
            "PowerCCL's libraries need glibc; build them from source on this system",
        )
    elif numbers < NEEDED_GLIBC:
        yield Check("libc", "missing", f"glibc {version}", "use a system with glibc 2.17 or newer")
    else:
        yield Check("libc", "ok", f"glibc {version}")
    absent = [name for name in PYTHON_PACKAGES if not _is_there(name)]
    versions = [f"{name} {_version(name)}" for name in PYTHON_PACKAGES if name not in absent]
    installed = f"Python {machine.python_version()}, {', '.join(versions)}"
    advice = f"{sys.executable} -m pip install {' '.join(absent)}" if absent else ""
    yield Check("python packages", "broken" if absent else "ok", installed, advice)


def _is_there(package: str) -> bool:
    try:
        return util.find_spec(package) is not None
    except OSError:  # what cannot be read on the way to it says nothing of the package
        return package in sys.modules


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except (OSError, metadata.PackageNotFoundError):  # a folder of Python's path may not be read by this user
        return "(version not known)"


def _native(native: NativeFiles) -> Iterator[Check]:
    absent = [name for name in files.ALL if not native.has(name)]
    if absent:
        missing = f"not in {native.root}: {', '.join(absent)}"
        yield Check("native files", "broken", missing, "run `make native`, or reinstall powerccl")
    else:
        yield Check("native files", "ok", str(native.root))
    if native.has(files.NCCL_ADAPTER):
        yield _plugin(native.path(files.NCCL_ADAPTER))
    if native.has(files.AGENT):
        yield _answers("agent", [str(native.path(files.AGENT)), "--help"])


def _plugin(path: Path) -> Check:
    try:
        plugin = ctypes.CDLL(str(path))
    except OSError as error:
        return Check("NCCL plugin", "broken", f"cannot be loaded: {error}", "reinstall powerccl for this system")
    versions = [n for n in range(1, 10) if hasattr(plugin, f"ncclProfiler_v{n}")]
    if not versions:
        return Check("NCCL plugin", "broken", f"{path} exports no profiler", "reinstall powerccl")
    return Check("NCCL plugin", "ok", f"loads; profiler ABI v{versions[0]} to v{versions[-1]}")


def _answers(name: str, command: list[str]) -> Check:
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(name, "broken", f"cannot be run: {error}", "reinstall powerccl for this system")
    if done.returncode:
        return Check(name, "broken", f"exit {done.returncode}: {done.stderr.strip()[:200]}", "reinstall powerccl")
    return Check(name, "ok", "runs")


def _emulation(native: NativeFiles | None) -> Check:
    name = "emulated servers"
    if native is None or not native.has(files.EMULATOR):
        return Check(name, "missing", "powerccl-emulator is not installed", "run `make native`, or reinstall powerccl")
    platforms = native.emulated_platforms()
    if not platforms:
        return Check(name, "broken", "no platform files", "reinstall powerccl")
    first = platforms.get("t4x8") or next(iter(platforms.values()))
    try:
        with tempfile.TemporaryDirectory() as folder, Emulation(native, first, Path(folder)) as emulation:
            gpus = query_gpus_in(emulation.environment(os.environ))
    except (PowercclError, OSError) as error:
        return Check(name, "broken", str(error), "please report it")
    if not gpus.names:
        return Check(name, "broken", gpus.describe(), "please report it")
    return Check(name, "ok", f"{', '.join(platforms)} ({first.stem} answers: {gpus.describe()})")
