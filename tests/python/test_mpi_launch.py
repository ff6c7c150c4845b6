# SPDX-License-Identifier: Apache-2.0
"""The MPI adapter around a job: environment, launchers, and why nothing was seen."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import fakes
import pytest

from powerccl.errors import PowercclError
from powerccl.launch import mpi
from powerccl.launch.environment import with_sanitizers
from powerccl.launch.mpi import choose_mode, mpi_environment
from powerccl.launch.native import MPI_ADAPTER, NCCL_ADAPTER, NativeFiles
from powerccl.launch.program import Program, is_launcher, look_at, program_behind, takes_preload
from powerccl.launch.recording import name_of

PACKAGE = Path(__file__).parents[2] / "python"


@pytest.fixture
def native(loadable_native: NativeFiles) -> NativeFiles:
    return loadable_native


def test_what_is_asked_for_counts_but_off_in_the_environment_wins() -> None:
    assert choose_mode("", {}) == "auto"
    assert choose_mode("published", {"POWERCCL_MPI": "observe"}) == "published"
    assert choose_mode("", {"POWERCCL_MPI": "observe"}) == "observe"
    assert choose_mode("auto", {"POWERCCL_MPI": "off"}) == "off"
    with pytest.raises(PowercclError, match="POWERCCL_MPI=fast: unknown mode"):
        choose_mode("", {"POWERCCL_MPI": "fast"})


def test_the_jobs_environment(native: NativeFiles) -> None:
    base = {"MPIR_CVAR_CH4_PROGRESS_THROTTLE": "0"}
    added, problem = mpi_environment(base, native, "auto", None)
    assert not problem
    assert added == {
        "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "I_MPI_WAIT_MODE": "1",
        "POWERCCL_MPI": "auto",
    }
    again, _ = mpi_environment({**base, **added}, native, "auto", 2.5)
    assert again["POWERCCL_MPI_MAX_DELAY"] == "2.5"
    assert "POWERCCL_MPI_MAX_DELAY" not in mpi_environment({"POWERCCL_MPI_MAX_DELAY": "3"}, native, "auto", None)[0]
    assert mpi_environment(base, native, "off", None)[0] == {"POWERCCL_MPI": "off"}
    added, problem = mpi_environment(base, native, "auto", None, preload=False)
    assert added == {}
    assert "preloads nothing" in problem


def test_a_adapter_that_cannot_be_preloaded_is_told_of(native: NativeFiles, tmp_path: Path) -> None:
    (native.root / MPI_ADAPTER).unlink()
    added, problem = mpi_environment({}, native, "auto", None)
    assert added == {}
    assert "has no lib/libpowerccl-mpi.so" in problem
    blank = NativeFiles(fakes.native_folder(tmp_path / "my files"))
    fakes.write_program(blank.root / MPI_ADAPTER, "")
    assert "space or colon" in mpi_environment({}, blank, "auto", None)[1]


def test_programs_behind_launchers(tmp_path: Path) -> None:
    program = tmp_path / "app"
    fakes.write_program(program, "#!/bin/sh\n")
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert is_launcher(["/opt/mpi/bin/mpirun"])
    assert is_launcher(["mpiexec.hydra"])
    assert not is_launcher(["mpiexec-wrapper.py"])
    assert program_behind(["mpiexec", "-n", "2", "--bind-to", "core", "app", "-x"], path) == program
    assert program_behind(["mpiexec", "-n", "2"], path) is None
    assert program_behind(["app"], path) == program


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("mpiexec --map-by node ./app -x", "./app"),
        ("mpirun -np 2 --bind-to core --rank-by node ./app", "./app"),
        ("mpirun --mca btl env -x env --prefix node ./app", "./app"),
        ("mpiexec -hosts env,core -genv env node -genv CORE=1 -bind-to core ./app node", "./app"),
        ("mpiexec -s node ./app", "node"),  # not known: it takes a value in Intel MPI alone
        ("mpiexec -s none ./app", "./app"),
        ("mpiexec --display-map ./app", "./app"),
        ("mpiexec -n 2 missing env", ""),
        ("srun -N 2 -w node --mem-bind core -n2 ./app env", "./app"),
        ("srun -n2 missing env", ""),
        ("srun --exclusive --output=node ./app", "./app"),
        ("torchrun --no_python --numa_binding node --nproc-per-node 2 -- ./app", "./app"),
        ("torchrun --numa-binding node train.py", "torchrun"),
        ("env -i ./app", "env"),
    ],
)
def test_values_of_options_may_name_programs(tmp_path: Path, command: str, program: str) -> None:
    for name in ("app", "node", "core", "env", "torchrun"):
        fakes.write_program(tmp_path / name, "#!/bin/sh\n")
    words = command.replace("./", f"{tmp_path}/").split()
    expected = tmp_path / program if program else None
    assert program_behind(words, {"PATH": str(tmp_path)}) == expected


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("mpiexec --map-by node python3 src/train.py", "train"),
        ("srun --mem-bind env ./app in.dat", "app"),
        ("torchrun --role node -m pkg.train", "pkg.train"),
        ("torchrun --nnodes 2 train.py", "train"),
        ("mpiexec -n 2", "mpiexec"),
    ],
)
def test_names_of_jobs_behind_launchers(command: str, name: str) -> None:
    assert name_of(command.split(), {"PATH": "/nowhere"}) == name


def elf(dynamic: bool, *contents: bytes) -> bytes:
    """The least that reads as a 64-bit ELF file: one program header, PT_INTERP or PT_LOAD."""
    header = (
        b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    )
    return header + struct.pack("<I", 3 if dynamic else 1).ljust(56, b"\0") + b"\0".join([b"", *contents, b""])


def test_what_a_program_is(tmp_path: Path) -> None:
    """Its interpreter counts for a script; files that would block or are none are just a path."""
    program, script, pipe = tmp_path / "app", tmp_path / "script", tmp_path / "pipe"
    program.write_bytes(elf(True))
    program.chmod(0o6755)
    fakes.write_program(script, "#!/usr/bin/env -S app\n")
    os.mkfifo(pipe, 0o755)
    path = {"PATH": str(tmp_path)}
    found = look_at(script, path)
    assert (found.path, found.machine, found.dynamic, found.privileged) == (program, b"\x02\x01\x3e\x00", True, True)
    assert look_at(pipe, path) == Program(pipe)
    assert look_at(tmp_path, path) == Program(tmp_path)
    script.write_text(f"#!{script}\n")
    assert look_at(script, path) == Program(script)


def test_nothing_is_preloaded_into_another_machine(tmp_path: Path) -> None:
    ours, other, launcher = tmp_path / "ours.so", tmp_path / "app", tmp_path / "mpiexec"
    ours.write_bytes(elf(True))
    other.write_bytes(b"\x7fELF\x01\x01\x01" + bytes(9) + struct.pack("<HH", 2, 3) + bytes(44))  # 32-bit x86
    other.chmod(0o755)
    launcher.write_bytes(elf(True))
    launcher.chmod(0o755)
    path = {"PATH": str(tmp_path)}
    assert not takes_preload(["app"], path, ours)
    assert not takes_preload(["mpiexec", "-n", "2", "app"], path, ours)
    assert takes_preload(["mpiexec", "-n", "2"], path, ours)
    other.write_bytes(elf(False))
    assert takes_preload(["app"], path, ours)
    assert takes_preload(["app"], path, tmp_path / "none")


def test_address_sanitizer_is_told(tmp_path: Path) -> None:
    """Only where it is we who come first; what the user says comes later."""
    ours = {"LD_PRELOAD": "ours.so"}
    assert with_sanitizers(ours, {}) == {**ours, "ASAN_OPTIONS": "verify_asan_link_order=0"}
    said = with_sanitizers({**ours, "ASAN_OPTIONS": "detect_leaks=0"}, {})
    assert said["ASAN_OPTIONS"] == "verify_asan_link_order=0:detect_leaks=0"
    theirs = {"LD_PRELOAD": "theirs.so:ours.so"}
    assert with_sanitizers(theirs, {"LD_PRELOAD": "theirs.so"}) == theirs
    assert with_sanitizers({}, {}) == {}


def powerccl(native: NativeFiles, folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "POWERCCL_NATIVE": str(native.root), "PYTHONPATH": str(PACKAGE), **more}
    command = [sys.executable, "-m", "powerccl", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False, env=environment)


def seen(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


@pytest.mark.skipif(not shutil.which("cc"), reason="no compiler")
def test_run_brings_the_adapter(native: NativeFiles, tmp_path: Path) -> None:
    both = f"{native.root / NCCL_ADAPTER}:{native.root / MPI_ADAPTER}"
    found = seen(powerccl(native, tmp_path, "run", "-q", "--mpi-max-delay", "5", "--", "env"))
    assert found["LD_PRELOAD"] == both
    assert (found["POWERCCL_MPI"], found["POWERCCL_MPI_MAX_DELAY"]) == ("auto", "5")
    assert found["OMPI_MCA_mpi_yield_when_idle"] == "1"
    found = seen(powerccl(native, tmp_path, "run", "-q", "--mpi", "observe", "--", "env"))
    assert found["POWERCCL_MPI"] == "observe"
    for off in (["--mpi", "off"], []):
        found = seen(powerccl(native, tmp_path, "run", "-q", *off, "--", "env", POWERCCL_MPI="" if off else "off"))
        assert found["POWERCCL_MPI"] == "off"
        assert found["LD_PRELOAD"] == str(native.root / NCCL_ADAPTER)
    for arguments, wish in ((["--no-preload"], "1"), ([], "0")):
        found = seen(powerccl(native, tmp_path, "run", "-q", *arguments, "--", "env", POWERCCL_PRELOAD=wish))
        assert "LD_PRELOAD" not in found


def test_a_build_without_the_adapter_says_so_only_when_asked(native: NativeFiles, tmp_path: Path) -> None:
    (native.root / MPI_ADAPTER).unlink()
    assert powerccl(native, tmp_path, "run", "-q", "--", "true").stderr == ""
    asked = powerccl(native, tmp_path, "run", "-q", "--mpi", "auto", "--", "true")
    assert "has no lib/libpowerccl-mpi.so; run `make native`" in asked.stderr
    assert asked.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mpi", "atuo"], "did you mean 'auto'?"),
        (["--mpi-max-delay", "0"], "Invalid value for '--mpi-max-delay'"),
        (["--mpi-max-delay", "51"], "Invalid value for '--mpi-max-delay'"),
    ],
)
def test_options_that_are_wrong(native: NativeFiles, tmp_path: Path, arguments: list[str], words: str) -> None:
    done = powerccl(native, tmp_path, "run", *arguments, "--", "true")
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.skipif(not shutil.which("cc"), reason="no compiler")
def test_a_launcher_whose_ranks_never_call_mpi(native: NativeFiles, tmp_path: Path) -> None:
    fakes.write_program(tmp_path / "mpiexec", '#!/bin/sh\nshift 2\nexec "$@"\n')
    done = powerccl(native, tmp_path, "run", "--", "./mpiexec", "-n", "2", "true")
    assert done.returncode == 0
    cause = "Nothing was recorded: no process of the job loaded NCCL or MPI."
    assert cause in done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.endswith("-true")
    assert json.loads((run / "summary.json").read_text())["unrecorded"] == cause


def test_modes_are_those_of_the_environment_table() -> None:
    table = (PACKAGE.parent / "native/abi/environment.def").read_text()
    line = next(line for line in table.splitlines() if "POWERCCL_MPI," in line)
    assert all(f"`{mode}`" in line for mode in mpi.MODES)
