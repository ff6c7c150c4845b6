# SPDX-License-Identifier: Apache-2.0
"""What a policy that learns came to: findings from the ranks' records, and the lines in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from printing import printed
from synthetic import MS, TraceWriter, write_info

from powerccl.analysis.clock_switches import wanted_low
from powerccl.analysis.findings import (
    Clocks,
    Communication,
    Energy,
    RunSummary,
    Shares,
    read_summary,
    write_summary,
)
from powerccl.analysis.summary import summarise
from powerccl.reports.policy import policy_lines
from powerccl.reports.terminal import print_summary
from powerccl.traces.folder import read_run

JUDGED = (2000, -1000, 5000)
NONE: dict[str, Any] = {"calls": 0, "iterations": (0, 0), "length_us": 0}


def run_of(
    folder: Path, *ranks: dict[str, Any], policy: str = "auto", dry: bool = False, captured: bool = False
) -> RunSummary:
    """A run whose ranks left these BUDGET records; an empty one: a rank that was killed before."""
    for number, budget in enumerate(ranks):
        trace = TraceWriter(number, len(ranks), policy=policy, clock_client="dry" if dry else "lease", flags=int(dry))
        if captured:
            trace.call(1, 1 * MS, 1 << 20, flags=0x1)
        if budget:
            trace.budget(5 * MS, **budget)
        trace.write(folder)
    write_info(folder, 100 * MS, policy=policy, slowdown_pct=0.5)
    return summarise(read_run(folder))


def test_each_rank_has_a_clock_and_the_worst_slowdown_counts(tmp_path: Path) -> None:
    first = {"length_us": 110_000, "clock_mhz": 990, "iterations": (154, 119), "slowdown_ppm": (100, -200, 300)}
    second = {"slowdown_ppm": JUDGED, "clock_mhz": 1080}
    found = run_of(tmp_path, first, second, {})
    outcome = found.policy_outcome
    assert outcome is not None
    assert (outcome.policy, outcome.budget_pct, outcome.dry) == ("auto", 0.5, False)
    assert (outcome.clock_mhz, outcome.clock_least_mhz, outcome.clock_most_mhz) == (1035, 990, 1080)
    assert (outcome.slowdown_pct, outcome.slowdown_low_pct, outcome.slowdown_high_pct) == (0.2, -0.1, 0.5)
    assert (outcome.iterations, outcome.managed) == (155, 120)
    assert outcome.iteration_s == pytest.approx(0.111)
    assert [(rank.rank, rank.clock_mhz) for rank in outcome.ranks] == [(0, 990), (1, 1080)]
    assert [rank.slowdown_pct for rank in outcome.ranks] == [0.01, 0.2]
    assert policy_lines(found) == [
        "auto: 990 to 1080 MHz · slowdown +0.2 % (-0.1 to +0.5 %), clocks lowered in 120 of 155 iterations"
    ]
    write_summary(found, tmp_path / "summary.json")
    assert read_summary(tmp_path / "summary.json") == found


def test_ranks_without_an_iteration_count_for_nothing(tmp_path: Path) -> None:
    outcome = run_of(tmp_path, NONE, {"clock_mhz": 990}).policy_outcome
    assert outcome is not None
    assert (outcome.calls, outcome.clock_mhz, outcome.iterations) == (3, 990, 155)
    assert outcome.iteration_s == pytest.approx(0.112)
    assert len(outcome.ranks) == 2


def test_a_run_without_such_records_has_no_outcome(tmp_path: Path) -> None:
    found = run_of(tmp_path, {}, {}, policy="per-call")
    assert found.policy_outcome is None
    assert policy_lines(found) == []


@pytest.mark.parametrize(
    ("budget", "line"),
    [
        (NONE, "no clock was lowered: no sequence of up to 2048 calls repeats"),
        (
            {**NONE, "iterations": (0, 30)},
            "clocks lowered in 30 iterations; after them, the calls did not repeat any more",
        ),
        ({"iterations": (40, 0)}, "no clock was lowered · 40 iterations seen"),
        ({"clock_mhz": 1080}, "1080 MHz · clocks lowered in 120 of 155 iterations, slowdown not known yet"),
        (
            {"iterations": (90, 120)},
            "no clock was lowered when the job ended · clocks lowered in 120 iterations, slowdown not known yet",
        ),
        (
            {"slowdown_ppm": (-300, -12_000, 400), "clock_mhz": 1080},
            "1080 MHz · slowdown 0.0 % (-1.2 to 0.0 %), clocks lowered in 120 of 155 iterations",
        ),
    ],
)
def test_lines(tmp_path: Path, budget: dict[str, Any], line: str) -> None:
    assert policy_lines(run_of(tmp_path, budget)) == [f"auto: {line}"]


def test_a_dry_run_tells_no_slowdown(tmp_path: Path) -> None:
    found = run_of(tmp_path, {"slowdown_ppm": JUDGED, "clock_mhz": 1080}, dry=True)
    assert policy_lines(found) == [
        "auto, dry run: would begin at 1080 MHz, and go lower as long as that costs no time"
        " · clocks would have been lowered in 120 of 155 iterations"
    ]
    assert found.policy_outcome is not None
    assert found.policy_outcome.ranks[0].slowdown_pct is None


def test_graphs_are_named_as_the_reason(tmp_path: Path) -> None:
    assert "captured in CUDA graphs" in policy_lines(run_of(tmp_path, NONE, captured=True))[0]


def test_the_summary_has_the_lines(tmp_path: Path) -> None:
    shown = printed(print_summary, run_of(tmp_path, {"slowdown_ppm": JUDGED, "clock_mhz": 1080}))
    assert "auto: 1080 MHz · slowdown +0.2 %" in shown


def test_a_reset_that_nobody_asked_for_has_no_latency(tmp_path: Path) -> None:
    """Policies that learn put the clock back at the end without a call that asks: its time of asking is 0."""
    trace = TraceWriter(0, 1)
    trace.clock(1, 5_000 * MS, 480, took_ns=3 * MS)
    trace.clock(0, 0, 0, took_ns=5_000 * MS)
    trace.write(tmp_path)
    clocks = summarise(read_run(tmp_path)).clocks
    assert (clocks.requests, clocks.resets) == (2, 1)
    assert clocks.mean_latency_us == pytest.approx(3_010)


def requests(*rows: tuple[str, int, int]) -> pl.DataFrame:
    """Clock requests by GPU, time asked for in ns, and highest clock (0: the default)."""
    return pl.DataFrame(rows, schema=["gpu", "asked_ns", "max_mhz"], orient="row")


def test_the_time_at_a_low_clock_lasts_until_it_is_taken_back() -> None:
    low = wanted_low(requests(("a", 10, 600), ("b", 20, 600), ("a", 30, 900), ("a", 50, 0), ("a", 70, 600)))
    assert {gpu: spans.tolist() for gpu, spans in low.items()} == {"a": [[10, 50]]}


@pytest.mark.parametrize(
    ("policy", "low_s", "communicating_s", "said"),
    [
        ("per-call", 1.16, 0.045, True),
        ("per-call", 1.16, 0.9, False),  # which is what it is for
        ("per-call", 0.001, 0.0, False),
        ("observe", 1.16, 0.045, False),
        ("per-call", None, None, False),
    ],
)
def test_per_call_says_when_computation_ran_at_its_low_clock(
    policy: str, low_s: float | None, communicating_s: float | None, said: bool
) -> None:
    clocks = Clocks(low_s=low_s, low_communicating_s=communicating_s)
    summary = RunSummary(
        policy=policy, wall_s=10.0, clocks=clocks, energy=Energy(), communication=Communication(), shares=Shares()
    )
    lines = policy_lines(summary)
    assert bool(lines) == said
    if said:
        assert "1.16 s per GPU, with 45.0 ms of communication" in lines[0]
