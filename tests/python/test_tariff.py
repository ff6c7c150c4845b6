# SPDX-License-Identifier: Apache-2.0
"""Prices, carbon intensities and PUEs as people write them."""

from __future__ import annotations

import string
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from powerccl.errors import PowercclError
from powerccl.tariff import Rate, parse_carbon, parse_price, parse_pue, parse_time, time_text

HOUR = 3600.0
TEN = datetime(2026, 11, 25, 10, tzinfo=timezone.utc).timestamp()
FILE = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def table(folder: Path, *lines: str) -> Path:
    path = folder / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("0.25EUR/kWh", "EUR", 0.25),
        ("250 eur/MWh", "EUR", 0.25),
        ("31JPY/kWh", "JPY", 31.0),
    ],
)
def test_a_price(text: str, unit: str, value: float) -> None:
    assert parse_price(text) == Rate(text, unit, value)


@pytest.mark.parametrize(("text", "grams"), [("380g/kWh", 380.0), ("0.38kg/kWh", 380.0), ("380 kg/MWh", 380.0)])
def test_a_carbon_intensity(text: str, grams: float) -> None:
    assert parse_carbon(text) == Rate(text, "g", grams)


@pytest.mark.parametrize(
    "text",
    [
        *("0.25", "0.25EUR", "0.25EUR/Wh", "0,25EUR/kWh", "1e-1EUR/kWh", "EUR/kWh", "0.25EURO/kWh", "0.25EUR/kwh", ""),
        *("0EUR/kWh", "-1EUR/kWh", "1000001EUR/kWh", "1_0EUR/kWh", "380g/kWh", "0.25€/kWh", "x"),
    ],
)
def test_what_is_no_price_says_how_to_write_one(text: str) -> None:
    with pytest.raises(PowercclError) as error:
        parse_price(text)
    assert "0.25EUR/kWh" in error.value.hint


@pytest.mark.parametrize("text", ["380", "380g/MWh", "0g/kWh", "-3g/kWh", "380gCO2/kWh", "0.25EUR/kWh"])
def test_what_is_no_carbon_intensity_says_how_to_write_one(text: str) -> None:
    with pytest.raises(PowercclError) as error:
        parse_carbon(text)
    assert "380g/kWh" in error.value.hint


@pytest.mark.parametrize("value", [0.99, 10.1, float("nan"), float("inf"), -1.0])
def test_a_pue_that_cannot_be(value: float) -> None:
    with pytest.raises(PowercclError, match="not possible"):
        parse_pue(value)
    assert parse_pue(1) == 1.0


def test_none_takes_the_place_of_the_users_own() -> None:
    assert parse_price("none") is None and parse_carbon("none") is None


@given(
    st.decimals("0.0001", "999", places=4),
    st.text(string.ascii_letters, min_size=3, max_size=3),
    st.sampled_from([("kWh", 1.0), ("MWh", 1e-3)]),
)
def test_every_price_is_read_as_it_is_written(amount: object, currency: str, unit: tuple[str, float]) -> None:
    rate = parse_price(f"{amount}{currency}/{unit[0]}")
    assert rate and rate.unit == currency.upper()
    assert rate.constant == pytest.approx(float(str(amount)) * unit[1])


@given(st.text(max_size=20), st.sampled_from([parse_price, parse_carbon]))
def test_any_text_is_a_rate_or_an_error_with_a_hint(text: str, parse: Callable[[str, Path], Rate | None]) -> None:
    try:
        rate = parse(text, Path("/nonexistent"))
    except PowercclError as error:
        assert error.hint
    else:
        assert rate is None or (rate.constant or 0) > 0


