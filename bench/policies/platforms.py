# SPDX-License-Identifier: Apache-2.0
"""The emulated platforms that policies are measured on, and the profile that each policy is given there."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
from bench.oracle.platform import read_platform

from powerccl.platforms.policy_table import overhead_points
from powerccl.platforms.schema import ClockSwitch, OverheadSample, PlatformProfile, Point, encode
from powerccl.platforms.store import load_profile

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "bench/scenarios"
PROVENANCE = "modelled"

# As `powerccl run --emulate` and `python -m bench.oracle --platform` take them.
PLATFORMS = {
    "t4x8": "t4x8",
    "t4x8-fastlink": "t4x8:link_scale=4",
    "t4x8-fastswitch": "t4x8:set_clock_call_us=20,clock_transition_us=30",
    "t4x8-slowswitch": "t4x8:set_clock_call_us=4500,clock_transition_us=20000",
    "t4x8-crawl": "t4x8:set_clock_call_us=4500,clock_transition_us=100000",
    "h200x4": "h200x4",
}
MODELS_ON = "t4x8"
# Dies that warm for seconds: a baseline after 2 s takes 0.5 % less energy than after 9 s, as much as a policy may lose.
SLOW_TO_SETTLE = ("h200x4",)
# What scenarios use; a whole profile takes four times as long.
PROFILED = ["--patterns", "all_reduce,all_gather,reduce_scatter,all_to_all,send_receive"]
PROFILED += ["--sizes", "1M,4M,16M,64M,128M"]


@dataclass(frozen=True)
class Traits:
    """What of a scenario decides how iterations are compared: where sections begin, and whether draws differ."""

    begins: tuple[float, ...] = (0.0,)
    varies: bool = False

    @property
    def same(self) -> bool:
        """Whether all iterations are alike."""
        return len(self.begins) == 1 and not self.varies

    def section(self, iteration: int, iterations: int) -> int:
        """Which section that iteration is of, as native/bench/replay.cpp has it."""
        return max(index for index, begin in enumerate(self.begins) if begin <= iteration / iterations)


def traits_of(text: str) -> Traits:
    """The traits of a scenario file's text."""
    lines = [line.partition("#")[0] for line in text.splitlines()]
    later = [float(found[1]) / 100 for line in lines if (found := re.match(r"\s*from\s+([\d.]+)\s*%", line))]
    return Traits((0.0, *later), any(re.search(r"\bvary\b", line) for line in lines))


def changed(base: PlatformProfile, name: str, spec: str) -> PlatformProfile:
    """A profile for a built-in platform with changed keys: what would have been measured there, computed.

    A switch takes what the platform says; the times of collectives follow its links, down to the least a pattern
    takes. Management costs what it did, so overhead points move with the links.
    """
    plain, platform = read_platform(spec.partition(":")[0]), read_platform(spec)
    faster = platform["link_scale"] / plain["link_scale"]

    def shorter(pattern: str, time_us: float) -> float:
        return max(time_us / faster, min(time_us, platform.base_latency_ns(pattern) / 1e3))

    def point(old: Point) -> Point:
        factor = shorter(old.pattern, old.time_us) / old.time_us
        bounds = (old.time_low_us, old.time_high_us)
        low, high = (None if us is None else shorter(old.pattern, us) for us in bounds)
        joules = None if old.joules_per_gpu is None else old.joules_per_gpu * factor
        return msgspec.structs.replace(
            old,
            time_us=round(old.time_us * factor, 3),
            time_low_us=low,
            time_high_us=high,
            busbw_gbs=round(old.busbw_gbs / factor, 4),
            joules_per_gpu=joules,
            provenance=PROVENANCE,
        )

    def sample(old: OverheadSample) -> OverheadSample:
        us = shorter(old.pattern, old.plain_us)
        managed_us = us + old.managed_us - old.plain_us
        return msgspec.structs.replace(old, plain_us=us, managed_us=managed_us, provenance=PROVENANCE)

    old = base.clock_switch
    asking_us = old.latency_us - old.call_us if old else 0.0
    switch = ClockSwitch(
        call_us=platform["set_clock_call_us"],
        latency_us=round(platform["set_clock_call_us"] + asking_us, 1),
        requests=0,
        provenance=PROVENANCE,
        transition_us=platform["clock_transition_us"],
    )
    found = msgspec.structs.replace(base, name=name, clock_switch=switch)
    found.notes = [*base.notes, f"computed from '{base.name}' for {spec} by scripts/figures-policies-emulated"]
    if faster != 1:
        found.points = [point(each) for each in base.points]
        found.overhead_samples = [sample(each) for each in base.overhead_samples]
        found.overhead = overhead_points(found.overhead_samples, base.tolerance_pct / 100)
    return found


def profile_of(name: str, folder: Path) -> str:
    """What `--platform` is given on that platform: a built-in name or a file in `folder`, made if it is not there.

    Raises:
        subprocess.CalledProcessError: a server could not be profiled.
    """
    spec = PLATFORMS[name]
    if name == "t4x8":
        return name
    path = folder / f"{name}.json"
    if ":" in spec:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(changed(load_profile(spec.partition(":")[0]), name, spec)))
    elif not path.exists():
        print(f"# profiling the emulated {name} once, into {path}", file=sys.stderr, flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "powerccl", "profile", "--emulate", spec, *PROFILED]
        command += ["--name", name, "--out", str(path), "--resume"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        _tell_transition(path, spec)
    return str(path)


def _tell_transition(path: Path, spec: str) -> None:
    """A profile does not measure how long a clock takes to change: the server says, as t4x8's profile has it."""
    profile = load_profile(str(path))
    if profile.clock_switch and profile.clock_switch.transition_us is None:
        profile.clock_switch.transition_us = read_platform(spec)["clock_transition_us"]
        path.write_bytes(encode(profile))
