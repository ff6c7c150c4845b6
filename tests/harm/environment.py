# SPDX-License-Identifier: Apache-2.0
"""Environments that break programs: whether a job ends in them as it does alone, and every verb says something.

Three parts. A shell's job in every environment of surroundings.py, alone and under `powerccl run`, and verbs on a
recorded run in the same. Jobs whose ranks are in time namespaces, have a library's signal handlers, or install seccomp
filters, alone and under `powerccl run`. The live page of `powerccl top` in terminals without a size.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import mpi_libraries as e2e
from support.commands import Said, run_command

from harm import Figures, count
from harm.surroundings import SIZES, Surroundings, all_surroundings, works
from powerccl.launch.native import NativeFiles

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests/e2e/programs"
LIMIT_S = 180
# What a shell's job shows of its environment.
JOB = 'echo out; echo err >&2; echo "$COLUMNS|$HOME|$TERM|$TMPDIR|$TZ|$LANG|$LC_ALL|$LC_CTYPE|$(umask)"; exit 5'
QUICK = (("report",), ("top", "--once"), ("doctor",))
SLOW = (
    ("report", "--json", "-"),
    ("compare", "again"),
    ("clocks",),
    ("whatif",),
    ("report", "--html", "{}/page.html"),
    ("export", "--once"),
    ("tune", "--emulate", "t4x8", "--list"),
    (
        *("profile", "--emulate", "t4x8", "--patterns", "all_reduce", "--sizes", "8M", "--clocks", "1590", "--out"),
        "{}/p.json",
    ),
)
HANDLED = ("1", "2", "3", "10", "12", "14", "15", "17", "18", "20", "27", "28", "34")
# By the call that a filter ends the process for: numbers of x86-64.
FILTERS = {
    "pwrite64": "18",
    "clock_nanosleep": "230",
    "getrusage": "98",
    "fstat": "5",
    "prctl": "157",
    "several": "18 230 98 5 157 35",
}
INSTALLED = ("tsync", "thread", "prctl", "forked")
_OURS = re.compile(r"^(powerccl:|hint:)")


def as_shell(code: int) -> int:
    """An exit code as a shell, and `powerccl run`, states it."""
    return code if code >= 0 else 128 - code


class Bench:
    """Where things are, and how commands are started."""

    def __init__(self, native: NativeFiles, folder: Path) -> None:
        self.native, self.folder = native, folder
        self.python = sys.executable
        kept = {name: value for name, value in os.environ.items() if not name.startswith(e2e._FOREIGN)}
        self.environment = {
            **kept,
            "PYTHONPATH": os.pathsep.join((str(ROOT / "python"), *filter(None, sys.path))),
            "POWERCCL_NATIVE": str(native.root),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.environment.pop("COLUMNS", None)
        self.changed: list[str] = []
        self.silent: list[str] = []
        self.jobs = self.verbs = 0

    def powerccl(self, *words: str) -> list[str]:
        """The command line."""
        return [self.python, "-m", "powerccl", *words]

    def run(self, *words: str) -> list[str]:
        """`powerccl run` before a job."""
        return self.powerccl("run", "--runs-dir", str(self.folder / "runs"), *words, "--")

    def judge_job(self, name: str, alone: Said, ours: Said) -> None:
        """The job's exit code, output and lines on stderr as alone, and a summary behind them."""
        self.jobs += 1
        lines = ours.err.splitlines()
        missing = [line for line in alone.err.splitlines() if line not in lines]
        if (ours.code, ours.out) != (as_shell(alone.code), alone.out) or missing:
            self.changed.append(f"{name}: {ours} instead of {alone}")
        self.judge_verb(f"{name}: run", Said(0, "", ours.err.removeprefix(alone.err)))

    def judge_verb(self, name: str, said: Said) -> None:
        """It says something, or why not; a fault of ours is no reason."""
        self.verbs += 1
        text = (said.out + said.err).replace("\0", "")  # of UTF-16
        why = "error:" in text or "Does not work" in text
        if said.died or len(text.split()) < 4 or (said.code != 0 and not why):
            self.silent.append(f"{name}: code {said.code}: {text[-300:]!r}")


def shell_jobs(bench: Bench, sample: Path) -> None:
    """A shell's job and the verbs in every environment."""
    bench.folder.joinpath("runs").mkdir(mode=0o777)
    for folder in (bench.folder, bench.folder / "runs"):
        folder.chmod(0o777)
    for each in all_surroundings(bench.folder):
        environment = each.environment(bench.environment)
        around = [shutil.which(each.around[0]) or each.around[0], *each.around[1:]] if each.around else []
        if not works(each, bench.environment):
            print(f"environment: {each.name}: not on this machine", file=sys.stderr)
            continue
        job = ["/bin/sh", "-c", JOB]
        alone = run_command([*around, *job], environment, LIMIT_S, bench.folder)
        bench.judge_job(
            each.name, alone, run_command([*around, *bench.run(), *job], environment, LIMIT_S, bench.folder)
        )
        verbs_in(bench, each, [*around], environment, sample)


