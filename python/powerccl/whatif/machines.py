# SPDX-License-Identifier: Apache-2.0
"""A model of a recorded run's machine: a platform file of the emulator, with what the run tells put in.

The file is that of the same GPU, or of the nearest one. The run tells how long collectives take and what its GPUs draw.
It does not tell how computation, collectives and voltage depend on the clock, as nothing changed it. So there are
several machines that the run could be of.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from statistics import median

import numpy as np

from powerccl.analysis.programs.program import Recorded
from powerccl.patterns import bus_factor
from powerccl.platforms.conf import changed, keys_of, points_of, value_of
from powerccl.platforms.policy_table import minimum_clocks
from powerccl.platforms.schema import PlatformProfile
from powerccl.whatif.gpus import Gpu

LIMITS = ("power_limit_w", "peak_limit_w", "governor_start_w")  # move together
# Keys in watts: all are stretched alike, until the model draws what the run drew.
WATTS = ("static_w", "tree_w", "compute_w", "memory_static_w", "memory_w", "comm_clock_w", "leakage_w_per_kv")


@dataclass(frozen=True)
class Unknown:
    """What the run does not tell, beside the memory share. Each moves what a lower clock saves or costs.

    `knee`: the least clock that keeps a collective's bandwidth, as a factor of the model's. `level`: the least voltage,
    as a share of the highest.
    """

    knee: float = 1.0
    level: float | None = None


# Of computation's time, what no clock changes: products follow the clock all but wholly, decoding hardly.
MEMORY_SHARES = (0.05, 0.35, 0.65, 0.95)
# The likely machine and others, each with one thing changed. Knees: PCCL's minimum clocks on three servers are within
# 0.8 and 1.2 of the models'. Levels: voltages of published boards fall to 62 to 89 % of the highest.
LIKELY = Unknown()
# Those first that mattered most on recorded and emulated runs: of large jobs not all are simulated.
OTHERS = (Unknown(level=0.85), Unknown(knee=1.2), Unknown(level=0.65), Unknown(knee=0.8))


def of_run(conf: str, run: Recorded) -> str:
    """The platform with as many GPUs as the run has ranks, and collectives as quick as the run's."""
    curves: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    quickest: dict[str, float] = {}
    for program in run.programs:
        for each in program.collectives:
            if each.transfer_us <= 0 or len(each.members) < 2 or each.bytes <= 0:
                continue
            gbs = bus_factor(each.pattern, len(each.members)) * each.bytes / each.transfer_us / 1e3
            curves[each.pattern][each.bytes].append(gbs)
            quickest[each.pattern] = min(quickest.get(each.pattern, each.transfer_us), each.transfer_us)
    values = {"gpus": str(len(run.programs)), "link_scale": "1"}
    for pattern, sizes in curves.items():
        points = [f"{size}:{median(rates):.6g}" for size, rates in sorted(sizes.items())]
        values[f"{pattern}.bandwidth_gbs"] = " ".join(points)
        base = float(value_of(conf, f"{pattern}.base_latency_us"))
        values[f"{pattern}.base_latency_us"] = f"{min(base, quickest[pattern]):.4g}"
    return changed(conf, values)


def with_profile(conf: str, profile: PlatformProfile) -> str:
    """The platform with what a profile tells: the clocks that collectives need, and what switching costs."""
    values: dict[str, str] = {}
    for pattern, sizes in minimum_clocks(profile).items() if profile.clocks_set else ():
        if f"\n{pattern}.knee_mhz" in conf:
            values[f"{pattern}.knee_mhz"] = " ".join(f"{size}:{mhz}" for size, mhz in sorted(sizes.items()))
    cost = profile.clock_switch
    if cost:
        values["set_clock_call_us"] = f"{cost.call_us:g}"
        if cost.transition_us is not None:
            values["clock_transition_us"] = f"{cost.transition_us:g}"
    return changed(conf, values)


def with_limit(conf: str, gpus: list[Gpu], known: bool) -> str:
    """The platform with the power limit of the run's GPUs. `known`: it models them; others draw as their limit says."""
    limits = [gpu.limit_w for gpu in gpus if gpu.limit_w]
    if not limits:
        return conf
    times = median(limits) / float(value_of(conf, "power_limit_w"))
    values = {key: f"{float(value_of(conf, key)) * times:.6g}" for key in LIMITS}
    return changed(conf if known else drawing(conf, times), values)


def draws_at_limit(conf: str, clocks: list[float], memory_share: float) -> list[float]:
    """What each GPU draws, times the model's: by the clocks that their power limit left them."""
    limit_w = float(value_of(conf, "power_limit_w"))
    return [limit_w / computing_w(conf, mhz, memory_share) for mhz in clocks]


def speed(conf: str, mhz: float, memory_share: float) -> float:
    """That of computation at a clock, times that at the clock at which the model's lengths hold."""
    return 1 / (memory_share + (1 - memory_share) * float(value_of(conf, "reference_clock_mhz")) / mhz)


def computing_w(conf: str, mhz: float, memory_share: float) -> float:
    """What the model draws while it computes at that clock."""
    clocks, volts = zip(*((float(at), volts) for at, volts in points_of(conf, "voltage_v")), strict=True)
    fv2 = mhz * float(np.interp(mhz, clocks, volts)) ** 2

    keys = keys_of(conf)

    def key(name: str) -> float:
        return float(keys.get(name, 0))  # the emulator's default: t4x8 has no memory traffic

    memory = key("memory_static_w") + key("memory_w") * fv2
    return key("static_w") + key("tree_w") * fv2 + (1 - memory_share) * key("compute_w") * fv2 + memory_share * memory


def with_draws(conf: str, draws: list[float]) -> str:
    """The platform whose GPUs draw so many times as much as the model, each its own."""
    return changed(conf, {"gpu_draws": " ".join(f"{number}:{times:.4f}" for number, times in enumerate(draws))})


def drawing(conf: str, times: float) -> str:
    """The platform whose GPUs draw that many times as much; its power limit stays."""
    values = {key: f"{float(value_of(conf, key)) * times:.6g}" for key in WATTS if f"\n{key} " in conf}
    values["comm_w"] = " ".join(f"{size}:{watts * times:.6g}" for size, watts in points_of(conf, "comm_w"))
    return changed(conf, values)


def with_unknown(conf: str, what: Unknown) -> str:
    """The platform with other values for what the run does not tell."""
    values: dict[str, str] = {}
    least, most = (float(value_of(conf, f"clock_{end}_mhz")) for end in ("min", "max"))
    if what.knee != 1.0:
        for key in re.findall(r"^(\w+\.knee_mhz)\s*=", conf, re.MULTILINE):
            moved = [f"{size}:{min(max(mhz * what.knee, least), most):.0f}" for size, mhz in points_of(conf, key)]
            values[key] = " ".join(moved)
    if what.level is not None:
        points = points_of(conf, "voltage_v")
        lowest, top = points[0][1], points[-1][1]
        times = top * (1 - what.level) / (top - lowest)
        values["voltage_v"] = " ".join(f"{mhz}:{top - times * (top - volts):.4f}" for mhz, volts in points)
    return changed(conf, values)
