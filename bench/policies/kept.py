# SPDX-License-Identifier: Apache-2.0
"""Figures as bench/results keeps them: rows measured anew replace those of before, and each says what it is of.

A sweep takes hours, and rows are measured again as what they show changes. A row is a scenario (or a model) on a
platform; in it each policy, what the job does alone (`observe`), and what-if are measured, and replaced, on their own.
"""

from collections.abc import Mapping

from .checks import POLICIES, cases_in
from .figures import Figure, Spread

Rows = dict[str, dict[str, str]]  # by platform.case and by policy (or whatif): what it was measured with
ROOM = "policies."
SAVED = "energy_saved_pct"
ALL_ERRORS = "whatif.error_points"


def row_of(name: str, rows: Mapping[str, object]) -> tuple[str, str] | None:
    """The row that a figure belongs to and the part of it; None: it is of no row."""
    for row in rows:
        if name.startswith(f"{ROOM}{row}."):
            return row, name.removeprefix(f"{ROOM}{row}.").partition(".")[0]
    return None


def rows_in(figures: Mapping[str, Figure], by: str) -> Rows:
    """The rows that were measured, all with the same."""
    rows: Rows = {f"{platform}.{case}": {} for platform, case in cases_in(figures)}
    for name in figures:
        of = row_of(name, rows)
        if of and not of[1].startswith("oracle"):
            rows[of[0]][of[1]] = by
    return rows


def put_into(kept: Mapping[str, object], figures: Mapping[str, Figure], by: str) -> tuple[dict[str, Figure], Rows]:
    """What was kept with what was measured now in its place.

    What is told anew is compared with what was kept where the policy was not measured again; what-if's greater error is
    that of both together.
    """
    before: Mapping[str, Figure] = kept.get("figures", {})  # type: ignore[assignment]
    rows: Rows = {row: dict(parts) for row, parts in kept.get("rows", {}).items()}  # type: ignore[attr-defined]
    measured = rows_in(figures, by)
    found = dict(before)
    for row, parts in measured.items():
        # Of a policy that was measured, and of its prediction, everything is new.
        old = [name for name in before if (of := row_of(name, {row: None})) and of[1] in parts and of[1] != "whatif"]
        for name in old:
            del found[name]
        rows[row] = rows.get(row, {}) | parts
    found |= figures
    for row in measured:
        found |= _told_anew(row, figures, found)
        errors = [found.get(f"{ROOM}{row}.whatif.{policy}.error_points") for policy in ("percall", "auto")]
        known = [each for each in errors if each]
        if known:
            found[f"{ROOM}{row}.{ALL_ERRORS}"] = max(known, key=lambda each: float(each["value"]))  # type: ignore[arg-type]
    return found, rows


def _told_anew(row: str, figures: Mapping[str, Figure], found: Mapping[str, Figure]) -> dict[str, Figure]:
    """How far what-if's new words are from what policies saved that only the earlier sweep measured."""
    errors = {}
    for policy in POLICIES:
        told = figures.get(f"{ROOM}{row}.whatif.{policy}.{SAVED}")
        saved = found.get(f"{ROOM}{row}.{policy}.{SAVED}")
        if told and saved and f"{ROOM}{row}.{policy}.{SAVED}" not in figures:
            error = abs(float(told["value"]) - float(saved["value"]))  # type: ignore[arg-type]
            errors[f"{ROOM}{row}.whatif.{policy}.error_points"] = Spread(error, None, None, 1).figure("points")
    return errors
