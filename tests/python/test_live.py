# SPDX-License-Identifier: Apache-2.0
"""What a look at a run folder brings while its job runs, and what follows from it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from printing import printed
from synthetic import HOST, MS, TraceWriter, mpi_run, mpi_trace, training_run, write_info, write_power

from powerccl.analysis.summary import summarise
from powerccl.live.gpus import GpuState
from powerccl.live.job import Watcher
from powerccl.live.run_folder import HEAD_RECORDS, TAIL_RECORDS, LiveRun, LiveSamples, LiveTrace, select
from powerccl.live.snapshot import NodeView
from powerccl.live.top import print_top
from powerccl.traces import records
from powerccl.traces.folder import read_run

STEP = 600 * MS


def grow(trace: TraceWriter, folder: Path, begin: int, end: int) -> None:
    """Iterations as in training_run, from one to the next, and the file as the rank would have it by then."""
    for iteration in range(begin, end):
        now = iteration * STEP + 150 * MS
        for size, length in ((65_536_000, 40), (609_222_656, 370), (65_536_000, 40)):
            call_id = len(trace.records) + 1
            trace.call(call_id, now - 10 * MS, size, flags=0x40)
            trace.kernel(call_id, now, now + length * MS, size)
            now += length * MS
    trace.write(folder)


def shown(view: NodeView, width: int = 80) -> str:
    return printed(print_top, view, width=width)


def test_each_look_brings_what_is_new(tmp_path: Path) -> None:
    trace = TraceWriter(0, 2)
    trace.comm(MS)
    path = trace.write(tmp_path)
    live = LiveTrace(path)
    assert len(live.read()) == 1
    grow(trace, tmp_path, 0, 2)
    rows = live.read()
    assert len(select(rows, records.CALL)) == len(select(rows, records.KERNEL)) == 6
    assert len(live.read()) == 0
    assert live.about is not None and (live.about.rank, live.about.host) == (0, HOST)
    live.close()


def test_what_is_not_counted_yet_is_left_alone(tmp_path: Path) -> None:
    trace = TraceWriter()
    grow(trace, tmp_path, 0, 1)
    path = trace.write(tmp_path, committed=3)
    live = LiveTrace(path)
    assert len(live.read()) == 3
    trace.write(tmp_path, committed=6)
    assert len(live.read()) == 3


def test_a_look_takes_no_more_than_it_may(tmp_path: Path) -> None:
    trace = TraceWriter()
    grow(trace, tmp_path, 0, 5)
    live = LiveTrace(trace.write(tmp_path))
    assert len(live.read(most=10)) == 10
    assert live.behind == 20
    assert [len(live.read(most=15)) for _ in range(3)] == [15, 5, 0]
    assert live.behind == 0


def test_of_a_long_trace_the_end_is_read_and_its_communicators(tmp_path: Path) -> None:
    trace = TraceWriter()
    trace.comm(MS, nranks=4)
    count = TAIL_RECORDS + HEAD_RECORDS + 5000
    for number in range(1, count):
        trace.call(number, number * 1000, 64)
    live = LiveTrace(trace.write(tmp_path), tail=True)
    rows = live.read()
    assert len(select(rows, records.COMM)) == 1
    calls = select(rows, records.CALL)
    assert int(calls["call_id"][-1]) == count - 1
    assert len(calls) == TAIL_RECORDS


def test_a_file_that_was_just_made_and_one_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.trace"
    path.write_bytes(b"")
    live = LiveTrace(path)
    assert len(live.read()) == 0 and not live.problem
    path.write_bytes(bytes(8192))  # its pages are there, its magic not
    assert len(live.read()) == 0 and not live.problem and live.about is None
    trace = TraceWriter()
    trace.comm(MS)
    path.write_bytes(trace.bytes())
    assert len(live.read()) == 1 and live.about is not None
    path.write_bytes(b"something else".ljust(9000, b"x"))
    assert len(LiveTrace(path).read()) == 0
    newer = LiveTrace(TraceWriter(version=7).write(tmp_path))
    assert len(newer.read()) == 0
    assert "trace version 7" in newer.problem
    gone = LiveTrace(tmp_path / "gone.trace")
    assert len(gone.read()) == 0 and "No such file" in gone.problem


def test_a_file_cut_off_behind_its_count(tmp_path: Path) -> None:
    trace = TraceWriter()
    grow(trace, tmp_path, 0, 1)
    path = tmp_path / "rank-0.trace"
    path.write_bytes(trace.bytes(committed=50))
    live = LiveTrace(path)
    assert len(live.read()) == 6
    assert "cut off: it counts 50 records and has 6" in live.problem


def test_samples_by_halves_of_lines(tmp_path: Path) -> None:
    path = write_power(tmp_path, 1, 100 * MS, 50)
    whole = path.read_bytes()
    live = LiveSamples(path)
    path.write_bytes(whole[:-30])
    before = live.read()
    path.write_bytes(whole)
    after = live.read()
    assert len(before) + len(after) == 6
    assert [int(row["time_ns"]) for row in before + after] == [n * 20 * MS for n in range(6)]
    assert live.about["gpu0_name"] == "Tesla T4"
    path.write_bytes(whole[:-40])  # an agent that goes on
    assert live.read() == []


def test_of_many_samples_the_beginning_and_the_end(tmp_path: Path) -> None:
    path = write_power(tmp_path, 8, 20_000 * MS, 50)
    assert path.stat().st_size > 500_000
    rows = LiveSamples(path).read()
    assert int(rows[0]["time_ns"]) == 0 and int(rows[-1]["time_ns"]) == 20_000 * MS
    assert len(rows) < 8 * 1000
    assert all(len(row) == 10 for row in rows)


def test_an_empty_folder_and_one_that_goes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    run = LiveRun(folder)
    assert not run.look().traces
    assert run.problems == ["run.json is missing: command and start are not known"]
    write_info(folder, 0)
    run.look()
    assert run.problems == [] and run.info is not None
    (folder / "run.json").write_text("{")
    run.look()
    assert run.problems[0].startswith("run.json: ")
    (folder / "run.json").unlink()
    folder.rmdir()
    run.look()
    assert any("No such file" in text for text in run.problems)


def test_share_rate_and_power_are_the_truth(tmp_path: Path) -> None:
    """Three iterations of 600 ms, 75 % communication at 45 W, the rest at 70 W."""
    folder = training_run(tmp_path / "run")
    job = Watcher(folder, window_s=1.2).look(0, "elsewhere")
    assert job.ended and job.exit_code == 0
    assert job.share_pct == pytest.approx(75, abs=0.1)
    assert not job.estimated
    rank = job.ranks[0]
    assert rank.per_s == pytest.approx(6 / 1.2)
    assert (rank.last, rank.last_bytes, rank.calls, rank.pending) == ("all_reduce", 65_536_000, 9, 0)
    assert job.power_w == pytest.approx(2 * (0.75 * 45 + 0.25 * 70), rel=0.02)
    reference = summarise(read_run(folder))
    assert job.joules == pytest.approx(reference.energy.joules, rel=0.02)
    row = next(row for row in job.patterns if row.size_class_bytes == 1 << 29)
    assert row.mean_us == pytest.approx(370_000)
    assert row.busbw_gbs == pytest.approx(609_222_656 / 0.370 / 1e9, rel=1e-3)  # two ranks: factor 1
    assert row.per_s == pytest.approx(2 / 1.2)


def test_looks_while_the_job_runs(tmp_path: Path) -> None:
    """The window goes with the time; what a rank has called and not seen ended is pending."""
    write_info(tmp_path, 0, exit_code=None)
    trace = TraceWriter(0, 1)
    trace.comm(MS)
    grow(trace, tmp_path, 0, 2)
    watcher = Watcher(tmp_path, window_s=0.6)
    first = watcher.look(2 * STEP, HOST)
    assert not first.ended
    assert first.elapsed_s == pytest.approx(1.2)
    assert first.share_pct == pytest.approx(75, abs=0.1)
    trace.call(99, 2 * STEP + 10 * MS, 1 << 20, flags=0x40)
    trace.write(tmp_path)
    later = watcher.look(2 * STEP + 310 * MS, HOST)
    assert later.ranks[0].pending == 1
    assert later.ranks[0].last_s == pytest.approx(0.3)
    assert later.share_pct == pytest.approx((600 - 310 - 0) / 600 * 100, abs=0.1)
    assert watcher.look(60 * STEP, HOST).share_pct == 0


def test_calls_that_are_not_timed_are_estimated_and_marked(tmp_path: Path) -> None:
    trace = TraceWriter(0, 1)
    trace.comm(MS)
    for number in range(100):
        timed = number % 10 == 0
        trace.call(number + 1, number * 10 * MS, 1 << 20, flags=0x40 if timed else 0)
        if timed:
            trace.kernel(number + 1, number * 10 * MS, number * 10 * MS + 2 * MS, 1 << 20)
    trace.write(tmp_path)
    write_info(tmp_path, 0, exit_code=None)
    job = Watcher(tmp_path, window_s=1.0).look(1000 * MS, HOST)
    assert job.estimated
    assert job.share_pct == pytest.approx(20, abs=0.5)
    assert "~20 % of the time in communication" in shown(NodeView(host=HOST, unix_s=0, jobs=[job]))


def test_what_is_in_a_graph_is_called_once_and_runs_at_each_replay(tmp_path: Path) -> None:
    trace = TraceWriter(0, 1)
    trace.call(1, MS, 1 << 20, flags=0x41)
    for number in range(1, 100):
        trace.kernel(1, number * 100 * MS, number * 100 * MS + 30 * MS, 1 << 20, flags=0x1)
    trace.write(tmp_path)
    write_info(tmp_path, 0, exit_code=None)
    job = Watcher(tmp_path, window_s=2).look(10_000 * MS, HOST)
    rank = job.ranks[0]
    assert rank.per_s == pytest.approx(10, abs=0.6)
    assert (rank.pending, rank.last) == (0, "all_reduce")
    assert rank.last_s is not None and rank.last_s < 0.1
    assert job.share_pct == pytest.approx(30, abs=1.6)
    assert not job.estimated


def test_overlapping_kernels_count_once(tmp_path: Path) -> None:
    trace = TraceWriter(0, 1)
    for number in range(2):
        trace.kernel(number + 1, 0, 500 * MS, 1 << 20, comm=number)
    trace.write(tmp_path)
    write_info(tmp_path, 0, exit_code=None)
    assert Watcher(tmp_path, window_s=1.0).look(1000 * MS, HOST).share_pct == pytest.approx(50, abs=0.1)


def test_other_hosts_are_as_recent_as_their_last_record(tmp_path: Path) -> None:
    """Their clocks have nothing to do with ours."""
    trace = TraceWriter(0, 1, host="node2")
    grow(trace, tmp_path, 0, 2)
    write_info(tmp_path, 0, exit_code=None)
    job = Watcher(tmp_path, window_s=0.45).look(10**15, HOST)
    assert job.share_pct == pytest.approx(100, abs=0.1)
    assert job.ranks[0].last_s is not None and job.ranks[0].last_s < 1


def test_what_a_policy_keeps_to(tmp_path: Path) -> None:
    trace = TraceWriter()
    trace.comm(MS)
    trace.clock(1, 10 * MS, 900, result=5)
    trace.clock(2, 20 * MS, 0)
    trace.clock(3, 30 * MS, 900, result=-100)
    trace.write(tmp_path)
    write_info(tmp_path, 0, exit_code=None, policy="auto", clocks="lease", slowdown_pct=1.0)
    watcher = Watcher(tmp_path)
    job = watcher.look(100 * MS, HOST)
    assert (job.ranks[0].clock_requests, job.ranks[0].clock_failed, job.ranks[0].clock_mhz) == (3, 1, 900)
    text = shown(NodeView(host=HOST, unix_s=0, jobs=[job]), 120)
    assert "slowdown at most 1 %, not estimated yet: the policy writes an estimate every 10 s" in text
    assert "1 of 3 failed" in text
    trace.budget(90 * MS, slowdown_ppm=(4000, 1000, 7000))
    trace.write(tmp_path)
    text = shown(NodeView(host=HOST, unix_s=0, jobs=[watcher.look(100 * MS, HOST)]), 120)
    assert "+0.4 % (+0.1 to +0.7 %), 120 of 155 iterations managed" in text


def test_mpi(tmp_path: Path) -> None:
    """Sums of a whole run, and of its second half alone."""
    mpi_run(tmp_path / "run")
    job = Watcher(tmp_path / "run", window_s=300).look(0, HOST)
    assert job.mpi is not None
    assert [rank.rank for rank in job.mpi.ranks] == [0, 1]
    waits = [rank.wait_pct for rank in job.mpi.ranks]
    assert waits[0] == pytest.approx((600 + 10) / 2000 * 100, abs=0.1)  # the trace begins at 10 ms
    assert waits[1] == pytest.approx(10 / 2000 * 100, abs=0.1)
    half = Watcher(tmp_path / "run", window_s=1.01).look(0, HOST)
    assert half.mpi is not None
    assert half.mpi.ranks[0].calls_per_s == pytest.approx(1505 / 1.01, rel=0.01)
    assert half.mpi.functions[0].function == "MPI_Allreduce"
    assert "MPI_Allreduce" in shown(NodeView(host=HOST, unix_s=0, jobs=[half]))


def test_mpi_sums_that_come_late_fall_out_of_no_window(tmp_path: Path) -> None:
    """Written every second, looked at every second: what was written before the window is where it begins."""
    trace = mpi_trace(0, 1)
    write_info(tmp_path, 0, exit_code=None)
    watcher = Watcher(tmp_path, window_s=2)
    for second in range(1, 12):
        trace.mpi_total(second * 1000 * MS, "Allreduce", second * 10, second * 400 * MS, second * 300 * MS)
        trace.write(tmp_path, "mpi-0.trace")
        job = watcher.look(second * 1000 * MS + 100 * MS, HOST)
        assert job.mpi is not None
        if second > 1:
            assert job.mpi.share_pct == pytest.approx(40, abs=1)
            assert job.mpi.ranks[0].calls_per_s == pytest.approx(10, abs=0.2)


def test_a_damaged_folder_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    (folder / "rank-1.trace").write_bytes(b"junk" * 4000)
    (folder / "run.json").write_text("not json")
    job = Watcher(folder).look(0, "elsewhere")
    assert len(job.ranks) == 1
    text = shown(NodeView(host="elsewhere", unix_s=0, jobs=[job]))
    assert "rank-1.trace: not a PowerCCL trace" in text
    assert "run.json: " in text


def test_looking_costs_little(tmp_path: Path) -> None:
    """Eight ranks with 350 timed collectives a second each: a look a second takes far below a tenth of a core."""
    traces = [TraceWriter(rank, 8) for rank in range(8)]
    write_info(tmp_path, 0, exit_code=None)
    watcher = Watcher(tmp_path)
    spent_s = []
    for second in range(12):
        for trace in traces:
            for number in range(350):
                at = second * 1000 * MS + number * 2_800_000
                trace.call(len(trace.records) + 1, at, 1 << 20, flags=0x40)
                trace.kernel(len(trace.records), at, at + MS, 1 << 20)
            trace.write(tmp_path)
        begin_s = time.process_time()
        job = watcher.look((second + 1) * 1000 * MS, HOST)
        spent_s.append(time.process_time() - begin_s)
    assert len(job.ranks) == 8
    assert sorted(spent_s)[len(spent_s) // 2] < 0.1


@pytest.mark.parametrize("energy_uj", ["500000000", "-1"], ids=["stands still", "none"])
def test_without_a_counter_that_moves_power_counts(energy_uj: str) -> None:
    gpu = GpuState({"interval_ns": str(20 * MS), "gpu0_power_limit_mw": "400000"}, 0)
    known = []
    for tick in range(300):  # 6 s at 100 W
        time_ns = (tick + 1) * 20 * MS
        gpu.take([{"time_ns": str(time_ns), "energy_uj": energy_uj, "power_mw": "100000", "gpu": "0"}])
        known.append(gpu.used_until(20 * MS, time_ns))
    assert known[50][0] is None and known[50][1] == pytest.approx(1.0)  # it may still move
    joules, missing_s = known[-1]
    assert joules == pytest.approx(100 * 299 * 0.02) and missing_s == 0
    totals = [joules or 0 for joules, _ in known]
    assert totals == sorted(totals)
    # What is not sampled any more is missing again.
    assert gpu.used_until(20 * MS, 306 * 20 * MS + 5000 * MS)[1] > 5
