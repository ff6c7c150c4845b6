# SPDX-License-Identifier: Apache-2.0
"""Figures as evidence/results keeps them: a value with its unit, its spread, and how many measurements it is of.

A script writes them as a flat map by name, or with what stands beside them in evidence/results (`about`).
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from powerccl.quantities import byte_size

ROOT = Path(__file__).resolve().parents[2]
Figure = dict[str, Any]
Figures = dict[str, Figure]


def size_name(size_bytes: int) -> str:
    """`64MiB`, `4KiB`: how figures name a size."""
    return byte_size(size_bytes).replace(" ", "")


def count(value: int, n: int) -> Figure:
    """A number of cases, out of n that ran."""
    return {"value": value, "unit": "1", "low": value, "high": value, "n": n}


def one(value: float | None, unit: str, n: int = 1) -> Figure:
    """A figure without spread: the worst of n, or an exact number."""
    return {"value": value, "unit": unit, "low": value, "high": value, "n": n}


def bare(value: float | None, unit: str, n: int = 1) -> Figure:
    """A figure whose spread is not known; None: it is not known itself."""
    return {"value": value, "unit": unit, "low": None, "high": None, "n": n}


def figure_of(
    value: float | None, unit: str, low: float | None = None, high: float | None = None, n: int = 1
) -> Figure:
    """A figure that somebody else made, to four significant digits; what is None is not known."""
    ends = {"value": value, "low": low, "high": high}
    return bare(None, unit, n) | {name: each if each is None else float(f"{each:.4g}") for name, each in ends.items()}


def spread(values: Sequence[float], unit: str, digits: int = 3) -> Figure:
    """The median, the least and the greatest."""
    return _rounded(min(values), statistics.median(values), max(values), unit, digits, len(values))


def figure(values: Sequence[float], unit: str, digits: int = 3) -> Figure:
    """The median and the quartiles; of fewer than four values the least and the greatest, as they have no quartiles."""
    if len(values) < 4:
        return spread(values, unit, digits)
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return _rounded(low, middle, high, unit, digits, len(values))


def confirmed(stem: str, case: Mapping[str, Any]) -> Figures:
    """Times of a case that `powerccl tune` confirmed, and ratios to NCCL's defaults with their intervals."""
    low, faster, high = (1 / case[name] for name in ("time_high", "time", "time_low"))
    found = {f"{stem}.{name}": bare(round(case[name], 2), "us", case["rounds"]) for name in ("default_us", "tuned_us")}
    found[f"{stem}.speedup"] = _rounded(low, faster, high, "times", 3, case["rounds"])
    if case["energy"] is not None:
        low, saved, high = (100 * (1 - case[name]) for name in ("energy_high", "energy", "energy_low"))
        found[f"{stem}.energy_saved_pct"] = _rounded(low, saved, high, "%", 2, case["rounds"])
    return found


def about(command: str, conditions: str, machine: str = "") -> dict[str, str]:
    """What stands beside figures in evidence/results; without a machine: this one, which has no GPU."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    here = f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, no GPU"
    return {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit or "unknown",
        "machine": machine or here,
        "conditions": conditions,
    }


def write(out: Path | None, figures: Figures, **beside: Any) -> None:
    """Write them, if there is a file to write them to: as a flat map, or under `figures` with what stands beside."""
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text_of({"figures": figures, **beside} if beside else figures))


def text_of(kept: Mapping[str, Any]) -> str:
    """JSON with a line for each figure, and for each thing that stands beside them: differences show what changed."""
    return _lines({name: _lines(each) if name == "figures" else _line(each) for name, each in kept.items()}) + "\n"


def _lines(values: Mapping[str, Any]) -> str:
    rows = (f"{json.dumps(name)}: {each if isinstance(each, str) else _line(each)}" for name, each in values.items())
    return "{\n" + ",\n".join(rows) + "\n}"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def show(figures: Figures) -> None:
    """Print a line each: value, unit, low and high, n."""
    for name, each in figures.items():
        ends = "" if each.get("low") in (None, each["value"]) else f"[{each['low']} .. {each['high']}]"
        print(f"{name:58} {each['value']!s:>10} {each['unit']:6} {ends:22} n={each['n']}", flush=True)


def _rounded(low: float, value: float, high: float, unit: str, digits: int, n: int) -> Figure:
    return {
        "value": round(value, digits),
        "unit": unit,
        "low": round(low, digits),
        "high": round(high, digits),
        "n": n,
    }