def test_a_table_by_hour(tmp_path: Path) -> None:
    table(
        tmp_path,
        "time,price (EUR/MWh)",
        "2026-11-25T11:00+01:00,100",
        "",
        "2026-11-25T11:00Z,-20.5",
        "2026-11-25T11:15Z,0",
        "2026-11-25T13:00:00+0000,300",
    )
    rate = parse_price("table.csv", tmp_path)
    assert rate and (rate.text, rate.unit, rate.constant) == ("table.csv", "EUR", None)
    # A row lasts until the next, an hour at most: nothing is known of 12:15 to 13:00.
    assert [(begin - TEN, end - TEN) for begin, end, _ in rate.hours] == [
        (0, HOUR),
        (HOUR, 1.25 * HOUR),
        (1.25 * HOUR, 2.25 * HOUR),
        (3 * HOUR, 4 * HOUR),
    ]
    assert [value for _, _, value in rate.hours] == pytest.approx([0.1, -0.0205, 0.0, 0.3])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["time,value", "2026-11-25T10:00Z,1"], ":1: no header"),
        (["time,EUR/MWh,x"], ":1: no header"),
        (["hour,EUR/MWh"], ":1: no header"),
        (["time,g/kWh", "2026-11-25T10:00Z,1"], ":1: no header"),
        (["time,EUR/MWh"], "has no hour"),
        (["time,EUR/MWh", "2026-11-25T10:00,1"], ":2: '2026-11-25T10:00' is no time with a zone"),
        (["time,EUR/MWh", "2026-11-25T10:00Z,1", "25.11.2026 11:00,1"], ":3: '25.11.2026 11:00' is no time"),
        (
            ["time,EUR/MWh", "2026-11-25T10:00Z,1", "2026-11-25T11:00+01:00,1"],
            ":3: 2026-11-25T11:00+01:00 is not later",
        ),
        (["time,EUR/MWh", '2026-11-25T10:00Z,"1,5"'], ":2: '1,5' is no number"),
        (["time,EUR/MWh", "2026-11-25T10:00Z,nan"], ":2: 'nan' is no number"),
        (["time,EUR/MWh", "2026-11-25T10:00Z,1,2"], ":2: 3 columns"),
        (["time,EUR/kWh", "2026-11-25T10:00Z,99999999"], ":2: 99999999 is not possible"),
    ],
)
def test_a_table_that_cannot_be_used_names_its_line(tmp_path: Path, lines: list[str], words: str) -> None:
    path = table(tmp_path, *lines)
    with pytest.raises(PowercclError) as error:
        parse_price(str(path))
    assert words in error.value.message and str(path) in error.value.message and error.value.hint


@pytest.mark.parametrize("value", ["0", "-1"])
def test_an_hour_emits_something(tmp_path: Path, value: str) -> None:
    path = table(tmp_path, "time,g/kWh", f"2026-11-25T10:00Z,{value}")
    with pytest.raises(PowercclError, match=r":2: .* is not possible"):
        parse_carbon(str(path))


@FILE
@given(st.binary(max_size=200))
def test_any_bytes_are_a_table_or_an_error_with_a_hint(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "any.csv"
    for start in (b"", b"time,EUR/MWh\n", b"time,EUR/MWh\n2026-11-25T10:00Z,"):
        path.write_bytes(start + data)
        try:
            rate = parse_price(str(path))
        except PowercclError as error:
            assert error.hint
        else:
            assert rate and rate.hours


@FILE
@given(st.lists(st.integers(1, 200), min_size=1, max_size=20), st.integers(-840, 840))
def test_the_zone_of_a_row_makes_no_difference(tmp_path: Path, steps: list[int], minutes: int) -> None:
    zone, at, times = timezone(timedelta(minutes=minutes)), TEN, []
    for step in steps:
        at += 60 * step
        times.append(at)
    rows = [f"{datetime.fromtimestamp(each, zone).isoformat()},{number}" for number, each in enumerate(times)]
    rate = parse_price(str(table(tmp_path, "time,EUR/kWh", *rows)))
    assert rate and [begin for begin, _, _ in rate.hours] == times
    for (_, end, _), (begin, _, _) in zip(rate.hours, rate.hours[1:], strict=False):
        assert end <= begin


@pytest.mark.parametrize("text", ["2026-11-25T10:00Z", "2026-11-25T10:00:00+0000", "2026-11-25 11:00+01:00"])
def test_times(text: str) -> None:
    assert parse_time(text) == TEN
    assert time_text(TEN) == "2026-11-25T10:00Z"


@pytest.mark.parametrize("text", ["", "2026-11-25T10:00", "now", "2026-13-25T10:00Z", "2026-11-25T10:00+25:00"])
def test_what_is_no_time(text: str) -> None:
    assert parse_time(text) is None
