# SPDX-License-Identifier: Apache-2.0
"""Layouts of ranks on hosts: no verb crashes, loses a host's energy or counts ranks wrong.

Some folders are written from known numbers (layouts.py). Others are of real runs: launchers and jobs on hosts as
namespaces (bench/hosts.py), with the environment that Slurm gives them. Every verb reads each folder.

A layout counts as crashed if a verb ends by an exception, if ranks are counted wrong, or if a host's joules are neither
in the total nor named as missing. It counts as crashed also if the GPUs' joules do not add up to the total.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.hosts import Node, hosts
from support.namespaces import NetworksError

from harm import Figures, count
from harm.layouts import LAYOUTS, SECONDS, Expected, Folder
from powerccl.launch.native import NativeFiles

END_S = 120
OFF = 0.1  # of the joules: samples do not begin and end with the run
SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_JOB_START_TIME": "1000", "SLURM_CLUSTER_NAME": "lab"}
# One process for all verbs of a folder: starting each costs more than what it does.
READ = """
import json, os, sys, traceback
from pathlib import Path
from powerccl.commands import cli
run, out = sys.argv[1], Path(sys.argv[2])
verbs = {
    "report": ["report", run],
    "formats": ["report", run, "--html", f"{out}/h", "--json", f"{out}/report.json", "--csv", f"{out}/csv",
                "--perfetto", f"{out}/perfetto"],
    "whatif": ["whatif", run],
    "compare": ["compare", run, run],
    "top": ["top", "--once", run],
    "top.json": ["top", "--once", run, "--json"],
    "export": ["export", "--once", run],
}
for name, words in verbs.items():
    with (out / name).open("wb") as file:
        os.dup2(file.fileno(), 1); os.dup2(file.fileno(), 2)
        try:
            cli.main(words, prog_name="powerccl")
        except SystemExit as ended:
            code = ended.code
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush(); sys.stderr.flush()
"""


@dataclass(frozen=True)
class Run:
    """A real layout: a command for each host, how many GPUs of each its ranks use, and what else reports must say."""

    commands: tuple[str, ...]  # {bench}: a sweep of the emulated GPUs; {mpi}: one of MPI's calls
    ranks: int
    gpus: tuple[int, ...]
    options: tuple[str, ...] = ()  # of `powerccl run`, by host; one holds for all
    variables: tuple[dict[str, str], ...] = ()  # of the launcher, by host
    folders: int = 1
    mpi: int = 0
    code: int = 0


EMULATE = "--emulate t4x8"
BENCH = "{bench} all_reduce -b 8M -e 8M -w 1 -n 30 -c 0 -g "
RUNS: dict[str, Run] = {
    "real: a job on each host": Run((BENCH + "2",) * 2, 4, (2, 2)),
    "real: uneven jobs": Run((BENCH + "1", BENCH + "3"), 4, (1, 3)),
    "real: three hosts": Run((BENCH + "2", BENCH + "1", BENCH + "2"), 5, (2, 1, 2)),
    "real: four hosts": Run((BENCH + "1",) * 4, 4, (1,) * 4),
    "real: one after another": Run((f"sh -c '{BENCH}2 && {BENCH}2'",), 2, (2,)),
    "real: beside each other": Run((f"sh -c '{BENCH}2 & {BENCH}2 & wait'",), 4, (2,)),
    "real: an array": Run(
        (BENCH + "2",) * 2,
        2,
        (2, 2),
        variables=tuple({"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": n, "SLURM_JOB_ID": n} for n in ("7", "8")),
        folders=2,
    ),
    "real: a heterogeneous job": Run(
        (BENCH + "2", BENCH + "1"), 3, (2, 1), variables=({"SLURM_HET_SIZE": "2"}, {"SLURM_HET_SIZE": "2"})
    ),
    "real: a host without GPU": Run((BENCH + "2", "sleep 2"), 2, (2, 0), options=(EMULATE, "")),
    "real: a job that fails": Run((BENCH + "2", f"sh -c '{BENCH}2; exit 3'"), 4, (2, 2), code=3),
    "real: torchrun --standalone": Run(
        (BENCH + "2",) * 2, 4, (2, 2), variables=({"TORCHELASTIC_RESTART_COUNT": "0"},) * 2
    ),
    "real: elastic on one of two": Run(
        (
            BENCH + "2",
            f"sh -c 'TORCHELASTIC_RESTART_COUNT=0 {BENCH}2; TORCHELASTIC_RESTART_COUNT=1 {BENCH}2'",
        ),
        4,
        (2, 2),
        variables=({"TORCHELASTIC_RESTART_COUNT": "0"}, {}),
    ),
    "real: ranks without samples": Run((BENCH + "2",) * 2, 4, (2, 2), options=(EMULATE, EMULATE + " --interval-ms 0")),
    "real: mpi on each host": Run(("mpiexec.mpich -n 2 {mpi} stencil",) * 2, 0, (0, 0), options=("",), mpi=4),
    "real: steps of one rank": Run((BENCH + "1",) * 2, 2, (1, 1)),
}


class Readings:
    """What the verbs say of a folder."""

    def __init__(self, run: Path, out: Path) -> None:
        out.mkdir(parents=True)
        self.out = out
        program = [sys.executable, "-c", READ, str(run), str(out)]
        done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=END_S)
        self.crashed = [done.stderr[-500:]] if done.returncode else []
        for path in sorted(each for each in out.iterdir() if each.is_file() and each.suffix in ("", ".json")):
            text = path.read_text(errors="replace")
            if path.name != "h" and ("Traceback" in text or "unexpected:" in text):
                self.crashed.append(f"{path.name}: {text.strip().splitlines()[-1]}")

    def json(self, name: str) -> Any:
        """What a verb has written as JSON."""
        return json.loads((self.out / name).read_text())

    def metric(self, name: str) -> list[tuple[str, float]]:
        """Labels and value of each sample of an exported metric."""
        lines = [line for line in (self.out / "export").read_text().splitlines() if line.startswith(f"{name}{{")]
        return [(line.rpartition(" ")[0], float(line.rpartition(" ")[2])) for line in lines]


def faults(run: Path, out: Path, expected: Expected) -> list[str]:
    """What is wrong with the reports on a folder."""
    read = Readings(run, out)
    if read.crashed:
        return read.crashed
    found = read.json("report.json")
    summary, energy = found["summary"], found["summary"]["energy"]
    said = " ".join([*summary["problems"], *energy["missing"], energy["reason"]])
    wrong: list[str] = []

    def check(right: bool, text: str) -> None:
        if not right:
            wrong.append(text)

    check(summary["ranks"] == expected.ranks, f"{summary['ranks']} ranks, not {expected.ranks}")
    check((summary["mpi"] or {"ranks": 0})["ranks"] == expected.mpi, "ranks of MPI")
    total = expected.ranks + expected.missing
    check((f"only {expected.ranks} of {total} ranks" in said) == bool(expected.missing), f"missing ranks: {said}")
    rows = [row["rank"] for row in found["ranks"]]
    check(len(set(rows)) == len(rows), "two rows of one rank")
    names = [summary["rank_names"].get(str(row), str(row)) for row in rows]
    check(len(set(names)) == len(names), f"ranks of one name: {names}")
    by_host: dict[str, float] = defaultdict(float)
    sampled: Counter[str] = Counter()
    for gpu in summary["gpus"]:
        joules = gpu["joules"] or gpu["joules_at_least"] or 0.0
        by_host[gpu["host"]] += joules
        sampled[gpu["host"]] += joules > 0
    check(sampled == Counter(expected.gpus), f"GPUs {dict(sampled)}, not {expected.gpus}")
    whole = energy["joules"] if energy["joules"] is not None else energy["joules_at_least"] or 0.0
    check(abs(sum(by_host.values()) - whole) <= 1e-6 * whole, "GPUs do not add up to the total")
    for host, gpus in expected.gpus.items():
        joules = gpus * expected.watts * SECONDS
        near = not expected.watts or abs(by_host[host] - joules) <= OFF * joules
        check(near, f"{host}: {by_host[host]:.1f} J, not {joules:.1f} J")
    for host in expected.silent:
        check(host in said and energy["joules"] is None, f"nothing said of {host}")
    (job,) = read.json("top.json")["jobs"]
    if expected.ranks:
        check(job["ranks_found"] == expected.ranks, f"top: {job['ranks_found']} ranks")
    check(job["ranks_expected"] in (0, expected.mpi, total), f"top: {job['ranks_expected']} ranks expected")
    labels = [text for text, _ in read.metric("powerccl_gpu_energy_joules_total")]
    check(len(labels) >= sum(expected.gpus.values()), "export: energy of a GPU is missing")
    for gpu in summary["gpus"]:
        known = any(f'host="{gpu["host"]}"' in text for text in labels)
        check(known or not sampled[gpu["host"]] or gpu["host"].startswith("box"), f"export: nothing of {gpu['host']}")
    return wrong


def start(native: NativeFiles, run: Run, nodes: Sequence[Node], place: Path) -> list[subprocess.Popen[bytes]]:
    """Each host's launcher with its job, as `srun` starts them."""
    words = {name: str(native.path(f"bin/{program}")) for name, program in PROGRAMS.items()}
    started = []
    for number, (node, command) in enumerate(zip(nodes, run.commands, strict=True)):
        options = (run.options or (EMULATE,))[number if len(run.options) > 1 else 0]
        clean = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        environment = {**clean, "POWERCCL_NATIVE": str(native.root), **SLURM, "SLURM_PROCID": str(number)}
        environment |= {"SLURM_NODEID": str(number), "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": str(len(nodes))}
        environment |= run.variables[number] if run.variables else {}
        powerccl = f"{Path(sys.executable).parent}/powerccl run {options} -- {command.format(**words)}"
        with (place / f"{node.name}.out").open("wb") as out:
            shell = node.enter("sh", "-c", f"exec {powerccl}")
            started.append(subprocess.Popen(shell, env=environment, stdout=out, stderr=out, cwd=place))
    return started


