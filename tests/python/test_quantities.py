# SPDX-License-Identifier: Apache-2.0
"""Quantities over thirty orders of magnitude."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from powerccl import quantities as q

SI = {"f": 1e-15, "p": 1e-12, "n": 1e-9, "µ": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
SI["P"] = 1e15
TIME = {"min": 60.0, "h": 3600.0, "d": 86400.0, "y": 31_557_600.0}
BYTES = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "PiB": 2.0**50}


def _si(unit: str) -> dict[str, float]:
    return {prefix + unit: factor for prefix, factor in SI.items()}


# A power of ten, the left end of a span of clocks, an exact count of work, and the name of an objective.
ALLOWED = (
    "log10",
    "clocks from",
    '_listed(sides, [f"{value:,.0f}"',
    "energy@slowdown=",
    "the recorded iteration",
    '"--seconds"',
    '"--max-slowdown"',
)

KINDS: dict[str, tuple[Callable[[float | None], str], dict[str, float]]] = {
    "joules": (q.joules, _si("J")),
    "watts": (q.watts, _si("W")),
    "hertz": (q.hertz, _si("Hz")),
    "bytes_per_s": (q.bytes_per_s, _si("B/s")),
    "seconds": (q.seconds, {**_si("s"), **TIME}),
    "microseconds": (q.microseconds, {unit: factor * 1e6 for unit, factor in {**_si("s"), **TIME}.items()}),
    "size": (q.byte_size, BYTES),
    "mhz": (q.mhz, {unit: factor / 1e6 for unit, factor in _si("Hz").items()}),
    "percent": (q.percent, {"%": 1.0}),
    "change": (q.change, {"%": 1.0}),
    "number": (lambda value: q.number(value, "GB/s"), {"GB/s": 1.0}),
}
MAGNITUDES = [digits * 10.0**power for power in range(-15, 15) for digits in (1, 1.23456, 5, 9.994, 9.996, 9.9999)]
# Where units change: just below, at and above each step.
EDGES = [
    step * near
    for steps in ([10.0**power for power in range(-15, 16)], BYTES.values(), TIME.values(), [120.0, 7200.0, 172_800.0])
    for step in steps
    for near in (0.9990, 0.9994, 0.9996, 0.99999, 1.0, 1.00001, 1.004)
]
VALUES = sorted({*MAGNITUDES, *EDGES})


def read(text: str, units: dict[str, float]) -> float:
    """A text's value in the base unit; what is told as a bound is the bound."""
    total = 0.0
    sign = -1.0 if text.lstrip("<>").startswith("-") else 1.0
    for figure, unit in re.findall(r"([\d.]+) ([^\s\d]+)", text):
        total += float(figure) * units[unit]
    assert re.fullmatch(r"[<>]?[+-]?[\d.]+ \S+( \d\d \S+)?", text), text
    return sign * total


@pytest.mark.parametrize("kind", KINDS)
def test_every_magnitude_reads_as_what_it_is(kind: str) -> None:
    show, units = KINDS[kind]
    random_ones = [10 ** random.Random(seed).uniform(-15, 15) for seed in range(3000)]
    before = 0.0
    for value in sorted([*VALUES, *random_ones]):
        text = show(value)
        assert len(text) <= 12, text
        assert not re.search(r"\de[+-]?\d", text), text
        assert sum(c.isdigit() for c in text.lstrip("<>0.").split(" ")[0]) <= 6, text
        found = read(text, units)
        assert found >= before * (1 - 1e-9), (value, text)  # never falls while the value grows
        before = found
        if not text.startswith(("<", ">")) and found:
            places = len(text.split(" ")[0].partition(".")[2])
            last = units[text.split(" ")[-1]] * 10.0**-places  # a time of two units: of the smaller one
            assert found == pytest.approx(value, rel=0.006, abs=last * 0.51), text
        assert show(-value).replace("-", "").lstrip("<>+") == text.lstrip("<>+")
    assert before > 1e4


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_is_not_known(kind: str) -> None:
    show, units = KINDS[kind]
    assert [show(value) for value in (None, math.nan, math.inf, -math.inf)] == ["not known"] * 4
    assert read(show(0.0), units) == read(show(-0.0), units) == 0
    assert "-" not in show(-0.0)


