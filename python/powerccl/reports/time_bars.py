# SPDX-License-Identifier: Apache-2.0
"""The parts of a stretch of time as bars show them, in the terminal and in pages."""

from __future__ import annotations

from collections.abc import Iterable

from powerccl.analysis.report_findings import Parts
from powerccl.reports.terminal import COMMUNICATION, ELSEWHERE

# The part, its name for readers, its mark in the terminal and its colours there and in pages. Marks differ, so that a
# bar reads without colour.
BAR = (
    ("computing", "computing", "░", ELSEWHERE, "var:computing"),
    ("idle", "idle", " ", "", "var:idle"),
    ("rest", "computing or idle", "░", ELSEWHERE, "var:computing"),
    ("beside", "communicating while computing", "▒", "blue", "var:beside"),
    ("transfer", "exposed: transfer", "█", COMMUNICATION, "var:communication"),
    ("all transfer", "communicating: transfer", "█", COMMUNICATION, "var:communication"),
    ("communication", "communicating", "█", COMMUNICATION, "var:communication"),
    ("waiting", "exposed: waiting for peers", "▚", "red", "var:waiting"),
    ("all waiting", "communicating: waiting for peers", "▚", "red", "var:waiting"),
    ("stalled", "stalled, nothing timed", "▞", "magenta", "var:stalled"),
)
WORDS = {name: word for name, word, *_ in BAR}
COLOURS = {name: colour for name, *_, colour in BAR}
# Of the stretch: what takes less cannot be seen in a bar of a few hundred cells or pixels, and needs no legend.
LEAST_SEEN = 0.002


def bar_parts(parts: Parts) -> dict[str, float]:
    """Seconds of what a bar shows, by BAR's names; what cannot be separated is one part."""
    lengths: dict[str, float] = {}
    if parts.computation_s is not None:
        lengths["computing"], lengths["idle"] = parts.computation_s, parts.idle_s or 0.0
    else:
        lengths["rest"] = parts.rest_s
    alone, waiting, prefix = parts.communication_s, parts.waiting_s, "all "
    if parts.exposed_s is not None:
        lengths["beside"] = parts.overlapped_s or 0.0
        alone, waiting, prefix = parts.exposed_s, parts.exposed_waiting_s, ""
    if waiting is not None:
        lengths[f"{prefix}transfer"], lengths[f"{prefix}waiting"] = max(alone - waiting, 0.0), waiting
    else:
        lengths["communication"] = alone
    if parts.stalled_s:
        lengths["stalled"] = parts.stalled_s
    return lengths


def used(rows: Iterable[Parts]) -> list[str]:
    """The parts that can be seen in any of these bars, in BAR's order."""
    parts = [(bar_parts(row), row.span_s) for row in rows]
    return [name for name in WORDS if any(part.get(name, 0.0) > LEAST_SEEN * span for part, span in parts)]
