# SPDX-License-Identifier: Apache-2.0
"""What is demanded of the policies, and where it does not hold."""

from collections.abc import Mapping
from dataclasses import dataclass

from .figures import Figure, value_of

POLICIES = ("observe", "percall", "auto", "phase", "job")  # as figures name them; powerccl.aliases has both names
MOST_SLOWDOWN_PCT = 1.0
MOST_ENERGY_LOST_PCT = 0.5
ORACLE_SHARE = 0.9
ORACLE_COUNTS_FROM_PCT = 5.0
TOLD_APART_POINTS = 0.1  # between auto and per-call: below, which is worse is chance


@dataclass(frozen=True)
class Fault:
    """A demand that `auto` does not meet. on: which of its two figures shows it, `slowdown` or `energy`."""

    platform: str
    case: str
    on: str
    text: str


def cases_in(figures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    """Platforms and scenarios (or models) that were measured, in the order of the figures."""
    found: dict[tuple[str, str], None] = {}
    for name in figures:
        if name.startswith("policies.") and name.endswith(".observe.step_ms"):
            platform, _, case = name.removeprefix("policies.").removesuffix(".observe.step_ms").partition(".")
            found[platform, case] = None
    return list(found)


def faults_of(figures: Mapping[str, Figure], platform: str, case: str) -> list[Fault]:
    """What `auto` fails there; nothing where it was not measured."""
    name = f"policies.{platform}.{case}"
    saved, slower = (value_of(figures, f"{name}.auto.{what}") for what in ("energy_saved_pct", "slowdown_pct"))
    if saved is None or slower is None:
        return []
    found = []
    if slower > MOST_SLOWDOWN_PCT:
        found.append(Fault(platform, case, "slowdown", f"auto takes {slower:.2f} % longer"))
    if saved < -MOST_ENERGY_LOST_PCT:
        found.append(Fault(platform, case, "energy", f"auto takes {-saved:.2f} % more energy"))
    oracle = value_of(figures, f"{name}.oracle.energy_saved_pct")
    if oracle is not None and oracle >= ORACLE_COUNTS_FROM_PCT and saved < ORACLE_SHARE * oracle:
        share = f"{max(0.0, 100 * saved / oracle):.1f} % of the oracle's {oracle:.1f} %"
        found.append(Fault(platform, case, "energy", f"auto saves {saved:.2f} %, {share}"))
    percall_saved = value_of(figures, f"{name}.percall.energy_saved_pct")
    percall_slower = value_of(figures, f"{name}.percall.slowdown_pct")
    if percall_saved is None or percall_slower is None:
        return found
    if min(percall_saved - saved, slower - percall_slower) > TOLD_APART_POINTS:
        what = f"per-call saves {percall_saved:.2f} % at {percall_slower:+.2f} %, auto {saved:.2f} % at {slower:+.2f} %"
        found.append(Fault(platform, case, "energy", f"worse than per-call in both: {what}"))
    return found


def all_faults(figures: Mapping[str, Figure]) -> list[Fault]:
    """Everywhere."""
    return [fault for platform, case in cases_in(figures) for fault in faults_of(figures, platform, case)]
