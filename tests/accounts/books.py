# SPDX-License-Identifier: Apache-2.0
"""The accountant's test: outputs of hundreds of runs against an independent recomputation of their raw records.

Runs: recorded ones of real GPUs (ACCOUNTS_RECORDED: a folder of archives; left out where it is absent), every scenario
on the emulator, simulated and synthetic ones at random, and damaged copies. ACCOUNTS_RUNS: how many of the last two.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from accountant import keep_books
from audit import Audit
from read_outputs import Outputs
from support.figures import Figures, count
from synthetic_at_random import synthetic_run
from trust import ROOT, fault
from trust.damage import KINDS, Damage, without_counter
from trust.jobs import PLATFORMS, SCENARIOS, Job, record_all
from trust.spoken import speak, spread

from powerccl.launch.native import NativeFiles

RUNS = 200
RECORDED = ROOT.parent / "shared/runs"
SIMULATOR = "bin/powerccl-sim"
FILES = ("json", "html", "perfetto")
# Ten times an idle GPU's power may be a busy one's: nothing in the records contradicts it.
POSSIBLE = ("power ten times too high",)
# Damage that an MPI run without power samples can have.
OF_MPI = (
    *("trace cut in the middle", "trace full in the middle", "MPI rank's trace missing", "run.json cut"),
    "rank killed",
)


@dataclass
class Audited:
    """What came of one run: its faults, and how many figures were checked in each output."""

    name: str
    faults: list[str]
    checked: Counter[str]


def outputs_of(run: Path, folder: Path) -> Outputs | str:
    """All outputs of a run, through files in `folder`; or why the report refused it."""
    folder.mkdir(parents=True)
    options: list[object] = [word for name in FILES for word in (f"--{name}", folder / name)]
    said = speak(["report", run, *options, "--csv", folder / "csv"])
    if said.code:
        return said.err or said.out
    exported = speak(["export", "--once", run])
    found = Outputs.read(run, folder, said.out + said.err, exported.out)
    shutil.rmtree(folder)
    return found


def audit(run: Path) -> Audited:
    """One run that is not damaged."""
    found = outputs_of(run, run.with_name(f"{run.name}.pages"))
    if isinstance(found, str):
        return Audited(run.name, [f"refused: {found[-300:]}"], Counter())
    done = Audit(keep_books(run), found)
    return Audited(run.name, done.faults, done.checked)


def kinds_of_damage(source: Path) -> list[Damage]:
    """What can happen to this run."""
    if list(source.glob("mpi-*.trace")):
        return [kind for kind in KINDS if kind.name in OF_MPI]
    return [kind for kind in KINDS if not kind.mpi and kind.name not in POSSIBLE]


def audit_damaged(task: tuple[Path, int, Path]) -> Audited:
    """A damaged copy of a run: source, seed, and a folder of its own. Its books are those of the undamaged run."""
    source, seed, folder = task
    chance = random.Random(seed)
    kinds = kinds_of_damage(source)
    kind = kinds[seed % len(kinds)]
    clean, broken = folder / f"clean-{source.name}", folder / source.name
    shutil.copytree(source, clean, ignore=shutil.ignore_patterns("summary.json"))
    if kind.bare:
        without_counter(clean)
    shutil.copytree(clean, broken)
    name = f"{kind.name} ({source.name}, seed {seed})"
    try:
        kind.apply(broken, chance)
        before, after = outputs_of(clean, folder / "pages"), outputs_of(broken, folder / "pages")
        if isinstance(before, str):
            return Audited(name, [f"refused: {before[-300:]}"], Counter())
        if isinstance(after, str):
            died = "Traceback" in after
            return Audited(name, [f"died: {after[-300:]}"] * died, Counter(refused=1))
        done = Audit(keep_books(clean), after, before)
        return Audited(name, done.faults, done.checked)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def recorded(folder: Path) -> list[Path]:
    """Recorded runs of real GPUs; none, with a word, where they are not on this machine."""
    source = Path(os.environ.get("ACCOUNTS_RECORDED", RECORDED))
    archives = sorted(source.glob("*.tar.*"))
    if not archives:
        print(f"{source}: no recorded runs here, left out", file=sys.stderr)
    for archive in archives:
        with tarfile.open(archive) as file:
            file.extractall(folder / archive.name.partition(".")[0], filter="data")
    return sorted(file.parent for file in folder.rglob("run.json"))


def emulated(native: NativeFiles, folder: Path) -> list[Path]:
    """Every scenario on emulated GPUs."""
    of_platform = [("t4x8", 12, each) for each in sorted((ROOT / "bench/scenarios").glob("*.scn"))]
    of_platform += [("h100x8", 4, each) for each in sorted((ROOT / "bench/scenarios/h100").glob("*.scn"))]
    command = ("powerccl-bench", "scenario")
    jobs = [Job(name, (*command, str(file), "--iterations", str(times))) for name, times, file in of_platform]
    return record_all(native, jobs, folder)


def simulated(native: NativeFiles, target: Path, seed: int) -> Path:
    """A scenario by chance, in virtual time."""
    chance = random.Random(seed)
    platform = chance.choice(list(PLATFORMS))
    scenario = ROOT / f"bench/scenarios/{chance.choice(SCENARIOS)}.scn"
    settings = f":link_scale={chance.choice((0.5, 2, 4))}" * (chance.random() < 0.3)
    policy = chance.choice(("observe", "auto"))
    command = [str(native.root / SIMULATOR), str(scenario), "--policy", policy, "--seed", str(seed + 1)]
    command += ["--platform", f"{ROOT}/native/emulator/platforms/{platform}.conf{settings}"]
    command += ["--seconds", str(chance.choice((0.6, 2, 4, 6))), "--run-folder", str(target)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return target


def random_runs(native: NativeFiles, folder: Path, number: int) -> list[Path]:
    """Half of them simulated, the others written from numbers."""
    folder.mkdir()
    found = []
    for seed in range(number):
        target = folder / f"random-{seed}"
        found.append(synthetic_run(target, seed) if seed % 2 else simulated(native, target, seed))
    return found


def sources_of_damage(runs: Sequence[Path]) -> list[Path]:
    """Runs that can lose a rank, a GPU or samples: several ranks with power samples, or of MPI."""
    return [
        run
        for run in runs
        if len(list(run.glob("*.trace"))) > 1 and (list(run.glob("power-*.csv")) or list(run.glob("mpi-*.trace")))
    ]


def measure(native: NativeFiles, folder: Path) -> Figures:
    """All runs; a run is wrong if any figure of it is."""
    number = int(os.environ.get("ACCOUNTS_RUNS", RUNS))
    runs = [*recorded(folder / "recorded"), *emulated(native, folder / "emulated")]
    runs += random_runs(native, folder / "random", number)
    sources = sources_of_damage(runs)
    damaged = [(sources[(seed * 7) % len(sources)], seed, folder / f"damaged-{seed}") for seed in range(number)]
    done = [*spread(audit, runs, native.root), *spread(audit_damaged, damaged, native.root)]
    checked: Counter[str] = Counter()
    for each in done:
        checked += each.checked
        for text in dict.fromkeys(each.faults):
            fault(f"{each.name}: {text}")
    runs_by_kind = Counter(kind for each in done for kind in {text.partition(":")[0] for text in each.faults})
    print(f"figures checked: {dict(checked)}\nruns with faults, by kind: {dict(runs_by_kind)}", file=sys.stderr)
    wrong = sum(bool(each.faults) for each in done)
    return {
        "accounts.runs": count(len(done), len(done)),
        "accounts.wrong": count(wrong, len(done)),
        "accounts.figures": count(sum(checked.values()), len(done)),
    }
