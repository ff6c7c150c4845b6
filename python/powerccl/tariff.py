# SPDX-License-Identifier: Apache-2.0
"""What a kWh costs and emits: read from options, from the user's file and from tables by hour.

Standard library alone: the user's file is checked without what reports need.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from powerccl.errors import PowercclError
from powerccl.files import expanded

HOUR_S = 3600.0
NONE = "none"  # in the place of a price or of a carbon intensity: as if the user's file had none
# Of a kWh, in any currency or in grams: what is above was typed wrong. At half, a kWh may still cost 500,000 IRR.
MOST_PER_KWH = 1e6
# All of a site's power by that of its computers: at least 1 by definition. The worst machine rooms have about 3.
PUE_RANGE = (1.0, 10.0)
GRAM = "g"
_GRAMS = {"g/kWh": 1.0, "kg/kWh": 1e3, "kg/MWh": 1.0}
_NUMBER = r"(-?\d+(?:\.\d+)?)"
_PRICE_UNIT = re.compile(r"([A-Za-z]{3})/(kWh|MWh)")
_OFFSET = re.compile(r"([+-]\d\d)(\d\d)$")

PRICE_FORM = "write 0.25EUR/kWh (any currency of three letters, /kWh or /MWh), or name a CSV file: time,EUR/MWh"
CARBON_FORM = "write 380g/kWh (or kg/kWh, kg/MWh), or name a CSV file: time,g/kWh"


@dataclass(frozen=True)
class Rate:
    """What a kWh costs or emits: `constant`, or by time `hours`: (from, to, value), Unix seconds, rising.

    `text`: as it was given; `unit`: a currency, or grams.
    """

    text: str
    unit: str
    constant: float | None = None
    hours: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True)
class Tariff:
    """What energy costs and emits; None: not asked for. `pue`: energy of the site by that of its computers."""

    price: Rate | None = None
    carbon: Rate | None = None
    pue: float | None = None

    @property
    def given(self) -> bool:
        """Whether anything was asked for."""
        return not (self.price is None and self.carbon is None and self.pue is None)


def parse_price(text: str, base: Path | None = None) -> Rate | None:
    """`0.25EUR/kWh`, or a CSV file, whose path is relative to `base`. None: `none`.

    Raises:
        PowercclError: it is neither, or the file cannot be used.
    """
    return _parse(text, "price", PRICE_FORM, _price_unit, base)


def parse_carbon(text: str, base: Path | None = None) -> Rate | None:
    """`380g/kWh`, or a CSV file, whose path is relative to `base`. None: `none`.

    Raises:
        PowercclError: it is neither, or the file cannot be used.
    """
    return _parse(text, "carbon intensity", CARBON_FORM, _carbon_unit, base)


def parse_pue(value: float) -> float:
    """The PUE, if it can be one.

    Raises:
        PowercclError: it cannot.
    """
    if not PUE_RANGE[0] <= value <= PUE_RANGE[1]:
        raise PowercclError(
            f"a PUE of {value:g} is not possible",
            f"a PUE is between {PUE_RANGE[0]:g} and {PUE_RANGE[1]:g}: energy of the site by that of its computers",
        )
    return float(value)


def parse_time(text: str) -> float | None:
    """Unix seconds of an ISO 8601 time with `Z` or an offset; None: it is none."""
    try:
        when = datetime.fromisoformat(_OFFSET.sub(r"\1:\2", re.sub("[Zz]$", "+00:00", text.strip())))
        return when.timestamp() if when.tzinfo else None
    except (ValueError, OverflowError):
        return None


def time_text(unix_s: float) -> str:
    """`2026-11-25T10:00Z`."""
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%dT%H:%MZ")


_UnitOf = Callable[[str], "tuple[str, float] | None"]


def _price_unit(text: str) -> tuple[str, float] | None:
    """`EUR/MWh` as the currency, and the factor to a kWh; None: it is no such unit."""
    match = _PRICE_UNIT.fullmatch(text)
    return (match[1].upper(), 1.0 if match[2] == "kWh" else 1e-3) if match else None


def _carbon_unit(text: str) -> tuple[str, float] | None:
    return (GRAM, _GRAMS[text]) if text in _GRAMS else None


def _parse(text: str, what: str, form: str, unit_of: _UnitOf, base: Path | None) -> Rate | None:
    text = text.strip()
    if text == NONE:
        return None
    match = re.fullmatch(rf"{_NUMBER}\s*(\S+)", text)
    if match and (unit := unit_of(match[2])):
        value = float(match[1]) * unit[1]
        if not 0 < value <= MOST_PER_KWH:
            raise PowercclError(f"a {what} of {text} is not possible", f"{_range(unit[0])}; {form}")
        return Rate(text, unit[0], value)
    path = (base or Path()) / expanded(text)
    if not (text.lower().endswith(".csv") or path.is_file()):
        raise PowercclError(f"{what} '{text}': not understood", form)
    return _read_table(path, text, what, form, unit_of)


def _range(unit: str) -> str:
    return f"it is above 0, and at most {MOST_PER_KWH:,.0f} {unit}/kWh"


def _read_table(path: Path, text: str, what: str, form: str, unit_of: _UnitOf) -> Rate:
    from powerccl.files import read_bytes

    try:
        rows = csv.reader(io.StringIO(read_bytes(path).decode("utf-8-sig")))
        header = [cell.strip() for cell in next(rows, [])]
        # `EUR/MWh`, `value EUR/MWh` and `price (EUR/MWh)` name a unit.
        unit = unit_of(header[1].split()[-1].strip("()[]")) if len(header) == 2 and header[1] else None
        if unit is None or header[0].lower() != "time":
            raise PowercclError(f"{path}:1: no header with the columns time and {what}", form)
        steps = list(_steps(path, rows, unit))
    except OSError as error:
        raise PowercclError(f"cannot read {path}: {error.strerror}", form) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise PowercclError(f"{path} is no CSV file: {error}", form) from error
    if not steps:
        raise PowercclError(f"{path} has no hour", form)
    last_s = steps[-1][0] - steps[-2][0] if len(steps) > 1 else HOUR_S  # as long as the one before
    ends = [*(begin for begin, _ in steps[1:]), steps[-1][0] + last_s]
    hours = tuple((begin, min(begin + HOUR_S, end), value) for (begin, value), end in zip(steps, ends, strict=True))
    return Rate(text, unit[0], None, hours)


def _steps(path: Path, rows: Iterator[list[str]], unit: tuple[str, float]) -> Iterator[tuple[float, float]]:
    """Begin and value for a kWh of each row."""
    before = -math.inf
    for number, row in enumerate(rows, 2):
        if not any(cell.strip() for cell in row):
            continue
        place = f"{path}:{number}"
        if len(row) != 2:
            raise PowercclError(
                f"{place}: {len(row)} columns instead of 2", "write lines such as 2026-11-25T10:00Z,81.5"
            )
        begin = parse_time(row[0])
        if begin is None:
            raise PowercclError(
                f"{place}: '{row[0]}' is no time with a zone", "write 2026-11-25T10:00Z, or 2026-11-25T11:00+01:00"
            )
        if begin <= before:
            raise PowercclError(f"{place}: {row[0]} is not later than the line before", "sort the file by time")
        if not re.fullmatch(_NUMBER, row[1].strip()):
            raise PowercclError(f"{place}: '{row[1]}' is no number", "write 81.5, with a point")
        value = float(row[1]) * unit[1]
        if abs(value) > MOST_PER_KWH or (unit[0] == GRAM and value <= 0):
            hint = _range(unit[0]) if unit[0] == GRAM else f"at most {MOST_PER_KWH:,.0f} {unit[0]}/kWh"
            raise PowercclError(f"{place}: {row[1]} is not possible", hint)
        before = begin
        yield begin, value
