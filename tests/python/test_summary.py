# SPDX-License-Identifier: Apache-2.0
"""Summaries of synthetic runs whose truth is known, and their comparison."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import synthetic
from click.testing import CliRunner
from printing import printed
from synthetic import MS, TraceWriter, training_run, write_info, write_power

from powerccl.analysis.findings import RunSummary, read_summary, write_summary
from powerccl.analysis.report import report
from powerccl.analysis.summary import summarise
from powerccl.commands import cli
from powerccl.live.job import Watcher
from powerccl.reports.job import clock_line, facts
from powerccl.reports.terminal import print_summary
from powerccl.traces import records
from powerccl.traces.folder import read_run


def test_golden_training_run(tmp_path: Path) -> None:
    found = summarise(read_run(training_run(tmp_path / "run")))
    assert found.wall_s == pytest.approx(1.8, rel=1e-4)  # the last kernel was seen 20 us after the end
    assert found.emulated == "yes"
    assert found.ranks == 2
    assert found.finished
    communication = found.communication
    assert communication.calls == communication.timed_calls == 18
    assert communication.time_s == pytest.approx(1.35, rel=1e-3)
    assert found.shares.communicating_pct == pytest.approx(1350 / 1650 * 100, rel=1e-3)  # of 1.65 s: first to last
    assert communication.joules == pytest.approx(2 * 1.35 * 45, rel=2e-3)
    assert communication.average_watts == pytest.approx(45, rel=2e-3)
    assert communication.other_average_watts == pytest.approx(70, rel=2e-3)
    assert communication.resolved
    assert communication.uncertainty_joules is not None
    assert communication.uncertainty_joules < 2
    assert found.energy.source == "counter"
    assert found.energy.sample_ms == 20
    assert found.energy.joules == pytest.approx(2 * (1.33 * 45 + 0.45 * 70), rel=0.01)  # the first step is unseen
    large, small = found.patterns
    assert (large.pattern, large.calls, large.median_bytes) == ("all_reduce", 6, 609_222_656)
    assert large.median_us == pytest.approx(370_000)
    assert large.busbw_gbs == pytest.approx(609_222_656 / 0.37 / 1e9)  # two ranks: factor 1
    assert large.joules_per_operation == pytest.approx(0.37 * 45, rel=0.01)
    assert (small.calls, small.total_bytes) == (12, 12 * 65_536_000)
    assert not found.problems


def test_a_window_takes_a_part(tmp_path: Path) -> None:
    found = summarise(read_run(training_run(tmp_path / "run")), (600 * MS, 1200 * MS))
    assert found.wall_s == pytest.approx(0.6)
    assert found.communication.time_s == pytest.approx(0.45, rel=1e-3)
    assert found.energy.joules == pytest.approx(2 * (0.45 * 45 + 0.15 * 70), rel=0.005)


def test_a_killed_job_still_has_a_summary(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    write_info(folder, 0, exit_code=None)
    trace = folder / "rank-1.trace"
    trace.write_bytes(trace.read_bytes()[:-70])
    found = summarise(read_run(folder))
    assert not found.finished
    assert found.exit_code is None
    assert found.wall_s == pytest.approx(1.8, rel=0.01)
    assert found.communication.joules is None  # records are missing
    assert found.communication.joules_at_least is not None
    assert any("cut off" in problem for problem in found.problems)


def test_calls_not_timed_are_estimated_from_their_kind_and_marked(tmp_path: Path) -> None:
    trace = TraceWriter(0, 2)
    trace.comm(MS)
    for call_id in range(1, 11):
        trace.call(call_id, call_id * 10 * MS, 4096)
        if call_id in (1, 6):
            trace.kernel(call_id, call_id * 10 * MS, call_id * 10 * MS + 50_000, 4096)
    trace.call(11, 200 * MS, 999, "gather")
    trace.write(tmp_path)
    found = summarise(read_run(tmp_path))
    assert (found.communication.calls, found.communication.timed_calls, found.communication.untimed_calls) == (11, 2, 1)
    assert found.communication.estimated_s == pytest.approx(8 * 50e-6)
    assert found.communication.time_s == pytest.approx(2 * 50e-6)
    assert found.communication.joules is None
    row = next(row for row in found.patterns if row.pattern == "all_reduce")
    assert (row.calls, row.timed) == (10, 2)
    lone = next(row for row in found.patterns if row.pattern == "gather")
    assert (lone.median_us, lone.busbw_gbs, lone.timed) == (None, None, 0)


def test_a_groups_kernel_covers_all_its_calls(tmp_path: Path) -> None:
    trace = TraceWriter(0, 2)
    for call_id in (1, 2, 3):
        trace.call(call_id, MS, 1 << 20, flags=records.FLAG_GROUPED, group=5)
    trace.call(4, 5 * MS, 1 << 20, flags=records.FLAG_GROUPED, group=6)
    trace.kernel(1, 2 * MS, 3 * MS, 3 << 20, flags=records.FLAG_GROUPED)
    trace.write(tmp_path)
    found = summarise(read_run(tmp_path)).communication
    assert (found.calls, found.timed_calls) == (4, 3)


def test_captured_calls_count_by_their_replays(tmp_path: Path) -> None:
    trace = TraceWriter(0, 8)
    trace.comm(MS)
    trace.call(1, MS, 1 << 20, flags=records.FLAG_CAPTURED)
    for replay in range(5):
        trace.kernel(1, (10 + replay) * MS, (10 + replay) * MS + 400_000, 1 << 20)
    trace.write(tmp_path)
    found = summarise(read_run(tmp_path))
    row = found.patterns[0]
    assert (row.calls, row.captured_calls, row.timed, row.total_bytes) == (0, 1, 5, 5 << 20)
    assert row.busbw_gbs == pytest.approx((1 << 20) / 400e-6 * 1.75 / 1e9)
    assert found.communication.time_s == pytest.approx(5 * 400e-6)


@pytest.mark.parametrize("flags", [0, records.FLAG_CAPTURED])
def test_communication_that_nothing_timed_has_no_time(tmp_path: Path, flags: int) -> None:
    trace = TraceWriter(0, 8)
    trace.comm(MS)
    trace.call(1, MS, 1 << 20, flags=flags)
    trace.write(tmp_path)
    found = summarise(read_run(tmp_path))
    assert found.communication.time_s is None
    assert [gpu.communication_s for gpu in found.gpus] == [None]
    assert found.shares.reason == "none of 1 call was timed"
    assert found.communication.untimed_captured_calls == (1 if flags else 0)
    assert ("1 call in CUDA graphs not timed" in str(found.notes)) == bool(flags)
    assert "elsewhere" not in printed(print_summary, found)


def test_overlapping_kernels_of_a_gpu_count_once(tmp_path: Path) -> None:
    trace = TraceWriter(0, 2)
    trace.kernel(1, 10 * MS, 20 * MS, 1 << 20)
    trace.kernel(2, 15 * MS, 30 * MS, 1 << 20, comm=1)
    trace.write(tmp_path)
    assert summarise(read_run(tmp_path)).communication.time_s == pytest.approx(0.020)


def test_clock_requests(tmp_path: Path) -> None:
    trace = TraceWriter(policy="per-call", clock_client="lease")
    trace.clock(1, 1 * MS, 480, took_ns=2 * MS, read_back_mhz=480, coalesced=1)
    trace.clock(1, 9 * MS, 0, took_ns=4 * MS)
    trace.clock(2, 20 * MS, 480, took_ns=3 * MS, read_back_mhz=1590)
    trace.clock(2, 30 * MS, 0, took_ns=3 * MS, result=15)
    trace.write(tmp_path)
    clocks = summarise(read_run(tmp_path)).clocks
    assert (clocks.requests, clocks.sets, clocks.resets, clocks.failed, clocks.dry) == (4, 2, 2, 1, 0)
    assert (clocks.coalesced, clocks.off_target) == (1, 1)
    assert clocks.mean_call_us == pytest.approx(3000)
    assert clocks.mean_latency_us == pytest.approx(3010)


def test_requests_without_a_lease_have_not_failed(tmp_path: Path) -> None:
    trace = TraceWriter(policy="per-call", clock_client="lease")
    trace.clock(1, 1 * MS, 480, took_ns=2 * MS, read_back_mhz=480)
    trace.clock(1, 9 * MS, 0, took_ns=2_000_000 * MS, result=-100)
    trace.clock(2, 20 * MS, 480, took_ns=1, result=-100)
    trace.clock(3, 30 * MS, 480, took_ns=4 * MS, result=15)
    trace.write(tmp_path)
    clocks = summarise(read_run(tmp_path)).clocks
    assert (clocks.requests, clocks.sets, clocks.resets, clocks.failed, clocks.without_lease) == (4, 3, 1, 1, 2)
    assert clocks.mean_call_us == pytest.approx(3000), "of those that reached the driver"
    assert ", 2 without a lease" in clock_line(clocks)


def test_dry_requests_have_no_latency(tmp_path: Path) -> None:
    trace = TraceWriter(policy="per-call", clock_client="dry")
    trace.clock(1, 1 * MS, 480, took_ns=0, flags=records.FLAG_DRY)
    trace.write(tmp_path)
    clocks = summarise(read_run(tmp_path)).clocks
    assert (clocks.requests, clocks.dry, clocks.mean_call_us) == (1, 1, None)


def test_without_samples_energy_is_not_known(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    (folder / "power-node1.csv").unlink()
    found = summarise(read_run(folder))
    assert found.energy.joules is None
    assert found.energy.reason
    assert found.communication.joules is None
    assert found.communication.time_s and found.communication.time_s > 0


def test_gpus_are_matched_by_pci_where_the_trace_has_no_uuid(tmp_path: Path) -> None:
    trace = TraceWriter(0, 1, gpu_uuid="")
    trace.kernel(1, 100 * MS, 300 * MS, 1 << 20)
    trace.write(tmp_path)
    write_power(tmp_path, 1, 500 * MS, 50.0)
    found = summarise(read_run(tmp_path))
    assert found.gpus[0].name == "Tesla T4"
    assert found.communication.joules == pytest.approx(10, rel=0.01)


def test_a_job_without_nccl_has_the_nodes_energy(tmp_path: Path) -> None:
    write_power(tmp_path, 2, 1000 * MS, 30.0)
    write_info(tmp_path, 1000 * MS)
    found = summarise(read_run(tmp_path))
    assert found.ranks == 0
    assert found.energy.joules == pytest.approx(2 * 30, rel=0.001)
    assert found.communication.joules is None


def test_only_the_jobs_gpus_count(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run", ranks=1)
    write_power(folder, 4, 1800 * MS, 50.0)
    found = summarise(read_run(folder))
    assert len(found.gpus) == 1
    assert found.energy.joules == pytest.approx(50 * 1.8, rel=0.001)


def test_throttle_reasons_are_named(tmp_path: Path) -> None:
    found = summarise(read_run(training_run(tmp_path / "run")))
    assert found.gpus[0].throttle_reasons == ["power limit"]


def test_notes_reach_the_summary(tmp_path: Path) -> None:
    trace = TraceWriter()
    trace.note(MS, "disarmed: the table is of another GPU")
    trace.write(tmp_path)
    found = summarise(read_run(tmp_path))
    assert found.notes == ["disarmed: the table is of another GPU"]


def test_summaries_survive_the_disk(tmp_path: Path) -> None:
    found = summarise(read_run(training_run(tmp_path / "run")))
    write_summary(found, tmp_path / "summary.json")
    assert read_summary(tmp_path / "summary.json") == found
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(msgspec.MsgspecError):
        read_summary(tmp_path / "summary.json")


def test_summary_type_is_what_is_written(tmp_path: Path) -> None:
    trace = TraceWriter()
    trace.write(tmp_path)
    found = summarise(read_run(tmp_path))
    assert isinstance(found, RunSummary)
    assert synthetic.uuid(0) == found.gpus[0].gpu


def test_bandwidth_of_one_rank_and_of_kernels_without_a_length(tmp_path: Path) -> None:
    """As NCCL tests have it: one rank alone sends nothing over the bus. A length of no clock tick has no bandwidth."""
    for ranks, lengths, expected in (
        (1, (400_000,), 0.0),
        (2, (0, 0), None),
        (2, (0, 400_000, 400_000), (1 << 20) / 400_000),
    ):
        folder = tmp_path / f"{ranks}-{len(lengths)}-{sum(lengths)}"
        folder.mkdir()
        trace = TraceWriter(0, ranks)
        trace.comm(MS)
        for call, length in enumerate(lengths, 1):
            trace.call(call, call * MS, 1 << 20, flags=0x40)
            trace.kernel(call, call * MS, call * MS + length, 1 << 20)
        trace.write(folder)
        write_info(folder, 100 * MS)
        made = report(folder).findings
        (row,) = made.summary.patterns
        assert row.busbw_gbs == (expected if expected is None else pytest.approx(expected)), (ranks, lengths)
        assert [each.busbw_gbs for each in made.link] == [pytest.approx(expected)] * bool(expected)
        (live,) = Watcher(folder, window_s=1.0).look(50 * MS, "node1").patterns
        assert live.busbw_gbs == (expected if expected is None else pytest.approx(expected)), (ranks, lengths)


def test_a_fixed_clock_is_shown_and_no_policy_is_predicted_from_it(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    write_info(folder, 1_800_000_000, clocks="lease", clock_mhz=1200)
    summary = summarise(read_run(folder))
    assert "clock fixed at 1200 MHz" in facts(summary)
    assert "fixed at 1200 MHz" in printed(print_summary, summary)
    done = CliRunner().invoke(cli, ["whatif", str(folder)])
    assert done.exit_code == 1
    assert "at a fixed clock of 1200 MHz: its clocks were changed already" in done.stderr
