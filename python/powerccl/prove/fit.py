# SPDX-License-Identifier: Apache-2.0
"""An emulated platform from the points of a proof.

A load's power is a + b f v^2 (native/testbed/physics/platform.h). All loads share the voltage v at each clock f, and
each has an a and a b of its own. Both are fitted in turns, by least squares of relative errors. Only ratios of
voltages can be seen in power, so the lowest voltage is given.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from powerccl.platforms.conf import points_of
from powerccl.prove.file import Emulated, LoadPoint, Proof
from powerccl.prove.loads import ALL_REDUCE_BYTES

# What each load adds to an idle GPU: unknowns without and with f v^2. The idle GPU's own are `static` and `tree`.
TERMS: Mapping[str, tuple[str, ...]] = {
    "idle": (),
    "product": ("compute",),
    "copy": ("memory_static", "memory"),
    "decode": ("decode_static", "decode"),
    "all-reduce": ("comm_static", "comm"),
}
FOLLOWS = ("tree", "compute", "memory", "decode", "comm")  # these go with f v^2, the others do not
ROUNDS = 400  # the voltage's last digits come slowly; 200 rounds differ from these by 0.1 % of a power
# A load whose clock was read below this share of the clock that was set was at the power limit, or too hot. Its power
# says nothing about the clock that was set.
HELD = 0.985
SIGMAS_OF_99 = 2.326  # standard deviations from the median to the 99th percentile
KEPT_GBS = 0.97  # of the bandwidth at the highest clock: above the knee


@dataclass(frozen=True)
class Power:
    """Unknowns of the law, in W and W per MHz V^2, and the voltage at each clock, in V."""

    watts: dict[str, float]
    volts: dict[int, float]

    def of(self, load: str, clock_mhz: int) -> float:
        """What a load draws at one of the clocks."""
        square = clock_mhz * self.volts[clock_mhz] ** 2
        return sum(self.watts[name] * (square if name in FOLLOWS else 1) for name in _names(load))


def _names(load: str) -> tuple[str, ...]:
    return ("static", "tree", *TERMS[load])


def free(points: Sequence[LoadPoint]) -> list[LoadPoint]:
    """Those that ran at the clock that was set, with a known power."""
    return [
        each
        for each in points
        if each.load in TERMS and each.watts and each.sm_clock_mhz and each.sm_clock_mhz >= HELD * each.clock_mhz
    ]


def fit_power(points: Sequence[LoadPoint], lowest_v: float) -> Power | None:
    """The law of these points; None: too few loads or clocks to tell.

    At the two lowest clocks the voltage is taken for the lowest (CLOCK_SHARES in loads.py says why).
    """
    known = free(points)
    clocks = sorted({each.clock_mhz for each in known})
    if len(clocks) < 4 or not {"idle", "product", "copy"} <= {each.load for each in known}:
        return None
    high = clocks[-1]
    squares = {clock: clock * lowest_v**2 * (1 + max(0.0, clock / high - 0.6)) for clock in clocks}
    names = sorted({name for each in known for name in _names(each.load)})
    watts = dict.fromkeys(names, 0.0)
    for _ in range(ROUNDS):
        rows = [
            [(squares[each.clock_mhz] if name in FOLLOWS else 1.0) * (name in _names(each.load)) for name in names]
            for each in known
        ]
        watts = dict(zip(names, least_squares(rows, [each.watts or 0 for each in known]), strict=True))
        for clock in clocks[2:]:
            above = below = 0.0
            for each in (one for one in known if one.clock_mhz == clock):
                slope = sum(watts[name] for name in _names(each.load) if name in FOLLOWS)
                level = sum(watts[name] for name in _names(each.load) if name not in FOLLOWS)
                above += slope * ((each.watts or 0) - level) / (each.watts or 1) ** 2
                below += (slope / (each.watts or 1)) ** 2
            squares[clock] = max(above / below if below > 0 else squares[clock], clock * lowest_v**2)
    return Power(watts, {clock: math.sqrt(square / clock) for clock, square in squares.items()})


def memory_share(points: Sequence[LoadPoint], reference_mhz: float) -> float | None:
    """What share of a load's time at a clock no clock changes; None: its times do not tell."""
    known = [each for each in free(points) if each.time_ms]
    if len(known) < 3:
        return None
    stays, follows = least_squares(
        [[1.0, 1.0 / each.clock_mhz] for each in known], [each.time_ms or 0 for each in known]
    )
    whole = stays + follows / reference_mhz
    return min(max(stays / whole, 0.0), 1.0) if whole > 0 else None


def knee_and_fall(points: Sequence[LoadPoint]) -> tuple[float, float] | None:
    """The least clock that keeps an all-reduce's bandwidth, and the power of the clock with which it falls below."""
    known = [(each.clock_mhz, each.time_ms) for each in free(points) if each.time_ms]
    least_ms = min((time_ms for _, time_ms in known), default=0.0)
    slow = [(clock, least_ms / time_ms) for clock, time_ms in known if least_ms < KEPT_GBS * time_ms]
    if len(slow) < 2:
        return None
    fall, level = np.polyfit(np.log([clock for clock, _ in slow]), np.log([kept for _, kept in slow]), 1)
    return (math.exp(-level / fall), float(fall)) if fall > 0 else None


