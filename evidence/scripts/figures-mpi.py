#!/usr/bin/env python3
"""Measure on this machine what the MPI adapter saves and costs: a flat map name -> {value, unit, low, high, n}.

Each figure compares short runs of powerccl-bench-mpi that follow one another: without, with, without, with, and so on.
A figure is the median over repetitions, or over pairs of neighbouring runs; low and high are its quartiles. Every run
counts: one that fails is named on stderr, and the exit code is 1. Needs two cores that are free for ten minutes.

Modes: `without` is the library as it comes, `with` the adapter as `powerccl run` brings it in (POWERCCL_MPI=auto),
`yield` the library's own way of yielding alone, `published` the adapter with POWERCCL_MPI=published.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/e2e"), str(ROOT / "tests")]

from mpi_libraries import MEASURED, Mpi, libraries
from support.figures import Figures, figure, show, write

from powerccl.launch.mpi import YIELDING, mpi_environment
from powerccl.launch.native import BENCH_MPI, MPI_ADAPTER, NativeFiles, find_native

RUN_LIMIT_S = 120
QUIET_LOAD = 0.7
# Computation in an iteration: what a rank waits for is a fifth of it. A shorter wait ends before sleeping pays.
STENCIL_STEPS_US = {"stencil": 100_000, "stencil_20ms": 20_000}
IMBALANCE_PCT = 20
OVERSUBSCRIBED_S = 1.0
STENCIL_MODES = ("without", "with", "yield", "published")
PARTS = ("wait", "short", "allreduce", "oversubscribed", "stencil")
# Of the user's environment, whatever would decide how ranks wait or who is preloaded stays out of all runs.
FOREIGN = ("POWERCCL_", "MPIR_CVAR_", "OMPI_MCA_", "PRTE_MCA_", "I_MPI_", "PMI_", "PMIX_", "LD_PRELOAD")

Measured = dict[str, Any]  # what powerccl-bench-mpi wrote as JSON


@dataclass(frozen=True)
class Rounds:
    """How often each thing is done."""

    wait_runs: int
    wait_repeat: int
    short_pairs: int
    allreduce_pairs: int
    oversubscribed_pairs: int
    stencil_rounds: int
    stencil_s: float


FULL = Rounds(4, 5, 11, 15, 9, 7, 1.0)
QUICK = Rounds(1, 2, 3, 3, 2, 2, 0.4)


@dataclass
class Bench:
    """Runs powerccl-bench-mpi on one library, and keeps count of what failed."""

    library: Mpi
    native: NativeFiles
    folder: Path
    failures: list[str] = field(default_factory=list)
    # Whether Open MPI's launcher is told of more ranks than cores, and has them yield; otherwise it is given slots.
    told: bool = True

    def environment(self, mode: str) -> dict[str, str]:
        """What a run in this mode sees."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        clean |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if mode == "yield":
            return clean | YIELDING
        if mode in ("with", "published"):
            added, reason = mpi_environment(clean, self.native, "auto" if mode == "with" else mode, None)
            if reason:
                sys.exit(f"error: {reason}\nhint: make native")
            added["LD_PRELOAD"] = str(self.native.path(MPI_ADAPTER))
            return clean | added | {"POWERCCL_RUN_FOLDER": tempfile.mkdtemp(dir=self.folder)}
        return clean

    def run(self, mode: str, *arguments: str, ranks: int = 2) -> Measured | None:
        """What a run measured; None if it failed."""
        out = self.folder / "out.json"
        out.unlink(missing_ok=True)
        more: list[str] = []
        if self.library.is_open_mpi and ranks > (os.cpu_count() or 1):
            more = ["--oversubscribe"] if self.told else ["-H", f"localhost:{ranks}", "--bind-to", "none"]
        command = [str(self.library.launcher), *more, "-n", str(ranks), str(self.native.path(BENCH_MPI)), *arguments]
        command += ["--library", str(self.library.library), "--json", str(out)]
        try:
            done = subprocess.run(
                command, env=self.environment(mode), capture_output=True, text=True, timeout=RUN_LIMIT_S
            )
            problem = f"exit code {done.returncode}: {done.stderr.strip()[-400:]}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"did not end within {RUN_LIMIT_S} s"
        if problem:
            failure = f"{self.library.id} {mode} {' '.join(arguments)}: {problem}"
            print(failure, file=sys.stderr)
            self.failures.append(failure)
            return None
        measured: Measured = json.loads(out.read_text())
        return measured

    def together(self, jobs: int, mode: str, *arguments: str, ranks: int) -> list[Measured]:
        """So many such runs at the same time; none if one failed."""
        folders = [self.folder / str(i) for i in range(jobs)]
        benches = [Bench(self.library, self.native, folder, self.failures, self.told) for folder in folders]
        for bench in benches:
            bench.folder.mkdir(exist_ok=True)
        with ThreadPoolExecutor(jobs) as pool:
            runs = list(pool.map(lambda bench: bench.run(mode, *arguments, ranks=ranks), benches))
        return [run for run in runs if run] if all(runs) else []

    def pairs(self, count: int, *arguments: str, ranks: int = 2) -> list[tuple[Measured, Measured]]:
        """(without, with) of neighbouring runs. Who goes first alternates, so that a drift cancels out."""
        found = []
        for i in range(count):
            modes = ("without", "with") if i % 2 == 0 else ("with", "without")
            runs = {mode: self.run(mode, *arguments, ranks=ranks) for mode in modes}
            if runs["without"] and runs["with"]:
                found.append((runs["without"], runs["with"]))
        return found


