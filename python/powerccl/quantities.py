# SPDX-License-Identifier: Apache-2.0
"""Quantities as a person reads them: the one place that turns a figure into text.

Every figure has its unit, three significant digits and no exponent. A figure with an interval has as many digits as
the interval warrants. What was not measured, and what is no number, is `not known`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

NOT_KNOWN = "not known"

DIGITS = 3  # significant ones of a figure without an interval: within half a percent, as power samplers are
MOST_DIGITS = 4  # of a figure with an interval; a narrower interval is left out
MOST = 999_999  # of the largest unit, and of percent; more is `>999999`, so that tables keep their width
MOST_NAMED = 3  # subjects of which one thing is said; of more, only so many are named
WIDE_PCT = 20  # between the ends of a change: from here on tenths say nothing
MONEY_PLACES = 6  # most decimals of an amount of money, which has no smaller unit: an iteration costs millionths
MOST_PLACES = 4  # most decimals of a figure that has one unit only, such as GB/s under a column's head


@dataclass(frozen=True)
class Unit:
    """A unit: its size, and from how much on the next larger one is used."""

    name: str
    factor: float
    until: float


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}")


def _exponent(value: float) -> int:
    """The power of ten of the first digit that is not 0."""
    return int(f"{value:.17e}".partition("e")[2]) if value else 0


def _fixed(value: float, places: int) -> str:
    """With that many decimals; below 0 rounded to tens, hundreds and so on. Never `-0.0`."""
    text = f"{round(value, places):.{max(places, 0)}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def _places(value: float, digits: int) -> int:
    """Decimals that give so many significant digits, counted after rounding."""
    return digits - 1 - _exponent(_rounded(abs(value), digits))


def _places_of_error(error: float) -> int:
    """Decimals that an error warrants: one digit of it, two where the first is a 1."""
    first = f"{error:.1e}"
    return _places(error, 2 if first[0] == "1" else 1)


def _beyond(value: float, unit: str) -> str:
    return f"{'<-' if value < 0 else '>'}{MOST} {unit}".strip()


@dataclass(frozen=True)
class Quantity:
    """A kind of quantity: its units from small to large, `base` the one of a zero."""

    units: Sequence[Unit]
    base: str
    digits: int = DIGITS
    zeros: bool = True  # `1.00 s`; sizes are exact: `1 MiB`

    def __call__(self, value: float | None, error: float | None = None) -> str:
        """`6.90 J`, or `144 ±2 MJ` with `error`, half of an interval."""
        if value is None or not math.isfinite(value):
            return NOT_KNOWN
        if error and 0 < error < math.inf:
            return self._with_error(value, error)
        unit = self._unit(value, self.digits)
        scaled = value / unit.factor
        if abs(scaled) < 0.5 * 10**-MOST_PLACES:
            return f"0 {self.base}"
        if abs(scaled) > MOST:
            return _beyond(value, unit.name)
        text = _fixed(scaled, min(max(_places(scaled, self.digits), 0), MOST_PLACES))
        if not self.zeros and "." in text:
            text = text.rstrip("0").rstrip(".")
        return f"{text} {unit.name}"

    def signed(self, value: float | None) -> str:
        """A change: `+12.3 W`."""
        text = self(value)
        return f"+{text}" if value is not None and value > 0 and text[0].isdigit() and text[:2] != "0 " else text

    def between(self, low: float | None, high: float | None) -> str:
        """`3.05 to 3.10 MJ`: both ends in one unit, and to one place."""
        if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
            return NOT_KNOWN
        widest = max(low, high, key=abs)
        unit = self._unit(widest, self.digits)
        scaled = widest / unit.factor
        if abs(scaled) < 10**-MOST_PLACES or abs(scaled) > MOST:
            return self(widest)
        if low and high and min(abs(low), abs(high)) < abs(widest) / 10:  # would be left with a digit or none
            return f"{self(low)} to {self(high)}"
        places = max(_places(scaled, self.digits), 0)
        ends = [_fixed(end / unit.factor, places) for end in (low, high)]
        return f"{ends[0]} to {ends[1]} {unit.name}" if ends[0] != ends[1] else f"{ends[0]} {unit.name}"

    def _unit(self, value: float, digits: int) -> Unit:
        """The smallest in which the value, once rounded, needs no larger one."""
        whole = next((unit for unit in self.units if _rounded(abs(value) / unit.factor, digits) < unit.until), None)
        return whole or self.units[-1]

    def _with_error(self, value: float, error: float) -> str:
        """Value and error in one unit and to one place."""
        unit = self._unit(max(abs(value), error), DIGITS)
        scaled, spread = value / unit.factor, error / unit.factor
        places = _places_of_error(spread)
        finest = _places(scaled, MOST_DIGITS) if scaled else MOST_PLACES
        if max(abs(scaled), spread) > MOST or places > min(finest, MOST_PLACES):
            return self(value)
        return f"{_fixed(scaled, places)} ±{_fixed(spread, places)} {unit.name}"


def _si(unit: str, least: int = -15, most: int = 15) -> Quantity:
    prefixes = {-15: "f", -12: "p", -9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P"}
    used = [(power, prefix) for power, prefix in prefixes.items() if least <= power <= most]
    return Quantity([Unit(prefix + unit, float(f"1e{power}"), 1000) for power, prefix in used], unit)


class _Duration(Quantity):
    """Seconds; a long time has two units: `2 min 05 s`, `4 d 04 h`."""

    def __call__(self, value: float | None, error: float | None = None) -> str:
        unit = self._unit(value, self.digits) if value is not None and math.isfinite(value) else None
        part = _PARTS.get(unit.name) if unit else None
        if value is None or unit is None or part is None or (error and 0 < error < math.inf):
            return super().__call__(value, error)
        whole, rest = divmod(round(abs(value) / part.factor), round(unit.factor / part.factor))
        return f"{'-' * (value < 0)}{whole} {unit.name} {rest:02d} {part.name}"


_PER_S = Unit("s", 1.0, 120)
_MINUTE, _HOUR, _DAY = Unit("min", 60.0, 120), Unit("h", 3600.0, 48), Unit("d", 86_400.0, 1000)
_YEAR = Unit("y", 31_557_600.0, math.inf)  # 365.25 days
_PARTS = {"min": _PER_S, "h": _MINUTE, "d": _HOUR}
_BINARY = [Unit(name, float(1 << 10 * at), 1024) for at, name in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB"))]

joules = _si("J")
watts = _si("W")
watt_hours = _si("Wh", least=-6)
hertz = _si("Hz")
bytes_per_s = _si("B/s")
seconds = _Duration([*_si("s", most=-3).units, _PER_S, _MINUTE, _HOUR, _DAY, _YEAR], "s")
age = Quantity(seconds.units, "s", digits=2, zeros=False)  # `3.2 h`: how long ago, in few characters
byte_size = Quantity(_BINARY, "B", digits=4, zeros=False)
_GRAMS = (("mg", 1e-3), ("g", 1.0), ("kg", 1e3), ("t", 1e6), ("kt", 1e9))
grams = Quantity([Unit(name, factor, 1000) for name, factor in _GRAMS], "g")
_percent = Quantity([Unit("%", 1.0, math.inf)], "%")


def at_least(
    whole: float | None, part: float | None, error: float | None = None, show: Callable[..., str] = joules
) -> str:
    """A sum, or `at least 3.05 kJ` where only a part of it was measured; `error`: of the sum."""
    text = show(part)
    return show(whole, error) if whole is not None or text == NOT_KNOWN else f"at least {text}"


def microseconds(value: float | None, error: float | None = None) -> str:
    """A duration that is kept in microseconds."""
    return seconds(None if value is None else value / 1e6, None if error is None else error / 1e6)


def mhz(value: float | None) -> str:
    """A clock: whole MHz, as drivers name clocks."""
    if value is not None and 0.95 < abs(value) < 1e5:
        return f"{value:.0f} MHz"
    return hertz(None if value is None else value * 1e6)


def number(value: float | None, unit: str = "") -> str:
    """A figure that keeps its unit, such as under a column's head."""
    if value is None or not math.isfinite(value):
        return NOT_KNOWN
    if abs(value) > MOST:
        return _beyond(value, unit)
    if value == 0:
        return f"0 {unit}".rstrip()
    text = _fixed(value, min(max(_places(value, DIGITS), 0), MOST_PLACES))
    if float(text) == 0:
        text = f"{'<' if value > 0 else '>-'}{10**-MOST_PLACES:.{MOST_PLACES}f}"
    return f"{text} {unit}".rstrip()


