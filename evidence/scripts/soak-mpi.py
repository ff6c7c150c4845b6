#!/usr/bin/env python3
"""Run random correct MPI programs with and without the adapter and compare.

Writes the usual flat map name -> {value, unit, low, high, n}. Each program is a seed of tests/e2e/mpi/random: its
results are checked where they arise, and their hash must be the same whatever stands between it and its library. 2 to 6
ranks. Prints how to repeat whatever differs or hangs; exit code 1 then. Figures are written after each batch.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tests"), str(ROOT), str(ROOT / "python")]

from mpi_libraries import LIBRARIES, YIELDING, Mpi, libraries
from support.figures import Figures, one, show, write

SOURCES = sorted((ROOT / "tests" / "e2e" / "mpi" / "random").glob("*.cpp"))
RESULT = re.compile(r"^(\d+) ([0-9a-f]{16} \d+)$", re.MULTILINE)
# Of all programs, how many run on so many ranks. Beyond the machine's cores they take long.
SHARES = {2: 0.5, 3: 0.25, 4: 0.15, 5: 0.06, 6: 0.04}
PER_RUN = 50
PATIENCE_S = 120.0
Batch = tuple[int, int, int]  # ranks, first seed, the seed behind the last


@dataclass
class Seeds:
    """What seeds gave: hash and faults, or nothing where none came, and why."""

    results: dict[int, str] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0


def build(mpi: Mpi, folder: Path) -> Path:
    """The program, compiled for a library."""
    extra = ["-std=c++17", "-pthread", *map(str, SOURCES[1:])]
    return mpi.compile(SOURCES[0], folder / f"random-{mpi.id}", extra)


def run(mpi: Mpi, program: Path, ranks: int, first: int, last: int, adapter: str | None, patience_s: float) -> Seeds:
    """Run the seeds in one process a rank; after one that hangs or crashes, go on behind it in new ones."""
    seeds = Seeds()
    start = time.monotonic()
    while first < last:
        # Every other batch without threads: libraries, and the adapter, go other ways then.
        single = ["single"] if first // PER_RUN % 2 else []
        command = [str(program), str(first), str(last), *single]
        try:
            # Without the adapter the library yields by itself: more ranks than cores would otherwise take minutes.
            done = mpi.run(command, ranks, adapter=adapter, env=YIELDING, timeout=patience_s)
            text, problem = done.stdout, f"exit code {done.returncode}: {done.stderr[-300:]}"
            complete = done.returncode == 0
        except subprocess.TimeoutExpired as late:
            text, problem, complete = str(late.stdout), f"did not end within {patience_s:.0f} s", False
        seeds.results.update((int(seed), outcome) for seed, outcome in RESULT.findall(text))
        if complete:
            break
        first = next((seed for seed in range(first, last) if seed not in seeds.results), last)
        seeds.problems[first] = problem
        first += 1
    seeds.seconds = time.monotonic() - start
    return seeds


def differences(without: Seeds, found: Seeds, first: int, last: int) -> list[tuple[int, str]]:
    """The seeds that are not equal, and how."""
    wrong = []
    for seed in range(first, last):
        result, expected = found.results.get(seed), without.results.get(seed)
        if result is None or result != expected or not result.endswith(" 0"):
            why = found.problems.get(seed, "") or without.problems.get(seed, "")
            wrong.append((seed, f"with {result or 'nothing'}, without {expected or 'nothing'} {why}".rstrip()))
    return wrong


def soak(mpi: Mpi, program: Path, batch: Batch, adapters: list[str]) -> dict[str, int]:
    """Run a batch of programs; by adapter, how many of them are equal."""
    ranks, first, last = batch
    without = run(mpi, program, ranks, first, last, None, PATIENCE_S)
    for seed, problem in without.problems.items():
        print(f"{mpi.id}, {ranks} ranks, seed {seed}, without the adapter: {problem}", file=sys.stderr)
    equal = {}
    for adapter in adapters:
        found = run(mpi, program, ranks, first, last, adapter, 20 * without.seconds + 20)
        wrong = differences(without, found, first, last)
        equal[adapter] = last - first - len(wrong)
        for seed, how in wrong:
            print(
                f"{mpi.id}, {ranks} ranks, seed {seed}, adapter {adapter}: {how}\n"
                f"hint: soak-mpi.py --only {mpi.id} --adapter {adapter} --ranks {ranks} --seeds {seed} 1",
                file=sys.stderr,
                flush=True,
            )
    return equal


def plan(shares: dict[int, float], first: int, programs: int) -> list[Batch]:
    """The batches."""
    batches: list[Batch] = []
    left = programs
    for ranks, share in shares.items():
        end = first + min(left, max(1, round(programs * share)))
        left -= end - first
        while first < end:
            batches.append((ranks, first, min(first - first % PER_RUN + PER_RUN, end)))
            first = batches[-1][2]
    return batches


def main() -> int:
    """Soak all libraries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000, help="for each library and adapter (1000)")
    parser.add_argument("--only", action="append", choices=LIBRARIES, help="a library; may be given again")
    parser.add_argument(
        "--adapter", action="append", choices=("auto", "published", "observe"), help="auto and published"
    )
    parser.add_argument("--ranks", type=int, help="this many only")
    parser.add_argument("--seeds", nargs=2, type=int, metavar=("FIRST", "COUNT"), help="these only, again if need be")
    parser.add_argument("--out", type=Path, help="build/figures/mpi-random.json, but nothing with --seeds")
    options = parser.parse_args()
    adapters = options.adapter or ["auto", "published"]
    shares = {options.ranks: 1.0} if options.ranks else SHARES
    batches = plan(shares, *(options.seeds or (0, options.programs)))
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="pccl-soak-") as folder:
        out = options.out or (None if options.seeds else ROOT / "build/figures/mpi-random.json")
        for mpi in libraries():
            if options.only and mpi.id not in options.only:
                continue
            program = build(mpi, Path(folder))
            ran = Counter[str]()
            for batch in batches:
                for adapter, equal in soak(mpi, program, batch, adapters).items():
                    name = f"mpi.{mpi.id}.random_programs" + ("" if adapter == "auto" else f".{adapter}")
                    ran.update({f"{name}.run": batch[2] - batch[1], f"{name}.equal": equal})
                figures |= {name: one(number, "1") for name, number in ran.items()}
                write(out, figures)
    show(figures)
    values = {name: figure["value"] for name, figure in figures.items()}
    return any(values[name] != values[f"{name[:-3]}equal"] for name in values if name.endswith(".run"))


if __name__ == "__main__":
    sys.exit(main())