@contextlib.contextmanager
def busy_neighbour() -> Iterator[None]:
    """Another process that computes all the time, wherever the system puts it."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def waits(bench: Bench, mode: str, runs: int, repeat: int) -> tuple[list[float], list[float]]:
    """CPU time in seconds, and lateness in percent, of each wait."""
    cpu_s: list[float] = []
    late_pct: list[float] = []
    for _ in range(runs):
        run = bench.run(mode, "wait", "--wait-us", "1000000", "--repeat", str(repeat))
        for one in run["results"] if run else []:
            cpu_s.append(one["process_cpu_us"] * 1e-6)
            late_pct.append(100 * one["late_us"] / 1_000_000)
    return cpu_s, late_pct


def wait(bench: Bench, rounds: Rounds) -> Figures:
    """A rank that waits one second for its peer: on a machine that does nothing else, and beside a busy process.

    Low and high of a worst value are the quartiles of all.
    """
    figures: Figures = {}
    for name, mode, neighbour in (
        ("wait_1s", "with", contextlib.nullcontext),
        ("wait_1s.busy", "with", busy_neighbour),
        ("wait_1s.without", "without", contextlib.nullcontext),
    ):
        # Without the library it is the same every time: a second of CPU.
        runs, repeat = (rounds.wait_runs, rounds.wait_repeat) if mode == "with" else (2, 2)
        with neighbour():
            cpu_s, late_pct = waits(bench, mode, runs, repeat)
        if not cpu_s:
            continue
        figures[f"{name}.cpu_s"] = figure(cpu_s, "s", 4)
        figures[f"{name}.late_pct"] = figure(late_pct, "%")
        if mode == "with":
            figures[f"{name}.worst_cpu_s"] = {**figures[f"{name}.cpu_s"], "value": round(max(cpu_s), 4)}
            figures[f"{name}.worst_late_pct"] = {**figures[f"{name}.late_pct"], "value": round(max(late_pct), 3)}
    return figures


def short(bench: Bench, rounds: Rounds) -> Figures:
    """Waits of 100 us: how much later they end than without the library."""
    pairs = bench.pairs(rounds.short_pairs, "wait", "--wait-us", "100", "--repeat", "500")
    late_us = [[run["summary"]["late_us"]["median"] for run in pair] for pair in pairs]
    if not late_us:
        return {}
    return {
        "wait_100us.added_us": figure([mine - plain for plain, mine in late_us], "us"),
        "wait_100us.without.late_us": figure([plain for plain, _ in late_us], "us"),
    }


def allreduce(bench: Bench, rounds: Rounds) -> Figures:
    """All-reduces of ranks that arrive together."""
    figures = {}
    small = ("allreduce", "-b", "8", "-e", "8", "-n", "100000", "-w", "2000", "--back-to-back", "50")
    large = ("allreduce", "-b", "1M", "-e", "1M", "-n", "300", "-w", "20")
    for name, arguments in (("allreduce_8B", small), ("allreduce_1MiB", large)):
        pairs = bench.pairs(rounds.allreduce_pairs, *arguments)
        times_us = [[run["results"][0]["median_us"] for run in pair] for pair in pairs]
        if times_us:
            figures[f"{name}.added_us"] = figure([mine - plain for plain, mine in times_us], "us")
            figures[f"{name}.added_pct"] = figure([100 * (mine / plain - 1) for plain, mine in times_us], "%", 2)
            figures[f"{name}.without.us"] = figure([plain for plain, _ in times_us], "us")
    return figures


def loop_s(run: Measured) -> float:
    """How long the run's calls took altogether."""
    return float(run["results"][0]["loop_s"])


