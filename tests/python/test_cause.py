# SPDX-License-Identifier: Apache-2.0
"""Why nothing was recorded: each cause is stated where its evidence is there, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_mpi_launch import elf

from powerccl.launch.cause import Evidence, find_cause, read_seen

# As the agent prints them: mpi, nccl, cuda, gloo, ours, preload, dynamic, readable.
LS = "process,ls,1,0,0,0,0,1,1,1,1"
SHELL = "process,bash,1,0,0,0,0,1,1,1,1"
NCCL = "process,python3,4,0,1,1,0,1,1,1,1"
MPI = "process,app,2,1,0,0,0,1,1,1,1"
BARE_MPI = "process,app,2,1,0,0,0,0,0,1,1"
SETUID_MPI = "process,app,2,1,0,0,0,0,1,1,1"
GLOO = "process,python3,2,0,1,0,1,1,1,1,1"
HIDDEN = ("process,sudo,1,0,0,0,0,0,0,1,0", "process,mpiexec,1,0,0,0,0,0,0,1,0")
STATIC = "process,tool,1,0,0,0,0,0,1,0,1"


def cause(folder: Path, *lines: str, **known: Any) -> str:
    evidence: dict[str, Any] = {
        "command": ["app"],
        "environment": {"PATH": "/usr/bin:/bin", "LD_PRELOAD": "x"},
        "folder": folder,
        "code": 0,
        "signal": None,
        "took_s": 0.25,
        "mpi_off": False,
        "among_ranks": False,
        "no_preload": "",
        "has_gpu": True,
        "seen": read_seen(lines),
    }
    return find_cause(Evidence(**{**evidence, **known}))


@pytest.mark.parametrize(
    ("lines", "known", "words"),
    [
        ([LS], {}, "no process of the job loaded NCCL or MPI"),
        ([], {}, "no process of the job loaded NCCL or MPI"),
        ([SHELL, BARE_MPI], {}, "LD_PRELOAD did not reach app"),
        ([SHELL, SETUID_MPI], {}, "the loader did not preload PowerCCL's libraries into app"),
        (HIDDEN, {}, "ran as another user"),
        ([LS, HIDDEN[0]], {}, "no process of the job loaded NCCL or MPI"),
        ([GLOO], {}, "gloo"),
        ([GLOO], {"has_gpu": False, "code": 1}, "gloo"),
        ([NCCL], {"has_gpu": False}, "this host has no CUDA device"),
        ([NCCL], {"has_gpu": False, "code": 1}, "no CUDA device; the job ended with exit code 1"),
        ([NCCL], {"environment": {"CUDA_VISIBLE_DEVICES": ""}}, "CUDA_VISIBLE_DEVICES hides all GPUs"),
        ([NCCL], {}, "python3 loaded NCCL, but created no communicator"),
        ([NCCL], {"no_preload": "--no-preload"}, "older than 2.27"),
        ([MPI], {}, "app loaded MPI, but did not call MPI_Init"),
        ([MPI], {"no_preload": "--no-preload preloads nothing"}, "--no-preload preloads nothing"),
        ([MPI], {"mpi_off": True}, "--mpi or POWERCCL_MPI is off"),
        ([LS], {"code": 3}, "exit code 3 after 250 ms, before a rank used NCCL or MPI"),
        ([LS], {"code": 139, "signal": 11}, "signal 11 (SIGSEGV) ended the job"),
        ([STATIC], {}, "tool is statically linked"),
        ([LS], {"command": ["ssh", "node2", "./app"]}, "ssh starts processes that do not inherit LD_PRELOAD"),
        (["process,ssh,1,0,0,0,0,1,1,1,1"], {"command": ["mpiexec", "-n", "2", "app"]}, "-genvall"),
        ([LS], {"environment": {"POWERCCL_DISABLE": "1"}}, "POWERCCL_DISABLE is set"),
        ([], {"seen": None}, "the cause is not known"),
    ],
)
def test_each_cause(lines: list[str], known: dict[str, Any], words: str, tmp_path: Path) -> None:
    said = cause(tmp_path, *lines, **known)
    assert said.startswith("Nothing was recorded: ")
    assert words in said
    assert said.endswith(".")


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (elf(False, b"MPI_Init", b"PMPI_Init"), "app is statically linked"),
        (elf(False, b"MPIR_CVAR_X"), "app is statically linked"),
        (elf(True, b"MPI_Init", b"PMPI_Init"), "is linked with a static MPI library"),
        (elf(True, b"MPI_Init", b"libmpi.so.12"), "no process"),
        (elf(False), "no process"),
        (b"#!/bin/sh\n", "no process"),
        (b"", "no process"),
        (b"\x7fELF\x02\x01", "no process"),
        (elf(False)[:70], "no process"),
    ],
)
@pytest.mark.parametrize("launcher", [True, False])
def test_the_programs_file_tells(launcher: bool, image: bytes, words: str, tmp_path: Path) -> None:
    program = tmp_path / "app"
    program.write_bytes(image)
    program.chmod(0o755)
    command = ["mpiexec", "-n", "2", "app"] if launcher else ["app"]
    assert words in cause(tmp_path, command=command, environment={"PATH": str(tmp_path)})


def test_a_trace_needs_no_cause(tmp_path: Path) -> None:
    (tmp_path / "mpi-0.trace").write_bytes(b"")
    assert cause(tmp_path, BARE_MPI) == ""


def test_a_full_disk_is_the_cause_for_ranks_that_would_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        f_bavail, f_frsize = 3, 4096

    monkeypatch.setattr("os.statvfs", lambda _: Full)
    assert "the disk of the run folder is full" in cause(tmp_path, MPI)
    assert "no process of the job loaded" in cause(tmp_path, LS)


def test_lines_of_another_version_are_skipped() -> None:
    assert read_seen(["ready", "process,a", "process,a,x,1,1,1,1,1,1,1,1", "process,a,1,1", LS]) == read_seen([LS])
