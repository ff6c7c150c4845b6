# SPDX-License-Identifier: Apache-2.0
"""Programs that a preloaded library could keep from starting: sanitizers, other C libraries, other word sizes.

Each runs alone and under `powerccl run`, by itself and below a shell. Exit status and what it prints are compared.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import mpi_libraries as e2e
from support.commands import Said, run_command

from harm import Figures, count
from powerccl.launch.native import NativeFiles

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests/e2e/programs/faulty.c"
LIMIT_S = 120
# A folder that `make install` of an older glibc has filled, whose loader starts a program built for it.
OLD_GLIBC = "POWERCCL_OLD_GLIBC"
WAYS = ("alone", "below a shell", "without preload")
# The loader's, of which there is no silencing it, where a program of another word size is started further down.
WRONG_CLASS = "cannot be preloaded (wrong ELF class"
_PROCESS = re.compile(r"==\d+==|\(pid=?\s*\d+\)|0x[0-9a-f]+|\[\d+\]")


@dataclass(frozen=True)
class Build:
    """A way to build SOURCE, and what to have the program do. `compiler` with its options, any of them."""

    name: str
    compiler: tuple[str, ...]
    does: tuple[str, ...] = ("fine", "thread", "fork")


BUILDS = (
    Build("plain", ("gcc",)),
    Build("static", ("gcc", "-static")),
    Build("32-bit", ("gcc", "-m32")),
    Build("32-bit static", ("gcc", "-m32", "-static")),
    Build("musl", ("musl-gcc",)),
    Build("musl static", ("musl-gcc", "-static")),
    Build("gcc ASan", ("gcc", "-fsanitize=address"), ("fine", "thread", "fork", "overflow", "leak")),
    Build("gcc ASan, static", ("gcc", "-fsanitize=address", "-static-libasan"), ("fine", "overflow", "leak")),
    Build("gcc TSan", ("gcc", "-fsanitize=thread"), ("fine", "thread", "fork", "race")),
    Build("gcc TSan, static", ("gcc", "-fsanitize=thread", "-static-libtsan"), ("fine", "thread", "race")),
    Build("gcc UBSan", ("gcc", "-fsanitize=undefined"), ("fine", "undefined")),
    Build("gcc LSan", ("gcc", "-fsanitize=leak"), ("fine", "thread", "leak")),
    Build("gcc ASan+UBSan", ("gcc", "-fsanitize=address,undefined"), ("fine", "overflow", "undefined")),
    Build("clang ASan", ("clang", "-fsanitize=address"), ("fine", "thread", "fork", "overflow", "leak")),
    Build("clang ASan, shared", ("clang", "-fsanitize=address", "-shared-libasan"), ("fine", "overflow", "leak")),
    Build("clang TSan", ("clang", "-fsanitize=thread"), ("fine", "thread", "race")),
    Build("clang MSan", ("clang", "-fsanitize=memory"), ("fine", "thread", "uninitialised")),
    Build("clang SafeStack", ("clang", "-fsanitize=safe-stack"), ("fine", "thread", "fork")),
)


def found(build: Build) -> tuple[str, ...]:
    """The compiler as it is called here: Debian's clang may have its version behind it. Empty: not installed."""
    name, *options = build.compiler
    for each in (name, *(f"{name}-{version}" for version in range(30, 10, -1))):
        if shutil.which(each):
            return (each, *options)
    return ()


def missing(build: Build, folder: Path) -> str:
    """What this machine lacks to build a program this way: the compiler or its libraries. Empty: nothing."""
    compiler = found(build)
    if not compiler:
        return f"no {build.compiler[0]} here"
    command = [*compiler, "-pthread", "-x", "c", "-", "-o", str(folder / "smallest")]
    smallest = "#include <pthread.h>\nint main(void) { return 0; }\n"
    done = subprocess.run(command, input=smallest, text=True, capture_output=True, timeout=LIMIT_S, check=False)
    return f"no libraries for {' '.join(compiler)} here: {done.stderr.strip()}" if done.returncode else ""


def compiled(build: Build, folder: Path) -> Path:
    """The program, of a build that lacks nothing here."""
    compiler = found(build)
    program = folder / build.name.replace(" ", "-").replace(",", "")
    options = ["-O1", "-g", "-pthread"]
    if "-shared-libasan" in compiler:  # is not where the loader looks
        runtime = subprocess.run(
            [compiler[0], f"-print-file-name=libclang_rt.asan-{os.uname().machine}.so"],
            check=True,
            text=True,
            capture_output=True,
        )
        options.append(f"-Wl,-rpath,{Path(runtime.stdout.strip()).parent}")
    command = [*compiler, *options, str(SOURCE), "-o", str(program)]
    subprocess.run(command, check=True, timeout=LIMIT_S, capture_output=True)
    return program


