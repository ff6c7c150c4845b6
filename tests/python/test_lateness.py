# SPDX-License-Identifier: Apache-2.0
"""Emulated runs whose machine did not keep up say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from powerccl.platforms.measurements import read_bench_lines
from powerccl.traces.lateness import lateness_problem, lateness_problems


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
    file = tmp_path / "emulator-node1-0123abcd.json"
    file.write_text(told, encoding="utf-8")
    problem = lateness_problem(file)
    assert said in problem
    assert bool(said) == bool(problem)


def test_a_run_without_the_file_has_nothing_said(tmp_path: Path) -> None:
    assert not lateness_problem(tmp_path / "emulator-node1-0123abcd.json")


def test_a_late_host_is_named_among_several(tmp_path: Path) -> None:
    times = '{"up_s": 10.0, "data_late_s": 0.0, "events_late_s": %s}'
    files = [tmp_path / f"emulator-node{n}-0123abcd.json" for n in (1, 2)]
    for file, late in zip(files, ("0.0", "5.0"), strict=True):
        file.write_text(times % late, encoding="utf-8")
    assert lateness_problems(files).startswith("node2-0123abcd: emulated times are wrong")
    assert not lateness_problems([])


def test_invalid_points_of_a_sweep_are_not_taken(tmp_path: Path) -> None:
    point = '{"type":"point","pattern":"all_reduce","size_bytes":%d,"time_us":1.0,"busbw_gbs":1.0,"valid":%s}\n'
    lines = tmp_path / "points.jsonl"
    lines.write_text(point % (1024, "true") + point % (2048, "false"), encoding="utf-8")
    assert [each.size_bytes for each in read_bench_lines(lines)[1]] == [1024]
