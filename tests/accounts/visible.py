# SPDX-License-Identifier: Apache-2.0
"""accounts.visible.wrong: ways to say which GPUs a job sees, of which its energy is not that of these GPUs.

Each way is a run without an NCCL trace on an emulated node. Where the emulator cannot say it as a driver would (a MIG
instance, GPUs of several models, a cgroup's missing GPU), it is a file of samples with the head that an agent writes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from support.commands import run_command
from support.figures import Figures, count
from trust import fault

from powerccl.analysis.summary import summarise
from powerccl.launch.native import NativeFiles
from powerccl.live.job import Watcher
from powerccl.traces.folder import read_run
from powerccl.traces.sample_file import about

PLATFORM = "t4x8"
S = 1_000_000_000
OF_NODE = "of all GPUs of the node"


@dataclass(frozen=True)
class Way:
    """Variables, which may name UUIDs as {3}, the GPUs that they mean, and what has to be said."""

    name: str
    environment: dict[str, str]
    gpus: tuple[int, ...]
    said: str = ""
    models: tuple[str, ...] = field(default=("Tesla T4",) * 8)
    refused: tuple[int, ...] = ()  # by a cgroup: NVML does not open them


ALL = tuple(range(8))
CUDA, ORDER, CONTAINER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"
MIXED = ("Tesla T4",) * 4 + ("NVIDIA L4",) * 4
COMMANDS = [
    Way("nothing", {}, ALL),
    Way("one number", {CUDA: "2"}, (2,)),
    Way("numbers", {CUDA: "5,2"}, (2, 5)),
    Way("a UUID", {CUDA: "{3}"}, (3,)),
    Way("a UUID's beginning", {CUDA: "{short3}"}, (3,)),
    Way("empty", {CUDA: ""}, ()),
    Way("-1", {CUDA: "-1"}, ()),
    Way("-1 behind a number", {CUDA: "1,-1,2"}, (1,)),
    Way("a number too many", {CUDA: "1,8,2"}, (1,)),
    Way("Slurm's step", {"SLURM_JOB_GPUS": "0-3", "SLURM_STEP_GPUS": "1,3"}, (1, 3)),
    Way("Slurm's job", {"SLURM_JOB_GPUS": "4-6"}, (4, 5, 6)),
    Way("Slurm without GPUs", {CUDA: "NoDevFiles", "SLURM_JOB_GPUS": "4-6"}, ()),
    Way("a container's, for another", {CONTAINER: "1"}, ALL, OF_NODE),
    Way("a container's: all", {CONTAINER: "all", CUDA: "7"}, (7,)),
]
FILES = [
    Way("by address, several models", {CUDA: "5", ORDER: "PCI_BUS_ID"}, (5,), models=MIXED),
    Way("by speed, several models", {CUDA: "5"}, ALL, OF_NODE, MIXED),
    Way("a UUID, several models", {CUDA: "{5}"}, (5,), models=MIXED),
    Way("MIG by its own UUID", {CUDA: "MIG-41b35014-745b-5bc6-a1e6-4a8b8b2f1c50"}, ALL, OF_NODE),
    Way("MIG by its GPU", {CUDA: "MIG-{2}/1/0"}, (2,), "whole GPUs"),
    Way("a cgroup", {}, (2, 3), refused=(0, 1, 4, 5, 6, 7)),
    Way("a cgroup and CUDA", {CUDA: "1"}, (3,), refused=(0, 1, 4, 5, 6, 7)),
    Way("a cgroup and Slurm", {CUDA: "0,1", "SLURM_JOB_GPUS": "2,3"}, (2, 3), refused=(0, 1, 4, 5, 6, 7)),
    Way("a cgroup and Slurm alone", {"SLURM_JOB_GPUS": "2,3"}, (2, 3), refused=(0, 1, 4, 5, 6, 7)),
    Way("a container's that holds", {CONTAINER: "2,3"}, (2, 3), refused=(0, 1, 4, 5, 6, 7)),
    Way("Kubernetes' device plugin", {CONTAINER: "{2},{3}"}, (2, 3), refused=(0, 1, 4, 5, 6, 7)),
    Way("Kubernetes' claim, by CDI", {CONTAINER: "void"}, (2, 3), refused=(0, 1, 4, 5, 6, 7)),
    Way("a beginning of two", {CUDA: "GPU-"}, ()),
    Way("ranks of their own launchers", {CUDA: "2", "several": "1"}, ALL, OF_NODE),
]


def measure(native: NativeFiles, folder: Path) -> Figures:
    """All ways; in report, summary.json, and top alike."""
    wrong = 0
    uuids = _uuids(native, folder)
    for number, way in enumerate(COMMANDS):
        runs = folder / f"command-{number}"
        run = _of_command(native, runs, _filled(way, uuids))
        wrong += is_wrong(way, run, uuids)
    for number, way in enumerate(FILES):
        run = of_file(folder / f"file-{number}", way, _filled(way, uuids), uuids)
        wrong += is_wrong(way, run, uuids)
    return {"accounts.visible.wrong": count(wrong, len(COMMANDS) + len(FILES))}


def _filled(way: Way, uuids: list[str]) -> dict[str, str]:
    names = {str(index): uuid for index, uuid in enumerate(uuids)}

    def fill(text: str) -> str:
        for index, uuid in names.items():
            text = text.replace(f"{{{index}}}", uuid).replace(f"{{short{index}}}", uuid[:40])
        return text

    return {name: fill(value) for name, value in way.environment.items()}


def _uuids(native: NativeFiles, folder: Path) -> list[str]:
    run = _of_command(native, folder / "uuids", {})
    head = about(next(run.glob("power-*.csv")))
    return [head[f"gpu{index}_uuid"] for index in ALL]


def _of_command(native: NativeFiles, runs: Path, environment: dict[str, str]) -> Path:
    foreign = ("CUDA_", "NVIDIA_", "SLURM_", "OMPI_", "PMI")
    base = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    command = ["powerccl", "run", "--emulate", PLATFORM, "--runs-dir", str(runs), "--", "sleep", "0.2"]
    said = run_command(command, {**base, "POWERCCL_NATIVE": str(native.root), **environment}, 60)
    if said.code:
        raise RuntimeError(said.err)
    return next(runs.iterdir())


def of_file(run: Path, way: Way, environment: dict[str, str], uuids: list[str]) -> Path:
    """A run of a second, as an agent would have recorded it."""
    run.mkdir()
    head = ["# host: n", "# interval_ns: 100000000", f"# job_environment: {json.dumps(environment)}"]
    seen = [index for index in ALL if index not in way.refused]
    number: Callable[[int], int] = seen.index  # NVML counts those that it opens
    for index in seen:
        head += [f"# gpu{number(index)}_uuid: {uuids[index]}", f"# gpu{number(index)}_name: {way.models[index]}"]
    columns = "time_ns,gpu,uuid,power_mw,energy_uj,sm_clock_mhz,mem_clock_mhz,temperature_c,throttle_reasons"
    rows = [
        f"{at},{number(index)},{uuids[index]},50000,{at // 20_000},1000,1000,40,0x0,99"
        for at in range(S, 2 * S + 1, S // 10)
        for index in seen
    ]
    (run / "power-n.csv").write_text("\n".join([*head, f"{columns},utilization_pct", *rows, ""]))
    info = {"command": ["job"], "host": "n", "start_ns": S, "end_ns": 2 * S, "exit_code": 0}
    (run / "run.json").write_text(json.dumps(info))
    return run


def is_wrong(way: Way, run: Path, uuids: list[str]) -> bool:
    """Whether report or top has other GPUs, or does not say what it has to."""
    wanted = {uuids[index] for index in way.gpus}
    summary = summarise(read_run(run))
    info = json.loads((run / "run.json").read_text())
    live = Watcher(run).look(info["end_ns"], info["host"])
    found = {"report": {gpu.gpu for gpu in summary.gpus}, "top": {gpu.gpu for gpu in live.gpus}}
    energy = summary.energy.joules
    faults = [f"{what}: GPUs {sorted(map(uuids.index, gpus))}" for what, gpus in found.items() if gpus != wanted]
    if (energy is None) is bool(wanted):
        faults.append(f"energy {energy}")
    if energy is not None and (live.joules is None or abs(live.joules / energy - 1) > 0.002):
        faults.append(f"top has {live.joules} J, and the report {energy} J")
    notes = " ".join(summary.notes)
    if (way.said or "energy is of") not in notes if way.said else "energy is of" in notes:
        faults.append(f"notes: {notes}")
    for text in faults:
        fault(f"{way.name} {way.environment}: {text}, not {list(way.gpus)}")
    return bool(faults)
