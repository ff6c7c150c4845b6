# SPDX-License-Identifier: Apache-2.0
"""Finding profiles: built-in ones by name, the user's own by name or path; and whether one belongs to this machine."""

from __future__ import annotations

from collections.abc import Iterator

from powerccl.errors import PowercclError
from powerccl.patterns import PATTERNS
from powerccl.platforms.catalog import BUILTIN, Catalog
from powerccl.platforms.schema import PROVENANCES, SCHEMA_VERSION, PlatformProfile
from powerccl.quantities import plural


def _faults(profile: PlatformProfile) -> Iterator[str]:
    if profile.gpus < 1 or not 0 < profile.clock_min_mhz <= profile.clock_max_mhz:
        clocks = f"clocks {profile.clock_min_mhz} to {profile.clock_max_mhz} MHz"
        yield f"impossible values: {plural(profile.gpus, 'GPU')} with {clocks}"
    for point in profile.points:
        if point.pattern not in PATTERNS:
            yield f"unknown pattern '{point.pattern}'"
        elif point.provenance not in PROVENANCES:
            yield f"unknown provenance '{point.provenance}'"
        elif not (point.time_us > 0 and point.busbw_gbs > 0 and point.size_bytes >= 0 and point.clock_mhz > 0):
            yield f"impossible values of {point.pattern}, {point.size_bytes} bytes, {point.clock_mhz} MHz"
    for overhead in profile.overhead:
        if overhead.pattern not in PATTERNS:
            yield f"unknown pattern '{overhead.pattern}'"


PROFILES = Catalog(
    PlatformProfile, "platform", "platform profile", SCHEMA_VERSION, "powerccl profile", "platforms", _faults, BUILTIN
)
load_profile = PROFILES.load


def check_machine(profile: PlatformProfile, names: list[str], whose: str = "this machine") -> None:
    """Refuse a profile of another machine; `names` are the GPUs of `whose` as NVML prints them.

    Raises:
        PowercclError: the GPUs are of another model, or of another number than were profiled.
    """
    if not names:
        return
    others = sorted(set(names) - {profile.gpu})
    measured = f"'{profile.name}' was measured on {profile.gpus} x {profile.gpu}"
    if others:
        raise PowercclError(
            f"platform profile {measured}; {whose} has {len(names)} x {others[0]}",
            "run `powerccl profile`, or choose another with --platform",
        )
    if len(names) != profile.gpus:
        raise PowercclError(
            f"platform profile {measured}; {whose} has {len(names)} of them",
            "bandwidth depends on the number of GPUs: run `powerccl profile`, or choose another with --platform",
        )


def profile_for(names: list[str]) -> PlatformProfile | None:
    """The user's newest or the built-in real profile that was measured on GPUs like these, or None."""
    for profile in PROFILES.preferred():
        if not profile.emulated and profile.gpus == len(names) and set(names) == {profile.gpu}:
            return profile
    return None
