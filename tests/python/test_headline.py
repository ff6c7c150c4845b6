# SPDX-License-Identifier: Apache-2.0
"""The first sentence of a report, rule by rule, and what it never says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from synthetic import mpi_run
from test_breakdown import late_run

from powerccl.analysis.attribution import EnergyFindings
from powerccl.analysis.findings import Clocks, Communication, Energy, RunSummary, Shares
from powerccl.analysis.report import ReportFindings, report
from powerccl.analysis.report_findings import ClockEffect, Peers, RankParts, Straggler
from powerccl.reports.explanations import EXPLANATIONS
from powerccl.reports.headline import headline

MOST_WORDS = 25


def job(shares: dict[str, Any], ranks: list[RankParts] | None = None, peers: Peers | None = None) -> ReportFindings:
    summary = RunSummary(
        energy=Energy(),
        communication=Communication(calls=100, timed_calls=80),
        shares=Shares(span_s=10.0, **shares),
        clocks=Clocks(),
    )
    ranks = [part(rank) for rank in range(4)] if ranks is None else ranks
    return ReportFindings(summary=summary, ranks=ranks, peers=peers or Peers(), energy=EnergyFindings())


def part(rank: int, waiting_s: float | None = None, host: str = "n") -> RankParts:
    return RankParts(rank=rank, gpu=f"g{rank}", host=host, span_s=10.0, communication_s=4.0, waiting_s=waiting_s)


def late(rank: int, cost_s: float = 3.0, steady: bool = True) -> Straggler:
    return Straggler(
        rank=rank, gpu=f"g{rank}", host="n", collectives=100, last=98, last_pct=98.0, cost_s=cost_s, steady=steady
    )


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        (
            {"communicating_pct": 40.0, "exposed_pct": 27.0},
            "Communication is exposed for 27 % of the working time: the GPUs compute nothing then, and lower clocks"
            " can save energy there.",
        ),
        (
            {"communicating_pct": 33.0, "exposed_pct": 0.4},
            "Communication takes 33 % and exposed communication 0.4 % of the working time:"
            " there is little to save in it.",
        ),
        (
            {"communicating_pct": 4.0, "exposed_pct": 0.4},
            "Communication takes 4.0 % of the working time: there is little to save in it.",
        ),
        ({"communicating_pct": 4.0}, "Communication takes 4.0 % of the working time: there is little to save in it."),
        (
            {"communicating_pct": 33.0},
            "Communication takes 33 % of the working time; how much of it is exposed is not known.",
        ),
        (
            {"communicating_pct": 4.0, "at_least": True},
            "Communication takes at least 4.0 % of the working time: only 80 of 100 calls were timed.",
        ),
        (
            {"reason": "20 of 100 calls were not timed"},
            "The share of communication is not known: 20 of 100 calls were not timed.",
        ),
    ],
)
def test_shares(shares: dict[str, Any], sentence: str) -> None:
    assert headline(job(shares)) == sentence


def test_nothing_is_called_little_where_a_part_is_missing() -> None:
    found = job({"communicating_pct": 4.0})
    found.summary.problems = ["3 of 4 ranks left a trace that reads"]
    assert headline(found) == "Communication takes 4.0 % of the working time."


def test_a_straggler_comes_before_shares() -> None:
    ranks = [part(0, 3.0), part(1, 3.2), part(2, 3.1), part(3, 0.0), part(8, 0.0, host="other")]
    found = job({"communicating_pct": 40.0, "exposed_pct": 27.0}, ranks, Peers(ranks=[late(3)]))
    assert headline(found) == (
        "The other ranks wait 31 % of their working time for their peers:"
        " rank 3 arrives last in 98 % of the collectives."
    )
    found.peers.ranks[0].steady = False
    assert headline(found) == "Ranks wait 19 % of the working time for their peers; no rank is a straggler."
    for row in found.ranks:  # a straggler that costs nothing is no news
        row.waiting_s = 0.1
    found.peers.ranks[0].steady = True
    assert headline(found).startswith("Communication is exposed")


def test_waiting_that_is_not_known_of_a_rank_is_not_known() -> None:
    ranks = [part(0, 3.0), part(1, None), part(3, 0.0)]
    found = job({"communicating_pct": 40.0, "exposed_pct": 27.0}, ranks, Peers(ranks=[late(3)]))
    assert headline(found).startswith("Communication is exposed")


def test_lowered_clocks_are_not_recommended_again() -> None:
    found = job({"communicating_pct": 40.0, "exposed_pct": 27.0})
    found.clock_effects = [ClockEffect(gpu="g0", rank=0, windows=9, lowered_s=2.0, lowered_pct=20.0)]
    assert headline(found) == ("Communication is exposed for 27 % of the working time: the GPUs compute nothing then.")


def test_a_run_of_mpi(tmp_path: Path) -> None:
    found = report(mpi_run(tmp_path / "run")).findings
    assert headline(found) == (
        "Ranks wait for their peers in MPI calls for 15 % of the run, and rank 1 arrives last in MPI_Allreduce."
    )
    mpi = found.summary.mpi
    assert mpi is not None
    mpi.share_pct, mpi.wait_s = 3.0, 0.0
    assert headline(found) == "MPI calls take 3.0 % of the run: there is little to save in them."


def test_a_run_without_communication_has_no_headline(tmp_path: Path) -> None:
    found = report(late_run(tmp_path / "run")).findings
    whole = headline(found)
    assert whole.count(".") == 2 and whole.endswith(".")  # 8.3 %
    empty = msgspec.structs.replace(found, ranks=[], summary=job({}, []).summary)
    assert headline(empty) == ""


def test_explanations_are_short_sentences() -> None:
    """The page has one for each section, in the words of the guide."""
    for name, sentences in EXPLANATIONS.items():
        for text in sentences:
            for sentence in re.split(r"(?<=[.:])\s", text):
                assert len(sentence.split()) <= MOST_WORDS, (name, sentence)
    page = (Path(__file__).parents[2] / "python/powerccl/reports/templates/report.html").read_text()
    assert sorted(re.findall(r'what\("(\w+)"\)', page)) == sorted(EXPLANATIONS)
