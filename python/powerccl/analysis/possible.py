# SPDX-License-Identifier: Apache-2.0
"""What a figure can be. A figure outside of that is not known, and a note says what it came to.

Nothing is clipped: a figure that cannot be shows that a model or a record is wrong, and its clipped value would be
wrong too. Findings name their units in their fields, so that one walk over them knows the bounds of each figure.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

SLACK = 1e-6  # of a bound: rounding. Half of it would do for sums of doubles, double would hide nothing either.
# Shares of a whole. Changes, slowdowns and ratios to a profile are not among them.
SHARES_PCT = frozenset(
    (
        *("communicating_pct", "communication_pct", "exposed_pct", "wait_pct", "sleep_pct", "idle_pct", "last_pct"),
        *("uncovered_pct", "matched_pct", "lowered_pct", "low_clock_pct", "imbalance_pct"),
    )
)
SHARES = frozenset(["exposed_share"])
SAVED = frozenset(["saved_pct"])  # more than all of the energy cannot be saved
AMOUNTS = ("_s", "_ms", "_us", "_ns", "_mhz", "watts", "_low", "_high", "power_w", "cpu_w", "joules")
SIGNED = frozenset(["saved_watts", "start_s", "window_s", "last_s"])
RATES = ("_gbs",)  # nothing moves at a rate of zero: it was not measured
BUS = "busbw_gbs"  # except on the bus, by the definition in NCCL tests: one rank alone sends nothing over it

# Parts of a struct, and the whole that none of them exceeds.
PARTS = (
    ("communication_s", "span_s"),
    ("waiting_s", "communication_s"),
    ("transfer_s", "communication_s"),
    ("exposed_s", "communication_s"),
    ("overlapped_s", "communication_s"),
    ("exposed_waiting_s", "exposed_s"),
    ("communication_joules", "joules"),
    ("joules_communication", "joules_total"),
    ("joules_computation", "joules_total"),
    ("exposed_pct", "communicating_pct"),
    ("exposed_pct", "communication_pct"),
)


@cache
def bounds(name: str) -> tuple[float, float] | None:
    """Least and most that the figure of a field of this name can be; None: any finite number."""
    if name in SIGNED:
        return None
    if name in SHARES_PCT:
        return 0.0, 100.0
    if name in SHARES:
        return 0.0, 1.0
    if name in SAVED:
        return -math.inf, 100.0
    if name.startswith("joules") or name.endswith(AMOUNTS):
        return 0.0, math.inf
    return None


def can_be(name: str, value: float) -> bool:
    """Whether a field of this name may hold the value."""
    if not math.isfinite(value):
        return False
    if name.endswith(RATES):
        return value > 0 or (name == BUS and value == 0)
    within = bounds(name)
    return within is None or within[0] - SLACK <= value <= within[1] * (1 + SLACK) + SLACK


def check(finding: msgspec.Struct) -> list[str]:
    """Set what cannot be to None, everywhere in `finding`; a row of which a figure must be known is left out.

    Returns what was wrong, a line a field.

    Raises:
        ValueError: a figure cannot be that must be known, and is of no row.
    """
    wrong: dict[str, list[str]] = {}
    if not _checked(finding, wrong):
        raise ValueError(next(iter(wrong.values()))[0])
    return [lines[0] + (f" (and {len(lines) - 1} more)" if len(lines) > 1 else "") for lines in wrong.values()]


def _checked(finding: msgspec.Struct, wrong: dict[str, list[str]]) -> bool:
    """False: one of its figures cannot be, and its type does not allow for that."""
    optional = _optional(type(finding))
    kept = True
    for name, value in _figures(finding):
        text = "" if can_be(name, value) else f"{_words(name)} is not known: the result was {_how(name, value)}"
        kept &= _drop(finding, name, text, optional, wrong)
    for part, whole in _parts_of(finding.__struct_fields__):
        part_value, whole_value = getattr(finding, part), getattr(finding, whole)
        if part_value is not None and whole_value is not None and part_value > whole_value * (1 + SLACK) + SLACK:
            text = f"{_words(part)} is not known: the result was above {_words(whole)}"
            kept &= _drop(finding, part, text, optional, wrong)
    for name in finding.__struct_fields__:
        value = getattr(finding, name)
        if isinstance(value, msgspec.Struct):
            if not _checked(value, wrong):
                if name not in optional:
                    return False
                setattr(finding, name, None)
        elif isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
            setattr(finding, name, [each for each in value if _checked(each, wrong)])
    return kept


def _drop(finding: msgspec.Struct, name: str, text: str, optional: frozenset[str], wrong: dict[str, list[str]]) -> bool:
    if not text:
        return True
    wrong.setdefault(f"{type(finding).__name__}.{name}", []).append(text)
    if name in optional:
        setattr(finding, name, None)
    return name in optional


def _figures(finding: msgspec.Struct) -> Iterator[tuple[str, float]]:
    for name in finding.__struct_fields__:
        value = getattr(finding, name)
        if isinstance(value, float):
            yield name, value


@cache
def _parts_of(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The pairs of PARTS that a finding with these fields has."""
    return tuple((part, whole) for part, whole in PARTS if part in names and whole in names)


@cache
def _optional(kind: type[Any]) -> frozenset[str]:
    """The fields that may be None."""
    hints = typing.get_type_hints(kind)
    return frozenset(name for name, hint in hints.items() if type(None) in typing.get_args(hint))


def _how(name: str, value: float) -> str:
    """Without the figure: what cannot be is not printed."""
    if not math.isfinite(value):
        return "not a number"
    within = bounds(name)
    return "above the whole" if within and value > within[1] else "below zero" if value < 0 else "zero"


def _words(name: str) -> str:
    return name.replace("_", " ")
