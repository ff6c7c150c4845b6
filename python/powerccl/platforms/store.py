# SPDX-License-Identifier: Apache-2.0
"""Finding profiles: built-in ones by name, the user's own by name or path; and whether one belongs to this machine."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from powerccl.errors import PowercclError
from powerccl.files import decode_json, read_bytes
from powerccl.patterns import PATTERNS
from powerccl.platforms.schema import PROVENANCES, SCHEMA_VERSION, PlatformProfile
from powerccl.quantities import plural

BUILTIN = Path(__file__).parent / "builtin"


def user_folder() -> Path:
    """Where `powerccl profile` puts profiles: `~/.config/powerccl/platforms`, or under XDG_CONFIG_HOME."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "powerccl/platforms"


def by_name(*folders: Path) -> dict[str, Path]:
    """JSON files by name; those of a later folder hide those of an earlier one."""
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.json"))}


def own_first(known: dict[str, Path]) -> list[Path]:
    """The user's own, the newest first, then built-in ones."""
    own = [path for path in known.values() if not path.is_relative_to(BUILTIN)]
    built_in = [path for path in known.values() if path.is_relative_to(BUILTIN)]
    return sorted(own, key=lambda path: -path.stat().st_mtime_ns) + built_in


def known_profiles() -> dict[str, Path]:
    """Profiles by name; the user's own hide built-in ones."""
    return by_name(BUILTIN, user_folder())


def load_profile(name: str) -> PlatformProfile:
    """A profile by name or path.

    Raises:
        PowercclError: there is none, or it is damaged.
    """
    path = Path(name)
    if "/" not in name and path.suffix != ".json":
        known = known_profiles()
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            meant = f"did you mean '{close[0]}'? " if close else ""
            listed = ", ".join(known) or "none yet"
            raise PowercclError(
                f"unknown platform '{name}'",
                f"{meant}known: {listed}; make one with `powerccl profile`, or name a profile's file",
            )
        path = known[name]
    try:
        data = read_bytes(path)
    except OSError as error:
        raise PowercclError(
            f"cannot read platform profile {path}: {error.strerror}", "make one with `powerccl profile`"
        ) from error
    return _decode(path, data)


def _decode(path: Path, data: bytes) -> PlatformProfile:
    again = "make it again with `powerccl profile`"
    try:
        version = decode_json(data, dict[str, object]).get("schema_version")
        if version != SCHEMA_VERSION:
            raise PowercclError(
                f"{path}: profile schema {version}; this powerccl reads {SCHEMA_VERSION}",
                f"update powerccl, or {again}",
            )
        profile = decode_json(data, PlatformProfile)
    except msgspec.MsgspecError as error:
        raise PowercclError(f"{path} is not a platform profile: {error}", again) from error
    for wrong in _faults(profile):
        raise PowercclError(f"{path}: {wrong}", again)
    return profile


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


def check_machine(profile: PlatformProfile, names: list[str], whose: str = "this machine") -> None:
    """Refuse a profile of another machine; `names` are the GPUs of `whose` as NVML prints them.

    Raises:
        PowercclError: the GPUs are of another model, or fewer than were profiled would not matter but more do.
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
    """The user's newest or the built-in real profile that was measured on GPUs like these, if there is one."""
    for path in own_first(known_profiles()):
        try:
            profile = _decode(path, read_bytes(path))
        except (PowercclError, OSError):
            continue
        if not profile.emulated and profile.gpus == len(names) and set(names) == {profile.gpu}:
            return profile
    return None
