#!/usr/bin/env python3
"""Measure `powerccl tune` on an emulated server: a flat map name -> {value, unit, low, high, n}.

What a search finds over sockets, how many trials it makes a minute against a process a trial, and what two workers
gain. Every gain is emulated: it shows that the search works, not what NCCL gives. Trials a minute are this machine's.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.figures import Figures, about, confirmed, figure, show, write

PLATFORM = "h200x4-sockets"
SIZES = {"16KiB": "16K", "1MiB": "1M", "8MiB": "8M", "64MiB": "64M"}
Result = dict[str, object]


def command(folder: Path, *options: str) -> list[str]:
    """`powerccl tune` on the emulated server."""
    tune = [sys.executable, "-m", "powerccl", "tune", "all_reduce", "--emulate", PLATFORM, "--out", str(folder)]
    return [*tune, "--name", folder.name, *options]


def tune(folder: Path, *options: str) -> Result:
    """One search, to its end; what result.json says."""
    subprocess.run(command(folder, *options), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found: Result = json.loads((folder / "result.json").read_text())
    return found


def sizes(folder: Path, seconds: int) -> Figures:
    """What is gained at each size, confirmed."""
    found: Figures = {}
    for name, size in SIZES.items():
        result = tune(folder / name, "--sizes", size, "--time", f"{seconds}s")
        stem = f"tune.emulated-sockets.all_reduce.{name}"
        profile = result["profile"]
        assert isinstance(profile, dict)
        for each in profile["confirmed"]:
            found |= confirmed(stem, each)
        print(f"# {name}: {profile['variables']}", flush=True)
    return found


def rates(folder: Path) -> Figures:
    """Trials a minute, against processes that start for each."""
    result = tune(folder / "rate", "--sizes", "1M", "--time", "60s", "--no-rules")
    seconds = []
    for _ in range(5):
        began = time.monotonic()
        bench = [sys.executable, "-m", "powerccl", "bench", "--emulate", PLATFORM, "all_reduce"]
        options = ["-b", "1M", "-e", "1M", "-n", "3", "-c", "0", "--no-energy"]
        subprocess.run([*bench, *options], check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.monotonic() - began)
    rate = float(str(result["trials_per_minute"]))
    return {
        "tune.trials_per_minute": figure([rate], "1/min", 1),
        "tune.process_per_trial.trials_per_minute": figure([60 / each for each in seconds], "1/min", 1),
    }


def workers(folder: Path, trials: int) -> Figures:
    """Seconds to the same number of configurations with one worker, and with two: of energy, which is mostly waiting,
    as on GPUs everything is that two workers would have of their own.
    """
    options = ["--sizes", "64M", "--objective", "energy", "--trials", str(trials), "--time", "10m"]
    options.append("--no-rules")
    seconds = []
    for count in (1, 2):
        shared = folder / f"workers-{count}"
        began = time.monotonic()
        together = [
            subprocess.Popen(
                command(shared, *options, "--seed", str(number)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            for number in range(1, count + 1)
        ]
        assert not any(process.wait() for process in together)
        seconds.append(float(json.loads((shared / "result.json").read_text())["search_seconds"]))
        print(f"# {count} workers: {seconds[-1]:.1f} s of search, {time.monotonic() - began:.1f} s in all", flush=True)
    return {
        "tune.one_worker.seconds": figure(seconds[:1], "s", 1),
        "tune.two_workers.seconds": figure(seconds[1:], "s", 1),
        "tune.two_workers.speedup": figure([seconds[0] / seconds[1]], "times", 2),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build/figures/tune.json")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="also write them as evidence/results keeps figures")
    parser.add_argument("--seconds", type=int, default=60, help="of each search over one size")
    parser.add_argument("--only", default="sizes,rates,workers")
    options = parser.parse_args()
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["XDG_CONFIG_HOME"] = scratch  # no earlier profile helps, and none is left
        steps = {
            "sizes": lambda: sizes(folder, options.seconds),
            "rates": lambda: rates(folder),
            "workers": lambda: workers(folder, 160),
        }
        for name in options.only.split(","):
            figures.update(steps[name]())
    show(figures)
    write(options.out, figures)
    if options.keep:
        command = " ".join(["evidence/scripts/figures-tune.py", *sys.argv[1:]])
        conditions = f"{PLATFORM}: speed and energy are of a model (docs/concepts/emulator-calibration.md)"
        write(options.keep, figures, **about(command, conditions))


if __name__ == "__main__":
    main()
