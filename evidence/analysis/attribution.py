# SPDX-License-Identifier: Apache-2.0
"""Attributed energy against what the emulated GPUs really drew (POWERCCL_EMULATOR_TRUTH), for each scenario.

The energy of a kind is all that a GPU drew while it ran, computation beside it included; where k kinds ran at once,
each has a k-th. The truth sums the model's own integration of power by what ran, the estimate knows the trace and
samples only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support.figures import Figures, one

from powerccl.analysis.attribution import EnergyFindings, KindEnergy, attribute
from powerccl.commandline.references import own_reference
from powerccl.traces.folder import read_run

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "bench/scenarios"
PLATFORM = "t4x8:refresh_ms=100"
INTERVAL_MS = 3  # of which only clocks change more often than every 100 ms
LEAST_SHARE = 0.01  # of a GPU's time awake: rarer kinds are not judged
CLOSE_PCT = 5  # of the truth
STEP_MS = {"exposed": 112, "ddp": 112, "zero1": 111, "fsdp": 118, "tp": 87, "pp": 91, "moe": 107, "straggler": 105}

Kind = tuple[str, int]


@dataclass
class Truth:
    """What one kind really took, over all GPUs: `part` says how much of the GPUs' time awake."""

    joules: float = 0.0
    seconds: float = 0.0
    exposed_joules: float = 0.0
    exposed_seconds: float = 0.0
    operations: int = 0
    part: float = 0.0


@dataclass
class Judged:
    """One kind of one run: the estimate beside the truth."""

    scenario: str
    estimate: KindEnergy
    truth: Truth

    @property
    def true_joules(self) -> float:
        """Of one operation."""
        return self.truth.joules / max(self.truth.operations, 1)

    @property
    def error_pct(self) -> float | None:
        """Of the joules of an operation; None where the estimate says that it does not know."""
        found = self.estimate.joules_per_operation
        return None if found is None else 100 * (found / self.true_joules - 1)

    @property
    def covered(self) -> bool | None:
        """Whether the interval holds the truth."""
        if self.estimate.low is None or self.estimate.high is None:
            return None
        return self.estimate.low <= self.true_joules <= self.estimate.high

    @property
    def exposed_error_pct(self) -> float | None:
        """Of the power while nothing computes beside it."""
        found = self.estimate.exposed_watts
        if found is None or self.truth.exposed_seconds < 0.01 * self.truth.seconds:
            return None
        return 100 * (found * self.truth.exposed_seconds / self.truth.exposed_joules - 1)


def read_truth(path: Path) -> dict[Kind, Truth]:
    """What each kind took."""
    data = json.loads(path.read_text())
    found: dict[Kind, Truth] = {}
    awake = 0.0
    for state in data["states"]:
        seconds = 0.0 if state["asleep"] else state["ns"] / 1e9
        awake += seconds
        kinds = {(each["pattern"], each["size_class_bytes"]) for each in state["running"]}
        for kind in kinds:
            truth = found.setdefault(kind, Truth())
            truth.seconds += seconds / len(kinds)
            truth.joules += state["joules"] / len(kinds)
            if not state["computing"]:
                truth.exposed_seconds += seconds / len(kinds)
                truth.exposed_joules += state["joules"] / len(kinds)
    for each in data["operations"]:
        found.setdefault((each["pattern"], each["size_class_bytes"]), Truth()).operations += each["count"]
    for truth in found.values():
        truth.part = truth.seconds / awake if awake else 0.0
    return found


def record(scenario: str, folder: Path, seconds: float) -> tuple[Path, Path]:
    """Run a scenario under `observe`, unless the folder holds it already; the run folder and the truth.

    Raises:
        subprocess.CalledProcessError: the run failed.
    """
    from powerccl.launch.native import find_native

    folder.mkdir(parents=True, exist_ok=True)
    truth = folder / f"{scenario}.truth.json"
    runs = sorted(folder.glob(f"*-{scenario}"))
    if truth.exists() and runs:
        return runs[-1], truth
    bench = find_native().path("bin/powerccl-bench")
    iterations = max(20, round(seconds * 1000 / STEP_MS.get(scenario, 100)))
    command = [sys.executable, "-m", "powerccl", "run", "-q", "--emulate", PLATFORM, "--platform", "t4x8"]
    command += ["--policy", "observe", "--interval-ms", str(INTERVAL_MS), "--runs-dir", str(folder), "--name", scenario]
    command += ["--", str(bench), "scenario", str(SCENARIOS / f"{scenario}.scn"), "--iterations", str(iterations)]
    environment = {**os.environ, "POWERCCL_EMULATOR_TRUTH": str(truth)}
    subprocess.run([*command, "-w", "5"], check=True, env=environment, stdout=subprocess.DEVNULL)
    return sorted(folder.glob(f"*-{scenario}"))[-1], truth


def judge(scenario: str, run: Path, truth: Path) -> tuple[EnergyFindings, list[Judged]]:
    """All kinds of a run that hold enough of its time."""
    data = read_run(run)
    findings = attribute(data, reference=own_reference(data))
    found = {(kind.pattern, kind.size_class_bytes): kind for kind in findings.kinds}
    judged = []
    for kind, true in sorted(read_truth(truth).items(), key=lambda entry: -entry[1].seconds):
        if true.part >= LEAST_SHARE and kind in found:
            judged.append(Judged(scenario, found[kind], true))
    return findings, judged


def figures(judged: list[Judged]) -> Figures:
    """Worst errors and coverage, per scenario and over all."""
    found: Figures = {}
    scenarios = list(dict.fromkeys(each.scenario for each in judged))
    for name, own in [*((f".{s}", [j for j in judged if j.scenario == s]) for s in scenarios), ("", judged)]:
        errors = [abs(each.error_pct) for each in own if each.error_pct is not None]
        alone = [abs(each.exposed_error_pct) for each in own if each.exposed_error_pct is not None]
        covered = [each.covered for each in own if each.covered is not None]
        stem = f"analysis.attribution{name}"
        for kind, values in (("", errors), ("exposed_", alone)):
            if values:
                worst = one(round(max(values), 2), "%", len(values))
                found[f"{stem}.{kind}worst_error_pct"] = worst | {"low": round(min(values), 2)}
        near = sum(error <= CLOSE_PCT for error in errors)
        found[f"{stem}.within_{CLOSE_PCT}_pct"] = one(near, "kinds", len(own))
        share = round(100 * sum(covered) / len(covered), 1) if covered else None
        found[f"{stem}.coverage_pct"] = one(share, "%", len(covered))
        found[f"{stem}.unresolved"] = one(sum(each.error_pct is None for each in own), "kinds", len(own))
    return found
