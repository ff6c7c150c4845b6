# SPDX-License-Identifier: Apache-2.0
"""Names that preloaded libraries export: programs that ask for them, MPI modules that come and go, many threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpi_libraries as e2e
import polars as pl
from support.commands import Said, run_command

from harm import Figures, count
from powerccl.launch.native import NativeFiles
from powerccl.traces.folder import read_run
from powerccl.traces.mpi_tables import mpi_totals

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests/e2e/programs/asks.c"
LIMIT_S = 60
NOBODY = 65534
RELOADED = ("sessions", "world")
LIVES = 4
# At a time, calls of each, and how many times over. The first was 26,368 of 60,000; the last ends 1,500 threads.
THREADS = ((200, 300, 1), (1000, 20, 1), (150, 20, 10))
PYTHON = """
import ctypes, ctypes.util
own = ctypes.CDLL(None)
for name in ("MPI_Init", "MPI_Session_init", "ncclCommInitRank", "cuLaunchKernel", "sched_yield"):
    print(name, hasattr(own, name))
try:
    own.MPI_Init
except AttributeError as error:
    print(error)
"""


@dataclass(frozen=True)
class Case:
    """A command, and what to add to its environment."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    as_nobody: bool = False


def _cc(*words: str | Path) -> None:
    subprocess.run(["cc", "-O1", *map(str, words)], check=True, timeout=LIMIT_S, capture_output=True)


def programs(folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Compile the programs that ask, in all the ways that make a difference to the loader: name and command."""
    links = {
        "pie-lazy": ("-fPIE", "-pie", "-Wl,-z,lazy"),
        "pie-now": ("-fPIE", "-pie", "-Wl,-z,now"),
        "pie-no-relro": ("-fPIE", "-pie", "-Wl,-z,norelro"),
        "pie-no-plt": ("-fPIE", "-pie", "-fno-plt"),
        "fixed-lazy": ("-fno-PIE", "-no-pie", "-Wl,-z,lazy"),
        "fixed-now": ("-fno-PIE", "-no-pie", "-Wl,-z,now"),
        "sysv-hash": ("-fPIE", "-pie", "-Wl,--hash-style=sysv"),
    }
    strong = ("-Wl,--unresolved-symbols=ignore-all",)
    for name, words in links.items():
        for kind in ("MAIN", "LOOKS"):
            program = folder / f"{kind.lower()}-{name}"
            _cc(f"-D{kind}", *words, SOURCE, "-o", program)
            yield program.name, (str(program),)
        program = folder / f"strong-{name}"
        _cc("-DSTRONG", *words, *strong, SOURCE, "-o", program)
        yield program.name, (str(program),)
        yield f"{program.name}-called", (str(program), "calls")
    opener = folder / "opens"
    _cc("-DOPENS", SOURCE, "-o", opener)
    for name in ("lazy", "now", "norelro"):
        library = folder / f"lib{name}.so"
        _cc("-DLIBRARY", "-shared", "-fPIC", f"-Wl,-z,{name}", SOURCE, "-o", library)
        user = folder / f"user-{name}"
        _cc("-DUSER", SOURCE, "-o", user, library, f"-Wl,-rpath,{folder}")
        yield user.name, (str(user),)
        for how in ("lazy-local", "now-local", "lazy-global", "now-global"):
            yield f"opens-{name}-{how}", (str(opener), str(library), how)
    fake, module = folder / "libfake.so", folder / "libmodule.so"
    _cc("-DFAKE", "-shared", "-fPIC", SOURCE, "-o", fake)
    _cc("-DMODULE", "-shared", "-fPIC", SOURCE, "-o", module, fake, f"-Wl,-rpath,{folder}")
    for how in ("lazy-local", "now-local", "lazy-global", "now-global"):
        yield f"module-{how}", (str(opener), str(module), how)
    yield "python", (sys.executable, "-c", PYTHON)
    yield "shell", ("sh", "-c", "ls / | wc -l; exec nothing-of-this-name")


def preloaded(native: NativeFiles) -> dict[str, str]:
    """The ways in which our libraries come to be preloaded."""
    mpi, nccl = (str(native.root / "lib" / f"libpowerccl-{name}.so") for name in ("mpi", "nccl"))
    for library in (mpi, nccl):
        if not Path(library).exists():
            raise FileNotFoundError(library)
    return {"mpi": mpi, "nccl": nccl, "mpi-nccl": f"{mpi}:{nccl}", "nccl-mpi": f"{nccl}:{mpi}"}


def cases(folder: Path) -> Iterator[Case]:
    """Every program in every environment."""
    folder.chmod(0o755)
    for name, command in programs(folder):
        yield Case(name, command, {})
        yield Case(f"{name} bound at once", command, {"LD_BIND_NOW": "1"})
        yield Case(f"{name} disabled", command, {"POWERCCL_DISABLE": "1"})
        if os.geteuid() == 0 and name != "python":  # whose interpreter others may not read
            yield Case(f"{name} as nobody", command, {}, as_nobody=True)


def outcome(case: Case, preload: str) -> Said:
    """Exit status, stdout and stderr."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POWERCCL_", "LD_"))}
    environment = [f"{name}={value}" for name, value in case.environment.items()]
    environment += [f"LD_PRELOAD={preload}"] if preload else []
    user = ("setpriv", f"--reuid={NOBODY}", "--clear-groups") if case.as_nobody else ()
    return run_command([*user, "env", *environment, *case.command], kept, LIMIT_S, "/")


