# SPDX-License-Identifier: Apache-2.0
"""What the loader will make of a program: whether libraries can be preloaded into it, and whether MPI is in it."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from powerccl.files import MOST_PROGRAM, opened
from powerccl.launch.launcher_words import MPI, TORCHRUN, launcher_kind, split_launcher

_MOST_SCRIPTS = 4  # that each name the next as their interpreter; so does the kernel
_LINE = 256  # bytes of a script's first line that the kernel reads


@dataclass(frozen=True)
class Program:
    """An executable file. `machine`: word size, byte order and processor, as its header has them; empty of scripts.

    `dynamic`: it asks for a loader. `privileged`: setuid or setgid, so that the loader preloads nothing.
    """

    path: Path
    machine: bytes = b""
    dynamic: bool = True
    privileged: bool = False


def is_launcher(command: list[str]) -> bool:
    """Whether the command is an MPI launcher."""
    return launcher_kind(command) == MPI


def program_words(command: list[str], environment: Mapping[str, str]) -> list[str]:
    """The program that the ranks run with its arguments; the command itself if it is no launcher."""
    if not launcher_kind(command):
        return command
    return split_launcher(command, environment).program


def program_behind(command: list[str], environment: Mapping[str, str]) -> Path | None:
    """The file of the program that the ranks run; of torchrun's script, torchrun itself, which names its Python."""
    if launcher_kind(command) != TORCHRUN or {"--no-python", "--no_python"} & set(command):
        command = program_words(command, environment)
    program = shutil.which(command[0], path=environment.get("PATH")) if command else None
    return Path(program) if program else None


def look_at(path: Path, environment: Mapping[str, str]) -> Program:
    """What a file is. Of a script, its interpreter; of what cannot be read or is no ELF file, just the path."""
    for _ in range(_MOST_SCRIPTS):
        interpreter = _interpreter(path, environment)
        if interpreter is None:
            break
        path = interpreter
    with contextlib.suppress(OSError, struct.error), opened(path, MOST_PROGRAM) as file:
        header = os.pread(file, 64, 0)
        if header[:4] == b"\x7fELF":
            privileged = bool(os.fstat(file).st_mode & 0o6000)
            return Program(path, header[4:6] + header[18:20], _is_dynamic(file, header), privileged)
    return Program(path)


def takes_preload(command: list[str], environment: Mapping[str, str], library: Path) -> bool:
    """Whether the loader can load a library into the command's program, as far as is known.

    Of a library for another machine the loader tells on the program's standard error, and goes on.
    """
    path = program_behind(command, environment)
    if path is None:
        return True
    program, loaded = look_at(path, environment), look_at(library, environment)
    return not (program.machine and loaded.machine) or program.machine == loaded.machine


def mpi_linking(program: Path, environment: Mapping[str, str]) -> str:
    """Why a program's MPI cannot be seen: `static` altogether, `static mpi`, `privileged`; else empty."""
    elf = look_at(program, environment)
    if not elf.machine or elf.privileged:
        return "privileged" if elf.privileged else ""
    with (
        contextlib.suppress(OSError, ValueError),
        opened(elf.path, MOST_PROGRAM) as file,
        mmap.mmap(file, 0, access=mmap.ACCESS_READ) as image,
    ):
        # Only what contains an MPI library names both entry points; a program that loads one names the first.
        contains_mpi = image.find(b"PMPI_Init\0") >= 0 or image.find(b"PMPI_Init_thread\0") >= 0
        if not elf.dynamic:
            return "static" if contains_mpi or _names_mpi(image) else ""
        return "static mpi" if contains_mpi and image.find(b"libmpi") < 0 else ""
    return ""


def _interpreter(path: Path, environment: Mapping[str, str]) -> Path | None:
    """The program that runs a script, `env` looked through; None if it is no script."""
    with contextlib.suppress(OSError), opened(path, MOST_PROGRAM) as file:
        line = os.pread(file, _LINE, 0).split(b"\n")[0]
        if not line.startswith(b"#!"):
            return None
        words = [os.fsdecode(word) for word in line[2:].split() if not word.startswith(b"-")]
        if len(words) > 1 and Path(words[0]).name == "env":
            program = shutil.which(words[1], path=environment.get("PATH"))
            return Path(program) if program else None
        return Path(words[0]) if words else None
    return None


def _names_mpi(image: mmap.mmap) -> bool:
    """Whether a program without symbols has an MPI library's own words in it."""
    return any(image.find(words) >= 0 for words in (b"MPIR_CVAR_", b"OMPI_MCA_", b"I_MPI_"))


def _is_dynamic(file: int, header: bytes) -> bool:
    """Whether a 64-bit ELF file asks for a loader (PT_INTERP); of other files it is taken for granted."""
    if header[4] != 2:
        return True
    order = "<" if header[5] == 1 else ">"
    (table,) = struct.unpack_from(f"{order}Q", header, 32)
    size, count = struct.unpack_from(f"{order}HH", header, 54)
    segments = os.pread(file, size * count, table)
    return any(struct.unpack_from(f"{order}I", segments, i * size)[0] == 3 for i in range(count))
