#!/usr/bin/env python3
"""Time `powerccl runs` over 10,000 run folders, and what an iteration's energy adds to a run's summary.

A short job is recorded on an emulated server. Its run.json and summary.json are written 10,000 times, each with a name
and a time of its own. The first list reads all of them; the lists after it read the cache that the first one made.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "python")]

from support.figures import Figures, about, figure, one, show, write

COMMAND = [sys.executable, "-m", "powerccl"]
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
REPEATS = 5


def record(folder: Path, seconds: float) -> Path:
    """A run of a data-parallel job on an emulated server, with its summary."""
    scenario = ROOT / "bench/scenarios/ddp.scn"
    job = ["powerccl-bench", "scenario", str(scenario), "--seconds", str(seconds)]
    run = ["run", "--emulate", "t4x8", "--policy", "observe", "--runs-dir", str(folder), "--", *job]
    subprocess.run([*COMMAND, *run], check=True, capture_output=True)
    (made,) = (path for path in folder.iterdir() if (path / "run.json").exists())
    return made


def multiply(run: Path, folder: Path, count: int) -> None:
    """`count` folders with the run.json and the summary.json of one run, an hour apart, of fifty names."""
    info, summary = json.loads((run / "run.json").read_text()), (run / "summary.json").read_bytes()
    for number in range(count):
        at, name = START + timedelta(hours=number), f"job{number % 50}"
        made = folder / f"{at:%Y%m%d-%H%M%S}-{name}"
        made.mkdir(parents=True)
        info.update(name=name, started_at=f"{at:%Y-%m-%dT%H:%M:%S%z}")
        (made / "run.json").write_text(json.dumps(info, indent=2))
        (made / "summary.json").write_bytes(summary)


def timed(*words: str) -> float:
    """Seconds that a command takes, its start included."""
    begin_s = time.monotonic()
    subprocess.run([*COMMAND, *words], check=True, capture_output=True)
    return time.monotonic() - begin_s


def iteration_cost_pct(run: Path) -> list[float]:
    """What time and energy of an iteration take, in percent of all of the summary's time."""
    from unittest.mock import patch

    from powerccl.analysis.iteration_energy import add_iteration
    from powerccl.commandline.summaries import make_summary

    inside_s = 0.0

    def measured(*arguments: Any) -> None:
        nonlocal inside_s
        begin_s = time.perf_counter()
        add_iteration(*arguments)
        inside_s += time.perf_counter() - begin_s

    shares = []
    with patch("powerccl.analysis.summary.add_iteration", measured):
        for _ in range(REPEATS + 1):
            inside_s, begin_s = 0.0, time.perf_counter()
            make_summary(run)
            shares.append(100 * inside_s / (time.perf_counter() - begin_s))
    return shares[1:]  # the first one imports


def measure(count: int, seconds: float) -> Figures:
    """All figures, in a folder that is removed."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        run = record(folder / "recorded", seconds)
        multiply(run, folder / "runs", count)
        where = ("--runs-dir", str(folder / "runs"))
        first_s = timed("runs", *where)
        os.environ.update(COMP_WORDS=f"powerccl report {' '.join(where)} job4", COMP_CWORD="4")
        figures: Figures = {
            "runs.folders": one(count, "1"),
            "runs.first_list_s": one(round(first_s, 2), "s"),
            "runs.list_s": figure([timed("runs", *where) for _ in range(REPEATS)], "s", 2),
            "runs.list_all_json_s": figure([timed("runs", *where, "--json", "-") for _ in range(REPEATS)], "s", 2),
            "runs.sorted_s": figure([timed("runs", *where, "--sort", "energy") for _ in range(REPEATS)], "s", 2),
            "runs.cache_mib": one(
                round(sum(file.stat().st_size for file in (folder / "cache").rglob("*.json")) / (1 << 20), 1), "MiB"
            ),
        }
        os.environ["_POWERCCL_COMPLETE"] = "bash_complete"
        figures["runs.completion_s"] = figure([timed() for _ in range(REPEATS)], "s", 2)
        del os.environ["_POWERCCL_COMPLETE"]
        figures["runs.iteration_of_summary_pct"] = figure(iteration_cost_pct(run), "%", 3)
        return figures


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folders", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=8.0, help="of the recorded job")
    options = parser.parse_args()
    found = measure(options.folders, options.seconds)
    show(found)
    conditions = (
        "Files on a local disk, in the kernel's page cache. Times are of a whole command, with the interpreter's start."
    )
    write(options.out, found, **about("evidence/scripts/figures-runs.py", conditions))


if __name__ == "__main__":
    main()
