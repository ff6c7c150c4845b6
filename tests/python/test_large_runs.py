# SPDX-License-Identifier: Apache-2.0
"""A run that is analysed a few ranks at a time has the figures of one that is analysed at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.big_run import write_run
from synthetic import elastic_run, exposed_run, training_run
from synthetic_at_random import synthetic_run

from powerccl.analysis.attribution import attribute
from powerccl.analysis.report import Report, encode, report
from powerccl.reports.perfetto import write_perfetto
from powerccl.reports.report_page import report_page
from powerccl.traces import folder as run_folder

NEAR = 1e-9  # sums of the same numbers in another order
FITTED = 0.05  # what a part of a run says of all of it


def figures(made: Report) -> Any:
    return json.loads(encode(made.findings))


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Where two findings differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = sorted(one.keys() | other.keys())
        return [each for name in names for each in differences(one.get(name), other.get(name), f"{where}.{name}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [each for place, pair in pairs for each in differences(*pair, f"{where}[{place}]")]
    if isinstance(one, float) and isinstance(other, float):
        return [] if one == pytest.approx(other, rel=NEAR) else [f"{where}: {one} {other}"]
    return [] if one == other else [f"{where}: {one} {other}"]


def test_every_figure_is_that_of_a_run_that_fits_memory(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "hosts", 300, 8, hosts=2, seconds=4),
        exposed_run(tmp_path / "waits", ranks=4, late_ms=30),
        exposed_run(tmp_path / "power", ranks=2, waits=False),
        elastic_run(tmp_path / "elastic", [4, 3]),
        write_run(tmp_path / "restarted", 300, 4, seconds=4, starts=3),
        training_run(tmp_path / "few"),
        *(synthetic_run(tmp_path / str(seed), seed) for seed in range(12)),
    ]
    for folder in runs:
        at_once, in_turn = report(folder), report(folder, kept_records=1)
        assert not at_once.run.in_part
        assert in_turn.run.in_part or not in_turn.run.ranks
        assert differences(figures(at_once), figures(in_turn)) == [], folder.name


def test_of_a_large_run_energy_is_that_of_a_part_and_all_else_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "run", 4000, 8, seconds=24)
    whole = figures(report(folder))
    monkeypatch.setattr(run_folder, "PART_RECORDS", 24_000)
    made = report(folder, kept_records=20_000)
    part = figures(made)
    assert len(made.kernels) < 0.5 * 8 * 4000
    assert part["energy"]["part"].endswith("in the middle of the run")
    assert any(part["energy"]["part"] in note for note in part["summary"]["notes"])
    for findings in (whole, part):
        for kind in findings["energy"]["kinds"]:
            assert kind["operations"] == sum(
                row["timed"]
                for row in findings["summary"]["patterns"]
                if (row["pattern"], row["size_class_bytes"]) == (kind["pattern"], kind["size_class_bytes"])
            )
    assert part["summary"]["communication"]["timed_calls"] == 8 * 4000
    for name in ("joules_total", "joules_communication", "joules_computation"):
        assert part["energy"][name] == pytest.approx(whole["energy"][name], rel=FITTED)
    fitted = ("joules", "watts", "energy", "notes")
    differ = [each for each in differences(whole, part) if not any(word in each for word in fitted)]
    assert differ == []
    # Pictures show all of the run, and Perfetto has the part.
    assert "in the middle of the run" in report_page(made)
    write_perfetto(made, tmp_path / "run.perfetto")
    assert (tmp_path / "run.perfetto").stat().st_size > 100_000


def test_ranks_that_were_started_again_keep_a_part_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first start was short: the part is of the other."""
    folder = write_run(tmp_path / "run", 4000, 4, seconds=24, starts=2)
    short = write_run(tmp_path / "short", 20, 4, starts=2)
    for rank in range(4):
        (short / f"rank-{rank}-1.trace").rename(folder / f"rank-{rank}-1.trace")
    whole = run_folder.read_run(folder)
    monkeypatch.setattr(run_folder, "PART_RECORDS", 4_000)
    part = run_folder.read_run(folder, kept_records=10_000)
    assert [trace.incarnations for trace in part.ranks] == [2] * 4
    kept = sum(len(rows) for trace in part.ranks for rows in trace.kinds.values())
    assert 2_000 < kept < 6_000 < sum(trace.records for trace in part.ranks)
    for one, other in zip(whole.ranks, part.ranks, strict=True):
        assert (one.records, one.gaps) == (other.records, other.gaps)
        again = other.whole().kinds
        assert all((rows == again[kind]).all() for kind, rows in one.kinds.items())


def test_energy_is_that_of_some_gpus_where_they_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "run", 4000, 8, seconds=24)
    whole = figures(report(folder))
    monkeypatch.setattr(sys.modules[attribute.__module__], "MOST_GPUS", 4)
    some = figures(report(folder))
    assert some["energy"]["part"] == "4 of 8 GPUs"
    assert "the energy of collectives is that of 4 of 8 GPUs" in some["summary"]["notes"]
    for name in ("joules_total", "joules_communication", "joules_computation"):
        assert some["energy"][name] == pytest.approx(whole["energy"][name], rel=FITTED)


def test_a_window_of_a_large_run_has_its_own_records_alone(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 4000, 4)
    made = report(folder, window_s=(1.0, 1.5), kept_records=10_000)
    assert not made.run.in_part
    assert made.findings.window_s == pytest.approx((1.0, 1.5))
    assert made.findings.summary.communication.timed_calls == pytest.approx(4 * 500, abs=8)
