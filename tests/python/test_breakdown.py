# SPDX-License-Identifier: Apache-2.0
"""Where the time went, of synthetic runs whose truth is known."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from support.big_run import PIECE, times, write_run
from synthetic import MS, TraceWriter, training_run, uuid, write_info, write_power, writers

from powerccl.analysis.attribution import EnergyFindings, attribute
from powerccl.analysis.communication import Alike, moved
from powerccl.analysis.iterations import cut, iteration_length
from powerccl.analysis.kineto import align
from powerccl.analysis.link import link_rows, profile_busbw
from powerccl.analysis.report import report
from powerccl.analysis.report_findings import Reference
from powerccl.analysis.shares import Sets, measure
from powerccl.traces import tables
from powerccl.traces.folder import read_run

STEP = 100 * MS
LATE = 6 * MS  # rank 2 comes so much behind the others to its first collective of each iteration
MIB = 1 << 20


def late_run(folder: Path, ranks: int = 4, iterations: int = 12, marks: bool = True, jitter_ns: int = 0) -> Path:
    """Iterations of 100 ms: from 40 ms on an all-reduce of 20 ms, from 70 ms on an all-gather of 10 ms.

    Rank 2 starts the first one 6 ms late. Computation stalls for the all-reduce's last 8 ms, and for nothing else.
    """
    noise = np.random.default_rng(1)
    for trace in writers(folder, ranks):
        call = 0
        for step in range(iterations):
            begin = (step + 1) * STEP + int(noise.integers(0, jitter_ns + 1))
            late = LATE if trace.rank == 2 else 0
            parts = ((40, 20, 64 * MIB, "all_reduce", late), (70, 10, 16 * MIB, "all_gather", 0))
            for at, length, size, pattern, behind in parts:
                call += 1
                start = begin + at * MS
                trace.call(call, start - 5 * MS, size, pattern, flags=0x40)
                trace.kernel(call, start + behind, start + length * MS, size, pattern, delay_ns=20_000)
                if marks and pattern == "all_reduce":
                    trace.wait(call, start + (length - 8) * MS, start + length * MS)
    end = (iterations + 2) * STEP
    write_power(folder, ranks, end, lambda _, now: 45.0 if 40 * MS <= now % STEP < 60 * MS else 70.0)
    write_info(folder, end)
    return folder


def test_waiting_for_peers_is_told_from_transfer(tmp_path: Path) -> None:
    found = report(late_run(tmp_path / "run")).findings
    assert [row.rank for row in found.ranks] == [0, 1, 2, 3]
    for row in found.ranks:
        assert row.waiting_s == pytest.approx(0 if row.rank == 2 else 12 * 0.006, abs=1e-4)
        assert row.transfer_s == pytest.approx(12 * 0.024, abs=1e-4)
        assert row.waiting_s is not None
        assert row.transfer_s is not None
        assert row.communication_s == pytest.approx(row.waiting_s + row.transfer_s)


def test_exposed_and_overlapped_come_from_the_streams_own_waits(tmp_path: Path) -> None:
    found = report(late_run(tmp_path / "run")).findings
    assert found.exposure_source == "waits"
    for row in found.ranks:
        assert row.exposed_s == pytest.approx(12 * 0.008, rel=1e-3)
        assert row.overlapped_s is not None
        assert row.exposed_s is not None
        assert row.communication_s == pytest.approx(row.exposed_s + row.overlapped_s)
        assert row.span_s == pytest.approx(row.communication_s + row.stalled_s + row.rest_s)
        assert row.exposed_waiting_s == pytest.approx(0, abs=1e-4)  # it waits in the first 6 ms, stalls in the last 8
        assert row.computation_s is None  # nothing tells computation from idling


def test_without_marks_nothing_is_said_of_exposure(tmp_path: Path) -> None:
    found = report(late_run(tmp_path / "run", marks=False)).findings
    assert found.exposure_source == "none"
    assert "not known" in found.exposure_why
    assert all(row.exposed_s is None and row.overlapped_s is None for row in found.ranks)
    assert all(row.waiting_s is not None for row in found.ranks)


def test_the_straggler_is_named_with_its_lag(tmp_path: Path) -> None:
    found = report(late_run(tmp_path / "run")).findings
    worst = found.peers.ranks[0]
    assert (worst.rank, worst.collectives, worst.last, worst.steady) == (2, 24, 12, False)  # one of two collectives
    assert worst.behind_us == pytest.approx(6000)
    # Its peers wait beside computation, so that none of them would gain anything.
    assert worst.cost_s == pytest.approx(0)
    unmarked = report(late_run(tmp_path / "unmarked", marks=False)).findings.peers.ranks[0]
    assert unmarked.cost_s is None
    assert unmarked.cost_at_most_s == pytest.approx(12 * 0.006)
    assert all(row.last == 0 for row in found.peers.ranks[1:])
    assert found.peers.matched_pct == 100


def test_of_two_ranks_one_is_always_last(tmp_path: Path) -> None:
    """Being last in two thirds of the collectives is no news of a rank that has one peer."""
    for trace in writers(tmp_path, 2):
        for call in range(1, 31):
            start = call * 20 * MS + (2 * MS if (call % 3 > 0) == (trace.rank == 1) else 0)
            trace.call(call, start - MS, MIB)
            trace.kernel(call, start, call * 20 * MS + 8 * MS, MIB)
    worst = report(tmp_path).findings.peers.ranks[0]
    assert (worst.rank, worst.last, worst.steady) == (1, 20, False)


def test_sizes_that_vary_and_jobs_that_change_have_iterations_all_the_same(tmp_path: Path) -> None:
    random = np.random.default_rng(8)
    trace = TraceWriter(0, 2)
    trace.comm(MS)
    call = 0
    for step in range(60):
        begin = (step + 1) * STEP
        count = 3 if step < 30 else 5
        for place in range(count):
            call += 1
            size = int(random.integers(1, 9)) * MIB
            pattern = "all_reduce" if place == count - 1 else "all_to_all"
            trace.call(call, begin + place * 10 * MS, size, pattern)
            trace.kernel(call, begin + place * 10 * MS, begin + place * 10 * MS + 5 * MS, size, pattern)
    trace.write(tmp_path)
    (found,) = report(tmp_path).findings.iterations
    assert found.found == 59  # where the first one began, nothing tells
    assert found.operations == 5
    assert found.reason == "the job changes from 3 operations per iteration to 5"
    assert found.median_s == pytest.approx(0.1, rel=1e-3)


def test_two_hosts_have_iterations_each(tmp_path: Path) -> None:
    for rank in range(4):
        host = rank // 2
        ahead = host * 7_000_000 * MS  # the other host booted two hours before
        trace = TraceWriter(rank, 4, host=f"node{host}", start_ns=ahead)
        trace.comm(ahead + MS)
        for step in range(12):
            start = ahead + (step + 1) * STEP
            trace.call(step + 1, start - MS, MIB)
            trace.kernel(step + 1, start + (rank % 2) * MS, start + 9 * MS, MIB)
        trace.write(tmp_path)
    found = report(tmp_path).findings
    assert [(each.host, each.found) for each in found.iterations] == [("node0", 11), ("node1", 11)]
    assert {row.rank: round(1e3 * (row.waiting_s or 0)) for row in found.ranks} == {0: 12, 1: 0, 2: 12, 3: 0}


def test_ranks_of_different_hosts_are_not_compared(tmp_path: Path) -> None:
    for rank in range(2):
        trace = TraceWriter(rank, 2, host=f"node{rank}")
        trace.comm(MS)
        trace.call(1, 10 * MS, MIB)
        trace.kernel(1, 10 * MS, 20 * MS, MIB)
        trace.write(tmp_path)
    found = report(tmp_path).findings
    assert "hosts' clocks differ" in found.peers.reason
    assert all(row.waiting_s is None and row.transfer_s is None for row in found.ranks)


def test_a_collective_that_a_rank_did_not_time_tells_no_waiting(tmp_path: Path) -> None:
    for trace in writers(tmp_path, 3):
        for call in range(1, 21):
            trace.call(call, call * 10 * MS, MIB)
            if trace.rank < 2 or call % 10 == 0:  # rank 2 is sampled more seldom
                trace.kernel(call, call * 10 * MS, call * 10 * MS + 2 * MS, MIB)
    found = report(tmp_path).findings
    assert found.peers.matched_pct == pytest.approx(100 * 6 / 42)
    assert [row.collectives for row in found.peers.ranks] == [2, 2, 2]
    assert found.ranks[0].waiting_s is None  # two of twenty say nothing of the rest
    assert found.ranks[2].waiting_s == pytest.approx(0, abs=1e-6)


def test_replays_of_a_graph_are_told_apart(tmp_path: Path) -> None:
    for trace in writers(tmp_path, 2):
        trace.call(1, 5 * MS, MIB, flags=0x1)
        for replay in range(1, 11):
            start = replay * 20 * MS + (3 * MS if trace.rank else 0)
            trace.kernel(1, start, replay * 20 * MS + 8 * MS, MIB, flags=0x1)
    found = report(tmp_path).findings
    assert found.ranks[0].waiting_s == pytest.approx(10 * 0.003)
    assert found.peers.ranks[0].rank == 1
    assert found.peers.ranks[0].steady


@pytest.mark.parametrize("jitter_ns", [0, 20 * MS])
def test_iterations_are_found_by_themselves(tmp_path: Path, jitter_ns: int) -> None:
    found = report(late_run(tmp_path / "run", iterations=40, jitter_ns=jitter_ns)).findings
    (iterations,) = found.iterations
    assert (iterations.operations, iterations.by, iterations.reason) == (2, "kernels", "")
    assert iterations.found == 39  # where the first one began, nothing tells
    assert iterations.mean_s == pytest.approx(0.1, rel=0.02)
    assert sum(row.count for row in iterations.rows) == 39
    if not jitter_ns:
        assert iterations.p95_s == pytest.approx(0.1, rel=1e-3)
        # 80 ms at 70 W and 20 ms at 45 W, on each of four GPUs.
        assert iterations.joules == pytest.approx(4 * (0.08 * 70 + 0.02 * 45), rel=0.02)
        each = found.ranks[0].per_iteration
        assert each is not None
        assert each.span_s == pytest.approx(0.1, rel=1e-3)
        assert each.waiting_s == pytest.approx(0.006, rel=0.01)


def test_equal_buckets_make_one_iteration_by_their_times() -> None:
    starts = np.concatenate([step * STEP + np.array([0, 5, 10, 15]) * MS for step in range(20)]).astype(np.int64)
    assert iteration_length(np.zeros(80, dtype=np.int64), starts) == 4


@pytest.mark.parametrize("seed", range(20))
def test_a_few_pauses_do_not_make_several_iterations_one(seed: int) -> None:
    random = np.random.default_rng(seed)
    between = np.tile([39.0, 14, 14, 14], 26)
    between += (random.random(len(between)) < 0.05) * random.exponential(40, len(between))
    starts = (np.cumsum(between) * MS).astype(np.int64)
    assert iteration_length(np.zeros(len(starts), dtype=np.int64), starts) in (0, 4)


def test_ranks_that_come_late_in_turn_do_not_stretch_an_iteration() -> None:
    late = np.arange(400) // 10 % 8 == 3
    starts = np.arange(400, dtype=np.int64) * MS + np.where(late, 60_000, 0)
    assert iteration_length(np.arange(400, dtype=np.int64) % 10, starts) == 10


def test_what_does_not_repeat_itself_has_no_iterations() -> None:
    random = np.random.default_rng(3)
    assert iteration_length(random.integers(0, 9, 400), np.cumsum(random.integers(1, 99, 400)) * MS) == 0
    # Long rows of one operation, as of graphs that decode: each is mostly like the one before it as well.
    served = np.tile(np.repeat([0, 1], [320, 40]), 8).astype(np.int64)
    assert iteration_length(served, np.cumsum(1 + 9 * served) * MS) == 360
    # All alike and at no period: any cut would be as good as another.
    assert iteration_length(np.zeros(400, dtype=np.int64), np.cumsum(random.integers(1, 99, 400)) * MS) == 0


def test_a_few_other_operations_do_not_make_times_regular() -> None:
    random = np.random.default_rng(5)
    names = np.zeros(400, dtype=np.int64)
    names[::100] = 1
    assert iteration_length(names, np.cumsum(random.integers(1, 99, 400)) * MS) == 0


def test_iterations_of_layers_that_are_all_alike_are_found() -> None:
    """Tensor parallelism: 16 short layers forward, 16 long ones backward, and iterations that vary by 3 %."""
    random = np.random.default_rng(1)
    layers = np.tile(np.repeat([1.1, 2.2], 16), 130) * np.repeat(random.normal(1, 0.03, 130), 32)
    starts = np.cumsum(layers * random.normal(1, 0.03, len(layers)) * MS).astype(np.int64)
    assert iteration_length(np.zeros(len(starts), dtype=np.int64), starts) == 32


def reference(gpus: int = 4) -> Reference:
    points = [(MIB, 1.0, 40.0), (64 * MIB, 4.0, 50.0), (256 * MIB, 5.0, 50.0)]
    return Reference(name="here", gpus=gpus, provenance="measured", points={"all_reduce": list(points)})


def test_bandwidth_is_set_against_the_profile(tmp_path: Path) -> None:
    folder = late_run(tmp_path / "run")
    rows = {row.pattern: row for row in report(folder, reference()).findings.link}
    reduced = rows["all_reduce"]
    # Three of four ranks see 20 ms, of which 6 are waiting: factor 2 (n - 1) / n = 1.5.
    assert reduced.busbw_gbs == pytest.approx(1.5 * 64 * MIB / 0.020 / 1e9)
    assert reduced.transfer_gbs == pytest.approx(1.5 * 64 * MIB / 0.014 / 1e9)
    assert reduced.profile_gbs == pytest.approx(4.0)
    assert reduced.change_pct == pytest.approx(100 * (1.5 * 64 * MIB / 0.014 / 4e9 - 1))
    assert rows["all_gather"].profile_gbs is None
    assert rows["all_gather"].reason == "not in the profile"
    others = report(folder, reference(gpus=8)).findings.link
    assert all(row.change_pct is None and "8 GPUs" in row.reason for row in others)


def alike(waiting_ns: int) -> list[Alike]:
    """Eight all-reduces of 64 MiB on four ranks, of 20 ms each."""
    kinds = pl.DataFrame({"pattern": ["all_reduce"], "ranks": [4], "bytes": [64 * MIB], "count": [8]})
    length, waiting = np.full(8, 20 * MS), np.full(8, waiting_ns)
    kinds = kinds.with_columns(moved(kinds).alias("moved"))
    return [Alike("all_reduce", 64 * MIB, kinds, np.zeros(8, np.int64), length, length, {"waiting_ns": waiting})]


def test_a_bandwidth_of_next_to_nothing_is_none() -> None:
    (half,) = link_rows(alike(10 * MS), None)
    assert half.transfer_gbs == pytest.approx(2 * half.busbw_gbs) and half.time_all_ranks_s == pytest.approx(0.16)
    (none,) = link_rows(alike(19 * MS), None)
    assert none.transfer_gbs is None and none.busbw_gbs == half.busbw_gbs


def test_a_transfer_that_clocks_cannot_tell_has_no_bandwidth() -> None:
    assert link_rows(alike(10 * MS), None, uncertainty_us=2_000)[0].transfer_gbs is not None
    assert link_rows(alike(10 * MS), None, uncertainty_us=3_000)[0].transfer_gbs is None


def test_calls_far_ahead_of_the_gpu_tell_no_iterations() -> None:
    number = 40
    calls = pl.DataFrame(
        {
            "start_ns": [at * 5_000 for at in range(number)],
            "stop_ns": [at * 5_000 + 2_000 for at in range(number)],
            "captured": [False] * number,
            "pattern": ["send_receive", "all_reduce"] * (number // 2),
            "comm": [1] * number,
            "bytes": [4096] * number,
        }
    )

    def kernels(length_ns: int) -> pl.DataFrame:
        return pl.DataFrame({"start_ns": [1000, 900_000], "stop_ns": [1000 + length_ns, 900_000 + length_ns]})

    assert len(cut(calls, kernels(1_000)).edges) > 10
    far = cut(calls, kernels(500_000))
    assert not len(far.edges)
    assert "ahead of the GPU" in far.reason


def test_between_the_profiles_sizes_but_not_beyond() -> None:
    assert profile_busbw(reference(), "all_reduce", 8 * MIB) == pytest.approx(2.5)
    assert profile_busbw(reference(), "all_reduce", 512 * MIB) is None
    assert profile_busbw(reference(), "broadcast", MIB) is None


def test_clocks_that_were_lowered_and_what_they_did(tmp_path: Path) -> None:
    folder = late_run(tmp_path / "run", ranks=2, iterations=8)
    trace = TraceWriter(0, 2)
    trace.comm(MS)
    for step in range(1, 9):
        trace.call(step, step * STEP, MIB)
        trace.kernel(step, step * STEP, step * STEP + 90 * MS, MIB)
        if step % 2:
            trace.clock(step, step * STEP - 10_000, 480, took_ns=0)
            trace.clock(step, step * STEP + 90 * MS - 10_000, 0, took_ns=0)
    trace.clock(9, 9 * STEP, 300, result=4)  # refused: nothing was lowered
    trace.write(folder)
    low = 2 * STEP  # of the sampled power, lower in odd steps
    write_power(
        folder,
        2,
        10 * STEP,
        lambda _, now: 30.0 if now % low >= STEP else 60.0,
        lambda _, now: 480 if now % low >= STEP else 1590,
    )
    (effect,) = report(folder).findings.clock_effects
    assert (effect.rank, effect.windows) == (0, 4)
    assert effect.lowered_s == pytest.approx(4 * 0.09, rel=1e-3)
    assert effect.communication_pct == pytest.approx(100, rel=1e-3)
    assert effect.lowered_mhz == 480
    assert effect.lowered_watts == pytest.approx(30, rel=0.1)
    assert effect.communication_watts == pytest.approx(60, rel=0.1)


# A profiler's trace: the same kernels, on a clock of its own, and computation between them.


def chrome_trace(path: Path, offset_us: float, first: int = 2, last: int = 10, rank: int | None = 0) -> Path:
    """What torch.profiler would have exported of late_run's rank 0: computation from 0 to 30 ms and 62 to 65 ms."""
    events: list[dict[str, object]] = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 5.0, "pid": 1, "tid": 1, "args": {}},
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
    ]
    for step in range(first, last):
        begin = (step + 1) * 100_000
        for at, length, name in (
            (0, 30_000, "ampere_sgemm_128x64_tn"),
            (62_000, 3_000, "void at::native::vectorized_elementwise_kernel"),
            (40_000, 20_000, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
            (70_000, 10_000, "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        ):
            ts = begin + at + offset_us
            events.append({"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": length, "pid": 0, "tid": 7})
    whole: dict[str, object] = {"schemaVersion": 1, "traceEvents": events}
    if rank is not None:
        whole["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 4}
    data = json.dumps(whole).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["rank0.pt.trace.json", "rank0.pt.trace.json.gz"])
def test_a_profilers_trace_tells_computation_from_idling(tmp_path: Path, name: str) -> None:
    profile = chrome_trace(tmp_path / name, 1.7e15 + 0.25)
    found = report(late_run(tmp_path / "run"), kineto=[(profile, None)]).findings
    row, others = found.ranks[0], found.ranks[1:]
    assert row.by_profiler
    assert not any(other.by_profiler for other in others)
    assert row.span_s == pytest.approx(0.78, rel=1e-3)  # eight steps, the last one's end is its all-gather's
    assert row.computation_s == pytest.approx(8 * 0.033, rel=1e-3)
    assert row.idle_s == pytest.approx(0.78 - 8 * (0.033 + 0.030), rel=1e-2)
    assert row.overlapped_s == pytest.approx(0, abs=1e-5)
    assert row.exposed_s == pytest.approx(8 * 0.030, rel=1e-3)
    assert "100 % of its NCCL kernels" in found.notes[0]


def test_profilers_traces_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    folder = late_run(tmp_path / "run")
    (tmp_path / "no.json").write_text('{"a": [')
    (tmp_path / "cpu.json").write_text('{"traceEvents": []}')
    (tmp_path / "torn.json.gz").write_bytes(gzip.compress(b"{}" * 1000)[:20])
    whose = chrome_trace(tmp_path / "whose.json", 5.0, rank=None)
    other = tmp_path / "other.json"
    other.write_text(
        json.dumps(
            {
                "traceEvents": [
                    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_x", "ts": 977.0 * i * i, "dur": 20_000}
                    for i in range(30)
                ]
            }
        )
    )
    files = [
        (tmp_path / "no.json", 0),
        (tmp_path / "cpu.json", 0),
        (tmp_path / "torn.json.gz", 0),
        (whose, None),
        (other, 1),
    ]
    found = report(folder, kineto=files).findings
    assert not any(row.by_profiler for row in found.ranks)
    assert all(note.startswith("profiler trace not used: ") for note in found.notes)
    for note, expected in zip(
        found.notes, ("no trace of torch", "no kernel", "damaged", "add the rank", "another run or"), strict=True
    ):
        assert expected in note


def test_clocks_align_though_most_kernels_were_not_timed() -> None:
    random = np.random.default_rng(5)
    starts = np.cumsum(random.integers(2, 30, 400)) * MS
    lengths = random.integers(1, 4, 400) * MS
    kept = np.sort(random.choice(400, 300, replace=False))
    offset, share, off = align(starts[100:200] - 123_456_789, lengths[100:200], starts[kept], lengths[kept])
    assert offset == pytest.approx(123_456_789, abs=2)
    assert share == pytest.approx(0.75, abs=0.1)
    assert off <= 1


def test_parts_of_a_stretch_add_up() -> None:
    random = np.random.default_rng(2)

    def some(count: int) -> np.ndarray:
        edges = np.sort(random.choice(1_000_000, 2 * count, replace=False))
        return edges.reshape(-1, 2).astype(np.int64)

    sets = Sets(some(50), None, some(30), None, (0, 1_000_000))
    edges = np.array([[0, 400_000], [400_000, 1_000_000]], dtype=np.int64)
    parts = measure(sets, edges)
    total = parts["communication_s"] + parts["stalled_s"] + parts["rest_s"]
    assert total == pytest.approx(parts["span_s"])
    assert parts["exposed_s"] + parts["overlapped_s"] == pytest.approx(parts["communication_s"])


# Traces too large to be held.


def test_of_a_large_run_everything_is_counted_and_a_window_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "big", PIECE + 5000, 2)
    run = read_run(folder, most_records=200_000)
    assert run.census is not None
    assert run.window is not None
    assert run.census.calls.sum() == run.census.kernels.sum() == 2 * (PIECE + 5000)
    whole = tables.kernels(read_run(folder))
    summed = whole.group_by("pattern").agg(pl.col("duration_ns").sum(), pl.len())
    for pattern, duration, count in summed.iter_rows():
        row = tables.PATTERN.categories.to_list().index(pattern)
        assert int(run.census.duration_ns[row].sum()) == duration
        assert int(run.census.kernels[row].sum()) == count
    read = sum(len(rank.kinds[3]) for rank in run.ranks)
    assert 40_000 < read < 200_000
    # Collectives are still recognised by their place in the whole sequence, and the late rank by name.
    found = report(folder, most_records=200_000).findings
    assert found.peers.matched_pct is not None
    assert found.peers.matched_pct > 99
    middle = (run.window[0] + run.window[1]) // 2_000_000 - 2
    numbers = np.arange(middle, middle + 1000)
    starts = np.stack([times(numbers, rank, 2)[0] for rank in range(2)])
    lags = np.abs(starts[0] - starts[1])
    assert found.peers.ranks[0].behind_us == pytest.approx(float(np.median(lags[lags > 40_000])) / 1e3, rel=0.05)
    assert found.window_s is not None
    assert any("too many to read together" in problem for problem in found.summary.problems)
    assert sum(row.calls for row in found.counts) == 2 * (PIECE + 5000)


def test_a_window_that_is_asked_for(tmp_path: Path) -> None:
    folder = late_run(tmp_path / "run", iterations=20)
    found = report(folder, window_s=(0.5, 1.5)).findings
    assert found.window_s == pytest.approx((0.5, 1.5))
    assert found.summary.wall_s == pytest.approx(1.0)
    assert found.ranks[0].communication_s == pytest.approx(10 * 0.03, rel=0.1)
    assert uuid(0) == found.ranks[0].gpu


@pytest.mark.parametrize(("idle", "computation", "fits"), [(0.1, 9e9, True), (0.9, 0.0, False)])
def test_parts_of_the_energy_never_exceed_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle: float, computation: float, fits: bool
) -> None:
    folder = training_run(tmp_path / "run", ranks=2, iterations=12)
    whole = report(folder).findings.summary.energy.joules
    assert whole is not None

    def attributed(*inputs: Any) -> EnergyFindings:
        found = attribute(*inputs)
        found.joules_idle, found.joules_computation = idle * whole, computation
        found.kinds = [msgspec.structs.replace(kind, joules=whole) for kind in found.kinds]
        return found

    monkeypatch.setattr("powerccl.analysis.report.attribute", attributed)
    energy = report(folder).findings.energy
    parts = (energy.joules_communication, energy.joules_computation, energy.joules_idle, energy.joules_unexplained)
    if fits:
        assert sum(part or 0.0 for part in parts) == pytest.approx(energy.joules_total) == pytest.approx(whole)
        assert all(kind.joules is None for kind in energy.kinds)
    else:
        assert parts == (None, None, None, None)
        assert "more than the whole run" in energy.parts_reason