def others(folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Commands that are no fresh build of SOURCE: name and command."""
    plain = compiled(BUILDS[0], folder)
    if os.geteuid() == 0:
        privileged = folder / "setuid"
        shutil.copy(plain, privileged)
        os.chown(privileged, 65534, 65534)
        privileged.chmod(0o6755)
        yield "setuid", (str(privileged),)
    script = folder / "script"
    script.write_text(f"#!{plain}\n")
    script.chmod(0o755)
    yield "script", (str(script),)
    yield "empty environment", ("env", "-i", str(plain))
    old = os.environ.get(OLD_GLIBC)
    if old:
        program = against_old_glibc(Path(old), folder)
        for what in ("fine", "thread", "fork"):
            yield f"old glibc, {what}", (str(program), what)


def against_old_glibc(old: Path, folder: Path) -> Path:
    """SOURCE built with another glibc's headers, libraries and loader; the kernel's headers are the machine's."""
    program, lib = folder / "old-glibc", old / "lib"
    loader = next(lib.glob("ld-linux-*.so.*"))
    system = ("/usr/include", f"/usr/include/{os.uname().machine}-linux-gnu")
    includes = [word for each in (old / "include", *system) for word in ("-isystem", str(each))]
    command = [
        *("gcc", "-O1", "-no-pie", "-nostdlib", "-nostartfiles", *includes),
        *(str(lib / "crt1.o"), str(lib / "crti.o"), str(SOURCE), f"-L{lib}"),
        *("-Wl,--start-group", "-lc", "-lpthread", "-lgcc", "-Wl,--end-group", str(lib / "crtn.o")),
        *(f"-Wl,-rpath,{lib}", f"-Wl,--dynamic-linker={loader}", "-o", str(program)),
    ]
    subprocess.run(command, check=True, timeout=LIMIT_S, capture_output=True)
    return program


def outcome(command: Sequence[str], folder: Path, environment: dict[str, str]) -> Said:
    """Exit status, stdout and stderr; addresses and process numbers, which differ from run to run, left out.

    Of what a sanitizer reports, the lines that name the fault: others show stacks with our libraries' addresses.
    """
    code, out, err = run_command(command, environment, LIMIT_S, folder)
    lines = [line for line in err.splitlines() if not line.startswith("powerccl: ")]  # which are ours
    if any("Sanitizer" in line for line in lines):
        lines = [line for line in lines if "Sanitizer" in line]
    return Said(code, out, "\n".join(_PROCESS.sub("", line) for line in lines))


def under(native: NativeFiles, folder: Path, way: str, command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The command under `powerccl run`, and its environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("POWERCCL_", "LD_", "ASAN_"))}
    options = ["--no-preload"] if way == "without preload" else []
    inner = ["sh", "-c", '"$@"; exit $?', "sh", *command] if way == "below a shell" else list(command)
    run = [sys.executable, "-m", "powerccl", "run", "-q", "--runs-dir", str(folder / "runs"), *options, "--", *inner]
    return run, {
        **kept,
        "PYTHONPATH": str(ROOT / "python"),
        "POWERCCL_NATIVE": str(native.root),
    }


def programs(folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every program that can be built here: name and command."""
    for build in BUILDS:
        lacking = missing(build, folder)
        if lacking:
            print(f"programs: {lacking}: {build.name} is left out", file=sys.stderr)
            continue
        program = compiled(build, folder)
        for what in build.does:
            yield f"{build.name}, {what}", (str(program), what)
    yield from others(folder)
    for mpi in e2e.libraries():
        if shutil.which("gcc"):
            program = mpi.compile(e2e.PROGRAMS / "point_to_point.c", folder / f"asan-{mpi.id}", ["-fsanitize=address"])
            yield f"ASan with {mpi.id}", (str(program),)


def compared(
    native: NativeFiles, folder: Path, commands: Iterable[tuple[str, tuple[str, ...]]], ways: Sequence[str] = WAYS
) -> tuple[list[str], int, int]:
    """What is not as it is alone, in how many cases the loader tells of a wrong word size, and how many ran."""
    different, ran, loader = [], 0, 0
    by_mpi = {f"ASan with {mpi.id}": mpi for mpi in e2e.libraries()}
    for name, command in commands:
        for way in ways:
            run, environment = under(native, folder, way, command)
            if name in by_mpi:
                mpi = by_mpi[name]
                # MPI libraries leak at their end.
                theirs = {**mpi.environment(), **mpi._rank_environment(), "ASAN_OPTIONS": "detect_leaks=0"}
                environment = {**theirs, **{key: environment[key] for key in ("PYTHONPATH", "POWERCCL_NATIVE")}}
            alone = outcome(command, folder, environment)
            code, out, err = outcome(run, folder, environment)
            without = "\n".join(line for line in err.splitlines() if WRONG_CLASS not in line)
            loader += without != err
            ran += 1
            if (code, out, without) != alone:
                different.append(f"{name}, {way}: {(code, out, without)} instead of {alone}")
    return different, loader, ran


def measure(native: NativeFiles, folder: Path) -> Figures:
    """All programs in all ways."""
    folder.chmod(0o755)
    changed, loader, ran = compared(native, folder, programs(folder))
    for line in changed:
        print(f"programs: {line}", file=sys.stderr)
    return {
        "harm.programs.changed": count(len(changed), ran),
        "harm.programs.loader_lines": count(loader, ran),
    }
