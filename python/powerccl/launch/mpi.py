# SPDX-License-Identifier: Apache-2.0
"""The MPI door around a job: the variables that bring it in, and why it may have seen nothing."""

from __future__ import annotations

import contextlib
import mmap
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path

from powerccl.errors import PowercclError
from powerccl.launch.environment import can_preload
from powerccl.launch.native import MPI_DOOR, NativeFiles

MODES = ("auto", "published", "observe", "off")
DEFAULT_MODE = "auto"
DEFAULT_BUDGET_PCT = 1.0
BUDGET_RANGE_PCT = (0.1, 50.0)
# What makes each library's own progress loop yield when it finds nothing to do, which is where the door waits.
YIELDING = {
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "I_MPI_WAIT_MODE": "1",
}
LAUNCHERS = ("mpiexec", "mpirun", "orterun", "prterun")


def choose_mode(asked: str, environment: Mapping[str, str]) -> str:
    """POWERCCL_MPI for the job: what was asked for, else what the user's environment says; `off` there wins.

    Raises:
        PowercclError: the environment names a mode that there is not.
    """
    wish = environment.get("POWERCCL_MPI", "")
    if wish and wish not in MODES:
        raise PowercclError(f"POWERCCL_MPI={wish}: no such mode", f"known: {', '.join(MODES)}")
    if wish == "off":
        return "off"
    return asked or wish or DEFAULT_MODE


def mpi_environment(
    base: Mapping[str, str], native: NativeFiles, mode: str, budget_pct: float | None, preload: bool = True
) -> tuple[dict[str, str], str]:
    """The variables that the preloaded MPI library reads, and why it is not preloaded, if so.

    The library does nothing in a process that never calls MPI_Init. A way of yielding that the user chose is kept.
    """
    if mode == "off":
        return {"POWERCCL_MPI": "off"}, ""
    if not preload:
        return {}, "MPI is not recorded: nothing is preloaded (--no-preload or POWERCCL_PRELOAD=0)"
    if not native.has(MPI_DOOR):
        return {}, f"{native.root} has no {MPI_DOOR}: MPI is not recorded (build it anew, or reinstall powerccl)"
    door = native.path(MPI_DOOR)
    if not can_preload(door):
        return {}, f"LD_PRELOAD cannot name {door} (blank or colon in the path): MPI is not recorded"
    added = {name: value for name, value in YIELDING.items() if name not in base}
    added["POWERCCL_MPI"] = mode
    wish = base.get("POWERCCL_CLOCKS")  # said by the user, of all clocks
    if wish in ("dry", "none"):
        added["POWERCCL_MPI_CPU_CLOCK"] = "0"
    elif wish == "lease" and base.get("POWERCCL_MPI_CPU_CLOCK") == "1":
        added["POWERCCL_MPI_CPU_CLOCK"] = "lease"
    if budget_pct is not None:
        added["POWERCCL_MPI_BUDGET"] = f"{budget_pct:g}"
    elif "POWERCCL_MPI_BUDGET" not in base:
        added["POWERCCL_MPI_BUDGET"] = f"{DEFAULT_BUDGET_PCT:g}"
    return added, ""


def is_launcher(command: list[str]) -> bool:
    """Whether the command is an MPI launcher; Debian and modules add endings to the names."""
    name = Path(command[0]).name
    return name in LAUNCHERS or name.startswith(tuple(f"{known}." for known in LAUNCHERS))


def program_behind(command: list[str], environment: Mapping[str, str]) -> Path | None:
    """The program that the ranks run: the first word behind a launcher's options that can be executed."""
    path = environment.get("PATH")
    words = command[1:] if is_launcher(command) else command[:1]
    for word in words:
        if word.startswith("-"):
            continue
        found = shutil.which(word, path=path)
        if found:
            return Path(found)
    return None


def why_unseen(command: list[str], environment: Mapping[str, str], folder: Path, mode: str, among_ranks: bool) -> str:
    """Why a job that looks like one of MPI left no MPI trace; empty where there is one or it does not look like that.

    `among_ranks`: an MPI launcher started us.
    """
    launched = among_ranks or is_launcher(command)
    if mode == "off":
        return "MPI was not recorded: it is off" if launched else ""
    if environment.get("POWERCCL_DISABLE", "0") not in ("", "0"):
        return "MPI was not recorded: POWERCCL_DISABLE is set" if launched else ""
    if "LD_PRELOAD" not in environment or any(folder.glob("mpi-*.trace")):
        return ""
    program = program_behind(command, environment)
    name = program.name if program else ""
    linked = _linking(program) if program else ""
    if linked == "static":
        return f"MPI was not seen: {name} is statically linked, and a preloaded library does not reach into it"
    if linked == "static mpi":
        return f"MPI was not seen: {name} has its MPI linked in statically; link it with the shared library (libmpi.so)"
    if not launched:
        return ""
    if linked == "privileged":
        return f"MPI was not seen: {name} is setuid, and the loader preloads nothing into such programs"
    return (
        "MPI was not seen: no rank called MPI_Init, or LD_PRELOAD did not reach the ranks "
        "(ranks on other hosts need it passed on: Open MPI's -x, Hydra's -genvall)"
    )


_MOST_READ = 1 << 30


def _linking(program: Path) -> str:
    """How an ELF program is linked: `static` altogether with MPI in it, `static mpi`, `privileged`, else empty."""
    with contextlib.suppress(OSError, ValueError, struct.error), program.open("rb") as file:
        mode = program.stat().st_mode
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
            if image[:4] != b"\x7fELF" or len(image) > _MOST_READ:
                return ""
            if mode & 0o6000:
                return "privileged"
            # Only what contains an MPI library names both entry points; a program that loads one names the first.
            contains_mpi = image.find(b"PMPI_Init\0") >= 0 or image.find(b"PMPI_Init_thread\0") >= 0
            if not _is_dynamic(image):
                return "static" if contains_mpi or _names_mpi(image) else ""
            return "static mpi" if contains_mpi and image.find(b"libmpi") < 0 else ""
    return ""


def _names_mpi(image: mmap.mmap) -> bool:
    """Whether a program without symbols has an MPI library's own words in it."""
    return any(image.find(words) >= 0 for words in (b"MPIR_CVAR_", b"OMPI_MCA_", b"I_MPI_"))


def _is_dynamic(image: mmap.mmap) -> bool:
    """Whether a 64-bit ELF file asks for a loader (PT_INTERP); of other files it is taken for granted."""
    if image[4] != 2:
        return True
    order = "<" if image[5] == 1 else ">"
    (table,) = struct.unpack_from(f"{order}Q", image, 32)
    size, count = struct.unpack_from(f"{order}HH", image, 54)
    return any(struct.unpack_from(f"{order}I", image, table + i * size)[0] == 3 for i in range(count))
