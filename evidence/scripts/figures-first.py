#!/usr/bin/env python3
"""Measure what `powerccl run` adds to jobs that end at once: `true`, and an MPI job. Run it on an idle machine.

It also runs the blocks of README.md, the tutorial and the guides, in four minutes, and counts those that ran.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.figures import Figures, count, figure, one, show, write
from support.pages import KEPT, kept

RUNS = 15
PROGRAM = "#include <mpi.h>\nint main(int n, char** words) { return MPI_Init(&n, &words) || MPI_Finalize(); }\n"


def turns(ways: dict[str, list[str]], folder: Path) -> dict[str, list[float]]:
    """Seconds of each command, in turns, so that what differs is the wrapper's."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    # Compiled modules, as an installed package has them.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    for turn in range(RUNS + 2):
        for name, command in ways.items():
            begin = time.perf_counter()
            nowhere = subprocess.DEVNULL
            subprocess.run(command, cwd=folder, check=True, env=environment, stdout=nowhere, stderr=nowhere)
            if turn > 1:  # the first ones fill the caches
                taken[name].append(time.perf_counter() - begin)
    return taken


def mpi_program(folder: Path) -> list[str]:
    """A job of two ranks that only begin and end MPI.

    Raises:
        RuntimeError: no MPI compiler is here.
    """
    found = [(shutil.which(f"mpicc{kind}"), shutil.which(f"mpiexec{kind}")) for kind in (".mpich", "")]
    compiler, launcher = next((pair for pair in found if all(pair)), (None, None))
    if not compiler or not launcher:
        raise RuntimeError("no mpicc and mpiexec here: install MPICH")
    (folder / "init.c").write_text(PROGRAM)
    subprocess.run([compiler, "-o", folder / "init", folder / "init.c"], check=True)
    return [launcher, "-n", "2", str(folder / "init")]


def figures(folder: Path) -> Figures:
    """All figures: medians and quartiles."""
    powerccl = str(Path(sys.executable).with_name("powerccl"))
    job = mpi_program(folder)
    taken = turns(
        {
            "run.true_ms": [powerccl, "run", "--", "true"],
            "run.true_quiet_ms": [powerccl, "run", "-q", "--", "true"],
            "run.alone_ms": ["true"],
            "run.mpi_quiet_s": [powerccl, "run", "-q", "--", *job],
            "run.mpi_alone_s": job,
        },
        folder,
    )
    found = {
        name: figure([each * (1e3 if name.endswith("_ms") else 1) for each in seconds], name.rpartition("_")[2])
        for name, seconds in taken.items()
    }
    pairs = zip(taken["run.mpi_quiet_s"], taken["run.mpi_alone_s"], strict=True)
    added = figure([ours - plain for ours, plain in pairs], "s")
    medians = statistics.median(taken["run.mpi_quiet_s"]) - statistics.median(taken["run.mpi_alone_s"])
    return {**found, "run.mpi_quiet_added_s": {**added, "value": round(medians, 3)}}


def blocks() -> Figures:
    """Blocks of pages that a test runs word for word, and those whose output differs from what the page shows."""
    shutil.rmtree(KEPT, ignore_errors=True)
    tests = [f"tests/e2e/test_{name}.py" for name in ("guides", "tutorial")]
    subprocess.run([sys.executable, "-m", "pytest", "-q", *tests], cwd=ROOT, check=False)
    found = kept()
    for each in found:
        if not each.run or each.different:
            print(f"{each.block}: {each.different or each.why_not}")
    share = 100 * sum(each.run for each in found) / len(found)
    return {
        "first.blocks.run": one(round(share, 1), "%", len(found)),
        "first.blocks.different": count(sum(bool(each.different) for each in found), len(found)),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only-blocks", action="store_true", help="only run the blocks of pages")
    asked = parser.parse_args()
    found: Figures = {}
    if not asked.only_blocks:
        with tempfile.TemporaryDirectory() as folder:
            found = figures(Path(folder))
    found |= blocks()
    show(found)
    write(asked.out, found)


if __name__ == "__main__":
    main()
