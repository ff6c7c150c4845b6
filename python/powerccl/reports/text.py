# SPDX-License-Identifier: Apache-2.0
"""Numbers as a person reads them."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

NOT_KNOWN = "–"
LONGEST_LABEL = 256


def run_label(folder: str) -> str:
    """What a run is called in metrics: its folder's absolute path, which is no other run's, now and later.

    A name would not do: two jobs of one command have the same. A longer path than a label keeps its end and a digest.
    """
    path = str(Path(folder).absolute())
    if len(path) <= LONGEST_LABEL:
        return path
    digest = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"{digest}…{path[-(LONGEST_LABEL - len(digest) - 1) :]}"


def number(value: float | None, unit: str = "", digits: int = 3) -> str:
    """A number with `digits` significant ones; a dash where it is not known."""
    if value is None or not math.isfinite(value):
        return NOT_KNOWN
    if value == 0:
        text = "0"
    else:
        places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:.{places}f}"
    return f"{text} {unit}" if unit else text


def joules(value: float | None) -> str:
    """An energy: `6.9 J`, `1.24 kJ`, `3.1 MJ`."""
    if value is None:
        return NOT_KNOWN
    for factor, unit in ((1e6, "MJ"), (1e3, "kJ")):
        if abs(value) >= factor:
            return number(value / factor, unit)
    return number(value, "J") if abs(value) >= 1 or value == 0 else number(value * 1e3, "mJ")


def seconds(value: float | None) -> str:
    """A time: `431 ms`, `12.3 s`, `2 min 05 s`."""
    if value is None:
        return NOT_KNOWN
    if value >= 120:
        return f"{int(value // 60)} min {value % 60:02.0f} s"
    if value >= 1 or value == 0:
        return number(value, "s")
    return number(value * 1e3, "ms") if value >= 1e-3 else number(value * 1e6, "µs")


def mhz(value: float | None) -> str:
    """A clock, in whole MHz."""
    return NOT_KNOWN if value is None else f"{value:.0f} MHz"


def percent(value: float | None) -> str:
    """A share in percent: `3.2 %`, `45 %`."""
    if value is None:
        return NOT_KNOWN
    return f"{value:.1f} %" if 0 < value < 9.95 else f"{value:.0f} %"


def change(value: float | None) -> str:
    """A change in percent, with its sign."""
    if value is None:
        return NOT_KNOWN
    return f"{value:+.1f} %" if abs(value) >= 0.05 else "0.0 %"
