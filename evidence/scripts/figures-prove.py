#!/usr/bin/env python3
"""Hold what `powerccl prove` finds on emulated servers against their platform files, and kill it at random moments.

All figures are emulated. An error is relative to what the platform file says at the clock that was read; points at a
power limit are left out, as the fit leaves them out. value is the median of a quantity, high its worst.
Takes some 25 minutes for three servers, and 50 more for 100 kills.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/e2e"), str(ROOT / "tests")]

from evidence.analysis.power_law import PowerLaw
from harness import IDLE_MHZ, EmulatedMachine
from support.figures import Figure, Figures, about, one, show, write

from powerccl.files import read_json
from powerccl.launch.native import NativeFiles, find_native
from powerccl.patterns import bus_factor
from powerccl.platforms.conf import changed, points_of
from powerccl.prove.file import LoadPoint, Proof
from powerccl.prove.fit import Power, at_size, fit_power, free
from powerccl.prove.loads import ALL_REDUCE_BYTES, ITERATION_MS

PLATFORMS = "h100x8,a100x4,h200x4"
ACTIVITIES = {"idle": (0.0, 0.0), "product": (1.0, 0.0), "copy": (0.0, 1.0), "decode": (0.15, 0.85)}
# A stall, and calls of one length: a median of few draws is not their truth.
CHANGES = {"set_clock_stall_us": "10000", "set_clock_call_spread": "0", "clock_transition_spread": "0"}
PATIENCE_S = 5.0  # after a kill, until all GPUs are idle at their idle clock: neither locked nor at work
COMMAND = [sys.executable, "-m", "powerccl", "prove"]


class Truth(PowerLaw):
    """A platform file's law, as native/testbed/physics has it."""

    def at_size(self, key: str, power_law: bool = False) -> float:
        """A curve's value at the size that is reduced."""
        return at_size(points_of(self.conf, key), ALL_REDUCE_BYTES, power_law)

    def watts(self, load: str, clock_mhz: float) -> float:
        """What a GPU draws."""
        idle, product, copy = self.terms(clock_mhz)
        if load == "all-reduce":
            return idle + self.at_size("comm_w") + self.number("comm_clock_w") * self.f_v2(clock_mhz)
        compute, memory = ACTIVITIES[load]
        return max(idle + compute * product + memory * copy, self.number("idle_p8_w"))

    def time_ms(self, load: str, clock_mhz: float, all_reduces: int) -> float:
        """What an iteration takes."""
        if load != "all-reduce":
            share = ACTIVITIES[load][1]
            return ITERATION_MS * (share + (1 - share) * self.number("reference_clock_mhz") / clock_mhz)
        knee, fall = self.at_size("all_reduce.knee_mhz"), self.at_size("all_reduce.fall")
        gbs = self.at_size("all_reduce.bandwidth_gbs", power_law=True) * min(1.0, float((clock_mhz / knee) ** fall))
        us = bus_factor("all_reduce", round(self.number("gpus"))) * ALL_REDUCE_BYTES / gbs / 1e3
        return us * all_reduces / 1e3


def off_pct(found: float, truth: float) -> float:
    """Percent by which a finding is off."""
    return abs(found / truth - 1) * 100


def errors_of(proof: Proof, truth: Truth) -> dict[str, list[float]]:
    """Percent by quantity."""
    found: dict[str, list[float]] = {"power": [], "time": [], "fit": [], "call": [], "transition": []}
    law = fit_power(proof.loads, points_of(truth.conf, "voltage_v")[0][1])
    for each in free(proof.loads):
        assert each.watts and each.sm_clock_mhz
        found["power"].append(off_pct(each.watts, truth.watts(each.load, each.sm_clock_mhz)))
        if each.time_ms:
            found["time"].append(off_pct(each.time_ms, time_of(proof, truth, each)))
        if isinstance(law, Power):
            found["fit"].append(off_pct(law.of(each.load, each.clock_mhz), truth.watts(each.load, each.clock_mhz)))
    if proof.calls:
        found["call"].append(off_pct(proof.calls.median_us, truth.number("set_clock_call_us")))
    for transition in proof.transitions:
        found["transition"].append(off_pct(transition.median_ms * 1e3, truth.number("clock_transition_us")))
    return found


def time_of(proof: Proof, truth: Truth, point: LoadPoint) -> float:
    """The truth of a point's time."""
    assert point.sm_clock_mhz
    single_us = next((each.time_us for each in proof.points if each.clock_mhz == point.clock_mhz), 0.0)
    count = round((point.time_ms or 0) * 1e3 / single_us) if single_us else 0
    return truth.time_ms(point.load, point.sm_clock_mhz, count)