def oversubscribed(bench: Bench, rounds: Rounds) -> Figures:
    """Two ranks a core: so many 8-byte all-reduces, a barrier after each, that they take about a second without.

    Where Open MPI's launcher knows, it has its ranks yield; therefore there also with slots for as many ranks, as in a
    container or a hostfile that overstates its cores, and as two jobs that know nothing of each other.
    """
    cores = os.cpu_count() or 1
    arguments = ("allreduce", "-b", "8", "-e", "8", "-w", "5", "-n")
    figures: Figures = {}
    ways = [("oversubscribed", 1, True)]
    if bench.library.is_open_mpi:
        ways += [("oversubscribed_untold", 1, False), ("two_jobs", 2, True)]
    for name, jobs, bench.told in ways:
        tried = bench.together(jobs, "without", *arguments, "100", ranks=2 * cores // jobs)
        if not tried:
            continue
        count = min(max(int(OVERSUBSCRIBED_S * 100 / max(map(loop_s, tried))), 40), 200_000 * jobs)
        seconds = []
        for i in range(rounds.oversubscribed_pairs):
            modes = ("without", "with") if i % 2 == 0 else ("with", "without")
            ran = {m: bench.together(jobs, m, *arguments, str(count), ranks=2 * cores // jobs) for m in modes}
            if all(ran.values()):
                seconds.append([max(map(loop_s, ran[mode])) for mode in ("without", "with")])
        if seconds:
            figures[f"{name}.without_s"] = figure([plain for plain, _ in seconds], "s", 5)
            figures[f"{name}.with_s"] = figure([mine for _, mine in seconds], "s", 5)
            figures[f"{name}.times_faster"] = figure([plain / mine for plain, mine in seconds], "x", 2)
    return figures


def stencil(bench: Bench, rounds: Rounds) -> Figures:
    """The mini-application with 20 % imbalance, at two lengths of a step."""
    figures: Figures = {}
    for name, step_us in STENCIL_STEPS_US.items():
        found = stencil_of(bench, rounds, step_us)
        figures |= {f"{name}.{key}": value for key, value in found.items()}
    return figures


def stencil_of(bench: Bench, rounds: Rounds, step_us: int) -> Figures:
    """The mini-application in all modes, with the same work in each run."""
    iterations = max(round(rounds.stencil_s * 1e6 / step_us), 2)
    common = ["stencil", "--imbalance-pct", str(IMBALANCE_PCT), "--iterations", str(iterations)]
    calibrated = bench.run("without", *common, "--step-us", str(step_us))
    if not calibrated:
        return {}
    common += ["--sweeps", str(calibrated["summary"]["sweeps"])]
    taken: list[dict[str, Measured]] = []
    for i in range(rounds.stencil_rounds):
        modes = STENCIL_MODES if i % 2 == 0 else STENCIL_MODES[::-1]
        runs = {mode: run for mode in modes if (run := bench.run(mode, *common))}
        if "without" in runs:
            taken.append(runs)
    if not taken:
        return {}
    sums = {run["summary"]["checksum"] for runs in taken for run in runs.values()}
    if len(sums) > 1:
        bench.failures.append(f"{bench.library.id}: the stencil's results differ between modes: {sums}")
        print(bench.failures[-1], file=sys.stderr)
    figures = {}
    for mode in STENCIL_MODES[1:]:
        both = [(runs["without"]["summary"], runs[mode]["summary"]) for runs in taken if mode in runs]
        if both:
            name = "" if mode == "with" else f"{mode}."
            saved = [100 * (1 - mine["cpu_s"] / plain["cpu_s"]) for plain, mine in both]
            slower = [100 * (mine["run_s"] / plain["run_s"] - 1) for plain, mine in both]
            figures[f"{name}cpu_saved_pct"] = figure(saved, "%", 2)
            figures[f"{name}slowdown_pct"] = figure(slower, "%", 2)
    plain_runs = [runs["without"] for runs in taken]
    # What of the CPU time goes into MPI, mostly waiting: there is no more to save.
    idle = [100 * sum(r["mpi_s"] for r in run["results"]) / run["summary"]["cpu_s"] for run in plain_runs]
    figures["without.mpi_pct"] = figure(idle, "%", 2)
    figures["without.run_s"] = figure([run["summary"]["run_s"] for run in plain_runs], "s")
    return figures


def measure(library: Mpi, native: NativeFiles, parts: list[str], rounds: Rounds, failures: list[str]) -> Figures:
    """All figures of one library."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="powerccl-figures-") as name:
        bench = Bench(library, native, Path(name), failures)
        for part in parts:
            started = time.monotonic()
            found: Figures = globals()[part](bench, rounds)
            print(f"# {library.id} {part}: {time.monotonic() - started:.0f} s", file=sys.stderr)
            new = {f"mpi.{library.id}.{key}": value for key, value in found.items()}
            show(new)
            figures |= new
    return figures


def main() -> int:
    """Measure what is asked for and write one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build/figures/mpi.json")
    parser.add_argument("--quick", action="store_true", help="few repetitions, no Debian: two minutes, wide quartiles")
    parser.add_argument("--only", action="append", choices=MEASURED, help="this library; may be repeated")
    parser.add_argument("--part", action="append", default=[], choices=PARTS, help="this part; may be repeated")
    options = parser.parse_args()
    found = libraries(MEASURED)
    if not found:
        parser.error("no MPI library here: tools/fetch-mpi build/deps/mpi")
    wanted = options.only or [one.id for one in found if not (options.quick and one.id.startswith("debian"))]
    if os.getloadavg()[0] > QUIET_LOAD:
        print("note: this machine is busy; its figures will be wide", file=sys.stderr)
    native = find_native()
    figures: Figures = {}
    failures: list[str] = []
    for library in found:
        if library.id in wanted:
            figures |= measure(library, native, options.part or list(PARTS), QUICK if options.quick else FULL, failures)
            write(options.out, figures)
    if failures:
        print(f"error: {len(failures)} runs failed; the figures above are without them", file=sys.stderr)
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
