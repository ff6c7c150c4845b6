# SPDX-License-Identifier: Apache-2.0
"""Emulated runs whose machine did not keep up say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerccl.platforms.measurements import read_bench_lines
from powerccl.traces.lateness import LATENESS_FILE, lateness_problem


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ('{"up_s": 10.0, "events_late_s": 0.1, "data_late_s": 0.1}', ""),
        ('{"up_s": 10.0, "events_late_s": 0.1, "data_late_s": 3.0}', "for 3.00 s of 10.0 s, collectives waited"),
        ('{"up_s": 10.0, "events_late_s": 0.9, "data_late_s": 0.1}', "was late in 900 ms of 10.0 s"),
        ('{"up_s": 1.0, "events_late_s": 0.2, "data_late_s": 0.0}', ""),  # while it started
        ('{"up_s": 0.0, "events_late_s": 0.9, "data_late_s": 3.0}', ""),
        ('{"up_s": 10.0', ""),
        ('{"up_s": "long"}', ""),
    ],
)
def test_late_emulator_is_told(tmp_path: Path, told: str, said: str) -> None:
    (tmp_path / LATENESS_FILE).write_text(told, encoding="utf-8")
    problem = lateness_problem(tmp_path / LATENESS_FILE)
    assert said in problem
    assert bool(said) == bool(problem)


def test_a_run_without_the_file_has_nothing_said(tmp_path: Path) -> None:
    assert not lateness_problem(tmp_path / LATENESS_FILE)


def test_invalid_points_of_a_sweep_are_not_taken(tmp_path: Path) -> None:
    point = '{"type":"point","pattern":"all_reduce","size_bytes":%d,"time_us":1.0,"busbw_gbs":1.0,"valid":%s}\n'
    lines = tmp_path / "points.jsonl"
    lines.write_text(point % (1024, "true") + point % (2048, "false"), encoding="utf-8")
    assert [each.size_bytes for each in read_bench_lines(lines)[1]] == [1024]
