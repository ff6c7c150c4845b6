# SPDX-License-Identifier: Apache-2.0
"""`powerccl doctor` on MPI: libraries and launchers found, how ranks would wait, and what energy can be read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from powerccl.doctor.checks import Check
from powerccl.launch.mpi import find_launchers
from powerccl.launch.native import MPI_ADAPTER, NativeFiles

LIBRARY_NAMES = ("libmpi.so.12", "libmpi.so.40", "libmpi_abi.so.1", "libmpich.so.12")
CPU_INFO = Path("/proc/cpuinfo")
# Instructions that a rank may wait with, by the flag of a processor that has them.
_WAITS = {"waitpkg": "UMWAIT", "monitorx": "MWAITX", "evtstrm": "WFE"}
POWERCAP = Path("/sys/class/powercap")
PERF_POWER = Path("/sys/bus/event_source/devices/power/events")
_PATIENCE_S = 20

# MPI_Get_library_version may be called before MPI_Init. In a process of its own: loading an MPI is its business.
_ASK_VERSION = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
text, length = ctypes.create_string_buffer(16384), ctypes.c_int()
assert library.MPI_Get_library_version(text, ctypes.byref(length)) == 0
uses_ucx = any("libucp.so" in line for line in open("/proc/self/maps"))
print(uses_ucx, text.value.decode("utf-8", "replace"))
"""


@dataclass(frozen=True)
class MpiLibrary:
    """An MPI library: its kind and version, and whether UCX came with it."""

    path: str
    kind: str  # Open MPI, MPICH, Intel MPI, MVAPICH, or empty
    version: tuple[int, ...]
    standard_abi: bool
    ucx: bool

    @property
    def name(self) -> str:
        """`MPICH 5.0.2 (MPI-5 ABI)`."""
        number = ".".join(map(str, self.version))
        return f"{self.kind or 'an unknown MPI'} {number}".strip() + (" (MPI-5 ABI)" if self.standard_abi else "")

    @property
    def waits(self) -> tuple[bool, str]:
        """Whether idle ranks can sleep in the library's own progress loop, and in words."""
        if self.kind in ("Open MPI", "Intel MPI", "MVAPICH") or (self.kind == "MPICH" and self.version >= (4, 3)):
            return True, "waiting ranks sleep in its progress loop"
        if self.ucx:
            return True, "waiting ranks sleep in UCX's progress function"
        return False, "no known place to sleep: use `powerccl run --mpi published`"


def check_mpi(native: NativeFiles | None) -> Iterator[Check]:
    """Checks of MPI and of what its waiting ranks could save, in the order a job needs them."""
    if native is None or not native.has(MPI_ADAPTER):
        yield Check(
            "MPI library",
            "missing",
            f"this build of PowerCCL has no {MPI_ADAPTER}",
            "run `make native`, or reinstall powerccl",
        )
    launchers, libraries = find_launchers(), find_libraries()
    for library in libraries:
        sleeps, words = library.waits
        yield Check("MPI", "ok" if sleeps else "missing", f"{library.name} in {library.path}: {words}")
    if not libraries:
        advice = "a job may have its own; else: pip install mpich"
        yield Check("MPI", "missing", "no MPI library in the loader's path, beside mpiexec or in this Python", advice)
    launcher_names = ", ".join(launchers) or "no mpiexec on PATH"
    yield Check("mpiexec", "ok" if launchers else "missing", launcher_names)
    yield _waiting()
    yield _energy()


def find_libraries() -> list[MpiLibrary]:
    """MPI libraries beside the launchers, in this Python's environment and known to the loader, each file once."""
    folders = [Path(path).resolve().parent.parent / "lib" for path in find_launchers()]
    folders += [Path(path).parent.parent / "lib" for path in find_launchers()] + [Path(sys.prefix) / "lib"]
    candidates = [folder / name for folder in folders for name in LIBRARY_NAMES]
    known = {path.resolve(): str(path) for path in reversed([*candidates, *_of_loader()]) if path.exists()}
    asked = (ask_library(path) for path in sorted(known.values()))
    return [library for library in asked if library is not None]


def _of_loader() -> list[Path]:
    """Paths that the loader's cache has for the names."""
    program = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if program is None:
        return []
    try:
        done = subprocess.run(
            [program, "-p"], capture_output=True, encoding="utf-8", errors="replace", timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [line.split() for line in done.stdout.splitlines()]
    return [Path(words[-1]) for words in lines if words and words[0] in LIBRARY_NAMES]


def ask_library(path: str) -> MpiLibrary | None:
    """What a library says of itself; None if it cannot be loaded or asked."""
    command = [sys.executable, "-c", _ASK_VERSION, path]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    ucx, _, text = done.stdout.partition(" ")
    return parse_library(path, text, ucx == "True")


def parse_library(path: str, text: str, ucx: bool) -> MpiLibrary:
    """A library from MPI_Get_library_version's text."""
    marks = {
        "Open MPI": r"Open MPI v",
        "Intel MPI": r"Intel\(R\) MPI Library",
        "MVAPICH": r"MVAPICH2?",
        "MPICH": r"MPICH Version:",
    }
    for kind, mark in marks.items():
        match = re.search(mark + r"[^\d]*([\d.]+)", text)
        if match:
            numbers = tuple(int(part) for part in match[1].split(".") if part)
            return MpiLibrary(path, kind, numbers, "libmpi_abi" in Path(path).name, ucx)
    return MpiLibrary(path, "", (), "libmpi_abi" in Path(path).name, ucx)


def _waiting() -> Check:
    try:
        text = CPU_INFO.read_text(encoding="utf-8")
    except OSError:
        text = ""
    # x86-64 calls them flags, AArch64 Features.
    flags = next((line.split() for line in text.splitlines() if line.startswith(("flags", "Features"))), [])
    methods = [name for flag, name in _WAITS.items() if flag in flags]
    if not methods:
        return Check(
            "waiting", "ok", f"no {', '.join(_WAITS.values())} on this host: ranks spin briefly, then use timed sleeps"
        )
    return Check(
        "waiting", "ok", f"{' and '.join(methods)}, if it passes a timed test at the job's start; then timed sleeps"
    )


def _energy() -> Check:
    name = "CPU energy"
    counters = sorted(POWERCAP.glob("*rapl*:*/energy_uj")) if POWERCAP.is_dir() else []
    readable = [path for path in counters if os.access(path, os.R_OK)]
    if readable:
        return Check(name, "ok", f"{len(readable)} RAPL counters (powercap)")
    if (PERF_POWER / "energy-pkg").exists():
        if _may_use_perf():
            return Check(name, "ok", "RAPL by perf")
        return Check(
            name,
            "missing",
            "only perf offers RAPL, and this user may not use it",
            "set kernel.perf_event_paranoid=0, or grant CAP_PERFMON",
        )
    if counters:
        return Check(
            name,
            "missing",
            "only root may read the RAPL counters",
            "run as root, or ask the administrator for group read access",
        )
    return Check(
        name, "missing", "no RAPL counters (a virtual machine, or no driver): reports show CPU seconds instead"
    )


def _may_use_perf() -> bool:
    try:
        paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return os.geteuid() == 0 or paranoid <= 0
