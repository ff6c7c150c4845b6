# SPDX-License-Identifier: Apache-2.0
"""What computation alone draws at each clock: powerccl-bench's own kernel, for some seconds a clock."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path

from powerccl.platforms.schema import ComputingPoint

SCENARIO = "compute 200\n"  # ms at the clock found: energy counters that change every 100 ms tell each
WARM_UP, MEASURED = 10, 8  # a die takes seconds to settle at another power
CUT = 0.98  # of the clock asked for: below, a power limit held it down

Run = Callable[[list[str]], None]  # powerccl-bench with these arguments; raises PowercclError


def measure(run: Run, clocks_mhz: list[int], work: Path, provenance: str) -> list[ComputingPoint]:
    """Ascending clocks up to the first that a power limit cuts; what `work` holds already is not measured again."""
    scenario, kept = work / "computing.scn", work / "computing.jsonl"
    scenario.write_text(SCENARIO, encoding="utf-8")
    known = _read(kept)
    for mhz in sorted(clocks_mhz):
        if mhz not in known:
            report = work / "computing.json"
            counts = ["--warmup", str(WARM_UP), "--iterations", str(MEASURED)]
            run(["scenario", str(scenario), "--clocks", str(mhz), *counts, "--json", str(report)])
            known[mhz] = watts_at(json.loads(report.read_text()), mhz)
            report.unlink()
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps([mhz, known[mhz]]) + "\n")
        if known[mhz] is None:
            break
    return [
        ComputingPoint(clock_mhz=mhz, watts=round(watts, 2), provenance=provenance)
        for mhz, watts in sorted(known.items())
        if watts is not None
    ]


def watts_at(report: dict[str, object], mhz: int) -> float | None:
    """Mean power of a GPU in the measured iterations; None: it was not at that clock, or there was no energy."""
    results = report["results"]
    assert isinstance(results, list)
    measured = [each for each in results if not each["warmup"]]
    joules = [each["joules_per_gpu"] for each in measured]
    clocks = [each["sm_clock_mhz"] for each in measured if each.get("sm_clock_mhz")]
    if not measured or None in joules or not clocks or statistics.fmean(clocks) < CUT * mhz:
        return None
    return float(sum(joules) / sum(each["step_ms"] for each in measured) * 1e3)


def _read(path: Path) -> dict[int, float | None]:
    """What an interrupted profile measured; a line cut off is ignored."""
    found: dict[int, float | None] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            mhz, watts = json.loads(line)
        except ValueError:
            continue
        found[mhz] = watts
    return found
