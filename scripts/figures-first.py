#!/usr/bin/env python3
"""Measure a user's first minutes: how long `powerccl run -q -- true` takes. Run it on an idle machine."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 15


def elapsed_ms(command: list[str], folder: Path) -> float:
    """Wall time of a command."""
    begin = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - begin) * 1e3


def main() -> None:
    """Take turns with `true` alone, so that what differs is the wrapper's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    powerccl = str(Path(sys.executable).with_name("powerccl"))
    ways = {"run.true_ms": [powerccl, "run", "-q", "--", "true"], "run.alone_ms": ["true"]}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(RUNS + 2):
            for name, command in ways.items():
                took = elapsed_ms(command, Path(folder))
                if turn > 1:  # the first ones fill the caches
                    taken[name].append(took)
    figures = {}
    for name, values in taken.items():
        low, _, high = statistics.quantiles(values, n=4)
        median = statistics.median(values)
        ends = {"low": round(low, 1), "high": round(high, 1)}
        figures[name] = {"value": round(median, 1), "unit": "ms", **ends, "n": RUNS}
        print(f"{name:<14} {median:6.1f} ms ({low:.1f} to {high:.1f})")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
