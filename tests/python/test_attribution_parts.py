# SPDX-License-Identifier: Apache-2.0
"""The steps of the attribution one by one: clocks between samples, dated changes, and what parts draw."""

from __future__ import annotations

import sys

import numpy as np
import polars as pl
import pytest
from synthetic import MS
from test_attribution import MIB, reference
from threadpoolctl import threadpool_info

from powerccl.analysis.attribution import EnergyFindings, attribute
from powerccl.analysis.attribution.clocks import Seen, clock_levels
from powerccl.analysis.attribution.features import features
from powerccl.analysis.attribution.observations import observations
from powerccl.analysis.attribution.phases import ALONE, BESIDE, COMPUTING, UNKNOWN, Phase, Timeline
from powerccl.analysis.waits import aligned


def test_what_is_expected_of_parts() -> None:
    kind, other = ("all_reduce", 16 * MIB), ("all_gather", 4 * MIB)
    phases = [
        COMPUTING,
        Phase((kind,), ALONE),
        Phase((kind,), BESIDE),
        Phase((other, kind), ALONE),
        Phase((kind,), UNKNOWN),
    ]
    clocks = np.array([[0.5, 0.5], [1.0, 0.0], [0.2, 0.8], [1.0, 0.0], [0.4, 0.6]])
    known = reference(48.0, 34.0)
    found = features(phases, clocks, known)
    # At rest 28 W; computation, and what may compute, the mean; kinds at once half of each.
    assert found.expected(80.0).tolist() == pytest.approx([80.0, 48.0, 100.0, 28 + 10 + 3, 80.0])
    assert len(found.doubt) == found.each.shape[1] == 1 + 1 + 2 + 2
    assert np.isfinite(found.doubt).sum() == 3
    known.warming = 0.2
    at = (48.0 + 34.0) / 2
    assert features(phases, clocks, known).expected(80.0)[1] == pytest.approx(48 + 0.2 * (80 - at))
    nothing = features(phases, np.zeros((5, 0)), None)
    assert nothing.expected(80.0).tolist() == [80.0] * 5
    assert not np.isfinite(nothing.doubt).any()


def swinging(seconds: int, every_ms: int) -> tuple[Seen, np.ndarray]:
    """A GPU that computes for 12 to 30 ms, from a moment drawn anew at a low clock, and waits 10 ms at a high one.

    The clock of each millisecond goes with it.
    """
    rng = np.random.default_rng(5)
    edges, label, clock = [0], [], []
    while edges[-1] < seconds * 1000:
        length = int(rng.integers(12, 31))
        high = min(length, int(rng.integers(4, 16)))
        clock += [1245.0] * high + [855.0] * (length - high) + [1590.0] * 10
        label += [0, 1]
        edges += [edges[-1] + length, edges[-1] + length + 10]
    phases = [COMPUTING, Phase((("all_reduce", MIB),), ALONE)]
    every = np.arange(5, len(clock), every_ms)
    line = Timeline(np.array(edges, np.int64) * MS, np.array(label, np.int64), phases)
    return Seen(line, every * MS, np.array(clock)[every]), np.array(clock)


def test_clocks_between_samples() -> None:
    """A hundred milliseconds hold five samples; the time at each clock is known better than these tell."""
    seen, clock = swinging(120, 19)
    found = clock_levels([seen])
    assert found is not None
    edges = np.arange(1000, 119_000, 100)
    got = found[0].shares(edges * MS)
    levels = [855.0, 1245.0, 1590.0]
    blocks = [clock[first : first + 100] for first in edges[:-1].tolist()]
    true = np.array([[np.mean(block == level) for level in levels] for block in blocks])
    at = np.searchsorted(edges * MS, seen.time_ns, side="right") - 1
    inside = (at >= 0) & (at < len(true))
    counts = np.array([np.bincount(at[inside], seen.clock_mhz[inside] == level, len(true)) for level in levels]).T
    sampled = counts / counts.sum(axis=1, keepdims=True)
    assert got.sum(axis=1) == pytest.approx(1.0)
    assert got.mean(axis=0) == pytest.approx(true.mean(axis=0), abs=0.01)
    assert np.sqrt(np.mean((got - true) ** 2)) < 0.4 * np.sqrt(np.mean((sampled - true) ** 2))
    # What is expected must not be off in proportion to itself: that would bias a regression.
    for one, by_samples, other in zip(got.T, sampled.T, true.T, strict=True):
        assert np.polyfit(one, other, 1)[0] == pytest.approx(1.0, abs=0.25)
        assert np.polyfit(by_samples, other, 1)[0] < 0.6


