# SPDX-License-Identifier: Apache-2.0
"""What a policy that learns came to: findings from the ranks' records, and the lines in the terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console
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


def test_the_rank_that_leads_tells_clock_and_slowdown(tmp_path: Path) -> None:
    follower = {"times_us": (110_000, 83_000, 0), "clock_mhz": 990, "iterations": (154, 119)}
    leader = {"slowdown_ppm": JUDGED, "clock_mhz": 1080, "searched": True}
    found = run_of(tmp_path, follower, leader, {})
    outcome = found.policy_outcome
    assert outcome is not None
    assert (outcome.policy, outcome.budget_pct, outcome.dry) == ("auto", 0.5, False)
    assert outcome.parts == ["windows", "clock"]
    assert outcome.clock_mhz == 1080
    assert (outcome.slowdown_pct, outcome.slowdown_low_pct, outcome.slowdown_high_pct) == (0.2, -0.1, 0.5)
    assert (outcome.iterations, outcome.managed) == (155, 120)
    assert outcome.iteration_s == pytest.approx(0.111)
    assert outcome.covered_s == pytest.approx(0.084)
    assert (outcome.marked, outcome.paused) == (True, False)
    assert [rank.rank for rank in outcome.ranks] == [0, 1]
    assert outcome.ranks[0].slowdown_pct is None
    assert policy_lines(found) == [
        "auto: 1 window covers 84.0 of 111 ms of an iteration, 1080 MHz outside of windows"
        " · slowdown +0.2 % (-0.1 to +0.5 %), clocks lowered in 120 of 155 iterations"
    ]
    write_summary(found, tmp_path / "summary.json")
    assert read_summary(tmp_path / "summary.json") == found


def test_of_several_hosts_the_worst_slowdown_counts(tmp_path: Path) -> None:
    found = run_of(tmp_path, {"slowdown_ppm": JUDGED}, {"slowdown_ppm": (9000, 8000, 11000)}, {})
    assert found.policy_outcome is not None
    assert found.policy_outcome.slowdown_pct == 0.9
    assert "slowdown +0.9 % (+0.8 to +1.1 %)" in policy_lines(found)[0]


def test_ranks_without_an_iteration_count_for_nothing(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"calls": 0, "iterations": (0, 0), "windows": 0, "times_us": (0, 0, 0)}
    outcome = run_of(tmp_path, nothing, {}, {"windows": 2}).policy_outcome
    assert outcome is not None
    assert (outcome.windows_least, outcome.windows_most) == (2, 2)
    assert outcome.iteration_s == pytest.approx(0.112)
    assert len(outcome.ranks) == 2


def test_a_run_without_such_records_has_no_outcome(tmp_path: Path) -> None:
    found = run_of(tmp_path, {}, {}, policy="per-call")
    assert found.policy_outcome is None
    assert policy_lines(found) == []


NONE: dict[str, Any] = {"calls": 0, "iterations": (0, 0), "windows": 0, "times_us": (0, 0, 0)}
SHORT: dict[str, Any] = {"windows": 0, "iterations": (40, 0), "times_us": (112_000, 0, 34_000)}
SOME_SHORT: dict[str, Any] = {"slowdown_ppm": JUDGED, "times_us": (112_000, 10_000, 34_000)}


@pytest.mark.parametrize(
    ("policy", "budget", "lines"),
    [
        ("exposed", NONE, ["exposed: no clock was lowered: no sequence of up to 2048 calls repeats"]),
        (
            "exposed",
            {**NONE, "iterations": (0, 30)},
            ["exposed: clocks lowered in 30 iterations; after them, the calls did not repeat any more"],
        ),
        (
            "exposed",
            SHORT,
            [
                "exposed: no clock was lowered: the policy estimates that 34.0 of 112 ms of an iteration are exposed "
                "in parts too short for a clock switch · 40 iterations seen",
                "hint: `--policy fixed` or `auto` can still save energy with one lower clock for the whole job",
            ],
        ),
        (
            "auto",
            {**SHORT, "searched": True},
            [
                "auto: no clock was lowered: the policy estimates that 34.0 of 112 ms of an iteration are exposed "
                "in parts too short for a clock switch, no lower clock for the whole job was found · 40 iterations seen"
            ],
        ),
        (
            "exposed",
            SOME_SHORT,
            [
                "exposed: 1 window covers 10.0 of 112 ms of an iteration · slowdown +0.2 % (-0.1 to +0.5 %), "
                "clocks lowered in 120 of 155 iterations",
                "the policy estimates that 34.0 of 112 ms of an iteration are exposed "
                "in parts too short for a clock switch",
                "hint: `--policy fixed` or `auto` can still save energy with one lower clock for the whole job",
            ],
        ),
        (
            "exposed",
            {"windows": 0, "iterations": (40, 0), "times_us": (1_250_000, 0, 0)},
            [
                "exposed: no clock was lowered: no exposed communication was found that can run at a lower clock"
                " · 40 iterations seen"
            ],
        ),
        (
            "fixed",
            {"windows": 0, "times_us": (112_000, 0, 0), "clock_mhz": 1080, "searched": True},
            ["fixed: 1080 MHz throughout · clocks lowered in 120 of 155 iterations, slowdown not known yet"],
        ),
        (
            "fixed",
            {"windows": 0, "times_us": (112_000, 0, 0), "iterations": (3, 0)},
            ["fixed: no clock was lowered: no clock was tried · 3 iterations seen"],
        ),
        (
            "auto",
            {"windows": 3, "paused": True, "iterations": (90, 120)},
            [
                "auto: 3 windows cover 85.0 of 112 ms of an iteration · clocks lowered in 120 iterations",
                "the slowdown exceeded the maximum of 0.5 %: the policy was paused when the job ended",
            ],
        ),
        (
            "auto",
            {"slowdown_ppm": (-300, -12_000, 400), "times_us": (2_500_000, 1_000_000, 0)},
            [
                "auto: 1 window covers 1.00 of 2.50 s of an iteration · slowdown 0.0 % (-1.2 to 0.0 %), "
                "clocks lowered in 120 of 155 iterations"
            ],
        ),
    ],
)
def test_lines(tmp_path: Path, policy: str, budget: dict[str, Any], lines: list[str]) -> None:
    assert policy_lines(run_of(tmp_path, budget, policy=policy)) == lines


def test_gpus_with_different_windows(tmp_path: Path) -> None:
    other: dict[str, Any] = {"windows": 0, "times_us": (112_000, 0, 0)}
    lines = policy_lines(run_of(tmp_path, {"slowdown_ppm": JUDGED, "windows": 2}, other, policy="exposed"))
    assert lines[0].startswith(
        "exposed: 0 to 2 windows per GPU cover 42.5 of 112 ms of an iteration on average · slowdown"
    )


def test_a_dry_run_tells_no_slowdown(tmp_path: Path) -> None:
    found = run_of(tmp_path, {"slowdown_ppm": JUDGED}, dry=True)
    assert policy_lines(found) == [
        "auto, dry run: 1 window covers 85.0 of 112 ms of an iteration"
        " · clocks would have been lowered in 120 of 155 iterations"
    ]
    assert found.policy_outcome is not None
    assert found.policy_outcome.ranks[0].slowdown_pct is None


def test_graphs_are_named_as_the_reason(tmp_path: Path) -> None:
    assert "captured in CUDA graphs" in policy_lines(run_of(tmp_path, NONE, captured=True))[0]


@pytest.fixture
def printed() -> Callable[[RunSummary], str]:
    def show(summary: RunSummary) -> str:
        target = Console(file=io.StringIO(), width=120, highlight=False)
        print_summary(target, summary)
        assert isinstance(target.file, io.StringIO)
        return target.file.getvalue()

    return show


def test_the_summary_has_the_lines(tmp_path: Path, printed: Callable[[RunSummary], str]) -> None:
    shown = printed(run_of(tmp_path, SOME_SHORT, policy="exposed"))
    assert "exposed: 1 window covers 10.0 of 112 ms" in shown
    assert "hint: `--policy fixed`" in shown


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