def money(value: float | None, currency: str, error: float | None = None) -> str:
    """An amount of money: `0.0347 EUR`, `12,300 EUR`; with `error`, half of an interval, `1.23 ±0.04 EUR`."""
    if value is None or not math.isfinite(value):
        return NOT_KNOWN
    if value == 0:
        return f"0 {currency}"
    if error and 0 < error < math.inf and _places_of_error(error) <= min(_places(value, MOST_DIGITS), MONEY_PLACES):
        places = _places_of_error(error)
        return f"{_with_commas(value, places)} ±{_with_commas(error, places)} {currency}"
    text = _with_commas(value, min(_places(value, DIGITS), MONEY_PLACES))
    if float(text.replace(",", "")) == 0:
        text = f"{'<' if value > 0 else '>-'}{10**-MONEY_PLACES:.{MONEY_PLACES}f}"
    return f"{text} {currency}"


def _with_commas(value: float, places: int) -> str:
    return f"{round(value, places):,.{max(places, 0)}f}"


def exact(value: float | None, unit: str = "") -> str:
    """A value as set by the user, such as `1 %` or `0.25 s`: every digit of it, to the thousandth."""
    if value is None or not math.isfinite(value):
        return NOT_KNOWN
    return f"{value:.3f}".rstrip("0").rstrip(".") + f" {unit}".rstrip()


