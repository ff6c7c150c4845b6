# SPDX-License-Identifier: Apache-2.0
"""docs/reference/collectives-measured.md, from evidence/results/eight-h200x*.json (evidence/scripts/eight-gpus).

python3 -m evidence.analysis.collectives_page writes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from powerccl.quantities import number

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reference/collectives-measured.md"
RESULTS = sorted((ROOT / "evidence/results").glob("eight-h200x*.json"))
PATTERNS = (
    *("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"),
    *("all_to_all", "send_receive", "gather", "scatter"),
)
SIZES = ("4KiB", "64KiB", "1MiB", "16MiB", "64MiB", "512MiB")
CELLS = (("time_us", 1.0), ("busbw_gbs", 1.0), ("watts_per_gpu", 1.0), ("joules_per_gpu", 1e3))
OVERHEAD = ("selected", "all")
HEAD = """# Nine patterns over NVLink, with power

This page lists time, bandwidth and power of NCCL's collectives on four and eight H200 GPUs. It is for readers who size
a job, or compare their own machine.

`evidence/scripts/eight-gpus GPUS OUT` measured the figures. PowerCCL set no GPU clock, and NVLink multicast was off.
`evidence/results/eight-h200x*.json` has the figures. The training step of the same runs is in
[the scaling study](../guides/scaling-study.md). `python3 -m evidence.analysis.collectives_page` makes this page.

| Column | Unit | Meaning |
|---|---|---|
| us | us | time of one operation; operations run one directly after another |
| GB/s | GB/s | bus bandwidth, as NCCL tests define it |
| W | W | power of one GPU while the operation runs |
| mJ | mJ | energy of one GPU per operation |

A dash means that the energy counter did not change often enough for a figure.

The conditions, as recorded with the results:
"""


def cell(figures: dict[str, Any], name: str, factor: float = 1.0) -> str:
    """One figure as text."""
    value = figures.get(name, {}).get("value")
    return "–" if value is None else number(value * factor)


def page(kept: list[dict[str, Any]]) -> str:
    """The page of these results, a group of columns each."""
    machines = [each["machine"] for each in kept]
    made = []
    for each in kept:
        made.append(f"- {each['machine']}, {each['date']}, commit {each['commit']}:")
        made += [f"    - {condition}" for condition in each["conditions"].split("; ")]
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
        "## Cost of the plugin\n\n"
        "`alone` is the time of an all-reduce without the plugin. The other columns are what the plugin adds: the"
        " median over rounds of the difference to the same round without it."
        " [Cost of the plugin](../concepts/plugin-cost.md) explains the columns and has more rounds.\n\n"
        + "\n".join(rows)
        + "\n"
    )
    return "\n".join(parts)


def read_all() -> list[dict[str, Any]]:
    """The results, in the order of their GPUs."""
    kept = [json.loads(path.read_text()) for path in RESULTS]
    return sorted(kept, key=lambda each: int(each["machine"].split()[0]))


if __name__ == "__main__":
    PAGE.write_text(page(read_all()))
