#!/usr/bin/env python3
"""Measure a user's first minutes: how long `powerccl run -q -- true` takes. Run it on an idle machine."""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.figures import figure, show, write

RUNS = 15


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
                begin = time.perf_counter()
                subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
                if turn > 1:  # the first ones fill the caches
                    taken[name].append((time.perf_counter() - begin) * 1e3)
    figures = {name: figure(values, "ms", 1) for name, values in taken.items()}
    show(figures)
    write(out, figures)


if __name__ == "__main__":
    main()