def prove(platform: str, out: Path) -> Proof:
    """Run it at its full length on the platform with CHANGES; what it found."""
    server = f"{platform}:" + ",".join(f"{key}={value}" for key, value in CHANGES.items())
    subprocess.run([*COMMAND, "--emulate", server, "--out", str(out)], check=True, cwd=out.parent)
    return read_json(out, Proof)


def kill_once(native: NativeFiles, after_s: float, whole_group: bool) -> tuple[bool | None, str]:
    """Whether a killed run left a GPU that is not at rest at its idle clock, and its last words; None: it had ended."""
    with tempfile.TemporaryDirectory(prefix="powerccl-killed-") as place:
        folder = Path(place)
        machine = EmulatedMachine(native, folder)
        environment = {**os.environ, **machine.environment, "CUDA_VISIBLE_DEVICES": "0,1"}
        with (folder / "words").open("wb") as words:
            process = subprocess.Popen(
                [*COMMAND, "--quick", "--out", "proof.json"],
                cwd=folder,
                env=environment,
                stdout=words,
                stderr=words,
                start_new_session=True,
            )
        time.sleep(after_s)
        ended = process.poll() is not None
        if not ended:
            os.kill(-process.pid if whole_group else process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(PATIENCE_S)
        clocks = machine.clocks_mhz()
        machine.stop()
        said = [line for line in (folder / "words").read_text().splitlines() if line.startswith("powerccl:")]
        left = None if ended else clocks != [IDLE_MHZ] * len(clocks)
        return left, f"{said[-1] if said else 'nothing yet'}, {after_s:.1f} s: {clocks}"


def kills(native: NativeFiles, count: int, most_s: float, together: int) -> int:
    """How many of so many kills left a clock. Every other kills the whole process group."""
    draws = random.Random(63)
    lefts: list[bool] = []
    with ThreadPoolExecutor(together) as pool:
        while len(lefts) < count:
            moments = [(draws.uniform(0.5, most_s), index % 2 == 1) for index in range(count - len(lefts))]
            for left, words in pool.map(lambda each: kill_once(native, *each), moments):
                print({None: "over", True: "LEFT", False: "back"}[left], words, flush=True)
                lefts += [] if left is None else [left]
    return sum(lefts)


def figure(values: list[float], unit: str) -> Figure:
    """The median, the least and the worst."""
    rounded = [round(value, 2) for value in (median(values), min(values), max(values))]
    return {"value": rounded[0], "unit": unit, "low": rounded[1], "high": rounded[2], "n": len(values)}


def main() -> None:
    """Print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--platforms", default=PLATFORMS, help="emulated servers, separated by commas")
    parser.add_argument("--proofs", type=Path, help="folder to keep the proofs in, and to take those there from")
    parser.add_argument("--kills", type=int, default=100, help="0: none")
    parser.add_argument("--kill-within-s", type=float, default=75.0, help="a quick run's length")
    parser.add_argument("--together", type=int, default=2, help="kills at a time")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    native = find_native()
    figures: Figures = {}
    errors: dict[str, list[float]] = {}
    seconds: list[float] = []
    stalls: list[float] = []
    with tempfile.TemporaryDirectory(prefix="powerccl-figures-prove-") as temporary:
        folder = asked.proofs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for platform in filter(None, asked.platforms.split(",")):
            kept = folder / f"{platform}.json"
            conf = native.emulated_platforms()[platform].read_text()
            proof = read_json(kept, Proof) if kept.exists() else prove(platform, kept.resolve())
            truth = Truth(changed(conf, CHANGES))
            seconds.append(proof.seconds)
            assert proof.restored and proof.restored.all_back
            for quantity, values in errors_of(proof, truth).items():
                errors.setdefault(quantity, []).extend(values)
            stalls += [abs(each.ms_per_call.value - truth.number("set_clock_stall_us") / 1e3) for each in proof.stalls]
        for quantity, values in errors.items():
            figures[f"prove.{quantity}.error_pct"] = figure(values, "%")
        if errors:
            figures["prove.stall.error_ms"] = figure(stalls, "ms")
            figures["prove.error_pct"] = one(round(max(max(each) for each in errors.values()), 2), "%", len(seconds))
            figures["prove.seconds"] = figure(seconds, "s")
    if asked.kills:
        left = kills(native, asked.kills, asked.kill_within_s, asked.together)
        figures["prove.left_low"] = one(left, "1", asked.kills)
    show(figures)
    conditions = (
        "errors against the platform file, with calls of one length and a stall of 10 ms, at the clock that was read; "
        "value: the median, high: the worst; points at a power limit left out"
    )
    write(asked.out, figures, **about("make figures-prove", conditions))
    print(json.dumps({"worst": {name: max(each) for name, each in errors.items()}}))


if __name__ == "__main__":
    main()
