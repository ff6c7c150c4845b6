# SPDX-License-Identifier: Apache-2.0
"""Ways in which nothing is recorded: the cause that is stated is the true one, the same in text, JSON and HTML.

Each way is a real job, with Debian's MPICH and the emulator's NCCL. A thread with its name stands for PyTorch's gloo.
It takes root.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path

from mpi_libraries import Mpi
from support.commands import run_command

from harm import Figures, count
from harm.trace_file import small_disk
from powerccl.launch.native import NativeFiles

SOURCE = Path(__file__).resolve().parents[2] / "tests/e2e/programs/communicates.c"
LIMIT_S = 120
SEGMENT = "no process of the job loaded NCCL or MPI"


@dataclass(frozen=True)
class Way:
    """A job that leaves no trace: its command, options of `powerccl run`, and words of the true cause."""

    name: str
    command: Sequence[str]
    words: str
    options: Sequence[str] = ()
    variables: dict[str, str] = field(default_factory=dict)
    on_small_disk: bool = False
    kill_us: bool = False


def ways(native: NativeFiles, folder: Path) -> list[Way]:
    """All of them; programs are built in `folder`."""
    mpi = Mpi("debian_mpich")
    if missing := mpi.missing():
        raise RuntimeError(f"it takes {missing}")
    plain, app = folder / "plain", folder / "app"
    subprocess.run(["cc", str(SOURCE), "-o", str(plain), "-pthread"], check=True, timeout=LIMIT_S)
    mpi.compile(SOURCE, app, ["-DWITH_MPI", "-pthread"])
    setuid = folder / "setuid"
    shutil.copy(app, setuid)
    os.chown(setuid, 65534, 65534)
    setuid.chmod(0o6755)
    static = folder / "static"
    subprocess.run(["cc", "-static", str(SOURCE), "-o", str(static), "-pthread"], check=True, timeout=LIMIT_S)
    static_mpi = folder / "static_mpi"
    hidden = folder / "hidden.c"  # contains an MPI library, as far as its symbols tell
    hidden.write_text("int PMPI_Init(void){return 0;} int MPI_Init(void){return 0;} int main(void){return 0;}\n")
    subprocess.run(["cc", "-static", str(hidden), "-o", str(static_mpi)], check=True, timeout=LIMIT_S)
    docker = folder / "docker"
    docker.write_text('#!/bin/sh\nexec env -i sh -c "sleep 0.3"\n')
    docker.chmod(0o755)
    stripper = folder / "stripper"  # as sudo does with its default settings
    stripper.write_text('#!/bin/sh\nexec env -i PATH="$PATH" "$@"\n')
    stripper.chmod(0o755)
    launch = [str(mpi.launcher), "-n", "2"]
    ranks = [*launch, str(app), "mpi"]
    fill = 'dd if=/dev/zero of=fill bs=4k 2>/dev/null; exec "$@"'
    gone = 'rm -rf "$POWERCCL_RUN_FOLDER"; exec "$@"'
    emulated = {"LD_LIBRARY_PATH": str(native.root / "emulator")}
    reach = "LD_PRELOAD did not reach app"
    return [
        Way("a program that does not communicate", ["ls", "/"], SEGMENT),
        Way("an exit code before initialisation", ["sh", "-c", "exit 3"], "ended with exit code 3"),
        Way("a crash before initialisation", ["sh", "-c", "kill -SEGV $$"], "signal 11 (SIGSEGV) ended the job"),
        Way("killed before initialisation", ["sh", "-c", "sleep 0.2; kill -KILL $$"], "signal 9 (SIGKILL)"),
        Way("a launcher of a program without MPI", [*launch, "true"], SEGMENT),
        Way("env -i before the launcher", ["env", "-i", *ranks], reach),
        Way("env -u LD_PRELOAD before the launcher", ["env", "-u", "LD_PRELOAD", *ranks], reach),
        Way("env -i before each rank", [*launch, "env", "-i", str(app), "never"], reach),
        Way("a command that cleans the environment", [str(stripper), *ranks], reach),
        Way("a script that unsets LD_PRELOAD", ["sh", "-c", "unset LD_PRELOAD; " + " ".join(ranks)], reach),
        Way("a setuid program", [*launch, str(setuid), "mpi"], "setuid is setuid"),
        Way("a static program with MPI", [*launch, str(static_mpi)], "static_mpi is statically linked"),
        Way("a static program", [str(static), "idle"], "static is statically linked"),
        Way("linked with MPI, never initialised", [str(app), "never"], "did not call MPI_Init"),
        Way("--mpi off", ranks, "--mpi or POWERCCL_MPI is off", ["--mpi", "off"]),
        Way("POWERCCL_MPI=off", ranks, "--mpi or POWERCCL_MPI is off", variables={"POWERCCL_MPI": "off"}),
        Way("--no-preload", ranks, "--no-preload or POWERCCL_PRELOAD=0 preloads nothing", ["--no-preload"]),
        Way("POWERCCL_PRELOAD=0", ranks, "POWERCCL_PRELOAD=0 preloads nothing", variables={"POWERCCL_PRELOAD": "0"}),
        Way("POWERCCL_DISABLE", ranks, "POWERCCL_DISABLE is set", variables={"POWERCCL_DISABLE": "1"}),
        Way("gloo", [str(plain), "gloo"], "communicated through gloo"),
        Way("gloo, and exit code 1", ["sh", "-c", f"{plain} gloo; exit 1"], "communicated through gloo"),
        Way("NCCL without a GPU", [str(plain), "nccl"], "this host has no CUDA device", variables=emulated),
        Way("NCCL without a communicator", [str(plain), "nccl"], "created no communicator", ["--emulate", "t4x8"]),
        Way("containers", [str(docker)], "docker starts processes that do not inherit LD_PRELOAD"),
        Way("a full disk", ["sh", "-c", fill, "sh", *ranks], "the disk of the run folder is full", on_small_disk=True),
        Way("a run folder that the job removes", ["sh", "-c", gone, "sh", *ranks], "is gone"),
        Way("a killed launcher", ["sleep", "0.5"], "`powerccl run` was killed before its end", kill_us=True),
    ]


@dataclass(frozen=True)
class Stated:
    """What each output states as the cause; empty: nothing."""

    summary: str
    text: str
    json: str
    html: str


def stated(text: str) -> str:
    """The sentence in a text, on one line."""
    line = " ".join(unescape(text).split())
    at = max(line.find("Nothing was recorded: "), line.find("Nothing is recorded: "))
    return line[at:] if at >= 0 else ""


def run_way(way: Way, folder: Path, environment: dict[str, str]) -> Stated:
    """Run one, then each report of it."""
    folder.mkdir()
    powerccl = [sys.executable, "-m", "powerccl"]
    variables = {**environment, **way.variables}
    runs = folder / "disk" if way.on_small_disk else folder / "runs"
    command = [*powerccl, "run", "--runs-dir", str(runs), *way.options, "--", *way.command]
    with small_disk(runs) if way.on_small_disk else contextlib.nullcontext():
        if way.kill_us:
            with subprocess.Popen(command, env=variables, cwd=folder, start_new_session=True) as process:
                while not list(runs.glob("*/run.json")):
                    time.sleep(0.01)
                os.kill(process.pid, signal.SIGKILL)
            summary = "Nothing is recorded: "  # nobody is left to state it
        else:
            at = runs if way.on_small_disk else folder
            summary = run_command(command, variables, LIMIT_S, at).err
        (runs / "fill").unlink(missing_ok=True)
        found = list(runs.glob("2*"))
        if not found:  # the job removed it
            return Stated(*[stated(summary)] * 4)
        page = folder / "report.html"

        def report(*options: str) -> str:
            return run_command([*powerccl, "report", str(found[0]), *options], variables, LIMIT_S, folder).out

        text, plain = report(), report("--json", "-")
        report("--html", str(page))
        cause = json.loads(plain)["summary"]["unrecorded"]
        return Stated(stated(summary), stated(text), stated(cause), stated(page.read_text()))


def is_wrong(way: Way, outputs: Stated) -> bool:
    """The cause is not the true one, or an output states another."""
    true = outputs.json
    others = [outputs.text, outputs.html] if way.kill_us else [outputs.summary, outputs.text, outputs.html]
    return way.words not in true or not all(other.startswith(true) for other in others)


def measure(native: NativeFiles, folder: Path) -> Figures:
    """All ways, one after the other."""
    environment = {**Mpi("debian_mpich").environment(), "POWERCCL_NATIVE": str(native.root)}
    wrong = [_tell(way, run_way(way, folder / f"way-{n}", environment)) for n, way in enumerate(ways(native, folder))]
    return {"harm.cause.wrong": count(sum(wrong), len(wrong))}


def _tell(way: Way, outputs: Stated) -> bool:
    wrong = is_wrong(way, outputs)
    if wrong:
        print(f"{way.name}: {outputs}", file=sys.stderr)
    return wrong
