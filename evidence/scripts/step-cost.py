#!/usr/bin/env python3
"""Measure what PowerCCL changes of a job's step on real GPUs: time and energy, several ways of running it in turn.

The ways are nothing; observe; auto, dry; ways, which is observe with `--ways TABLE`; tuned, observe with `--tuned
NAME`; lines, which is nothing with the model as the guide says to write it. Each may have variables:
observe+NAME=VALUE. They are jobs that live side by side. One of them trains while the others are stopped with all their
processes, so that every round compares neighbours in time. The figure is the median over the rounds of the difference
to that round's own steps without PowerCCL; low and high bound its 95 % interval (bootstrap).
Writes figures, raw times and energies. Whether losses are the same: evidence/scripts/same-losses.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WORKER = Path(__file__).parent / "step-worker.py"
NAMES = {"eager": "nccl.fsdp2", "compiled": "nccl.fsdp2.compiled"}


class Job:
    """One way's job, with all its processes in one group."""

    def __init__(self, way: str, port: int, options: argparse.Namespace) -> None:
        """Start it."""
        self.way, self.turns = way, options.out.parent / "turns"
        kind, *variables = way.split("+")
        worker = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={options.gpus}"]
        worker += [f"--master-port={port}", str(WORKER), way, str(self.turns), f"--seconds={options.seconds}"]
        worker += options.worker.split()
        command = worker
        if kind not in ("nothing", "lines"):
            command = [sys.executable, "-m", "powerccl", "run", "-q", "--runs-dir", str(options.out.parent / "runs")]
            command += ["--policy", "auto" if kind == "auto" else "observe", "--platform", options.platform]
            command += {"ways": ["--ways", options.table], "tuned": ["--tuned", options.tuned]}.get(kind, [])
            command += ["--", *worker]
        log = (options.out.parent / f"{way}.log").open("w")
        environment = os.environ | {"OMP_NUM_THREADS": "4", "POWERCCL_CLOCKS": "dry"}
        environment |= dict(each.split("=", 1) for each in variables)
        self.process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def lines(self) -> list[dict[str, Any]]:
        """What its rank 0 has written."""
        path = self.turns / f"{self.way}.0"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def everyone(self, number: int) -> None:
        """Send a signal to all of its processes; some are leaders of groups of their own."""
        parents: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                except OSError:
                    continue
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
        waiting = [self.process.pid]
        while waiting:
            pid = waiting.pop()
            waiting += parents.get(pid, [])
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait_for(self, key: str, count: int, seconds: float) -> dict[str, Any]:
        """Wait for its `count`th line with that key."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = [line for line in self.lines() if key in line]
            if len(found) >= count:
                return found[-1]
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise SystemExit(f"{self.way}: no `{key}`; see {self.way}.log")


def interval(values: list[float]) -> dict[str, object]:
    """Return the median with its 95 % interval by bootstrap, in percent."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(4000))
    shown = {"value": statistics.median(values), "low": medians[100], "high": medians[-101]}
    return {key: round(value, 3) for key, value in shown.items()} | {"unit": "%", "n": len(values)}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--limit", type=float, default=1e9, metavar="SECONDS", help="begin no round after so long")
    # Marks pause while their allowance is spent, which grows while a job is stopped: short turns are marked throughout.
    parser.add_argument("--seconds", type=float, default=8, help="of each model and turn")
    parser.add_argument("--platform", default="", help="a platform profile of these GPUs, for auto")
    parser.add_argument("--ways", default="nothing,observe,auto")
    parser.add_argument("--table", default="auto", help="what --ways of `powerccl run` is given")
    parser.add_argument("--tuned", default="", help="what --tuned of `powerccl run` is given")
    parser.add_argument("--port", type=int, default=29600, help="where the jobs' own ports begin")
    parser.add_argument("--worker", default="", help="further options of step-worker.py")
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    (options.out.parent / "turns").mkdir(exist_ok=True)
    go = options.out.parent / "turns" / "go"
    jobs = [Job(way, options.port + 7 * index, options) for index, way in enumerate(options.ways.split(","))]
    try:
        for job in jobs:
            job.wait_for("ready", 1, 240)
        for job in jobs:
            job.everyone(signal.SIGSTOP)
        raw: dict[str, list[dict[str, float]]] = {job.way: [] for job in jobs}
        energy: dict[str, list[dict[str, float | None]]] = {job.way: [] for job in jobs}
        began_s = time.monotonic()
        for index in range(1, options.rounds + 1):
            if time.monotonic() - began_s > options.limit:
                break
            order = list(jobs)
            random.Random(index).shuffle(order)
            for job in order:
                job.everyone(signal.SIGCONT)
                go.write_text(f"{job.way} {index}")
                turn = job.wait_for("turn", index, 60)
                raw[job.way].append(turn["ms"])
                energy[job.way].append(turn["joules"])
                job.everyone(signal.SIGSTOP)
        for job in jobs:
            job.everyone(signal.SIGCONT)
        go.write_text("all -1")
        for job in jobs:
            job.wait_for("end", 1, 30)
            job.process.wait(60)
    finally:
        for job in jobs:
            job.everyone(signal.SIGCONT)
            if job.process.poll() is None:
                job.everyone(signal.SIGKILL)
    figures: dict[str, object] = {}
    for model in raw["nothing"][0]:
        base = [each[model] for each in raw["nothing"]]
        name = NAMES.get(model, f"nccl.{model}")
        figures[f"{name}.step_ms"] = interval(base) | {"unit": "ms"}
        for way in raw:
            if way != "nothing":
                added = [100 * (each[model] / alone - 1) for each, alone in zip(raw[way], base, strict=True)]
                figures[f"{name}.{way}.added_pct"] = interval(added)
                both = zip(energy[way], energy["nothing"], strict=True)
                pairs = [(mine[model], alone[model]) for mine, alone in both]
                more = [100 * (mine / alone - 1) for mine, alone in pairs if mine is not None and alone is not None]
                if len(more) == len(pairs):
                    figures[f"{name}.{way}.added_energy_pct"] = interval(more)
    options.out.write_text(json.dumps({"figures": figures, "raw_ms": raw, "raw_joules": energy}, indent=1))
    for key, value in figures.items():
        print(key, json.dumps(value))


if __name__ == "__main__":
    main()
