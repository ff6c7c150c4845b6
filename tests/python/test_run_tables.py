# SPDX-License-Identifier: Apache-2.0
"""One rule says what a window has, and every output of a report has the same figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import MS, write_info, write_power, writers

from powerccl.analysis.report import report
from powerccl.analysis.report_findings import RankParts
from powerccl.analysis.run_tables import run_tables
from powerccl.analysis.summary import summarise
from powerccl.traces import records
from powerccl.traces.folder import read_run

STEP = 10 * MS
AHEAD = 35 * MS  # the host makes a call so long before its kernel runs
STEPS = 100


def ahead_run(
    folder: Path, late_waits_ns: int = 0, captured: bool = False, bursts: tuple[range, ...] = (range(STEPS),)
) -> Path:
    """Two ranks; an all-reduce of 4 ms in each of 100 iterations of 10 ms, from 100 ms on.

    Rank 1's host is one iteration further ahead than rank 0's. Computation waits for the last 1 ms, which marks tell in
    the iterations of `bursts`. `captured`: one call in a graph, which each iteration replays.
    """
    for trace in writers(folder, 2):
        if captured:
            trace.call(1, 50 * MS, 1 << 20, flags=records.FLAG_CAPTURED)
        for step in range(STEPS):
            start, call = 100 * MS + step * STEP, 1 if captured else step + 1
            if not captured:
                trace.call(call, start - AHEAD - trace.rank * STEP, 1 << 20, flags=records.FLAG_KERNEL_ASKED)
            trace.kernel(call, start + trace.rank * MS, start + 4 * MS, 1 << 20)
            burst = next((number for number, steps in enumerate(bursts, 1) if step in steps), 0)
            if burst:
                late = late_waits_ns if 30 <= step < 70 else 0
                trace.wait(call, start + 3 * MS + late, start + 4 * MS + late, burst=burst)
        for number in range(1, len(bursts)):
            trace.pause(1100 * MS, number)
    write_power(folder, 2, 1200 * MS, lambda *_: 60.0)
    write_info(folder, 1200 * MS)
    return folder


def exposed_s(rows: list[RankParts]) -> list[float]:
    return [row.exposed_s or 0.0 for row in rows]


def test_every_table_counts_the_same_operations(tmp_path: Path) -> None:
    """The window begins and ends amid kernels and has 41 of each rank. The host had made 4 of their calls before it."""
    found = report(ahead_run(tmp_path / "run"), window_s=(0.302, 0.702)).findings
    counted = found.summary.communication
    assert counted.calls == counted.timed_calls == 82
    assert counted.untimed_calls == 0
    assert counted.estimated_s == 0
    assert not found.summary.shares.at_least
    (row,) = found.summary.patterns
    assert (row.calls, row.timed) == (82, 82)
    assert [(row.calls, row.kernels) for row in found.counts] == [(82, 82)]
    assert [row.operations for row in found.link] == [82]
    # Sums of time end at the edges: the window has only parts of the first and the last kernel of each rank.
    assert row.time_s == pytest.approx((0.160 + 0.120) / 2)
    assert found.counts[0].time_all_ranks_s == found.link[0].time_all_ranks_s == pytest.approx(0.280)
    assert counted.time_s == pytest.approx(row.time_s)
    assert sum(each.communication_s for each in found.ranks) == pytest.approx(0.280)
    assert row.median_us == pytest.approx(3500)  # 4 ms on one rank, 3 on the other, and none was cut


def test_peers_are_known_whichever_call_a_window_begins_with(tmp_path: Path) -> None:
    """Places in a communicator's sequence count from the run's first call on each rank, not from the window's."""
    found = report(ahead_run(tmp_path / "run"), window_s=(0.3, 0.7)).findings
    assert found.peers.matched_pct == 100
    assert [row.waiting_s for row in found.ranks] == pytest.approx([0.040, 0.0], abs=1e-4)
    assert [(row.rank, row.collectives, row.last) for row in found.peers.ranks] == [(1, 40, 40), (0, 40, 0)]


def test_a_graph_that_was_captured_before_the_window(tmp_path: Path) -> None:
    found = report(ahead_run(tmp_path / "run", captured=True), window_s=(0.3, 0.7)).findings
    assert found.summary.communication.captured_calls == 2
    assert found.peers.matched_pct == 100


def test_an_operation_that_outlasts_the_window(tmp_path: Path) -> None:
    found = report(ahead_run(tmp_path / "run"), window_s=(0.5015, 0.5035)).findings
    assert found.summary.shares.communicating_pct == pytest.approx(100)
    assert found.summary.communication.time_s == pytest.approx(0.002)
    assert found.summary.patterns[0].time_s == pytest.approx(0.002)
    assert [row.waiting_s for row in found.ranks] == pytest.approx([0, 0])  # rank 1 came at 501 ms


def test_a_window_in_a_pause_of_the_marks(tmp_path: Path) -> None:
    """It has no wait of its own; what was exposed in it is known from the bursts on both sides."""
    folder = ahead_run(tmp_path / "run", bursts=(range(20), range(80, 100)))
    found = report(folder, window_s=(0.5, 0.7)).findings
    assert found.exposure_source == "waits"
    assert found.exposure_why.endswith("for 0 % of the communication time, and assumed alike for the rest")
    assert exposed_s(found.ranks) == pytest.approx([0.020, 0.020], abs=1e-3)


@pytest.mark.parametrize("late_ns", [0, 800_000])
def test_exposure_is_the_same_in_every_output_however_late_waits_were_dated(tmp_path: Path, late_ns: int) -> None:
    folder = ahead_run(tmp_path / "run", late_waits_ns=late_ns)
    made = report(folder)
    assert exposed_s(made.findings.ranks) == pytest.approx([0.1, 0.1], rel=0.02)
    alone = summarise(read_run(folder)).shares
    assert made.findings.summary.shares == alone
    ends = (made.waits["resume_ns"] - 4 * MS).to_numpy() % STEP  # of the waits that pictures show
    assert (ends > 9 * MS).sum() + (ends < 0.1 * MS).sum() > 190


def test_windows_side_by_side_are_the_whole(tmp_path: Path) -> None:
    run = read_run(ahead_run(tmp_path / "run"))
    whole = run_tables(run)
    parts = [whole.within((begin * MS, (begin + 101) * MS)) for begin in range(0, 1212, 101)]
    assert sum(int(part.kernels["inside_ns"].sum()) for part in parts) == whole.kernels["duration_ns"].sum()
    assert {call for part in parts for call in part.calls["call_id"]} == set(range(1, STEPS + 1))