@pytest.mark.parametrize(
    ("kind", "most"), [("joules", 1000), ("watts", 1000), ("hertz", 1000), ("bytes_per_s", 1000), ("size", 1024)]
)
def test_no_figure_reaches_the_next_unit(kind: str, most: int) -> None:
    show, units = KINDS[kind]
    largest = list(units)[-1]
    for value in VALUES:
        figure, unit = show(value).split(" ")
        assert unit == largest or float(figure) < most, (value, figure, unit)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (359_960, "4 d 04 h"),
        (5999, "99 min 59 s"),
        (7200, "2 h 00 min"),
        (125, "2 min 05 s"),
        (119.7, "2 min 00 s"),
        (12.34, "12.3 s"),
        (0.99996, "1.00 s"),
        (0.431, "431 ms"),
        (4e-5, "40.0 µs"),
        (3e-9, "3.00 ns"),
        (0, "0 s"),
        (-0.25, "-250 ms"),
    ],
)
def test_durations(value: float, text: str) -> None:
    assert q.seconds(value) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (512 << 10, "512 KiB"),
        (65_536_000, "62.5 MiB"),
        (3 << 30, "3 GiB"),
        (1500, "1.465 KiB"),
        ((1 << 20) - 1, "1 MiB"),
        (1023, "1023 B"),
        (1 << 40, "1 TiB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert q.byte_size(size) == text


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (144e6, 2.3e6, "144 ±2 MJ"),
        (144e6, 1.53e-9, "144 MJ"),  # far below what is shown
        (6.912, 0.13, "6.91 ±0.13 J"),
        (6.912, 0.26, "6.9 ±0.3 J"),
        (999.7, 2.0, "1.000 ±0.002 kJ"),
        (0.02, 30.0, "0 ±30 J"),
        (345.0, 234.0, "300 ±200 J"),
        (5.0, 0.0, "5.00 J"),
        (5.0, None, "5.00 J"),
        (-5.0, 0.1, "-5.00 ±0.10 J"),
        (None, 1.0, "not known"),
        (5.0, math.nan, "5.00 J"),
    ],
)
def test_digits_are_those_that_the_interval_warrants(value: float | None, error: float | None, text: str) -> None:
    assert q.joules(value, error) == text


def test_value_and_interval_have_one_unit_and_one_place() -> None:
    source = random.Random(3)
    for _ in range(20_000):
        value = 10 ** source.uniform(-14, 14)
        error = value * 10 ** source.uniform(-12, 2)
        for show in (q.joules, q.watts, q.seconds, q.byte_size, q.percent):
            text = show(value, error)
            assert len(text) <= 20, text
            found = re.fullmatch(r"([\d.]+) ±([\d.]+) \S+", text)
            if not found:
                assert "±" not in text
                continue
            assert len(found[1].partition(".")[2]) == len(found[2].partition(".")[2]), text
            assert len(found[2].replace(".", "").strip("0")) <= 2, text
            assert float(found[2]) > 0, text


def test_intervals_by_their_ends() -> None:
    assert q.joules.between(3.05e6, 3.1e6) == "3.05 to 3.10 MJ"
    assert q.joules.between(999e-6, 1.5) == "999 µJ to 1.50 J"
    assert q.seconds.between(0.0021, 0.0199) == "2.1 to 19.9 ms"
    assert q.seconds.between(0.0152, 1.05) == "15.2 ms to 1.05 s"
    assert q.seconds.between(0, 1.05) == "0.00 to 1.05 s"
    assert q.joules.between(0, 0) == "0 J"
    assert q.joules.between(5.0, 5.0001) == "5.00 J"
    assert q.joules.between(None, 5.0) == q.joules.between(1.0, math.nan) == "not known"
    assert q.change_between(-1.24, 3.4) == "-1.2 to +3.4 %"
    assert q.change_between(-40.3, 31.2) == "-40 to +31 %"
    assert q.change_between(-0.01, 0.01) == "0.0 to 0.0 %"
    assert q.change_between(None, 1.0) == "not known"