def window(ends_s: tuple[float, float]) -> str:
    """A stretch of a run, to the millisecond however late in the run: `seconds 86400.25 to 86401`."""
    return f"seconds {exact(ends_s[0])} to {exact(ends_s[1])}"


def plural(value: int, noun: str, many: str = "") -> str:
    """`1 iteration`, `12,345 iterations`."""
    return f"{value:,} {noun if value == 1 else many or noun + 's'}"


def said_once(lines: Iterable[str]) -> list[str]:
    """Lines such as `node1: no samples`, with what many subjects have in common said once.

    `node1, node2, node3 and 122 more: no samples`. Up to MOST_NAMED subjects keep a line each.
    """
    parts = [line.partition(": ") for line in lines]
    subjects: dict[str, dict[str, None]] = {}
    for subject, separator, text in parts:
        subjects.setdefault(text if separator else "", {})[subject] = None
    merged = []
    for subject, separator, text in parts:
        names = list(subjects.get(text, ())) if separator else []
        if len(names) <= MOST_NAMED:
            merged.append(subject + separator + text)
        elif subject == names[0]:
            merged.append(f"{', '.join(names[:MOST_NAMED])} and {len(names) - MOST_NAMED:,} more: {text}")
    return list(dict.fromkeys(merged)) if len(merged) < len(parts) else merged


def percent(value: float | None, error: float | None = None) -> str:
    """A share: `3.2 %`, `45 %`, `<0.1 %`."""
    if value is None or not math.isfinite(value):
        return NOT_KNOWN
    if "±" in (text := _percent(value, error)):
        return text
    if 0 < abs(value) < 0.05:
        return "<0.1 %" if value > 0 else ">-0.1 %"
    if abs(value) > MOST:
        return _beyond(value, "%")
    return f"{_fixed(value, 1 if 0 < abs(value) < 9.95 else 0)} %"


def change(value: float | None, error: float | None = None, wide: float = 0) -> str:
    """A change in percent, with its sign: `-17.8 %`, `+0.3 ±0.2 %`; `wide`: its interval's, from end to end."""
    if value is None or not math.isfinite(value):
        return NOT_KNOWN
    if "±" in (text := _percent(value, error)):
        return f"+{text}" if value > 0 else text
    return f"{_signed(value, int(wide < WIDE_PCT))} %" if abs(value) <= MOST else _beyond(value, "%")


def change_between(low: float | None, high: float | None) -> str:
    """An interval of a change in percent: `-1.2 to +3.4 %`."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return NOT_KNOWN
    if max(abs(low), abs(high)) > MOST:
        return f"{change(low)} to {change(high)}"
    places = int(high - low < WIDE_PCT)
    return f"{_signed(low, places)} to {_signed(high, places)} %"


def _signed(value: float, places: int) -> str:
    text = _fixed(value, places if abs(value) < 999.5 else 0)
    return f"+{text}" if float(text) > 0 else text


_OF_UNIT: dict[str, Callable[[float | None], str]] = {
    "s": seconds,
    "ms": lambda value: seconds(None if value is None else value / 1e3),
    "J": joules,
    "W": watts,
    "B/s": bytes_per_s,
    "MHz": mhz,
    "kg": lambda value: grams(None if value is None else value * 1e3),
    "%": percent,
}


def quantity(value: float | None, unit: str) -> str:
    """A figure of a table whose rows have units of their own."""
    if unit == "Hz":
        return mhz(None if value is None else value / 1e6)
    if len(unit) == 3 and unit.isalpha() and unit.isupper():
        return money(value, unit)
    return _OF_UNIT[unit](value) if unit in _OF_UNIT else number(value, unit)


def quantity_change(value: float | None, unit: str) -> str:
    """A difference of such figures, with its sign."""
    text = quantity(value, unit)
    return f"+{text}" if value is not None and value > 0 and text[0].isdigit() else text


def factor(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """How many times: `× 5.02 (3.70 to 6.10)`; a tenth is `÷ 10.0`."""
    if value is None or not math.isfinite(value) or value <= 0:
        return NOT_KNOWN
    if value < 1:
        ends = (None, None) if not low or not high else (1 / high, 1 / low)
        return "÷" + factor(1 / value, *ends).removeprefix("×")
    between = "" if low is None or high is None else f" ({number(low)} to {number(high)})"
    return f"× {number(value)}{between}"


def hover(unit: str, of: str = "y") -> str:
    """Plotly's template for a figure under the pointer. Of d3's formats only `r` never writes an exponent."""
    return f"%{{{of}:.{MOST_DIGITS}~r}} {unit}"
