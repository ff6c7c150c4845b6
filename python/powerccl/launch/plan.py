# SPDX-License-Identifier: Apache-2.0
"""What is decided before a job starts: its policy, the policy's table, and whether clocks are set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from powerccl.errors import PowercclError
from powerccl.launch.emulation import platform_name
from powerccl.launch.gpus import Gpus, may_set_clocks, query_gpus
from powerccl.launch.request import LEARNING, NO_PROFILE, Request, recording_only, silent

if TYPE_CHECKING:
    from powerccl.platforms.schema import PlatformProfile

NO_RIGHT = "cannot set clocks: that needs root, CAP_SYS_ADMIN or a powerccld on this host"
Plan = tuple[Gpus, str, str, "PlatformProfile | None"]


def plan_job(request: Request, environment: Mapping[str, str], say: Callable[[str], None]) -> Plan:
    """GPUs, the policy that can really be followed, its table, and the profile that was made from.

    Profiles are read before anything is started.
    """
    if request.clock and request.policy not in ("", "observe"):
        raise PowercclError(
            f"--clock fixes one clock, and policy {request.policy} chooses clocks", "use either --clock or --policy"
        )
    if request.clock:
        return Gpus(), "observe", "", None
    if request.policy == "observe" or request.table_text:
        return Gpus(), request.policy, request.table_text, None
    if request.policy:
        return _plan_policy(request, request.policy, say)
    return _plan_default(request, environment, say)


def _plan_default(request: Request, environment: Mapping[str, str], say: Callable[[str], None]) -> Plan:
    """`auto` where clocks may be set, else `observe`. Silent, but for a user who asked for clocks (--set-clocks)."""
    emulated = bool(request.emulate or environment.get("POWERCCL_EMULATOR_SOCKET"))
    # Asked before NVML is: a run that only records stays quick to start.
    clocks, _ = decide_clocks(LEARNING, emulated, request.set_clocks, environment)
    if clocks != "lease" and not request.set_clocks:
        return Gpus(), "observe", "", None
    return _plan_policy(request, LEARNING, say if request.set_clocks else silent)


def _plan_policy(request: Request, policy: str, say: Callable[[str], None]) -> Plan:
    from powerccl.platforms.policy_table import policy_table
    from powerccl.platforms.store import check_machine

    gpus = Gpus() if request.emulate else query_gpus()
    if not request.emulate and not gpus.names:
        say(f"recording only: policy {policy} has no GPU to manage ({gpus.describe()})")
        return gpus, "observe", "", None
    if policy == LEARNING:
        if request.platform not in ("", NO_PROFILE):
            say(f"policy {policy} ignores --platform, which is for per-call")
        return gpus, policy, "", None
    profile = _profile(request, gpus)
    if profile is None:
        where = f"the emulated platform {platform_name(request.emulate)}" if request.emulate else gpus.describe()
        emulated = f" --emulate {request.emulate}" if request.emulate else ""
        raise PowercclError(
            f"no platform profile for {where}, which policy {policy} needs",
            f"make one with `powerccl profile{emulated}`, choose one with --platform, or use --policy {LEARNING}",
        )
    if not request.emulate:
        check_machine(profile, gpus.names)
    return gpus, policy, policy_table(profile, request.overhead), profile


def _profile(request: Request, gpus: Gpus) -> PlatformProfile | None:
    """The profile that was chosen, else that of these GPUs; None: there is none, or none is wanted."""
    from powerccl.platforms.store import PROFILES, load_profile, profile_for

    if request.platform == NO_PROFILE:
        return None
    if request.platform:
        return load_profile(request.platform)
    with recording_only():
        if not request.emulate:
            return profile_for(gpus.names)
        name = platform_name(request.emulate)
        return load_profile(name) if name in PROFILES.known() else None


def decide_clocks(
    policy: str, emulated: bool, set_clocks: bool, environment: Mapping[str, str]
) -> tuple[str, str | None]:
    """POWERCCL_CLOCKS for the job, and what the user should hear about it."""
    wish = environment.get("POWERCCL_CLOCKS", "")
    if wish in ("dry", "none"):
        hint = f"POWERCCL_CLOCKS={wish}: no clock is set" if policy != "observe" or set_clocks else None
        return wish, hint
    if policy == "observe":
        return "none", "policy observe sets no clocks" if set_clocks else None
    if not set_clocks and not emulated:
        return "dry", "dry run: the policy decides clocks but sets none; add --set-clocks to set them"
    from powerccl.launch.daemon import system_daemon

    if emulated or may_set_clocks() or system_daemon(environment):
        return "lease", None
    return "dry", f"{NO_RIGHT}; this is a dry run"
