# SPDX-License-Identifier: Apache-2.0
"""`powerccl report` of a run on an emulated server, against what the run is known to be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Powerccl
from test_scenarios import replay


def test_a_straggler_is_found_and_everything_written(powerccl: Powerccl) -> None:
    """Rank 3 computes 1.3 times as long as the others (bench/scenarios/straggler.scn)."""
    replayed = replay(powerccl, "straggler", 12, "--emulate", "t4x8", "--platform", "t4x8", "--policy", "observe")
    files = ("--html", "r.html", "--perfetto", "r.pftrace", "--csv", "tables")
    done = powerccl("report", str(powerccl.runs[-1]), "--json", "r.json", *files)
    assert done.code == 0, done.err
    assert "rank 3 is a straggler" in done.out
    assert "emulated t4x8" in done.out
    found: dict[str, Any] = json.loads((powerccl.folder / "r.json").read_text())
    iterations = found["iterations"][0]
    assert iterations["found"] >= 11
    assert iterations["median_s"] * 1e3 == pytest.approx(replayed["summary"]["step_ms"], rel=0.1)
    ranks = {row["rank"]: row for row in found["ranks"]}
    assert len(ranks) == 8
    # The others wait for 0.3 x 58 ms of computation in each collective; rank 3 waits for nobody.
    for rank, row in ranks.items():
        waiting_ms = row["per_iteration"]["waiting_s"] * 1e3
        assert (waiting_ms < 2) if rank == 3 else (10 < waiting_ms < 25), (rank, waiting_ms)
        # Nothing computes beside this scenario's communication.
        assert row["exposed_s"] > 0.9 * row["communication_s"]
    (link,) = found["link"]
    assert link["change_pct"] == pytest.approx(0, abs=8)  # without waiting: what the profile was measured at
    assert link["busbw_gbs"] < 0.8 * link["transfer_gbs"]
    for name in ("r.html", "r.pftrace", "tables/ranks.csv"):
        assert (powerccl.folder / name).stat().st_size > 200
    assert (powerccl.folder / "r.html").stat().st_size < 6_000_000
