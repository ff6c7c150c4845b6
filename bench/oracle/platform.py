# SPDX-License-Identifier: Apache-2.0
"""An emulated platform (native/emulator/platforms/*.conf), by the rules of native/physics/platform.cpp."""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

PLATFORMS = Path(__file__).resolve().parents[2] / "native/emulator/platforms"
PATTERNS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "send_receive",
    "scatter",
    "gather",
    "all_to_all",
)
TEXTS = {"name", "gpu_name", "driver_version"}
# What a file may leave out, and what holds then.
DEFAULTS = {
    "clock_step_mhz": 15.0,
    "overlap_compute_rate": 1.0,
    "ambient_c": 25.0,
    "thermal_tau_ms": 1000.0,
    "start_temperature_c": 30.0,
    "governor_period_ms": 10.0,
    "governor_lag_ms": 25.0,
    "governor_step_mhz": 15.0,
    "governor_slow_ms": 1000.0,
    "governor_slow_gain": 1.0,
    "set_clock_serialised": 1.0,
    "link_scale": 1.0,
}
NEEDED = (
    "gpus",
    "clock_min_mhz",
    "clock_max_mhz",
    "clock_idle_mhz",
    "reference_clock_mhz",
    "voltage_v",
    "power_limit_w",
)
SCALES = {"K": 2.0**10, "M": 2.0**20, "G": 2.0**30}
Curve = list[tuple[float, float]]


class PlatformError(ValueError):
    """A platform file or a change that cannot be read; says where."""


def _bytes(text: str) -> float:
    return float(text[:-1]) * SCALES[text[-1]] if text[-1:] in SCALES else float(text)


def _curve(text: str, sizes: bool) -> Curve:
    points = []
    for word in text.split():
        x, y = word.split(":")
        points.append((_bytes(x) if sizes else float(x), float(y)))
    if not points or any(a[0] >= b[0] for a, b in pairwise(points)):
        raise ValueError("points do not rise")
    return points


def line_at(curve: Curve, x: float, otherwise: float) -> float:
    """Linear between the points, constant outside."""
    if not curve:
        return otherwise
    if x <= curve[0][0]:
        return curve[0][1]
    for (x0, y0), (x1, y1) in pairwise(curve):
        if x <= x1:
            return y0 + (x - x0) / (x1 - x0) * (y1 - y0)
    return curve[-1][1]


def at_size(curve: Curve, size_bytes: float, otherwise: float) -> float:
    """Linear over the logarithm of the size."""
    return line_at([(math.log2(x), y) for x, y in curve], math.log2(size_bytes), otherwise)


def power_law(curve: Curve, size_bytes: float) -> float:
    """Linear on logarithmic axes both."""
    return 2 ** at_size([(x, math.log2(y)) for x, y in curve], size_bytes, 0)


def bus_factor(pattern: str, ranks: int) -> float:
    """Bus bandwidth = factor * size / time."""
    if ranks <= 1 or pattern in ("broadcast", "reduce", "send_receive"):
        return 1.0
    return (2 if pattern == "all_reduce" else 1) * (ranks - 1) / ranks


