# SPDX-License-Identifier: Apache-2.0
"""What scripts/eight-gpus left in its folder, as one file of figures.

python3 -m bench.analysis.eight_gpus OUT GPUS COMMIT. Steps that did not run are left out; the file says which did.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from bench.analysis import scaling_study

from powerccl.aliases import figure_policy
from powerccl.analysis.findings import SUMMARY_FILE
from powerccl.analysis.scaling import ScalingFindings

Figure = dict[str, object]
SIZES = ((1 << 20, "MiB"), (1 << 10, "KiB"))


def size_name(size_bytes: int) -> str:
    """`64MiB`, `4KiB`: how figures name a size."""
    for unit, name in SIZES:
        if size_bytes >= unit:
            return f"{size_bytes // unit}{name}"
    return f"{size_bytes}B"


def points(path: Path) -> Iterator[dict[str, Any]]:
    """Points that powerccl-bench wrote line by line, the last of them maybe cut off."""
    for line in path.read_text().splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if found.get("type") == "point":
            yield found


def pattern_figures(path: Path) -> dict[str, Figure]:
    """bench.<pattern>.<size>.{time_us, busbw_gbs, watts_per_gpu, joules_per_gpu}; low and high where known."""
    found: dict[str, Figure] = {}
    for point in points(path):
        stem = f"bench.{point['pattern']}.{size_name(point['size_bytes'])}"
        bounds = {"low": point["time_low_us"], "high": point["time_high_us"]}
        found[f"{stem}.time_us"] = {"value": point["time_us"], "unit": "us", **bounds, "n": point["iterations"]}
        for name, unit in (("busbw_gbs", "GB/s"), ("watts_per_gpu", "W"), ("joules_per_gpu", "J")):
            if point.get(name) is not None:
                value = float(f"{point[name]:.5g}")
                found[f"{stem}.{name}"] = {"value": value, "unit": unit, "low": None, "high": None, "n": 1}
    return found


def policy_figures(out: Path) -> dict[str, Figure]:
    """policy.<policy>.{iterations, iteration_ms}: what each found; nothing was set."""
    found: dict[str, Figure] = {}
    for folder in sorted(out.glob(f"runs/*/{SUMMARY_FILE}")):
        outcome = json.loads(folder.read_text()).get("policy_outcome") or {}
        if "policy" not in outcome:
            continue
        stem, iterations = f"policy.{figure_policy(outcome['policy'])}", outcome.get("iterations", 0)
        found[f"{stem}.iterations"] = {"value": iterations, "unit": "", "low": None, "high": None, "n": 1}
        if iterations and outcome.get("iteration_s") is not None:
            value = round(outcome["iteration_s"] * 1e3, 3)
            found[f"{stem}.iteration_ms"] = {"value": value, "unit": "ms", "low": None, "high": None, "n": iterations}
    return found


def main() -> None:
    """Write OUT/eight-gpus.json."""
    out, gpus, commit = Path(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""
    found: dict[str, Figure] = {}
    steps, gpu, emulated = [], "GPU", os.environ.get("EMULATE", "")
    if (out / "patterns.jsonl").exists():
        found |= pattern_figures(out / "patterns.jsonl")
        gpu = json.loads((out / "patterns.jsonl").read_text().partition("\n")[0]).get("gpu", gpu)
        steps.append("patterns")
    if (out / "plugin.json").exists():
        found |= json.loads((out / "plugin.json").read_text())["figures"]
        steps.append("plugin")
    if (out / "scaling.json").exists():
        findings = msgspec.json.decode((out / "scaling.json").read_bytes(), type=ScalingFindings)
        found |= scaling_study.figures(findings, "analysis.h200.scaling")
        gpu = next((world.gpu for world in findings.worlds if world.gpu), gpu)
        steps.append("training")
    policies = policy_figures(out)
    steps += ["policies"] if policies else []
    kept = {
        "figures": found | policies,
        "command": f"scripts/eight-gpus {gpus} OUT; steps with results: {' '.join(steps)}",
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
        "machine": f"{gpus} x {gpu}" + (f", emulated {emulated}" if emulated else ""),
        "conditions": "clocks never touched (policies dry), NVLink multicast off",
    }
    (out / "eight-gpus.json").write_text(json.dumps(kept, indent=1) + "\n")
    print(f"{len(found | policies)} figures in {out}/eight-gpus.json: {' '.join(steps)}")


if __name__ == "__main__":
    main()