def verbs_in(bench: Bench, where: Surroundings, around: Sequence[str], environment: dict[str, str], run: Path) -> None:
    """Verbs on a recorded run."""
    own = bench.folder / f"own-{bench.verbs}"
    own.mkdir()
    own.chmod(0o777)
    for words in (*QUICK, *(SLOW if where.thorough else ())):
        filled = [word.format(own) for word in words]
        if words[0] in ("report", "whatif", "compare"):
            filled = [filled[0], str(run), *(str(run) if word == "again" else word for word in filled[1:])]
        said = run_command([*around, *bench.powerccl(*filled)], environment, LIMIT_S, own)
        bench.judge_verb(f"{where.name}: {' '.join(words)}", said)


def time_namespaces(bench: Bench) -> None:
    """Ranks in namespaces of their own: the run is as long as it was, and nothing hangs."""
    bench_program, mpi = str(bench.native.path("bin/powerccl-bench")), next(iter(e2e.libraries()), None)
    emulated = [bench_program, "all_reduce", "-g", "2", "-b", "8M", "-e", "8M", "-n", "50"]
    jobs: list[tuple[str, list[str], list[str], Mapping[str, str]]] = []
    for seconds in ("86400", "-100"):
        enter = ["unshare", "--time", "--monotonic", seconds, "--boottime", "7200"]
        jobs.append((f"emulated, {seconds} s", ["--emulate", "t4x8", "--policy", "auto"], [*enter, *emulated], {}))
        if mpi:
            ranks = [str(mpi.launcher), "-n", "2", *enter, str(bench.native.path("bin/powerccl-bench-mpi")), "barrier"]
            jobs.append((f"{mpi.id}, {seconds} s", [], ranks, mpi.environment()))
    for name, options, command, environment in jobs:
        begin_s = time.monotonic()
        runs = bench.folder / f"runs-{bench.jobs}"
        line = bench.powerccl("run", "--runs-dir", str(runs), *options, "--", *command)
        ours = run_command(line, {**bench.environment, **environment}, LIMIT_S)
        took_s = time.monotonic() - begin_s
        bench.jobs += 1
        (run,) = (path for path in runs.iterdir() if not path.name.startswith("."))
        summary = run_command(bench.powerccl("report", str(run), "--json", "-"), bench.environment, LIMIT_S)
        found = json.loads(summary.out)["summary"]
        inside_s = found["mpi"]["time_per_rank_s"] if found.get("mpi") else found["communication"]["time_s"]
        if ours.code != 0 or found["problems"] or not 0.001 < inside_s < found["wall_s"] < took_s:
            shown = f"{inside_s:.3f} s of {found['wall_s']:.1f} s of {took_s:.1f} s, {found['problems']}"
            bench.changed.append(f"time namespace, {name}: {shown}, {ours}")
        bench.judge_verb(f"time namespace, {name}", summary)


def compiled(bench: Bench, name: str) -> str:
    """A library to preload."""
    library = bench.folder / f"{name}.so"
    source = PROGRAMS / f"{name}.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-pthread", "-o", str(library), str(source)], check=True)
    return str(library)


def handlers(bench: Bench) -> None:
    """A library that handles signals, preloaded into `powerccl run` and the job."""
    library = compiled(bench, "handlers")
    for numbers in (*HANDLED, " ".join(HANDLED)):
        environment = {**bench.environment, "LD_PRELOAD": library, "HANDLERS": numbers}
        for job in ("echo out; exit 3", "kill -USR1 $$; echo after", "trap 'exit 9' TERM; kill -TERM $$; sleep 5"):
            command = ["/bin/sh", "-c", job]
            alone = run_command(command, environment, LIMIT_S)
            ours = run_command([*bench.run("-q"), *command], environment, LIMIT_S)
            bench.jobs += 1
            if (ours.code, ours.out) != (as_shell(alone.code), alone.out) or "powerccl:" in ours.err:
                bench.changed.append(f"handlers {numbers}: {job}: {ours} instead of {alone}")


def filters(bench: Bench) -> None:
    """Ranks that install seccomp filters. A filter that ends the job alone is no case."""
    if os.uname().machine != "x86_64":
        return
    for name, alone, line, environment in (*filtered_mpi(bench), *filtered_gpus(bench)):
        if alone.code != 0:
            continue
        bench.judge_job(name, _plain(alone), _plain(run_command(line, environment, LIMIT_S)))


def _plain(said: Said) -> Said:
    """Without our own lines and measured times."""
    return Said(said.code, "\n".join(map(_without_times, said.out.splitlines())), said.err)


