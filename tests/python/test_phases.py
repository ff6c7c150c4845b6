# SPDX-License-Identifier: Apache-2.0
"""Phases of a job: its calls by the tags that it has given them."""

from __future__ import annotations

from pathlib import Path

from synthetic import MS, TraceWriter, write_info

from powerccl.analysis.findings import RunSummary, read_summary, write_summary
from powerccl.analysis.summary import summarise
from powerccl.reports.phases import phase_cells
from powerccl.traces.folder import read_run


def run_of(folder: Path, tags: dict[int, int]) -> RunSummary:
    """Two ranks with four calls of 2 ms, the last of which is not timed; `tags`: of calls."""
    for number in range(2):
        trace = TraceWriter(number, 2)
        for call in range(1, 5):
            start_ns = call * 10 * MS
            trace.call(call, start_ns, 1 << 20)
            if call in tags:
                trace.tag(call, tags[call])
            if call < 4:
                trace.kernel(call, start_ns, start_ns + 2 * MS, 1 << 20)
        trace.write(folder)
    write_info(folder, end_ns=100 * MS)
    return summarise(read_run(folder))


def test_calls_are_summed_by_tag(tmp_path: Path) -> None:
    summary = run_of(tmp_path, {1: 7, 2: 7, 4: 2**64 - 1})
    phases = {row.tag: row for row in summary.phases}
    assert list(phases) == [7, None, 2**64 - 1]  # the longest first
    assert (phases[7].calls, phases[7].timed, phases[7].total_bytes) == (4, 4, 4 << 20)
    assert phases[7].time_s == 0.004 and phases[None].time_s == 0.002  # means of the GPUs
    assert phases[2**64 - 1].timed == 0 and phases[2**64 - 1].estimated_s == 0.002
    assert phase_cells(phases[7]) == ["tag 7", "4", "4 MiB", "4.00 ms", "4"]
    assert phase_cells(phases[None])[0] == "no tag"
    assert phase_cells(phases[2**64 - 1])[3] == "~2.00 ms"
    write_summary(summary, tmp_path / "summary.json")
    assert read_summary(tmp_path / "summary.json").phases == summary.phases


def test_without_tags_there_are_no_phases(tmp_path: Path) -> None:
    assert run_of(tmp_path, {}).phases == []
