#!/usr/bin/env python3
"""Jobs over two and four hosts, which are namespaces with clocks apart: alignment, delays, and killed hosts.

Each host has a name, an address, a boot id and a clock of its own; the file system is shared. Needs root, iproute2 and
the MPICH beside this Python. Emulated NCCL: all GPUs are of one server, so the true offset of recorded clocks is 0.
An offset of 200 ms and a drift of 50 ppm are then put into one host's files. MPI: real messages by TCP.
Kills: a host with all its processes, by SIGKILL, at a random moment within three seconds of the job's start. The page
cache outlives a namespace, so that what a host without power would lose beyond it is not seen.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python"), str(ROOT / "tests/e2e"), str(ROOT / "tests")]

import polars as pl
from harness import FOREIGN, EmulatedMachine, eventually
from support.figures import Figures, about, count, figure, one, show, write
from support.hosts import hosts
from support.remote_shell import remote_shell
from support.several_hosts import OVER_TCP, error_us, finished, injected_us, mpiexec, put_apart, start

from powerccl.analysis.report import report
from powerccl.launch.native import NativeFiles, find_native
from powerccl.traces.folder import read_run
from powerccl.traces.host_ends import SILENT_NS
from powerccl.traces.mpi_tables import mpi_calls

NAMES = ("node1", "node2", "node3", "node4")
AHEAD = {"node2": 100_000, "node3": 7, "node4": 3_600}  # seconds
PLATFORMS = {2: "h200x4.conf", 4: "h100x8.conf"}
LATE = "rank {rank} x1.5\ncompute 20\nall_reduce 8M\n"
OFFSET_NS, DRIFT = 200_000_000, 50e-6
WAIT_US, WAITS = 20_000, 60
LATEST_S = 3.0  # of a kill after the job's start; ranks communicate after about one
STEADY = 20  # kernels of a rank, from which on its trace has something every 15 ms


def nccl(native: NativeFiles, folder: Path, number: int, rounds: int) -> Figures:
    """Alignment and a straggler of emulated NCCL on so many hosts."""
    errors, stated, delays = [], [], []
    for turn in range(rounds):
        place = folder / f"nccl-{number}-{turn}"
        place.mkdir()
        machine = EmulatedMachine(native, place, PLATFORMS[number])
        with hosts(NAMES[:number], place, AHEAD) as nodes:
            late = 2 * number - 1
            made = finished(start(native, nodes, place, machine.environment, LATE.format(rank=late), 200), place)
        machine.stop()
        apart = place / "apart"
        shutil.copytree(made, apart)
        put_apart(apart, "node2", OFFSET_NS, DRIFT)
        for each, offset_ns, drift in ((made, 0, 0.0), (apart, OFFSET_NS, DRIFT)):
            run = read_run(each)
            errors.append(error_us(run, made, offset_ns, drift))
            stated += [clock.error_ns / 1e3 for clock in run.host_clocks.clocks] if run.host_clocks else []
            steady = [row for row in report(each).findings.peers.ranks if row.steady and row.behind_us]
            true = injected_us(made)
            delays.append(
                100 * abs(steady[0].behind_us / true - 1) if len(steady) == 1 and steady[0].behind_us else 100.0
            )
    return {
        f"hosts.{number}.alignment_error_us": figure(errors, "us"),
        f"hosts.{number}.alignment_stated_us": figure(stated, "us"),
        f"hosts.{number}.delay_error_pct": figure(delays, "%"),
        "_worst": one(max(errors), "us", len(errors)),
    }


def mpi(native: NativeFiles, folder: Path, number: int) -> Figures:
    """What `powerccl run -- mpiexec -hosts` records of a job with one rank a host, of which the last comes late."""
    place = folder / f"mpi-{number}"
    place.mkdir()
    os.chdir(place)
    names = NAMES[:number]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    environment = {**kept, "POWERCCL_NATIVE": str(native.root), **OVER_TCP}
    bench = [str(native.path("bin/powerccl-bench-mpi")), "wait", "--collective", "--wait-us", str(WAIT_US)]
    bench += ["--repeat", str(WAITS), "--json", str(place / "waits.json")]
    with hosts(names, place, AHEAD) as nodes, remote_shell(place, [node.enter() for node in nodes], names) as shell:
        job = [*mpiexec(shell, names, number), *bench]
        command = [sys.executable, "-m", "powerccl", "run", "--quiet", "--", *job]
        subprocess.run(nodes[0].enter(*command), env=environment, check=True, stdout=subprocess.DEVNULL, timeout=120)
    (made,) = (place / "runs").glob("[!.]*/")
    run = read_run(made)
    results = json.loads((place / "waits.json").read_text())["results"]
    true_us = statistics.median(each["waited_us"] for each in results)
    # Rank 0's waits, one by one; those between two are short.
    calls = mpi_calls(run).filter((pl.col("rank") == 0) & (pl.col("wait_ns") > WAIT_US * 500))
    reported_us = statistics.median(calls["wait_ns"].to_list()) / 1e3
    stated = [clock.error_ns / 1e3 for clock in run.host_clocks.clocks] if run.host_clocks else []
    return {
        f"hosts.mpi.{number}.unsampled": count(number - len({log.host for log in run.cpu}), number),
        f"hosts.mpi.{number}.alignment_error_us": one(round(error_us(run, made, 0, 0.0), 1), "us", number - 1),
        f"hosts.mpi.{number}.alignment_stated_us": one(round(max(stated), 1), "us", number - 1),
        f"hosts.mpi.{number}.delay_error_pct": one(round(100 * abs(reported_us / true_us - 1), 2), "%", len(calls)),
    }


def terminate(entered: int) -> None:
    """End the launcher that this process entered a host for."""
    for pid in Path(f"/proc/{entered}/task/{entered}/children").read_text().split():
        os.kill(int(pid), signal.SIGTERM)


class Kills:
    """Jobs on two hosts of which one is killed."""

    def __init__(self, native: NativeFiles, folder: Path, seed: int) -> None:
        self.native, self.folder = native, folder
        self.chance = random.Random(seed)
        self.unreadable = self.recorded = self.ended = self.unnamed = 0
        self.lost_ms: list[float] = []
        self.samples_lost_ms: list[float] = []

    def kill(self, number: int) -> None:
        """One job and one kill."""
        place = self.folder / f"kill-{number}"
        place.mkdir()
        os.chdir(place)
        machine = EmulatedMachine(self.native, place)
        victim = self.chance.randrange(2)
        try:
            with hosts(NAMES[:2], place, AHEAD) as nodes:
                started = start(self.native, nodes, place, machine.environment, "compute 10\nall_reduce 1M\n", 100_000)
                time.sleep(self.chance.uniform(0.0, LATEST_S))
                at_ns = time.monotonic_ns()
                os.kill(nodes[victim].pid, signal.SIGKILL)
                if not eventually(lambda: all(each.poll() is not None for each in started), 5):
                    terminate(started[1 - victim].pid)  # ranks wait for the dead ones, until a batch system ends them
                    eventually(lambda: all(each.poll() is not None for each in started), 15)
        finally:
            machine.stop()
        time.sleep(max(0.0, SILENT_NS / 1e9 - (time.monotonic_ns() - at_ns) / 1e9))  # until a host counts as ended
        self.judge(place, NAMES[victim], at_ns)
        os.chdir(self.folder)
        shutil.rmtree(place)

    def judge(self, place: Path, host: str, at_ns: int) -> None:
        """What is left of it."""
        made = list((place / "runs").glob("[!.]*/")) if (place / "runs").exists() else []
        if not made:
            return
        self.recorded += 1
        try:
            run = read_run(made[0])
            report(made[0])
        except Exception as error:
            print(f"unreadable: {error!r}", file=sys.stderr)
            self.unreadable += 1
            return
        broken = [text for text in run.problems if "cut off inside" in text or "not a PowerCCL" in text]
        if broken:
            print(f"unreadable: {broken}", file=sys.stderr)
            self.unreadable += 1
        steady = [trace for trace in run.ranks if trace.host == host and len(trace.kinds[3]) >= STEADY]
        # The other hosts' clocks are this machine's: PowerCCL takes namespaces' shifts out.
        self.lost_ms += [(at_ns - trace.last_ns()) / 1e6 for trace in steady]
        if not steady:
            return
        self.ended += 1
        if not any(text.startswith(f"{host} was killed") for text in run.problems):
            self.unnamed += 1
            print(f"{host} is not named: {run.problems}; {[(log.host, log.about) for log in run.cpu]}", file=sys.stderr)
        logs = [log for log in run.power if log.host == host and len(log.samples)]
        self.samples_lost_ms += [(at_ns - int(log.samples["time_ns"].max())) / 1e6 for log in logs]  # type: ignore[arg-type]

    def figures(self, number: int) -> Figures:
        """Counts, and how much of a killed host's record is missing."""
        return {
            "scale.killed.unreadable": count(self.unreadable, number),
            "scale.killed.recorded": count(self.recorded, number),
            "scale.killed.unnamed": count(self.unnamed, self.ended),
            **({"scale.killed.lost_ms": figure(self.lost_ms, "ms", 1)} if self.lost_ms else {}),
            **(
                {"scale.killed.most_lost_ms": one(round(max(self.lost_ms), 1), "ms", len(self.lost_ms))}
                if self.lost_ms
                else {}
            ),
            **({"scale.killed.samples_lost_ms": figure(self.samples_lost_ms, "ms", 1)} if self.samples_lost_ms else {}),
        }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="jobs on each number of hosts (%(default)s)")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--conditions", default="", help="what else the machine did")
    options = parser.parse_args()
    out = options.out.resolve() if options.out else None
    native = find_native()
    found: Figures = {}
    worst = []
    with tempfile.TemporaryDirectory(prefix="powerccl-hosts-") as name:
        folder = Path(name)
        for number in (2, 4) if options.rounds else ():
            measured = nccl(native, folder, number, options.rounds)
            worst.append(measured.pop("_worst"))
            found |= measured
            found |= mpi(native, folder, number)
            show(found)
        if worst:
            n = sum(each["n"] for each in worst)
            found = {"hosts.alignment_error_us": one(round(max(each["value"] for each in worst), 1), "us", n), **found}
        conditions = f"hosts are namespaces of this machine, {options.rounds} jobs each; {options.conditions}".strip(
            "; "
        )
        how = f"--rounds {options.rounds} --kills {options.kills} --seed {options.seed}"
        beside = about(f"evidence/scripts/figures-hosts.py {how}", conditions)
        kills = Kills(native, folder, options.seed)
        for number in range(options.kills):
            with contextlib.suppress(subprocess.TimeoutExpired):
                kills.kill(number)
            if number % 10 == 9 or number == options.kills - 1:  # what was measured outlives an interruption
                write(out, {**found, **kills.figures(number + 1)}, **beside)
        if options.kills:
            found |= kills.figures(options.kills)
        os.chdir(ROOT)
    show(found)
    write(out, found, **beside)


if __name__ == "__main__":
    main()
