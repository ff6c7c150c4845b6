# SPDX-License-Identifier: Apache-2.0
"""What the topics run: `powerccl` as a process, emulated runs at random, and the recorded runs of real GPUs."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tarfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from support.commands import Said, run_command

from powerccl.launch.native import NativeFiles
from trust import ROOT

RECORDED = ROOT.parent / "shared/runs/h100x2.tar.xz"  # TRUST_RECORDED: where else it lies
LIMIT_S = 120
TOGETHER = 2  # at a time: one job keeps a core busy
PLATFORMS = {"t4x8": 8, "a100x4": 4, "h200x4": 4, "h200x4-sockets": 4, "a100x8-two-nodes": 8}
PATTERNS = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "send_receive", "all_to_all")
SCENARIOS = ("ddp", "exposed", "fsdp", "graph", "moe", "pp", "shift", "straggler", "tp", "zero1")
# A training step's gradients, all-reduced after the backward pass or beside it.
AFTER_BACKWARD = """streams comm
compute {forward}
compute {half}
compute {half}
sync compute
all_reduce 1M on comm
all_reduce 4M on comm
"""
BESIDE_BACKWARD = """streams comm
compute {forward}
compute {half}
wait compute on comm
all_reduce 1M on comm
compute {half}
wait compute on comm
all_reduce 4M on comm
"""
FOREIGN = ("POWERCCL_", "NCCL_", "SLURM_", "OMPI_", "PMI")
SIZES = ("16K", "128K", "1M", "4M")


def powerccl(
    native: NativeFiles,
    arguments: Sequence[str | Path],
    folder: Path,
    more: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
) -> Said:
    """`powerccl ARGUMENTS` in a folder, as a process of its own."""
    words = [sys.executable, "-m", "powerccl", *map(str, arguments)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    path = os.pathsep.join([str(ROOT / "python"), *filter(None, [kept.get("PYTHONPATH")])])
    ours = {"PYTHONPATH": path, "POWERCCL_NATIVE": str(native.root), "NO_COLOR": "1", "COLUMNS": "120"}
    return run_command(words, {**kept, **ours, **(more or {})}, limit_s, folder)


@dataclass(frozen=True)
class Job:
    """An emulated job."""

    platform: str
    command: tuple[str, ...]
    policy: str = "observe"
    options: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)  # that the command names, relative to its folder


def record(native: NativeFiles, job: Job, folder: Path, name: str) -> Path:
    """Run a job; its run folder, which is `folder/name`.

    Raises:
        RuntimeError: it left none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in job.files.items():
        (folder / file).write_text(text)
    runs = folder / f"{name}-runs"
    options = ("--emulate", job.platform, "--policy", job.policy, "-q", "--runs-dir", str(runs), "--name", name)
    said = powerccl(native, ["run", *options, *job.options, "--", *job.command], folder)
    found = sorted(runs.iterdir()) if runs.is_dir() else []
    if not found:
        raise RuntimeError(f"{' '.join(job.command)} on {job.platform} left no run ({said.code}): {said.err[-400:]}")
    target = folder / name
    found[0].rename(target)
    shutil.rmtree(runs, ignore_errors=True)
    return target


def record_all(native: NativeFiles, jobs: Sequence[Job], folder: Path) -> list[Path]:
    """Run jobs, TOGETHER at a time; their run folders."""
    with ThreadPoolExecutor(TOGETHER) as pool:
        return list(pool.map(lambda each: record(native, each[1], folder, f"job-{each[0]}"), enumerate(jobs)))


def random_job(seed: int) -> Job:
    """A short job: a sweep, a training step or a scenario; platform, links, sizes, ranks, policy by chance."""
    chance = random.Random(seed)
    platform = chance.choice(list(PLATFORMS))
    kind = chance.choice(("sweep", "sweep", "scenario", "step"))
    ranks = chance.choice((2, 4, 4, PLATFORMS[platform]))
    if kind == "scenario":
        ranks = 4 if PLATFORMS[platform] == 4 else chance.choice((4, 8))
    settings, files = [], {}
    if chance.random() < 0.3:
        settings.append(f"link_scale={chance.choice((0.5, 2, 4))}")
    policy = chance.choice(("observe", "observe", "per-call", "auto", "auto"))
    policy = "observe" if policy == "per-call" and platform != "t4x8" else policy  # it needs a profile
    options = ["--platform", "t4x8"] if policy == "per-call" else []
    if kind == "sweep":
        low = chance.randrange(len(SIZES))
        high = min(len(SIZES) - 1, low + chance.randrange(3))
        patterns = chance.sample(PATTERNS, chance.choice((1, 1, 2)))
        command = ["powerccl-bench", *patterns, "-b", SIZES[low], "-e", SIZES[high], "-f", "4", "-w", "1", "-c", "0"]
        command += ["-n", str(chance.choice((1, 3, 10))), "--min-time", str(chance.choice((0, 0.05, 0.1)))]
    elif kind == "step":
        forward_ms, backward_ms = chance.choice((5, 20)), chance.choice((10, 40))
        step = chance.choice((AFTER_BACKWARD, BESIDE_BACKWARD)).format(forward=forward_ms, half=backward_ms // 2)
        files = {f"step-{seed}.scn": step}  # jobs share a folder
        command = ["powerccl-bench", "scenario", *files, "--iterations", "2", "-w", "1"]
    else:
        file = ROOT / "bench/scenarios" / f"{chance.choice(SCENARIOS)}.scn"
        command = ["powerccl-bench", "scenario", str(file), "--iterations", str(chance.choice((1, 3, 6))), "-w", "1"]
    name = ":".join([platform, ",".join(settings)]) if settings else platform
    return Job(name, (*command, "-g", str(ranks)), policy, tuple(options), files)


def recorded(folder: Path) -> list[Path]:
    """The recorded runs of real GPUs, unpacked.

    Raises:
        OSError: they are not there.
    """
    source = Path(os.environ.get("TRUST_RECORDED", RECORDED))
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    return sorted(file.parent for file in folder.glob("*/run.json"))
