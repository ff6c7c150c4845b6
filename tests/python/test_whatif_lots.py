# SPDX-License-Identifier: Apache-2.0
"""Ranks whose tokens differ: what was received tells who computes for how long."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import MS
from test_whatif import platform

from powerccl.analysis.whatif.lanes import Job, job_of
from powerccl.analysis.whatif.lots import Lots, lots_of
from powerccl.analysis.whatif.meetings import Meeting
from powerccl.analysis.whatif.slack import rhythm_of
from powerccl.analysis.whatif.timeline import GpuTimeline, Operation

RANKS, ITERATIONS, TRANSFER_MS = 4, 40, 5
KIB = 6000


def experts(tells: bool = True, differ: float = 0.5, held_up_ms: float = 0) -> Job:
    """8 ms of attention, tokens there, 2 + 10 ms by what came, tokens back: each rank waits for whoever got most."""
    random = np.random.default_rng(5)
    operations: list[list[Operation]] = [[] for _ in range(RANKS)]
    now_ms, call_id = 10.0, 0
    for iteration in range(ITERATIONS):
        now_ms += held_up_ms if iteration == 20 else 0
        lots = 1 + differ * random.uniform(-1, 1, RANKS)
        behind = 2 + 10 * (lots if tells else 1 + 0.3 * random.standard_normal(RANKS))
        for computes, received in ((np.full(RANKS, 8.0), KIB * lots), (behind, np.full(RANKS, float(KIB)))):
            call_id += 1
            ends_ms = now_ms + float(computes.max()) + TRANSFER_MS
            for rank in range(RANKS):
                start_ns = int((now_ms + computes[rank]) * MS)
                its = Operation(call_id, 0, "all_to_all", 1 << 20, start_ns, int(ends_ms * MS), start_ns)
                its.received_kib = int(received[rank])
                operations[rank].append(its)
            now_ms = ends_ms
    span = (0, int(now_ms * MS) + 1)
    lines = [
        GpuTimeline(f"gpu{r}", r, r, "host", each, [(o.called_ns, o.pattern, o.size_bytes, o.call_id, 0) for o in each])
        for r, each in enumerate(operations)
    ]
    meetings = [
        Meeting([(rank, index) for rank in range(RANKS)], "all_to_all", 1 << 20, TRANSFER_MS * MS)
        for index in range(2 * ITERATIONS)
    ]
    return job_of(lines, meetings, platform(), span, list(span))


def found(job: Job, change_ms: float = 1) -> Lots:
    return lots_of(job, [rhythm_of(lane, 2) for lane in job.lanes], change_ms * MS)


def test_whoever_got_less_may_take_as_long_as_whoever_got_most() -> None:
    job = experts()
    lots = found(job)
    assert lots.any()
    for index in range(0, 2 * ITERATIONS - 1, 2):
        took_ns = []
        for lane, factors in zip(job.lanes, lots.stretches, strict=True):
            assert factors is not None
            assert factors[index] == 1, "attention is nobody's lot"
            before, after = lane.line.operations[index : index + 2]
            took_ns.append((after.start_ns - before.stop_ns, factors[index + 1]))
        most = max(ns for ns, _ in took_ns)
        # Whoever has most computes at a higher clock than the job, and all others with it.
        mean_squared = sum(ns**2 for ns, _ in took_ns) / len(took_ns)
        rush = min(most / mean_squared**0.5, 1.2)
        for ns, factor in took_ns:
            times = factor * rush
            assert 0.97 * most < ns * times <= most * 1.0001 or times == pytest.approx(2.5)


def test_lots_explain_how_iterations_differ() -> None:
    assert found(experts()).left == pytest.approx(0, abs=0.1)
    assert found(experts(held_up_ms=900)).left == pytest.approx(0, abs=0.1)
    assert found(experts(tells=False)).left == 1


@pytest.mark.parametrize(
    ("tells", "differ", "change_ms"), [(False, 0.5, 1), (True, 0.0, 1), (True, 0.5, 20)], ids=["chance", "same", "slow"]
)
def test_there_are_none_where_bytes_do_not_tell_or_a_clock_cannot_follow(
    tells: bool, differ: float, change_ms: float
) -> None:
    assert not found(experts(tells, differ), change_ms).any()


def test_recordings_without_what_was_received_have_none() -> None:
    job = experts()
    for lane in job.lanes:
        for operation in lane.line.operations:
            operation.received_kib = 0
    lots = found(job)
    assert not lots.any()
    assert lots.left == 1
