# SPDX-License-Identifier: Apache-2.0
"""packaging/container/record: `powerccl run` by the Python of a container that has no PowerCCL."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from powerccl.launch.native import NativeFiles

ROOT = Path(__file__).parents[2]
JOB = ["sh", "-c", "echo ran; exit 3"]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The folder that an init container leaves: the script, and packages for this version of Python."""
    folder = tmp_path / "powerccl"
    folder.mkdir()
    for name in ("record", "record.py"):
        shutil.copy(ROOT / "packaging/container" / name, folder)
    (folder / "all").symlink_to(ROOT / "python")
    return folder


def recorded(copied: Path, environment: dict[str, str], *pythons: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    """The job under the script, where `python3` or `python` is a script of that text."""
    programs = copied.parent / "bin"
    programs.mkdir()
    for name, text in pythons:
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    (programs / "sh").symlink_to("/bin/sh")
    runs = ["--runs-dir", str(copied.parent / "runs"), "-q"]
    return subprocess.run(
        [str(copied / "record"), "--name", "train-0", *runs, "--", *JOB],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "PATH": str(programs)},
    )


OLD = ("python3", "exit 1")  # as 3.9 answers the script's question


def test_a_job_is_recorded_by_the_first_python_that_is_new_enough(
    copied: Path, clean_environment: dict[str, str], native: NativeFiles
) -> None:
    environment = {**clean_environment, "POWERCCL_NATIVE": str(native.root)}
    environment.pop("PYTHONPATH", None)
    done = recorded(copied, environment, OLD, ("python", f'exec {sys.executable} "$@"'))
    assert (done.returncode, done.stdout) == (3, "ran\n"), done.stderr
    (run,) = (copied.parent / "runs").glob("*-train-0")
    assert (run / "run.json").is_file()


@pytest.mark.parametrize("pythons", [[], [OLD]], ids=["no Python", "an older Python"])
def test_without_a_python_the_job_runs_unrecorded(
    pythons: list[tuple[str, str]], copied: Path, clean_environment: dict[str, str]
) -> None:
    done = recorded(copied, clean_environment, *pythons)
    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert done.stderr == "powerccl: no Python 3.10 or later in this container; the job runs unrecorded\n"
    assert not (copied.parent / "runs").exists()
