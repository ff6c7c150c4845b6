# SPDX-License-Identifier: Apache-2.0
"""The platform profile that a run is held against: its own, or that of GPUs like its."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from powerccl.errors import PowercclError

if TYPE_CHECKING:
    from powerccl.analysis.report_findings import Reference
    from powerccl.platforms.schema import PlatformProfile
    from powerccl.platforms.ways import WaysTable
    from powerccl.traces.folder import RunData


def own_profile(run: RunData) -> PlatformProfile | None:
    """The profile that the run names, or the emulated server's own, or that of GPUs like its; None: there is none.

    What was read of the run must hold its run.json.

    Raises:
        PowercclError: a file that it names is there, but no profile.
    """
    from powerccl.platforms.store import PROFILES, load_profile, profile_for

    info = run.info
    for name in (info.platform if info else "", (info.emulated if info else "").split(":")[0]):
        if name and (name in PROFILES.known() or Path(name).is_file()):
            return load_profile(name)
    if run.emulated or (info and info.emulated):
        return None
    names = [name for of_node in gpu_names(run).values() for name in of_node]
    return profile_for(names) if names else None


def gpu_names(run: RunData, of_job: bool = False) -> dict[str, list[str]]:
    """The GPUs of each node that was sampled, as NVML prints them. `of_job`: those that its ranks name, if they do.

    A profile belongs to a node, whatever part of it a job has; a table of ways to so many ranks.
    """
    from powerccl.traces.run_files import list_files
    from powerccl.traces.sample_file import about

    uuids = {rank.gpu_uuid for rank in run.ranks} - {""} if of_job else set()
    of_hosts: dict[str, list[str]] = {}
    for path in list_files(run.folder, "power-", ".csv")[0]:
        head = about(path)
        names = {key[3:-5]: text for key, text in head.items() if key[:3] == "gpu" and key[-5:] == "_name"}
        named = [name for gpu, name in names.items() if head.get(f"gpu{gpu}_uuid") in uuids]
        host = head.get("host", "")
        # The file of a second host of one name has the boot in its name.
        of_hosts[host if host not in of_hosts else path.stem.removeprefix("power-")] = named or list(names.values())
    return of_hosts


def own_table(run: RunData) -> WaysTable | None:
    """The table of ways of GPUs like the run's; None also where it ran on several nodes or was emulated."""
    from powerccl.platforms.ways import table_for

    return table_for(_gpus_of_node(run))


def own_or_near_table(run: RunData) -> tuple[WaysTable | None, bool]:
    """That, or else the table of the same GPUs in another number or of GPUs alike, which True marks."""
    from powerccl.platforms.ways import near_table_for, table_for

    names = _gpus_of_node(run)
    own = table_for(names)
    near = None if own else near_table_for(names)
    return own or near, near is not None


def _gpus_of_node(run: RunData) -> list[str]:
    """The GPUs of the run's only node; none where it ran on several or was emulated."""
    if run.emulated or (run.info and run.info.emulated):
        return []
    nodes = list(gpu_names(run, of_job=True).values())
    return nodes[0] if len(nodes) == 1 else []


def check_profile(profile: PlatformProfile, run: RunData) -> None:
    """Refuse a profile of other GPUs than the run's, or of another number of them in a node.

    Raises:
        PowercclError: it is one.
    """
    from powerccl.platforms.store import check_machine

    for host, names in gpu_names(run).items():
        check_machine(profile, names, f"the run's node {host}" if host else "the run")


def own_reference(run: RunData) -> Reference | None:
    """What that profile says; None also where it cannot be read, or is of links that the emulated ones replace."""
    changed = [key.split("=")[0] for key in (run.info.emulated if run.info else "").partition(":")[2].split(",") if key]
    if any("clock" not in key for key in changed):
        return None
    try:
        profile = own_profile(run)
    except PowercclError:
        return None
    return reference_of(profile) if profile else None


def reference_of(profile: PlatformProfile) -> Reference:
    """What a profile says at its highest clock."""
    from powerccl.analysis.report_findings import Reference

    reference = Reference(
        name=profile.name,
        gpus=profile.gpus,
        provenance=", ".join(sorted({point.provenance for point in profile.points})),
    )
    power = profile.gpu_power
    if power:
        reference.idle_watts = power.idle_watts
        if power.kelvin_per_watt is not None and power.leakage_watts_per_kelvin is not None:
            reference.warming = power.kelvin_per_watt * power.leakage_watts_per_kelvin
    highest: dict[tuple[str, int], int] = {}
    for point in profile.points:
        place = (point.pattern, point.size_bytes)
        highest[place] = max(point.clock_mhz, highest.get(place, 0))
    for point in sorted(profile.points, key=lambda point: point.size_bytes):
        if point.clock_mhz == highest[point.pattern, point.size_bytes]:
            entry = (point.size_bytes, point.busbw_gbs, point.watts_per_gpu)
            reference.points.setdefault(point.pattern, []).append(entry)
    return reference