def least_squares(rows: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float]:
    """Coefficients of the columns, by relative errors. None is below 0: those that would be become 0."""
    matrix = np.asarray(rows, dtype=float) / np.asarray(wanted, dtype=float)[:, None]
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    kept = list(range(matrix.shape[1]))
    while True:
        solution = np.zeros(matrix.shape[1])
        solution[kept] = (
            np.linalg.lstsq(matrix[:, kept] / scale[kept], np.ones(len(wanted)), rcond=None)[0] / scale[kept]
        )
        negative = [column for column in kept if solution[column] < 0]
        if not negative:
            return [float(each) for each in solution]
        kept.remove(min(negative, key=lambda column: solution[column] * scale[column]))


def emulated(proof: Proof, like: str, conf: str) -> Emulated:
    """The emulated platform of a proof. `conf`: the file of `like`, from which comes what was not measured."""
    keys = {
        "name": proof.name[:31],
        "gpu_name": proof.gpu,
        "gpus": str(proof.gpus),
        "clock_min_mhz": str(proof.clock_min_mhz),
        "clock_max_mhz": str(proof.clock_max_mhz),
    }
    if proof.power_limit_w:
        keys["power_limit_w"] = f"{proof.power_limit_w:g}"
    if proof.calls:
        keys["set_clock_call_us"] = f"{proof.calls.median_us:g}"
    if proof.clock_switch and proof.clock_switch.transition_us is not None:
        keys["clock_transition_us"] = f"{proof.clock_switch.transition_us:g}"
    keys |= _tail_keys(proof)
    keys |= _power_keys(proof, conf)
    keys |= _collective_keys(proof, conf)
    return Emulated(like, keys)


def _tail_keys(proof: Proof) -> dict[str, str]:
    """How far calls and transitions spread, as standard deviations of their logarithms; and the longest sure stall."""
    keys = {}
    if proof.calls:
        keys["set_clock_call_spread"] = f"{math.log(proof.calls.p99_us / proof.calls.median_us) / SIGMAS_OF_99:.3g}"
    spreads = [math.log(each.worst_ms / each.median_ms) for each in proof.transitions if each.median_ms > 0]
    if spreads:
        # The worst of n is about as far out as the quantile of n / (n + 1).
        out = [NormalDist().inv_cdf(each.switches / (each.switches + 1)) for each in proof.transitions]
        keys["clock_transition_spread"] = f"{sum(spreads) / max(sum(out), 1):.3g}"
    if proof.stalls:
        sure = [each.ms_per_call.value for each in proof.stalls if each.ms_per_call.low > 0]
        keys["set_clock_stall_us"] = f"{max(sure, default=0.0) * 1e3:.4g}"
    return keys


def _power_keys(proof: Proof, conf: str) -> dict[str, str]:
    volts = points_of(conf, "voltage_v")
    power = fit_power(proof.loads, volts[0][1])
    if power is None:
        return {}
    watts = power.watts
    # Between GPUs of a model, what leakage adds is part of what was measured.
    keys = {
        "leakage_w_per_kv": "0",
        "static_w": f"{watts['static']:.4g}",
        "tree_w": f"{watts['tree']:.4g}",
        "compute_w": f"{watts['compute']:.4g}",
        "memory_static_w": f"{watts['memory_static']:.4g}",
        "memory_w": f"{watts['memory']:.4g}",
        "voltage_v": " ".join(f"{clock}:{value:.4f}" for clock, value in sorted(power.volts.items())),
    }
    if "comm" in watts:
        curve = points_of(conf, "comm_w")
        at = at_size(curve, ALL_REDUCE_BYTES)
        keys["comm_w"] = " ".join(f"{size}:{value * watts['comm_static'] / at:.4g}" for size, value in curve)
        keys["comm_clock_w"] = f"{watts['comm']:.4g}"
    return keys


def _collective_keys(proof: Proof, conf: str) -> dict[str, str]:
    if not proof.points:
        return {}
    best = max(proof.points, key=lambda each: each.busbw_gbs)
    curve = points_of(conf, "all_reduce.bandwidth_gbs")
    keys = {"link_scale": f"{best.busbw_gbs / at_size(curve, ALL_REDUCE_BYTES, power_law=True):.4g}"}
    shape = knee_and_fall([each for each in proof.loads if each.load == "all-reduce"])
    if shape:
        scale = shape[0] / at_size(points_of(conf, "all_reduce.knee_mhz"), ALL_REDUCE_BYTES)
        for key, times in (("all_reduce.knee_mhz", scale), ("all_reduce.fall", 0.0)):
            points = points_of(conf, key)
            keys[key] = " ".join(f"{size}:{value * times if times else shape[1]:.4g}" for size, value in points)
    return keys


def _bytes(text: str) -> float:
    return float(text.rstrip("KMG")) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1], 1)


def at_size(curve: Sequence[tuple[str, float]], size: float, power_law: bool = False) -> float:
    """A curve's value, as physics/platform.cpp has it: linear over the size's logarithm, or both logarithms."""
    points = [(math.log2(_bytes(at)), value) for at, value in curve]
    x = min(max(math.log2(size), points[0][0]), points[-1][0])
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= x <= x1:
            share = (x - x0) / (x1 - x0)
            return y0 * (y1 / y0) ** share if power_law else y0 + share * (y1 - y0)
    return points[0][1]