def _without_times(line: str) -> str:
    """A line of powerccl-bench with those fields alone that are the same in each run; another line as it is."""
    if not line.startswith('{"type": '):
        return line
    found = json.loads(line)
    same = ("type", "gpu_models", "nccl_version", "nccl_path", "ranks", "clock_control", "wrong", "points", "finished")
    return json.dumps({name: found.get(name) for name in same})


def filtered_mpi(bench: Bench) -> Iterator[tuple[str, Said, list[str], dict[str, str]]]:
    """Each list on each MPI library, on one of them installed in each way."""
    for mpi in e2e.libraries():
        program = str(mpi.compile(e2e.PROGRAMS / "filtered.c", bench.folder / f"filtered-{mpi.id}"))
        environment = {**mpi.environment(), **bench.environment}
        for how in INSTALLED if mpi.id == "mpich" else INSTALLED[:1]:
            for name, numbers in FILTERS.items():
                command = [str(mpi.launcher), "-n", "2", program, how, *numbers.split()]
                alone = run_command(command, environment, LIMIT_S)
                yield f"{mpi.id}, {how}, {name}", alone, [*bench.run(), *command], environment


def filtered_gpus(bench: Bench) -> Iterator[tuple[str, Said, list[str], dict[str, str]]]:
    """An emulated job, with a filter before it begins and in its midst."""
    library = compiled(bench, "late_filter")
    job = f"{bench.native.path('bin/powerccl-bench')} all_reduce -g 2 -b 8M -e 8M -n 600"
    script = f'export LD_PRELOAD="$LD_PRELOAD:{library}"; exec {job}'
    for policy, delay_ms in (("observe", "0"), ("observe", "1000"), ("auto", "1000")):
        for name, numbers in FILTERS.items():
            environment = {**bench.environment, "FILTER": f"{delay_ms} {numbers}"}
            emulated = [*bench.run("--emulate", "t4x8", "--policy", policy)]
            unrecorded = [*emulated[:-1], "--no-preload", *emulated[-1:], "env", "POWERCCL_DISABLE=1"]
            alone = run_command([*unrecorded, "sh", "-c", script], environment, LIMIT_S)
            line = [*emulated, "sh", "-c", script]
            shown = Said(alone.code, alone.out, "")
            yield f"emulated, {policy}, {name} after {delay_ms} ms", shown, line, environment


def live_pages(bench: Bench, run: Path) -> None:
    """`powerccl top` in a terminal: it shows a page, and ends when it is told to."""
    for size in SIZES:
        environment = {**bench.environment, "TERM": "xterm-256color", "COLUMNS": size, "LINES": size}
        bench.judge_verb(f"top in a terminal, {size}", in_terminal(bench.powerccl("top", str(run)), environment))


def in_terminal(command: Sequence[str], environment: Mapping[str, str]) -> Said:
    """What a command writes to a terminal of no size until it is told to quit."""
    pid, terminal = pty.fork()
    if pid == 0:
        with contextlib.suppress(OSError):
            os.execve(command[0], list(command), dict(environment))
        os._exit(127)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
    written, deadline_s = b"", time.monotonic() + LIMIT_S / 3
    with contextlib.suppress(OSError):  # the terminal's other end is closed
        while time.monotonic() < deadline_s:
            if select.select([terminal], [], [], 1.0)[0]:
                written += os.read(terminal, 65536)
            elif len(written) > 100:
                os.write(terminal, b"q")
    os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    text = re.sub(rb"\x1b\[[0-9;?]*[ -/]*[@-~]", b" ", written).decode("utf-8", "replace")
    return Said(status, text, "")


def measure(native: NativeFiles, folder: Path) -> Figures:
    """Everything; n is jobs and verbs."""
    bench = Bench(native, folder)
    folder.chmod(0o777)
    program = [str(native.path("bin/powerccl-bench")), "all_reduce", "-g", "2", "-b", "8M", "-e", "8M", "-n", "50"]
    line = bench.powerccl("run", "-q", "--runs-dir", str(folder / "sample"), "--emulate", "t4x8", "--", *program)
    made = run_command(line, bench.environment, LIMIT_S)
    if made.code != 0:
        raise RuntimeError(f"no run to report on: {made}")
    sample = next((folder / "sample").iterdir())
    run_command(bench.powerccl("report", str(sample), "--json", "-"), bench.environment, LIMIT_S)
    shell_jobs(bench, sample)
    live_pages(bench, sample)
    time_namespaces(bench)
    handlers(bench)
    filters(bench)
    for each in bench.changed:
        print(f"environment: changed: {each}", file=sys.stderr)
    for each in bench.silent:
        print(f"environment: silent: {each}", file=sys.stderr)
    return {
        "harm.environment.changed": count(len(bench.changed), bench.jobs),
        "harm.environment.silent": count(len(bench.silent), bench.verbs),
    }
