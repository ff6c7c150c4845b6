# SPDX-License-Identifier: Apache-2.0
"""What evidence/scripts/eight-gpus left in its folder, as one file of figures.

python3 -m evidence.analysis.eight_gpus OUT GPUS. Steps that did not run are left out; the file says which did.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from evidence.analysis import scaling_study
from support.figures import Figures, about, bare, size_name, write

from powerccl.commandline.summaries import summary_of
from powerccl.study.worlds import ScalingFindings


def points(path: Path) -> Iterator[dict[str, Any]]:
    """Points that powerccl-bench wrote line by line, the last of them maybe cut off."""
    for line in path.read_text().splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if found.get("type") == "point":
            yield found


def pattern_figures(path: Path) -> Figures:
    """bench.<pattern>.<size>.{time_us, busbw_gbs, watts_per_gpu, joules_per_gpu}; low and high where known."""
    found: Figures = {}
    for point in points(path):
        stem = f"bench.{point['pattern']}.{size_name(point['size_bytes'])}"
        bounds = {"low": point["time_low_us"], "high": point["time_high_us"]}
        found[f"{stem}.time_us"] = {"value": point["time_us"], "unit": "us", **bounds, "n": point["iterations"]}
        for name, unit in (("busbw_gbs", "GB/s"), ("watts_per_gpu", "W"), ("joules_per_gpu", "J")):
            if point.get(name) is not None:
                found[f"{stem}.{name}"] = bare(float(f"{point[name]:.5g}"), unit)
    return found


def policy_figures(out: Path) -> Figures:
    """policy.<policy>.{iterations, iteration_ms}: what each found; nothing was set."""
    found: Figures = {}
    for folder in sorted(out.glob("runs/*")):
        outcome = summary_of(folder).policy_outcome
        if outcome is None:
            continue
        stem = f"policy.{outcome.policy}"
        found[f"{stem}.iterations"] = bare(outcome.iterations, "")
        if outcome.iterations:
            found[f"{stem}.iteration_ms"] = bare(round(outcome.iteration_s * 1e3, 3), "ms", outcome.iterations)
    return found


def main() -> None:
    """Write OUT/eight-gpus.json."""
    out, gpus = Path(sys.argv[1]), sys.argv[2]
    found: dict[str, Figures] = {}  # by step
    gpu, emulated = "GPU", os.environ.get("EMULATE", "")
    if (path := out / "patterns.jsonl").exists() and path.stat().st_size:
        found["patterns"] = pattern_figures(path)
        gpu = json.loads(path.read_text().partition("\n")[0]).get("gpu", gpu)
    if (path := out / "plugin.json").exists():
        found["plugin"] = json.loads(path.read_text())["figures"]
    for path in sorted(out.glob("scaling*.json")):
        findings = msgspec.json.decode(path.read_bytes(), type=ScalingFindings)
        found[path.stem.replace("scaling", "training")] = scaling_study.figures(findings, f"analysis.h200.{path.stem}")
        gpu = next((world.gpu for world in findings.worlds if world.gpu), gpu)
    found["policies"] = policy_figures(out)
    if (path := out / "attribution.json").exists():
        found["attribution"] = json.loads(path.read_text() or "{}")
    steps = " ".join(step for step, of_step in found.items() if of_step)
    figures = {name: figure for of_step in found.values() for name, figure in of_step.items()}
    made = about(
        f"evidence/scripts/eight-gpus {gpus} OUT; steps with results: {steps}",
        "clocks never touched (policies dry), NVLink multicast off",
        f"{gpus} x {gpu}" + (f", emulated {emulated}" if emulated else ""),
    )
    write(out / "eight-gpus.json", figures, **made)
    print(f"{len(figures)} figures in {out}/eight-gpus.json: {steps}")


if __name__ == "__main__":
    main()
