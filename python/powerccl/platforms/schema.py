# SPDX-License-Identifier: Apache-2.0
"""The platform profile: a JSON file, `schema_version` 1. Every number says where it came from.

provenance is `measured` (on real hardware), `emulated` (measured on the emulated server), `published` (in the PCCL
publication) or `modelled` (computed).
"""

from __future__ import annotations

import msgspec

SCHEMA_VERSION = 1
PROVENANCES = ("measured", "emulated", "published", "modelled")


class Point(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One pattern and size at one clock, through plain NCCL. Times are per operation; low and high are the spread."""

    pattern: str
    size_bytes: int
    clock_mhz: int
    time_us: float
    busbw_gbs: float
    provenance: str
    time_low_us: float | None = None
    time_high_us: float | None = None
    watts_per_gpu: float | None = None
    joules_per_gpu: float | None = None
    energy_uncertainty_pct: float | None = None
    sm_clock_mhz: float | None = None  # as it was, against clock_mhz as it was asked for
    iterations: int | None = None


class OverheadPoint(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The size from which management costs less than the tolerance; None: at no size measured."""

    pattern: str
    size_bytes: int | None
    provenance: str


class OverheadSample(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One pattern and size at the maximum clock: plain NCCL, and with clocks set and reset around each call."""

    pattern: str
    size_bytes: int
    plain_us: float
    managed_us: float
    provenance: str


class ClockSwitch(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What setting a clock costs: the driver's call, from asking to its return, and how many were counted.

    transition_us: from the call's return until the clock has changed; None: not measured.
    """

    call_us: float
    latency_us: float
    requests: int
    provenance: str
    transition_us: float | None = None


class GpuPower(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a GPU draws that no collective tells; None: not known.

    idle_watts: awake without work, at the highest clock. kelvin_per_watt: how a die warms in the long run.
    leakage_watts_per_kelvin: what its warmth adds at the highest clock.
    """

    provenance: str
    idle_watts: float | None = None
    kelvin_per_watt: float | None = None
    leakage_watts_per_kelvin: float | None = None


class PlatformProfile(msgspec.Struct, kw_only=True):
    """What was measured on one machine."""

    schema_version: int = SCHEMA_VERSION
    name: str
    gpu: str  # as NVML prints it
    gpus: int
    emulated: bool
    links: str = ""
    clock_max_mhz: int
    clock_min_mhz: int
    clocks_set: bool  # False: clocks could not be set; everything is at the clock found
    clocks_reason: str = ""
    versions: dict[str, str] = {}
    created_at: str = ""
    seconds: float = 0.0
    tolerance_pct: float = 2.0
    points: list[Point] = []
    overhead_samples: list[OverheadSample] = []
    overhead: list[OverheadPoint] = []
    clock_switch: ClockSwitch | None = None
    gpu_power: GpuPower | None = None
    notes: list[str] = []


def encode(document: msgspec.Struct) -> bytes:
    """A profile or a table of ways as JSON, one point a line: small enough to commit, and a diff shows what changed."""
    plain = msgspec.to_builtins(document)
    lines = []
    for key, value in plain.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n".join("    " + msgspec.json.encode(row).decode() for row in value)
            text = f"[\n{rows}\n  ]"
        else:
            text = msgspec.json.encode(value).decode()
        lines.append(f'  "{key}": {text}')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()
