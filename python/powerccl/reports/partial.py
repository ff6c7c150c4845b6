# SPDX-License-Identifier: Apache-2.0
"""Sums of which a part was not measured: never shown as if they were whole."""

from __future__ import annotations

from powerccl.reports.text import joules


def energy(whole: float | None, at_least: float | None) -> str:
    """An energy, or "at least" so much of it."""
    return joules(whole) if whole is not None or at_least is None else f"at least {joules(at_least)}"