def test_a_clock_that_does_not_vary_says_nothing() -> None:
    seen, _ = swinging(20, 19)
    assert clock_levels([Seen(seen.line, seen.time_ns, np.full(len(seen.time_ns), 1590.0))]) is None
    assert clock_levels([Seen(seen.line, seen.time_ns, np.full(len(seen.time_ns), np.nan))]) is None
    missing = np.where(np.arange(len(seen.time_ns)) % 60 < 30, seen.clock_mhz, np.nan)
    some = clock_levels([Seen(seen.line, seen.time_ns, missing)])
    assert some is not None and np.isfinite(some[0].sums).all()


def test_changes_are_dated_by_their_beat() -> None:
    """Reads every 19 ms of a counter that moves every 100: known to a millisecond, and a hiccup changes nothing."""
    time = np.arange(0, 60_000, 19, dtype=np.int64) * MS
    time[1000:] += 7 * MS
    energy = (time // (100 * MS) * 7_000_000).astype(np.int64)
    seen = observations(time, np.full(len(time), np.nan), energy)
    assert seen is not None
    off = (seen.end_ns + 50 * MS) % (100 * MS) - 50 * MS
    assert np.abs(off).max() < 2 * MS
    assert max(seen.slack_ns) < 2 * MS
    assert seen.joules == pytest.approx(7.0)


def test_power_scaled_to_a_seldom_read_counter() -> None:
    time = np.arange(0, 30_000, 20, dtype=np.int64) * MS
    power = (50_000.0 + 20_000.0 * (np.arange(len(time)) // 5 % 3)).astype(np.float64)
    energy = np.full(len(time), -1, dtype=np.int64)
    energy[::100] = (np.arange(len(time))[::100] * 20 * 80_000).astype(np.int64)  # 80 W
    seen = observations(time, power, energy)
    assert seen is not None
    assert seen.source == "power+counter"
    assert seen.joules.mean() == pytest.approx(80, rel=0.02)


def test_waits_that_came_late_are_put_beside_their_kernels() -> None:
    """A stale reference makes two seconds of waits late by the same."""
    start = np.arange(400, dtype=np.int64) * 10 * MS
    stop = start + MS
    late = np.where((np.arange(400) >= 150) & (np.arange(400) < 300), 800_000, 0)
    keys = {"rank": np.zeros(400, np.int64), "comm": np.zeros(400, np.int64), "call_id": np.arange(400)}
    kernels = pl.DataFrame({**keys, "start_ns": start, "stop_ns": stop})
    waits = pl.DataFrame({**keys, "stall_ns": start + late, "resume_ns": stop + late})
    moved = aligned(waits, kernels)
    assert moved.columns == waits.columns
    off = np.abs(moved["resume_ns"].to_numpy() - stop)
    assert np.count_nonzero(off) <= 8  # next to the steps the median may be the other side's
    assert np.array_equal((moved["resume_ns"] - moved["stall_ns"]).to_numpy(), stop - start)


def test_small_matrices_have_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two summaries at once on a busy node took five times as long, their threads waiting for each other."""
    seen: list[int] = []

    def look(*_: object) -> EnergyFindings:
        seen.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        return EnergyFindings(reason="only looked")

    monkeypatch.setattr(sys.modules[attribute.__module__], "_attribute", look)
    attribute(None)  # type: ignore[arg-type]
    assert seen
    assert set(seen) == {1}
