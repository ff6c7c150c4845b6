#!/usr/bin/env python3
"""Measure what the plugin costs a collective, against no plugin, in one run: all variants in turn, many rounds.

Every round starts powerccl-bench once a variant (two or more real GPUs) and takes its time per operation at each size.
The figure of a size is the median over the rounds of the difference to the round's own run without a plugin; low and
high are the quartiles. Writes the figures as a flat map, again after every round: one that is stopped
has what was measured until then.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.figures import Figures, figure, show
from support.figures import write as write_figures

SIZES = {4096: "4KiB", 1 << 20: "1MiB", 64 << 20: "64MiB"}


def variants(plugin: str, inspector: str | None) -> dict[str, dict[str, str]]:
    """Return each variant's environment on top of the caller's."""
    ours = {"NCCL_PROFILER_PLUGIN": plugin, "POWERCCL_POLICY": "observe", "POWERCCL_CLOCKS": "dry"}
    found = {
        "none": {"NCCL_PROFILER_PLUGIN": "none"},
        "api": ours | {"POWERCCL_KERNEL_EVENTS": "none"},
        "selected": ours | {"POWERCCL_KERNEL_EVENTS": "auto"},
        "all": ours | {"POWERCCL_KERNEL_EVENTS": "all"},
        # As `powerccl run` starts a job: the library is also preloaded.
        "preload": ours | {"POWERCCL_KERNEL_EVENTS": "auto", "LD_PRELOAD": plugin},
    }
    if inspector:
        found["inspector"] = {
            "NCCL_PROFILER_PLUGIN": inspector,
            "NCCL_INSPECTOR_ENABLE": "1",
            "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500",
        }
        found["chained"] = found["inspector"] | found["preload"] | {"POWERCCL_CHAINED_PROFILER": inspector}
    return found


def times_us(bench: str, gpus: int, iterations: int, env: dict[str, str]) -> dict[int, float]:
    """Run powerccl-bench once; return microseconds per operation by size in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.json"
        run = Path(folder) / "run"
        run.mkdir()
        command = [bench, "all_reduce", "-b", "4K", "-e", "64M", "-f", "4", "-g", str(gpus), "-c", "0", "--no-energy"]
        command += ["-n", str(iterations), "-w", str(iterations // 4), "--timeout", "60", "--json", str(out)]
        if os.environ.get("POWERCCL_NCCL_LIBRARY"):
            command += ["--nccl", os.environ["POWERCCL_NCCL_LIBRARY"]]
        environment = os.environ | env | {"POWERCCL_RUN_FOLDER": str(run), "NCCL_INSPECTOR_DUMP_DIR": str(run)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
        if done.returncode != 0:
            print(done.stdout[-2000:], done.stderr[-2000:], file=sys.stderr)
            raise SystemExit(f"powerccl-bench failed with {done.returncode} under {env}")
        return {point["size_bytes"]: point["time_us"] for point in json.loads(out.read_text())["results"]}


def write(out: Path, raw: dict[str, list[dict[int, float]]]) -> Figures:
    """Write the figures of the rounds so far."""
    figures: Figures = {}
    for size, label in SIZES.items():
        base = [round_[size] for round_ in raw["none"]]
        figures[f"plugin.{label}.none.time_us"] = figure(base, "us")
        for name, mine in raw.items():
            if name == "none":
                continue
            added = [with_it[size] - without for with_it, without in zip(mine, base, strict=True)]
            figures[f"plugin.{label}.{name}.added_us"] = figure(added, "us")
            percent = [100 * value / without for value, without in zip(added, base, strict=True)]
            figures[f"plugin.{label}.{name}.added_pct"] = figure(percent, "%")
        if "chained" in raw and "inspector" in raw:
            pairs = list(zip(raw["chained"], raw["inspector"], strict=True))
            figures[f"plugin.{label}.chained.over_inspector_us"] = figure([c[size] - i[size] for c, i in pairs], "us")
            figures[f"plugin.{label}.chained.over_inspector_pct"] = figure(
                [100 * (c[size] / i[size] - 1) for c, i in pairs], "%"
            )
    write_figures(out, figures)
    return figures


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--plugin", required=True)
    parser.add_argument("--inspector")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0, help="begin no round that would not end within so many")
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--variants", default="", metavar="LIST", help="of none, api, selected, all; none always")
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args()

    modes = variants(options.plugin, options.inspector)
    wanted = options.variants.split(",") if options.variants else list(modes)
    if unknown := sorted(set(wanted) - set(modes)):
        parser.error(f"--variants: {unknown[0]} is none of {', '.join(modes)}")
    modes = {name: environment for name, environment in modes.items() if name in {"none", *wanted}}
    raw: dict[str, list[dict[int, float]]] = {name: [] for name in modes}
    began_s = time.monotonic()
    for index in range(options.rounds):
        order = list(modes)
        random.Random(index).shuffle(order)
        for name in order:
            raw[name].append(times_us(options.bench, options.gpus, options.iterations, modes[name]))
        written = write(options.out, raw)
        took_s = (time.monotonic() - began_s) / (index + 1)
        if options.seconds and time.monotonic() - began_s + took_s > options.seconds:
            break
    show(written)


if __name__ == "__main__":
    main()
