#!/usr/bin/env python3
"""Run random correct MPI programs with and without the adapter and compare.

Writes the usual flat map name -> {value, unit, low, high, n}. Each program is a seed of tests/e2e/mpi/random: its
results are checked where they arise, and their hash must be the same whatever stands between it and its library. 2 to 6
ranks. Prints how to repeat whatever differs or hangs; exit code 1 then.

What has been run is kept beside the figures (.jsonl), by what was run: a soak that was cut off goes on where it was,
and starts anew when the adapter or the programs have changed.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT), str(ROOT / "python")]

from bench.figures import Figures, one, write  # noqa: E402
from mpi_libraries import LIBRARIES, YIELDING, Mpi, adapter_library, libraries  # noqa: E402

SOURCES = sorted((ROOT / "tests" / "e2e" / "mpi" / "random").glob("*.cpp"))
RESULT = re.compile(r"^(\d+) ([0-9a-f]{16} \d+)$", re.MULTILINE)
# Of all programs, how many run on so many ranks. Beyond the machine's cores they take long.
SHARES = {2: 0.5, 3: 0.25, 4: 0.15, 5: 0.06, 6: 0.04}
PER_RUN = 50
PATIENCE_S = 120.0


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


class Journal:
    """What was run of this adapter and these programs: one line for each batch."""

    def __init__(self, path: Path) -> None:
        digest = hashlib.sha256()
        for source in [adapter_library(), *sorted((ROOT / "tests" / "e2e" / "mpi" / "random").iterdir())]:
            digest.update(source.read_bytes())
        self.key = digest.hexdigest()[:16]
        self.path = path
        self.lines: dict[tuple[str, str, int, int, int], int] = {}
        if path.exists():
            for text in path.read_text().splitlines():
                line = json.loads(text)
                if line["key"] == self.key:
                    self.lines[self.name(line)] = line["equal"]

    @staticmethod
    def name(line: dict[str, object]) -> tuple[str, str, int, int, int]:
        """What a line is about."""
        ranks, first, last = (int(str(line[name])) for name in ("ranks", "first", "last"))
        return str(line["library"]), str(line["adapter"]), ranks, first, last

    def add(self, library: str, adapter: str, ranks: int, first: int, last: int, equal: int) -> None:
        """A batch that has been run."""
        line = {"library": library, "adapter": adapter, "ranks": ranks, "first": first, "last": last, "equal": equal}
        self.lines[self.name(line)] = equal
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"key": self.key, **line}) + "\n")


def soak(mpi: Mpi, program: Path, batches: list[tuple[int, int, int]], adapters: list[str], journal: Journal) -> None:
    """Run what has not been run yet."""
    for ranks, first, last in batches:
        missing = [adapter for adapter in adapters if (mpi.id, adapter, ranks, first, last) not in journal.lines]
        if not missing:
            continue
        without = run(mpi, program, ranks, first, last, None, PATIENCE_S)
        for seed, problem in without.problems.items():
            print(f"{mpi.id}, {ranks} ranks, seed {seed}, without the adapter: {problem}", file=sys.stderr)
        for adapter in missing:
            found = run(mpi, program, ranks, first, last, adapter, 20 * without.seconds + 20)
            wrong = differences(without, found, first, last)
            for seed, how in wrong:
                print(
                    f"{mpi.id}, {ranks} ranks, seed {seed}, adapter {adapter}: {how}\n"
                    f"hint: scripts/soak-mpi.py --only {mpi.id} --adapter {adapter} --ranks {ranks} --seeds {seed} 1",
                    file=sys.stderr,
                    flush=True,
                )
            journal.add(mpi.id, adapter, ranks, first, last, last - first - len(wrong))


def plan(shares: dict[int, float], first: int, programs: int) -> list[tuple[int, int, int]]:
    """(ranks, first seed, last seed) of each batch."""
    batches = []
    left = programs
    for ranks, share in shares.items():
        end = first + min(left, max(1, round(programs * share)))
        left -= end - first
        while first < end:
            batches.append((ranks, first, min(first - first % PER_RUN + PER_RUN, end)))
            first = batches[-1][2]
    return batches


def figures_of(batches: list[tuple[int, int, int]], adapters: list[str], journal: Journal) -> Figures:
    """The map, from all that the journal has of these batches."""
    figures: Figures = {}
    for library in LIBRARIES:
        for adapter in adapters:
            done = [
                (b[2] - b[1], journal.lines[(library, adapter, *b)])
                for b in batches
                if (library, adapter, *b) in journal.lines
            ]
            name = f"mpi.{library}.random_programs" + ("" if adapter == "auto" else f".{adapter}")
            if done:
                for key, value in (("run", sum(n for n, _ in done)), ("equal", sum(equal for _, equal in done))):
                    figures[f"{name}.{key}"] = one(value, "1")
    return figures


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
    with tempfile.TemporaryDirectory(prefix="pccl-soak-") as folder:
        out = options.out or (Path(folder) if options.seeds else ROOT / "build" / "figures") / "mpi-random.json"
        journal = Journal(out.with_suffix(".jsonl"))
        for mpi in libraries():
            if not options.only or mpi.id in options.only:
                soak(mpi, build(mpi, Path(folder)), batches, adapters, journal)
        figures = figures_of(batches, adapters, journal)
        write(out, figures)
    counts = {name: figure["value"] for name, figure in figures.items()}
    for name, value in counts.items():
        print(f"{name} {value}")
    return (
        0
        if all(counts[name] == counts[f"{name.removesuffix('.run')}.equal"] for name in counts if name.endswith(".run"))
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
