# SPDX-License-Identifier: Apache-2.0
"""docs/reference/collectives-measured.md, from what scripts/eight-gpus left in bench/results/eight-h200x*.json.

python3 -m bench.analysis.collectives_page writes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from powerccl.quantities import number

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/collectives-measured.md"
RESULTS = sorted((ROOT / "bench/results").glob("eight-h200x*.json"))
PATTERNS = (
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"),
    *("all_to_all", "send_receive", "gather", "scatter"),
)
SIZES = ("4KiB", "64KiB", "1MiB", "16MiB", "64MiB", "512MiB")
CELLS = (("time_us", 1.0), ("busbw_gbs", 1.0), ("watts_per_gpu", 1.0), ("joules_per_gpu", 1e3))
OVERHEAD = ("selected", "all")
HEAD = """# Nine patterns over NVLink, with power

`scripts/eight-gpus GPUS OUT` measured this on lent H200s, clocks untouched, NVLink multicast off; `python3 -m
bench.analysis.collectives_page` wrote the page. Every size from 4 KiB to 512 MiB by twos is in the files named; its
training step is in [the scaling study](../guides/scaling-study.md). us: of an operation, back to back. GB/s: bus
bandwidth as NCCL's tests define it. W: of a GPU while it runs. mJ: of a GPU and operation; a dash where the counter
did not change often enough to tell.
"""


def cell(figures: dict[str, Any], name: str, factor: float = 1.0) -> str:
    """One figure as text."""
    value = figures.get(name, {}).get("value")
    return "–" if value is None else number(value * factor)


def page(kept: list[dict[str, Any]]) -> str:
    """The page of these results, a group of columns each."""
    machines = [each["machine"] for each in kept]
    made = [f"- {each['machine']}: {each['date']}, commit {each['commit']}. {each['conditions']}." for each in kept]
    parts = [HEAD, "\n".join(made) + "\n"]
    for pattern in PATTERNS:
        titles = [f"{machine.split()[0]} GPUs: us | GB/s | W | mJ" for machine in machines]
        rows = [f"| size | {' | '.join(titles)} |", "|---:|" + "---:|" * (4 * len(kept))]
        for size in SIZES:
            cells = [
                cell(each["figures"], f"bench.{pattern}.{size}.{what}", factor)
                for each in kept
                for what, factor in CELLS
            ]
            rows.append(f"| {size.replace('KiB', ' KiB').replace('MiB', ' MiB')} | {' | '.join(cells)} |")
        parts.append(f"## {pattern.replace('_', '-')}\n\n" + "\n".join(rows) + "\n")
    titles = [f"{machine.split()[0]} GPUs: alone | {' | '.join(OVERHEAD)} | rounds" for machine in machines]
    rows = [f"| all-reduce of | {' | '.join(titles)} |", "|---:|" + "---:|" * ((2 + len(OVERHEAD)) * len(kept))]
    for size in ("4KiB", "1MiB", "64MiB"):
        cells = []
        for each in kept:
            figures, stem = each["figures"], f"plugin.{size}"
            cells.append(cell(figures, f"{stem}.none.time_us") + " us")
            cells += [f"{figures[f'{stem}.{name}.added_us']['value']:+.2f} us" for name in OVERHEAD]
            cells.append(str(figures[f"{stem}.none.time_us"]["n"]))
        rows.append(f"| {size.replace('KiB', ' KiB').replace('MiB', ' MiB')} | {' | '.join(cells)} |")
    parts.append(
        "## What the plugin costs there\n\n"
        "Median over rounds of the difference to the same round without a plugin; what the"
        " columns are, and more rounds: [plugin-cost](../concepts/plugin-cost.md).\n\n" + "\n".join(rows) + "\n"
    )
    return "\n".join(parts)


def read_all() -> list[dict[str, Any]]:
    """The results, in the order of their GPUs."""
    kept = [json.loads(path.read_text()) for path in RESULTS]
    return sorted(kept, key=lambda each: int(each["machine"].split()[0]))


if __name__ == "__main__":
    PAGE.write_text(page(read_all()))