def differences(native: NativeFiles, folder: Path, ways: Sequence[str] = ()) -> tuple[list[str], int]:
    """What is not as it is alone, and how many cases were compared."""
    different, ran = [], 0
    for case in cases(folder):
        alone = outcome(case, "")
        for way, preload in preloaded(native).items():
            if ways and way not in ways:
                continue
            ran += 1
            found = outcome(case, preload)
            if found != alone:
                different.append(f"{case.name}, {way}: {found} instead of {alone}")
    return different, ran


def one_process(mpi: Any, program: Sequence[str | Path], preload: Path | None, folder: Path | None = None) -> Said:
    """Run an MPI program without a launcher: a launcher's connection does not outlive one life of a library."""
    environment = {**mpi.environment(), **mpi._rank_environment(), **e2e.YIELDING}
    if preload:
        environment.update({"LD_PRELOAD": str(preload), "POWERCCL_MPI": "auto"})
    if folder:
        environment["POWERCCL_RUN_FOLDER"] = str(folder)
    return run_command(program, environment, LIMIT_S)


def reloads(mpi: Any, native: NativeFiles, folder: Path) -> list[str]:
    """A module with MPI is loaded, unloaded and loaded again: what is not as it is alone. One line each."""
    opener, plugin = folder / "reload", folder / f"plugin-{mpi.id}.so"
    _cc(e2e.PROGRAMS / "reload.c", "-o", opener)
    mpi.compile(e2e.PROGRAMS / "reload.c", plugin, ["-DPLUGIN", "-shared", "-fPIC"])
    different = []
    for what in RELOADED:
        program = (opener, plugin, what, str(LIVES))
        alone = one_process(mpi, program, None)
        if alone[0] != 3:
            raise RuntimeError(f"{mpi.id} fails by itself: {alone}")
        run = folder / f"run-{mpi.id}-{what}"
        run.mkdir()
        found = one_process(mpi, program, native.root / "lib/libpowerccl-mpi.so", run)
        if found != alone:
            different.append(f"{mpi.id}, {what}: {found} instead of {alone}")
            continue
        calls = calls_of(run, "MPI_Allreduce")
        if calls != 3 * LIVES:
            different.append(f"{mpi.id}, {what}: {calls} calls recorded of {3 * LIVES}")
    return different


def calls_of(folder: Path, function: str) -> int:
    """How many calls a run's traces tell of."""
    totals = mpi_totals(read_run(folder))
    return int(totals.filter(pl.col("function") == function)["calls"].sum())


def lost_of_threads(
    mpi: Any, native: NativeFiles, folder: Path, threads: Sequence[tuple[int, int, int]] = THREADS
) -> tuple[int, int]:
    """Calls of more threads than anybody expects: how many are not in the trace, and how many were made."""
    program = mpi.compile(e2e.PROGRAMS / "many_threads.c", folder / f"threads-{mpi.id}", ["-pthread"])
    lost = made = 0
    for at_once, calls, turns in threads:
        run = folder / f"run-{mpi.id}-{at_once}-{turns}"
        run.mkdir()
        words = (str(program), str(at_once), str(calls), str(turns))
        code, _, text = one_process(mpi, words, native.root / "lib/libpowerccl-mpi.so", run)
        if code != 0:
            raise RuntimeError(f"{mpi.id}: {text}")
        made += at_once * calls * turns
        lost += abs(at_once * calls * turns - calls_of(run, "MPI_Sendrecv"))
    return lost, made


def measure(native: NativeFiles, folder: Path) -> Figures:
    """All figures."""
    folder.chmod(0o755)
    asking = folder / "asking"
    asking.mkdir()
    changed, ran = differences(native, asking)
    installed = e2e.libraries()
    if not installed:
        raise FileNotFoundError("no MPI library: tools/fetch-mpi build/deps/mpi")
    crashed: list[str] = []
    lost = made = 0
    for mpi in installed:
        crashed += reloads(mpi, native, folder)
        of_it = lost_of_threads(mpi, native, folder)
        lost, made = lost + of_it[0], made + of_it[1]
    for line in [*changed, *crashed]:
        print(line, file=sys.stderr)
    return {
        "harm.names.changed": count(len(changed), ran),
        "harm.names.reload_crashes": count(len(crashed), len(installed) * len(RELOADED)),
        "harm.names.thread_calls_lost": count(lost, made),
    }