PROGRAMS = {"bench": "powerccl-bench", "mpi": "powerccl-bench-mpi"}


def counted(folder: Path) -> dict[str, float]:
    """Joules of each host as its energy counters tell from first to last sample."""
    found: dict[str, float] = {}
    for path in folder.glob("power-*.csv"):
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        ends: dict[str, list[float]] = {}
        for row in csv.DictReader(lines):
            if float(row["energy_uj"]) >= 0:
                ends.setdefault(row["uuid"], []).append(float(row["energy_uj"]) / 1e6)
        found[path.stem.split("-")[1]] = sum(each[-1] - each[0] for each in ends.values())
    return found


def real(native: NativeFiles, run: Run, folder: Path) -> list[str]:
    """What is wrong with a real run and with the reports on it."""
    folder.mkdir()
    names = [f"node{number}" for number in range(1, len(run.commands) + 1)]
    before = Path.cwd()
    os.chdir(folder)
    try:
        with hosts(names, folder) as nodes:
            started = start(native, run, nodes, folder)
            codes = [process.wait(END_S) for process in started]
    finally:
        os.chdir(before)
    outputs = {name: (folder / f"{name}.out").read_text() for name in names}
    wrong = [f"{name}: {text[-300:]}" for name, text in outputs.items() if "Traceback" in text or "unexpected" in text]
    if sorted(codes) != sorted([0] * (len(codes) - 1) + [run.code]):
        wrong.append(f"exit codes {codes}: {outputs}")
    made = sorted((folder / "runs").glob("[!.]*/"))
    if len(made) != run.folders:
        return [*wrong, f"{len(made)} run folders, not {run.folders}"]
    for number, each in enumerate(made):
        known = {name for name in names if (each / f"power-{name}.csv").exists()}
        gpus = {name: gpus for name, gpus in zip(names, run.gpus, strict=True) if gpus and name in known}
        silent = tuple(name for name, of in zip(names, run.gpus, strict=True) if of and name not in known)
        silent = silent if run.folders == 1 else ()
        expected = Expected(run.ranks, gpus, silent, mpi=run.mpi, watts=0.0)
        wrong += faults(each, folder / f"read-{number}", expected)
        if gpus and not wrong:
            summary = json.loads((folder / f"read-{number}/report.json").read_text())["summary"]
            told: dict[str, float] = defaultdict(float)
            for gpu in summary["gpus"]:
                told[gpu["host"]] += gpu["joules"] or gpu["joules_at_least"] or 0.0
            whole = counted(each)
            wrong += [
                f"{host}: {told[host]:.1f} J of {whole[host]:.1f} J" for host in gpus if told[host] > 1.02 * whole[host]
            ]
    return wrong


def measure(native: NativeFiles, folder: Path) -> Figures:
    """All layouts; n is how many."""
    cases: dict[str, Callable[[Path], list[str]]] = {}
    for name, make in LAYOUTS.items():
        cases[name] = lambda place, make=make: faults(  # type: ignore[misc]
            place / "run", place / "read", make(Folder(place / "run"))
        )
    for name, run in RUNS.items():
        cases[name] = lambda place, run=run: real(native, run, place)  # type: ignore[misc]
    crashed = 0
    for number, (name, case) in enumerate(cases.items()):
        try:
            wrong = case(folder / str(number))
        except (NetworksError, OSError, subprocess.TimeoutExpired) as error:
            raise RuntimeError(f"{name}: {error}") from error
        if wrong:
            print(f"hosts: {name}: {'; '.join(wrong)}", file=sys.stderr)
        crashed += bool(wrong)
    return {"harm.hosts.crashed": count(crashed, len(cases))}
