# SPDX-License-Identifier: Apache-2.0
"""Reports of many ranks on many hosts: what they cost, and that nothing is said once a host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from printing import printed
from support.big_run import write_run

from powerccl.analysis.report import ReportFindings, report
from powerccl.quantities import said_once
from powerccl.reports.perfetto import write_perfetto
from powerccl.reports.report import print_report
from powerccl.reports.report_page import report_page


def report_of(folder: Path, ranks: int) -> ReportFindings:
    made = report(write_run(folder, 100, ranks, hosts=ranks // 4))
    report_page(made)
    write_perfetto(made, folder / "run.perfetto")
    return made.findings


def test_a_report_never_looks_at_all_ranks_for_each_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times as many ranks are at most about four times as many rows to filter; sixteen times would be a square."""
    plain = pl.DataFrame.filter
    rows = 0

    def counted(table: pl.DataFrame, *arguments: Any, **more: Any) -> pl.DataFrame:
        nonlocal rows
        rows += len(table)
        return plain(table, *arguments, **more)

    monkeypatch.setattr(pl.DataFrame, "filter", counted)
    taken = []
    for ranks in (8, 32):
        rows = 0
        report_of(tmp_path / str(ranks), ranks)
        taken.append(rows)
    assert taken[1] < 6 * taken[0]


def test_a_sentence_of_many_hosts_is_said_once(tmp_path: Path) -> None:
    found = report_of(tmp_path / "run", 48)
    text = " ".join(printed(print_report, found, width=160).split())
    assert "node1, node2, node3 and 9 more: 9 iterations of 10 operations" in text
    assert text.count("iterations of 10 operations") == 1
    for each in found.iterations:
        each.found += int(each.host.removeprefix("node"))
    text = " ".join(printed(print_report, found, width=160).split())
    assert text.count("iterations of 10 operations") == 8
    assert "… 4 more in --json" in text


def test_only_what_many_say_is_put_together() -> None:
    few = ["node1: no samples", "cut off", "node2: no samples", "node2: late", "node3: no samples"]
    assert said_once(few) == few
    assert said_once([*few, "node4: no samples", "node1: no samples"]) == [
        *("node1, node2, node3 and 1 more: no samples", "cut off", "node2: late")
    ]
    assert said_once(["cut off"] * 9) == ["cut off"] * 9
