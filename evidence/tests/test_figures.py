# SPDX-License-Identifier: Apache-2.0
"""Figures as evidence/results keeps them."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from support.figures import confirmed, figure
from synthetic import training_run
from tool_module import load_tool

from powerccl.study.worlds import ScalingFindings


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
    case |= {"default_us": 1e3, "tuned_us": 800.0}
    found = confirmed("tune.x", {**case, "rounds": 9})
    assert found["tune.x.speedup"] == {"value": 1.25, "unit": "times", "low": 1.0, "high": 2.0, "n": 9}
    assert found["tune.x.energy_saved_pct"] == {"value": 10.0, "unit": "%", "low": 5.0, "high": 15.0, "n": 9}
    assert found["tune.x.default_us"]["value"] == 1e3
    assert "tune.x.energy_saved_pct" not in confirmed("tune.x", {**case, "energy": None, "rounds": 9})


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load_tool("check-figures")


def test_numbers_of_tables_are_read_with_their_unit(tool: ModuleType) -> None:
    page = "5 ms in a sentence\n| 9 ms | -2.5 to 3.0 ms | 1,024 MHz, 7 tokens | v1.5 s | 12 % |\n"
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
    page.write_text("[a](../evidence/results/a.json)\n\n| 7.0 s | 2.0 s | 3.0 s |\n")
    kept = {
        "figures": {"x": {"value": 2, "unit": "s"}},
        "command": "evidence/scripts/nothing 2",
        "date": "",
        "commit": "",
    }
    result.write_text(json.dumps(kept))
    assert list(tool.page_faults(page)) == ["docs/page.md:3: 3.0 s is no figure of a.json"]
    assert [each.split(":")[1].split()[:2] for each in tool.result_faults(result)] == [
        ["no", "machine"],
        ["no", "conditions"],
        ["no", "evidence/scripts/nothing"],
    ]


def test_the_guide_quotes_the_results() -> None:
    root = Path(__file__).parents[2]
    from evidence.networks.published import TABLE, rows

    kept = json.loads((root / "evidence/results/networks-2core.json").read_text())
    assert all(kept[name] for name in ("command", "date", "commit", "machine", "conditions"))
    table = TABLE.search((root / "docs/guides/compare-two-networks.md").read_text())
    assert table
    assert table[0].splitlines()[2:] == rows(kept["figures"])


def test_attributed_beside_isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evidence.analysis import isolated

    from powerccl.analysis.attribution import EnergyFindings, KindEnergy

    sweeps = []
    for number, joules in enumerate((1.0, 1.2)):
        points = [
            {
                "type": "point",
                "pattern": "all_reduce",
                "size_bytes": size,
                "ranks": 2,
                "time_us": 1e3,
                "joules_per_gpu": joules,
            }
            for size in (64 << 20, 256 << 20)
        ]
        sweeps.append(tmp_path / f"{number}.jsonl")
        sweeps[-1].write_text("\n".join(json.dumps(point) for point in points))
    known = KindEnergy(
        pattern="all_reduce",
        size_class_bytes=64 << 20,
        operations=1000,
        time_s=1.0,
        joules_per_operation=1.21,
        low=1.1,
        high=1.3,
        watts=100.0,
        exposed_share=1.0,
        joules=1210.0,
        resolved=True,
        reason="",
    )
    unknown = msgspec.structs.replace(known, size_class_bytes=256 << 20, joules_per_operation=None, reason="too few")
    told = [known, unknown]
    monkeypatch.setattr(isolated, "attribute", lambda _: EnergyFindings(kinds=told, steps=100, reason=""))
    found, lines = isolated.figures(training_run(tmp_path / "run"), sweeps, "a")
    assert found["a.all_reduce.64MiB.error_pct"]["value"] == pytest.approx(10)
    assert found["a.all_reduce.64MiB.alone_joules"]["n"] == 2
    assert "a.error_pct" not in found, "one size has no significant change"
    assert any("not told: too few" in line for line in lines)
    told[1] = msgspec.structs.replace(known, size_class_bytes=256 << 20, joules_per_operation=0.99)
    found, _ = isolated.figures(tmp_path / "run", sweeps, "a")
    assert found["a.error_pct"] == {"value": 10.0, "unit": "%", "low": None, "high": None, "n": 2}


def test_the_scaling_guide_quotes_the_results() -> None:
    from evidence.analysis.scaling_study import GUIDE, MEASURED, RESULTS, figures, guide_text, measured_text

    kept = json.loads(RESULTS.read_text())
    found = msgspec.convert(kept["study"], ScalingFindings)
    hint = "renew it: python3 -m evidence.analysis.scaling_study --guide"
    assert guide_text(found) in GUIDE.read_text(), hint
    assert measured_text([json.loads(path.read_text()) for path in MEASURED]) in GUIDE.read_text(), hint
    assert kept["figures"] == figures(found, "analysis.emulated.scaling")
