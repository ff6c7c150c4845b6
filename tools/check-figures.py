#!/usr/bin/env python3
"""Check that figures in tables of the documentation are figures of results, and that results say what made them.

Of a page that links results, each number with a unit in a table must be a figure of one of them, to the digits shown.
What stands there from elsewhere is listed in ELSEWHERE with its source. evidence/README.md lists each script, and none
that is gone. Prints a line a fault; ends with 1 if there is one.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "evidence/results"
SCRIPTS = ROOT / "evidence/scripts"
BESIDE = ("figures", "command", "date", "commit", "machine", "conditions")
LINK = re.compile(r"evidence/results/([\w.-]+\.json)")
SCRIPT = re.compile(r"\bscripts/([\w-]+)")
# A number, maybe in front of another of the same unit, and its unit.
NUMBER = re.compile(
    r"(?<![\w./#-])[+-]?(\d[\d,]*(?:\.\d+)?)(?: to [+-]?[\d.]+)? (%|[mun]?s|[mk]?W|[mk]?J|GB/s|MHz)(?!\w)"
)
# What units measure, and how much of it.
UNITS = {"s": ("time", 1.0), "ms": ("time", 1e-3), "us": ("time", 1e-6), "ns": ("time", 1e-9), "W": ("power", 1.0),
         "mW": ("power", 1e-3), "kW": ("power", 1e3), "J": ("energy", 1.0), "mJ": ("energy", 1e-3),
         "kJ": ("energy", 1e3), "GB/s": ("bandwidth", 1.0), "MHz": ("clock", 1.0), "%": ("share", 1.0)}  # fmt: skip
# Pages that programs write (test_study.py compares them), and one whose rows name their sources.
PASSED_OVER = {"docs/guides/scaling-study.md", "docs/guides/compare-two-networks.md", "docs/concepts/hardware.md"}
# Scripts that results name and that are no more: studies that were done once. Commit fe13e75a has all but the first
# two, whose figures `eight-gpus` makes.
GONE = {
    *("prove-on-gpus", "prove-analysis-on-gpus"),
    *("compare-kernel-times", "chained-profilers", "clocks-apart", "graph-worker", "recording-cost", "marks-cost"),
    *("pauses-filled", "prove-policies-on-gpus"),
}
# Results that a page's tables quote without a link of their own.
ALSO = {"docs/concepts/plugin-cost.md": ["eight-h200x8.json"]}
# By page, numbers that are no figures of results, and where they come from.
ELSEWHERE = {
    "docs/guides/kubernetes.md": {"settings of powerccld and of the chart's probes": "10 s, 30 s"},
    "docs/concepts/leases.md": {"settings of powerccld": "6 s, 10 s, 50 ms, 5 s, 0.1 s"},
    "docs/concepts/pccl.md": {"published": "17.3 %, 20.1 %", "a mean of the row": "27.4 %"},
    "README.md": {"published": "17.3 %"},
    "docs/concepts/plugin-cost.md": {"measured and not kept": "44 %"},
    "docs/concepts/policies.md": {"measured and not kept": "320 ms"},
    "docs/guides/save-energy-without-clocks.md": {"of intervals": "95 %"},
    "docs/guides/tune.md": {
        "measured; results keep only the ratios": "64.8 us, 46.3 us, 461 us, 237 us, 2.5 ms, 0.77 ms, 3.9 ms, 1.2 ms, "
        "17.3 ms, 4.3 ms, 8.8 ms, 2.7 ms, 8.9 ms"
    },
    "docs/guides/whatif.md": {
        "assumed": "50 %, 100 %, 20 %, 65 %, 85 %",
        "measured; results keep only the error": "72.5 ms, 62.7 ms, 113 ms, 116 ms, 109 ms, 112 ms",
    },
}


def figures_of(name: str) -> Iterator[tuple[float, str]]:
    """Values of a result with their units: the figures' own, and others whose name ends in a unit."""
    kept = json.loads((RESULTS / name).read_text())
    for key, figure in kept["figures"].items():
        unit = figure.get("unit", "").split(",")[0].split()[0] if figure.get("unit") else ""
        for end in ("value", "low", "high"):
            if isinstance(figure.get(end), (int, float)):
                yield float(figure[end]), unit or key.rpartition("_")[2]


def numbers(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, number and unit of each in a table; the first cell of a row says what the others are of."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("|"):
            for found in NUMBER.finditer(line, line.find("|", 1)):
                yield number, found[1].replace(",", ""), found[2]


def known(shown: str, unit: str, figures: list[tuple[float, str]]) -> bool:
    """Whether one of the figures is this number, to its digits."""
    kind, scale = UNITS[unit]
    near = 0.501 * 10.0 ** -len(shown.partition(".")[2]) * scale
    alike = (abs(value) * UNITS[of][1] for value, of in figures if of in UNITS and UNITS[of][0] == kind)
    return any(abs(value - float(shown) * scale) <= near for value in alike)


def page_faults(page: Path) -> Iterator[str]:
    """Numbers of a page that none of its results has."""
    name, text = str(page.relative_to(ROOT)), page.read_text()
    linked = sorted({each for each in LINK.findall(text) if (RESULTS / each).exists()})
    linked += ALSO.get(name, [])
    elsewhere = ", ".join(ELSEWHERE.get(name, {}).values()).split(", ")
    figures = [figure for each in linked for figure in figures_of(each)]
    for line, shown, unit in numbers(text) if linked and name not in PASSED_OVER else ():
        if not known(shown, unit, figures) and f"{shown} {unit}" not in elsewhere:
            yield f"{name}:{line}: {shown} {unit} is no figure of {', '.join(linked)}"


def result_faults(path: Path) -> Iterator[str]:
    """What a result lacks."""
    kept: dict[str, Any] = json.loads(path.read_text())
    for name in BESIDE if "schema" not in kept else ():  # what powerccl-bench itself wrote
        if name not in kept:
            yield f"{path.name}: no {name}"
    for name, figure in kept.get("figures", {}).items():
        if "value" not in figure or "unit" not in figure:
            yield f"{path.name}: {name} has no value or no unit"
    for script in SCRIPT.findall(str(kept.get("command"))):
        if script not in GONE and not list(SCRIPTS.glob(f"{script}*")):
            yield f"{path.name}: no evidence/scripts/{script}: name it in GONE if an older commit has it"


def script_faults() -> Iterator[str]:
    """Scripts that their list lacks, and listed ones that are not there."""
    listed = set(re.findall(r"`([\w.-]+)`", (ROOT / "evidence/README.md").read_text()))
    there = {path.name for path in SCRIPTS.iterdir() if path.is_file()}
    yield from (f"evidence/README.md: {name} is not listed" for name in sorted(there - listed))
    scripts = {name for name in listed if re.search(r"\.(py|sh|c)$|-on-gpus$", name)}
    yield from (f"evidence/README.md: no {name}" for name in sorted(scripts - there))


def main() -> int:
    """Print the faults; the exit code."""
    pages = [*sorted((ROOT / "docs").glob("*/*.md")), ROOT / "README.md"]
    found = [fault for path in sorted(RESULTS.glob("*.json")) for fault in result_faults(path)]
    found += [fault for page in pages if "decisions" not in page.parts for fault in page_faults(page)]
    found += script_faults()
    print("\n".join(found) if found else "figures of the documentation: all from evidence/results")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