@dataclass
class Platform:
    """Values of a platform file by key; clocks of the grid ascending, with what depends on them in arrays."""

    name: str
    values: dict[str, float]
    curves: dict[str, Curve]
    clocks_mhz: np.ndarray = field(init=False)
    volts: np.ndarray = field(init=False)
    fv2: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        step, low, high = self["clock_step_mhz"], self["clock_min_mhz"], self["clock_max_mhz"]
        steps = math.floor((high - low) / step + 1e-9)
        self.clocks_mhz = low + step * np.arange(steps + 1)
        self.volts = np.array([line_at(self.curves["voltage_v"], f, 1.0) for f in self.clocks_mhz])
        self.fv2 = self.clocks_mhz * self.volts**2

    def __getitem__(self, key: str) -> float:
        return self.values.get(key, DEFAULTS.get(key, 0.0))

    @property
    def gpus(self) -> int:
        """How many GPUs there are."""
        return int(self["gpus"])

    def index(self, clock_mhz: float) -> int:
        """The place in clocks_mhz of the highest clock that is no higher, or 0."""
        steps = math.floor(
            (min(clock_mhz, self["clock_max_mhz"]) - self["clock_min_mhz"]) / self["clock_step_mhz"] + 1e-9
        )
        return max(0, steps)

    def compute_rates(self) -> np.ndarray:
        """Progress of a kernel's declared time per time, by clock."""
        share = self["memory_bound_share"]
        return 1 / (share + (1 - share) * self["reference_clock_mhz"] / self.clocks_mhz)

    def bandwidths_gbs(self, pattern: str, size_bytes: float) -> np.ndarray:
        """Bus bandwidth by clock, in bytes per ns."""
        curve = self.curves[f"{pattern}.bandwidth_gbs"]
        bandwidth = self["link_scale"] * power_law(curve, size_bytes) * min(1.0, size_bytes / curve[0][0])
        top = self["clock_max_mhz"]
        knee = at_size(self.curves.get(f"{pattern}.knee_mhz", []), size_bytes, self["clock_min_mhz"])
        boost = at_size(self.curves.get(f"{pattern}.boost", []), size_bytes, 0)
        fall = at_size(self.curves.get(f"{pattern}.fall", []), size_bytes, 1)
        above = 1 + boost * (top - self.clocks_mhz) / (top - knee) if top > knee else np.ones_like(self.clocks_mhz)
        below = (1 + boost) * (self.clocks_mhz / knee) ** fall
        return bandwidth * np.where(self.clocks_mhz >= knee, above, below)

    def base_latency_ns(self, pattern: str) -> float:
        """No operation is shorter."""
        return self.values.get(f"{pattern}.base_latency_us", 10.0) * 1e3

    def collective_ns(self, pattern: str, size_bytes: float, ranks: int) -> np.ndarray:
        """How long it takes from the last arrival, by the lowest clock of all participants."""
        base = self.base_latency_ns(pattern)
        if size_bytes <= 0:
            return np.full_like(self.clocks_mhz, base)
        return np.maximum(base, size_bytes * bus_factor(pattern, ranks) / self.bandwidths_gbs(pattern, size_bytes))

    def communication_w(self, size_bytes: float) -> np.ndarray:
        """What communicating so much adds, by clock."""
        flat = at_size(self.curves.get("comm_w", []), max(size_bytes, 1.0), 0)
        return flat + self["comm_clock_w"] * self.fv2


def _apply(text: str, where: str, values: dict[str, float], curves: dict[str, Curve], texts: dict[str, str]) -> None:
    key, equals, value = (part.strip() for part in text.partition("="))
    try:
        if not equals:
            raise ValueError("not `key = value`")
        if key.startswith("tune."):
            return  # of NCCL's parameters, which no scenario sets
        if key in TEXTS:
            texts[key] = value
        elif key == "memory":
            values[key] = _bytes(value)
        elif key == "voltage_v":
            curves[key] = _curve(value, sizes=False)
        elif key == "comm_w" or key.rpartition(".")[2] in ("bandwidth_gbs", "knee_mhz", "boost", "fall"):
            if key != "comm_w" and key.partition(".")[0] not in PATTERNS:
                raise ValueError("unknown key")
            curves[key] = _curve(value, sizes=True)
        else:
            values[key] = float(value)
    except ValueError as error:
        raise PlatformError(f"{where}: {key}: {error}") from error


def read_platform(spec: str) -> Platform:
    """Read `t4x8`, a path to a .conf file, or either with changes behind a colon: `t4x8:link_scale=4`.

    Raises PlatformError; OSError where the file cannot be read.
    """
    name, _, changes = spec.partition(":")
    path = Path(name) if name.endswith(".conf") else PLATFORMS / f"{name}.conf"
    values: dict[str, float] = {}
    curves: dict[str, Curve] = {}
    texts: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if text:
            _apply(text, f"{path}:{number}", values, curves, texts)
    known = set(values) | set(DEFAULTS) | set(curves)
    for change in filter(None, changes.split(",")):
        if change.partition("=")[0].strip() not in known:
            raise PlatformError(f"{path}: change: {change}: unknown key")
        _apply(change, f"{path}: change", values, curves, texts)
    for key in NEEDED:
        if key not in values and key not in curves:
            raise PlatformError(f"{path}: {key} is missing")
    return Platform(texts.get("name", path.stem), values, curves)
