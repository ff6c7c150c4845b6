# SPDX-License-Identifier: Apache-2.0
"""Figures as bench/results keeps them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tool_module import load_tool

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.figures import confirmed, figure


@pytest.mark.parametrize(
    ("values", "low", "value", "high"),
    [
        ([7.0], 7.0, 7.0, 7.0),
        ([3.0, 1.0, 2.0], 1.0, 2.0, 3.0),
        ([1.0, 2.0, 3.0, 4.0, 100.0], 2.0, 3.0, 4.0),
    ],
)
def test_quartiles_are_among_the_values(values: list[float], low: float, value: float, high: float) -> None:
    assert figure(values, "s") == {"value": value, "unit": "s", "low": low, "high": high, "n": len(values)}


def test_what_tune_confirmed_has_its_interval_the_right_way_round() -> None:
    case = {"time": 0.8, "time_low": 0.5, "time_high": 1.0, "energy": 0.9, "energy_low": 0.85, "energy_high": 0.95}
    found = confirmed("tune.x", {**case, "rounds": 9})
    assert found["tune.x.speedup"] == {"value": 1.25, "unit": "times", "low": 1.0, "high": 2.0, "n": 9}
    assert found["tune.x.energy_saved_pct"] == {"value": 10.0, "unit": "%", "low": 5.0, "high": 15.0, "n": 9}
    assert list(confirmed("tune.x", {**case, "energy": None, "rounds": 9})) == ["tune.x.speedup"]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("check-figures")


def test_numbers_of_tables_are_read_with_their_unit(tool: ModuleType) -> None:
    page = "5 ms in a sentence\n| -2.5 to 3.0 ms | 1,024 MHz, 7 tokens | v1.5 s | 12 % |\n"
    assert list(tool.numbers(page)) == [(2, "2.5", "ms"), (2, "1024", "MHz"), (2, "12", "%")]


def test_a_figure_is_known_to_its_digits_and_in_its_unit(tool: ModuleType) -> None:
    figures = [(0.01842, "s"), (-7.4, "%")]
    for shown, unit, known in (("18.4", "ms", True), ("18", "ms", True), ("18.5", "ms", False), ("7.4", "%", True),
                               ("7.4", "J", False)):  # fmt: skip
        assert tool.known(shown, unit, figures) is known


def test_a_result_that_lacks_something_is_named(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    page, result = tmp_path / "docs/page.md", tmp_path / "a.json"
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "RESULTS", tmp_path)
    page.write_text("[a](../bench/results/a.json)\n\n| 2.0 s | 3.0 s |\n")
    kept = {"figures": {"x": {"value": 2, "unit": "s"}}, "command": "scripts/nothing 2", "date": "", "commit": ""}
    result.write_text(json.dumps(kept))
    assert list(tool.page_faults(page)) == ["docs/page.md:3: 3.0 s is no figure of a.json"]
    assert [each.split(":")[1].split()[:2] for each in tool.result_faults(result)] == [
        ["no", "machine"],
        ["no", "conditions"],
        ["no", "scripts/nothing"],
    ]
