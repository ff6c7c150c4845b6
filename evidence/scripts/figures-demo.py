#!/usr/bin/env python3
"""Measure the figures of the demo and of the profile again: a flat map name -> {value, unit, low, high, n}.

Runs `powerccl demo` over the four models and `powerccl profile` on the emulated t4x8, and the microbenchmarks of the
in-job code. Everything but the latter is emulated. About ten minutes on two cores.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.figures import Figures, figure, one, show, write

from powerccl.platforms.policy_table import minimum_clocks
from powerccl.platforms.store import load_profile

MODELS = ("microllama", "opt", "gpt2", "distilgpt2")


def demo(folder: Path) -> Figures:
    """The replays of the four models under observe and per-call."""
    out = folder / "demo.json"
    models = [option for model in MODELS for option in ("--model", model)]
    subprocess.run(["powerccl", "demo", *models, "--json", str(out), "--runs-dir", str(folder)], check=True)
    figures: Figures = json.loads(out.read_text())
    return {name: value for name, value in figures.items() if name.startswith("demo.")}


def profile(out: Path) -> Figures:
    """A fresh profile of t4x8, kept in `out`: how long it takes, minimum clocks and overhead points."""
    started = time.monotonic()
    subprocess.run(["powerccl", "profile", "--emulate", "t4x8", "--out", str(out)], check=True)
    figures = {"profile.t4x8.seconds": one(round(time.monotonic() - started, 1), "s")}
    found = load_profile(str(out))
    large = 2 << 20
    for pattern, clocks in minimum_clocks(found).items():
        above = [mhz for size, mhz in clocks.items() if size > large]
        if above:
            ends = {"low": min(above), "high": max(above)}
            figures[f"profile.t4x8.{pattern}.min_clock_mhz"] = one(max(above), "MHz", len(above)) | ends
    for point in found.overhead:
        size = -1 if point.size_bytes is None else point.size_bytes
        figures[f"profile.t4x8.{point.pattern}.overhead_bytes"] = one(size, "B")
    return figures


def micro(program: Path) -> Figures:
    """Google Benchmark's times of the hot paths, ten repetitions."""
    if not program.exists():
        print(f"{program} is not built: no runtime.* figures\nhint: make bench", file=sys.stderr)
        return {}
    command = [str(program), "--benchmark_format=json", "--benchmark_repetitions=10"]
    runs = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["benchmarks"]
    figures = {}
    for name in ("trace_append_ns", "lookup_ns"):
        first = next(r["run_name"] for r in runs if r["run_name"].startswith(name))
        times = [r["cpu_time"] for r in runs if r["run_type"] == "iteration" and r["run_name"] == first]
        figures[f"runtime.{name}"] = figure(times, "ns", 2)
    return figures


def main() -> None:
    """Measure what is asked for and write one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--micro", type=Path, default=ROOT / "build/test/bench/micro/powerccl_runtime_benchmark")
    parser.add_argument("--profile", type=Path, help="keep the profile there, with its page of curves")
    parser.add_argument("--skip-profile", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = demo(folder)
        if not options.skip_profile:
            figures |= profile(options.profile or folder / "t4x8.json")
    figures |= micro(options.micro)
    write(options.out, figures)
    show(figures)


if __name__ == "__main__":
    main()
