# SPDX-License-Identifier: Apache-2.0
"""Study D's table with our figures beside it, as docs/guides/compare-two-networks.md has it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

# "Two networks under the same collectives" (Principled Technologies for Dell, December 2024): latency over 100 and
# 10 GbE and its change, bandwidth factor, change of the time at the largest size. Latency is of 4 B; the document also
# says 48 B for two of them.
PUBLISHED = {
    "all_reduce": ("40 us", "123 us", "-67.4 %", "5x", "-82 %"),
    "reduce_scatter": ("29 us", "85 us", "-65.8 %", "5x", "-82 %"),
    "send_receive": ("41 us", "56 us", "-26.7 %", "6x", "-83 %"),
}
TABLE = re.compile(r"(^\| \| published: 100 GbE .*\n\|[-|]+\n)(?:^\|.*\n)+", re.MULTILINE)
LARGEST = "67108864B"
Figures = dict[str, dict[str, Any]]


def rows(figures: Figures) -> list[str]:
    """Markdown rows: what is measured, published twice and its change, ours twice and its change."""
    found = []
    for pattern, (fast, slow, change, _, _) in PUBLISHED.items():
        ours = [figures[f"networks.{pattern}.{rate}.4B.us"] for rate in ("10gbit", "1gbit")]
        apart = ours[0]["high"] < ours[1]["low"] or ours[1]["high"] < ours[0]["low"]  # no two rounds alike
        changed = figures[f"networks.{pattern}.smallest.change_pct"]["value"]
        told = f"{changed:+.1f} %" if apart else "not significant"
        cells = (fast, slow, change, *(_us(each["value"]) for each in ours), told)
        found.append(_row(f"{_name(pattern)}, latency (4 B)", *cells))
    for pattern, (*_, factor, _) in PUBLISHED.items():
        each = figures[f"networks.{pattern}.from_1MiB.bandwidth_factor"]
        ours_factor = f"{each['value']:.1f}x ({each['low']:.1f} to {each['high']:.1f})"
        found.append(_row(f"{_name(pattern)}, bandwidth", "", "", factor, "", "", ours_factor))
    for pattern, (*_, change) in PUBLISHED.items():
        times = [_us(figures[f"networks.{pattern}.{rate}.{LARGEST}.us"]["value"]) for rate in ("10gbit", "1gbit")]
        told = f"{figures[f'networks.{pattern}.largest.change_pct']['value']:+.0f} %"
        found.append(_row(f"{_name(pattern)}, time at 256 MB; ours 64 MiB", "", "", change, *times, told))
    watts = ("1381-1416 W", "1381-1411 W", "no significant change")
    return [*found, _row("server power, three sizes", *watts, "not read", "not read", "")]


def write_guide(page: Path, figures: Figures) -> None:
    """Put the rows into the page's table.

    Raises:
        ValueError: it has no such table.
    """
    text, count = TABLE.subn(lambda head: head[1] + "\n".join(rows(figures)) + "\n", page.read_text())
    if count != 1:
        raise ValueError(f"{page} has {count} tables that begin with '| | published: 100 GbE'")
    page.write_text(text)


def _name(pattern: str) -> str:
    return pattern.replace("_", "-")


def _us(value: float) -> str:
    return f"{value / 1e3:.0f} ms" if value >= 10_000 else f"{value:.1f} us"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
