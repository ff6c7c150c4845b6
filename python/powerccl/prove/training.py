# SPDX-License-Identifier: Apache-2.0
"""The built-in training step without a policy and under `auto`, in turns, as jobs of `powerccl run`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import fmean

import msgspec

from powerccl.bench.process import end_group
from powerccl.errors import PowercclError
from powerccl.estimate import Estimate
from powerccl.files import read_json
from powerccl.launch.gpus import importable
from powerccl.launch.native import BENCH
from powerccl.launch.services import last_line
from powerccl.prove import loads
from powerccl.prove.file import Training
from powerccl.prove.rig import Rig

MOST_S = 570.0  # no pair of runs begins that would end behind it: an administrator was promised ten minutes
END_S = 10.0


class _Summary(msgspec.Struct):
    iterations: int
    run_s: float
    run_joules_all_gpus: float | None = None


class _Scenario(msgspec.Struct):
    summary: _Summary


def measure_training(rig: Rig, started: float) -> Training | None:
    """Time and energy of a step; None where energy is not known. A dry run has no policy."""
    rig.say("the training step" + ("" if rig.dry else " without a policy and under auto, in turns"))
    policies = ["observe"] if rig.dry else ["observe", "auto"]
    runs: dict[str, list[tuple[float, float]]] = {policy: [] for policy in policies}
    needed_s = len(policies) * (rig.pace.train_s + loads.START_S)
    for pair in range(rig.pace.pairs):
        if pair and time.monotonic() - started + needed_s > MOST_S:
            break
        for policy in policies if pair % 2 == 0 else reversed(policies):
            summary = _run(rig, policy, f"{policy}-{pair}")
            if summary.run_joules_all_gpus is None:
                return None
            runs[policy].append(
                (summary.run_s * 1e3 / summary.iterations, summary.run_joules_all_gpus / summary.iterations)
            )
    alone = runs["observe"]
    both = list(zip(alone, runs.get("auto", []), strict=False))
    return Training(
        step_ms=_spread([step for step, _ in alone], "ms"),
        joules=_spread([joules for _, joules in alone], "J"),
        saved_pct=_spread([(1 - auto[1] / plain[1]) * 100 for plain, auto in both], "%") if both else None,
        slowdown_pct=_spread([(auto[0] / plain[0] - 1) * 100 for plain, auto in both], "%") if both else None,
        seconds=rig.pace.train_s,
    )


def _run(rig: Rig, policy: str, name: str) -> _Summary:
    """One run, the policy's learning included."""
    scenario, out, log = (rig.folder / f"{name}{ending}" for ending in (".scn", ".json", ".log"))
    scenario.write_text(loads.STEP.scenario)
    bench = [str(rig.native.path(BENCH)), "scenario", str(scenario), "-g", str(rig.count), *loads.STEP.options]
    bench += ["--seconds", f"{rig.pace.train_s:g}", "--json", str(out)]
    run = ["run", "--policy", policy, "--runs-dir", str(rig.folder), "--name", name]
    run += ["--set-clocks"] if policy != "observe" else []
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "powerccl.prove.follow", str(os.getpid()), *run, "--", *bench],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=importable(rig.environment),
            start_new_session=True,
        )
    try:
        code = process.wait()
    except BaseException:
        end_group(process, END_S)
        raise
    if code:
        raise PowercclError(f"the training step under {policy} ended with {code}: {last_line(log)}", f"read {log}")
    return read_json(out, _Scenario).summary


def _spread(values: list[float], unit: str) -> Estimate:
    """The mean, from the least to the most."""
    return Estimate(round(fmean(values), 3), round(min(values), 3), round(max(values), 3), len(values), unit)