def test_shares_changes_and_ratios() -> None:
    assert [q.percent(v) for v in (0, 0.01, 3.21, 9.96, 45.2, 100, -3.0)] == [
        *("0 %", "<0.1 %", "3.2 %", "10 %", "45 %", "100 %", "-3.0 %")
    ]
    assert q.percent(7.0, 2.4e-11) == "7.0 %"
    assert [q.change(v) for v in (-17.84, 0.01, -0.01, 1491.5)] == ["-17.8 %", "0.0 %", "0.0 %", "+1492 %"]
    assert [q.change(v, wide=w) for v, w in ((25.8, 52), (-3.21, 19), (0.4, 30))] == ["+26 %", "-3.2 %", "0 %"]
    assert q.change(12.34, 0.42) == "+12.3 ±0.4 %"
    assert [q.factor(v) for v in (5250, 5.02, 0.1, None, -1.0)] == [
        *("× 5250", "× 5.02", "÷ 10.0", "not known", "not known")
    ]
    assert q.factor(5.1, 3.7, 6.1) == "× 5.10 (3.70 to 6.10)"
    assert q.factor(0.1, 0.05, 0.2) == "÷ 10.0 (5.00 to 20.0)"
    assert [q.watts.signed(v) for v in (12.34, -3.0, 0, None)] == ["+12.3 W", "-3.00 W", "0 W", "not known"]


def test_ages_are_short() -> None:
    ages = [q.age(v) for v in (0, 0.09, 0.999, 12, 59.999, 740, 11_520, 1e6, None)]
    assert ages == ["0 s", "90 ms", "1 s", "12 s", "60 s", "12 min", "3.2 h", "12 d", "not known"]


def test_what_was_set_is_shown_as_it_was_set() -> None:
    assert [q.exact(v, "%") for v in (1, 0.25, 50, 2.125, None)] == ["1 %", "0.25 %", "50 %", "2.125 %", "not known"]
    assert q.window((86_400.25, 86_401)) == "seconds 86400.25 to 86401"


def test_counts_have_their_number() -> None:
    assert [q.plural(n, "operation") for n in (0, 1, 2, 12_345)] == [
        *("0 operations", "1 operation", "2 operations", "12,345 operations")
    ]
    assert q.plural(2, "process", "processes") == "2 processes"


FEATURES = ("compare", "study", "tune", "ways")


def test_no_other_module_rounds_a_figure() -> None:
    """Digits of its own are what a figure gets from an f-string; hover texts are Plotly's."""
    found = []
    for room in ("reports", "analysis", *FEATURES):
        for file in (Path(q.__file__).parent / room).rglob("*.py"):
            for line in file.read_text().splitlines():
                rounded = re.search(r"\{[^{}]*:[+,]*\.?\d*[feg%]\}", line)
                if rounded and "hovertemplate" not in line and not any(word in line for word in ALLOWED):
                    found.append(f"{file.name}: {line.strip()}")
    assert not found


def test_a_part_is_not_shown_as_the_whole() -> None:
    assert q.at_least(3050.0, None, 120.0) == "3.05 ±0.12 kJ"
    assert q.at_least(None, 3050.0, 120.0) == "at least 3.05 kJ"
    assert q.at_least(None, 140.0, show=q.watts) == "at least 140 W"
    assert q.at_least(None, 53.2, show=q.percent) == "at least 53 %"
    assert q.at_least(None, None) == q.at_least(None, math.nan) == "not known"
