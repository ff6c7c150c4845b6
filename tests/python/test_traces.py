# SPDX-License-Identifier: Apache-2.0
"""Reading traces and samples, sound and damaged."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import numpy as np
import pytest
import synthetic
from c_struct import body_of, fields_of
from synthetic import MS, TraceWriter, write_info

from powerccl.live.run_folder import LiveRun
from powerccl.traces import records, tables
from powerccl.traces.folder import read_run
from powerccl.traces.power import read_power
from powerccl.traces.rank import TraceError, read_rank


def sample_trace() -> TraceWriter:
    trace = TraceWriter(rank=3, nranks=4, policy="per-call", clock_client="dry", flags=3)
    trace.comm(1 * MS)
    trace.call(1, 2 * MS, 1 << 20, "broadcast", flags=records.FLAG_KERNEL_ASKED | records.FLAG_MANAGED)
    trace.kernel(1, 3 * MS, 4 * MS, 1 << 20, "broadcast")
    trace.clock(1, 2 * MS, 480, flags=records.FLAG_DRY)
    trace.note(5 * MS, "x" * 48)
    return trace


def test_layouts_are_those_of_the_native_header() -> None:
    text = (Path(__file__).parents[2] / "native/abi/trace.h").read_text()
    fields = dict(records.HEADER.fields or {})
    read = {name: (place[1], place[0].itemsize) for name, place in fields.items() if name != "reserved"}
    assert fields_of(body_of(text, "powerccl_trace_header")) == read
    for kind, name in records.KINDS.items():
        assert f"POWERCCL_REC_{name.upper()} = {kind}," in text
        end = text.index(f"}} {'comm_up' if name == 'comm' else name};")
        fields = dict(records.LAYOUTS[kind].fields or {})
        read = {
            field: (place[1] - 8, place[0].itemsize)
            for field, place in fields.items()
            if place[1] >= 8 and not field.startswith("reserved")
        }
        assert fields_of(text[text.rindex("struct {", 0, end) : end]) == read, name
        assert records.LAYOUTS[kind].itemsize == records.RECORD_BYTES


def test_header_and_every_kind(tmp_path: Path) -> None:
    rank = read_rank(sample_trace().write(tmp_path))
    assert (rank.rank, rank.nranks, rank.host, rank.policy, rank.clock_client) == (3, 4, "node1", "per-call", "dry")
    assert rank.gpu == synthetic.uuid(3)
    assert rank.dry
    assert rank.emulated
    assert [len(rank.kinds[kind]) for kind in (1, 2, 3, 4, 5, 6)] == [1, 1, 1, 1, 0, 1]
    assert not rank.problems
    assert rank.last_ns() == 5_010_000  # the clock request's end


def test_tables_have_the_recorded_values(tmp_path: Path) -> None:
    sample_trace().write(tmp_path)
    run = read_run(tmp_path)
    call = tables.calls(run).row(0, named=True)
    assert call["pattern"] == "broadcast"
    assert call["ranks"] == 4
    assert call["size_class"] == 1 << 20
    assert call["managed"]
    assert call["kernel_asked"]
    assert not call["captured"]
    kernel = tables.kernels(run).row(0, named=True)
    assert kernel["duration_ns"] == 1 * MS
    assert kernel["start_ns"] == 3 * MS + 20_000  # mapped no better than the least delay
    assert (kernel["algorithm"], kernel["protocol"], kernel["channels"]) == ("ring", "simple", 4)
    clock = tables.clocks(run).row(0, named=True)
    assert (clock["min_mhz"], clock["dry"], clock["end_ns"] - clock["begin_ns"]) == (480, True, 3 * MS)
    assert tables.notes(run)["text"].to_list() == ["x" * 48]


def test_bursts_of_waits_know_of_the_pause_behind_them(tmp_path: Path) -> None:
    trace = sample_trace()
    trace.wait(1, 3 * MS, 9 * MS, burst=1)
    trace.pause(1 * MS, burst=1, marked=1)
    trace.pause(40 * MS, burst=0)  # there is no such burst
    trace.wait(2, 20 * MS, 21 * MS, burst=2)
    rank = read_rank(trace.write(tmp_path))
    assert "1 pause record " in rank.problems[0]
    assert rank.last_ns() == 21 * MS
    waits = tables.waits(read_run(tmp_path))
    assert waits["burst"].to_list() == [1, 2]
    assert waits["pauses"].to_list() == [True, False]


def test_waits_are_read_and_impossible_ones_left_out(tmp_path: Path) -> None:
    trace = sample_trace()
    trace.wait(1, 3 * MS, 9 * MS, stream=77)
    trace.wait(2, 8 * MS, 8 * MS)  # over before it was waited for: nothing exposed
    trace.wait(3, 9 * MS, 8 * MS)
    trace.wait(4, 0, 8 * MS)
    trace.wait(5, 1 * MS, 4_000_000 * MS)
    rank = read_rank(trace.write(tmp_path))
    assert "3 wait records" in rank.problems[0]
    assert rank.last_ns() == 9 * MS
    waits = tables.waits(read_run(tmp_path))
    assert waits["call_id"].to_list() == [1, 2]
    assert waits.row(0, named=True) == {
        "rank": 3,
        "gpu": synthetic.uuid(3),
        "comm": 0,
        "ranks": 4,
        "call_id": 1,
        "stall_ns": 3 * MS,
        "resume_ns": 9 * MS,
        "stream": 77,
        "burst": 0,
        "pauses": False,
    }


def test_budgets_are_read_and_the_latest_counts(tmp_path: Path) -> None:
    trace = sample_trace()
    trace.budget(6 * MS, calls=0, iterations=(0, 0), length_us=0)
    trace.budget(8 * MS, slowdown_ppm=(2000, -1000, 5000), clock_mhz=1080)
    trace.budget(9 * MS, slowdown_ppm=(2000, 3000, 5000))  # an estimate outside of its interval
    trace.raw(11)
    rank = read_rank(trace.write(tmp_path))
    assert "2 budget records" in rank.problems[0]
    assert rank.last_ns() == 8 * MS
    other = TraceWriter(rank=2, nranks=4)
    other.budget(7 * MS)
    other.write(tmp_path)
    TraceWriter(rank=1, nranks=4).write(tmp_path)  # killed, or of a policy that learns nothing
    not_judged, judged = tables.budgets(read_run(tmp_path)).rows(named=True)
    assert judged == {
        "rank": 3,
        "gpu": synthetic.uuid(3),
        "host": "node1",
        "time_ns": 8 * MS,
        "calls": 3,
        "iterations": 155,
        "managed": 120,
        "length_us": 112_000,
        "slowdown_ppm": 2000,
        "low_ppm": -1000,
        "high_ppm": 5000,
        "clock_mhz": 1080,
        "dry": True,
    }
    assert [not_judged[name] for name in ("slowdown_ppm", "low_ppm", "high_ppm")] == [None, None, None]
    assert not not_judged["dry"]


def test_size_classes_are_powers_of_two(tmp_path: Path) -> None:
    trace = TraceWriter()
    sizes = {0: 0, 1: 1, 3: 2, 1023: 512, 1024: 1024, 609_222_656: 1 << 29, 1 << 40: 1 << 40}
    for call_id, size in enumerate(sizes):
        trace.call(call_id, MS, size)
    trace.write(tmp_path)
    assert tables.calls(read_run(tmp_path))["size_class"].to_list() == list(sizes.values())


def test_an_empty_trace_is_a_trace(tmp_path: Path) -> None:
    rank = read_rank(TraceWriter().write(tmp_path))
    assert all(len(rows) == 0 for rows in rank.kinds.values())
    run = read_run(tmp_path)
    for table in (tables.calls, tables.kernels, tables.clocks, tables.notes, tables.waits):
        assert len(table(run)) == 0


def test_a_cut_off_trace_reads_to_its_last_whole_record(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.trace"
    path.write_bytes(sample_trace().bytes()[: 4096 + 64 * 2 + 30])
    rank = read_rank(path)
    assert len(rank.kinds[records.CALL]) == 1
    assert len(rank.kinds[records.KERNEL]) == 0
    assert "5 records committed, 2 in the file" in rank.problems[0]


def test_records_beyond_committed_are_not_read(tmp_path: Path) -> None:
    rank = read_rank(sample_trace().write(tmp_path, committed=2))
    assert len(rank.kinds[records.CALL]) == 1
    assert len(rank.kinds[records.KERNEL]) == 0


def test_unknown_kinds_are_skipped_and_counted(tmp_path: Path) -> None:
    trace = sample_trace()
    trace.raw(77)
    trace.raw(0)
    rank = read_rank(trace.write(tmp_path))
    assert len(rank.kinds[records.CALL]) == 1
    assert "2 records of kinds" in rank.problems[0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cut off inside its header"),
        (b"PWRCCLTR" + b"\0" * 50, "cut off inside its header"),
        (b"\x7fELF" + b"\0" * 5000, "not a PowerCCL trace"),
        (TraceWriter(version=9).bytes(), "trace version 9"),
        (sample_trace().bytes().replace(struct.pack("<III", 1, 4096, 64), struct.pack("<III", 1, 4096, 7)), "damaged"),
        (sample_trace().bytes().replace(struct.pack("<III", 1, 4096, 64), struct.pack("<III", 1, 8, 64)), "damaged"),
    ],
)
def test_what_is_no_trace_is_refused_by_name(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "rank-0.trace"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=words) as error:
        read_rank(path)
    assert "rank-0.trace" in str(error.value)
    assert any(words in problem for problem in read_run(tmp_path).problems)


def test_garbage_never_raises(tmp_path: Path) -> None:
    random.seed(7)
    good = bytearray(sample_trace().bytes())
    for _ in range(60):
        damaged = bytearray(good)
        for _ in range(40):
            damaged[random.randrange(len(damaged))] = random.randrange(256)
        (tmp_path / "rank-0.trace").write_bytes(damaged[: random.randrange(len(damaged))])
        (tmp_path / "power-x.csv").write_bytes(random.randbytes(300))
        (tmp_path / "run.json").write_bytes(random.randbytes(40))
        run = read_run(tmp_path)
        for table in (tables.calls, tables.kernels, tables.clocks, tables.notes, tables.waits):
            table(run)
        assert run.problems


def test_impossible_kernels_are_left_out(tmp_path: Path) -> None:
    trace = TraceWriter()
    trace.kernel(1, 2 * MS, 3 * MS, 1024)
    trace.kernel(2, 5 * MS, 4 * MS, 1024)
    trace.kernel(3, 0, 3_700_000 * MS, 1024)
    rank = read_rank(trace.write(tmp_path))
    assert len(rank.kinds[records.KERNEL]) == 1
    assert "2 kernel records with impossible times" in rank.problems[0]


def test_kernels_read_too_late_are_left_out(tmp_path: Path) -> None:
    """A stop that lies behind the next kernel's start is a later operation's (see rank.py)."""
    trace = TraceWriter()
    for call in range(10):
        start = (10 + call) * MS
        stop = start + (64 * MS if call in (3, 4) else MS - 5_000)
        trace.kernel(call + 1, start, stop, 1 << 20)
    rank = read_rank(trace.write(tmp_path))
    kept = rank.kinds[records.KERNEL]
    assert kept["call_id"].tolist() == [1, 2, 3, 6, 7, 8, 9, 10]
    assert any("2 kernel records with impossible times" in problem for problem in rank.problems)


def test_dropped_records_are_told(tmp_path: Path) -> None:
    rank = read_rank(TraceWriter(dropped=12).write(tmp_path))
    assert "12 records dropped" in rank.problems[0]


def test_drift_between_the_clocks_is_found(tmp_path: Path) -> None:
    random.seed(1)
    trace = TraceWriter()
    drift = 40e-6
    for call_id in range(2000):
        start = 10 * MS + call_id * 20 * MS
        # The GPU's clock runs fast by `drift`, and the host learns of things 5 us to 3 ms late.
        trace.kernel(
            call_id,
            start,
            start + MS,
            1 << 20,
            delay_ns=5_000 + int(random.expovariate(1 / 200_000)),
            ahead_ns=synthetic.GPU_AHEAD_NS + int(start * drift),
        )
    rank = read_rank(trace.write(tmp_path))
    host = rank.clock_map.to_host(rank.kinds[records.KERNEL]["gpu_start_ns"])
    wrong = [int(host[i]) - (10 * MS + i * 20 * MS) for i in range(2000)]
    assert max(abs(error) for error in wrong) < 30_000  # without drift it would be 1.6 ms
    assert rank.clock_map.drift == pytest.approx(-drift, rel=0.05)


def test_a_short_trace_maps_without_a_slope(tmp_path: Path) -> None:
    trace = TraceWriter()
    for call_id, delay in enumerate((50_000, 9_000, 30_000)):
        trace.kernel(call_id, call_id * 100 * MS + MS, call_id * 100 * MS + 2 * MS, 1024, delay_ns=delay)
    rank = read_rank(trace.write(tmp_path))
    assert rank.clock_map.drift == 0
    assert rank.clock_map.offset_ns == 9_000 - synthetic.GPU_AHEAD_NS


def test_power_is_sorted_and_typed(tmp_path: Path) -> None:
    log = read_power(synthetic.write_power(tmp_path, 2, 100 * MS, 50.0))
    assert log.host == "node1"
    assert log.emulated
    assert log.samples["gpu"].to_list() == [0] * 6 + [1] * 6
    assert log.samples["energy_uj"].to_list()[:3] == [0, 1_000_000, 2_000_000]


def test_damaged_power_lines_are_counted(tmp_path: Path) -> None:
    path = synthetic.write_power(tmp_path, 1, 100 * MS, 50.0)
    text = path.read_text().replace("40000000,0", "forty,0").replace("60000000,0,", "60000000,")
    path.write_text(text + "120000000,0,GPU")
    log = read_power(path)
    assert len(log.samples) == 4
    assert any("last line cut off" in problem for problem in log.problems)
    assert any("2 lines skipped that cannot be parsed" in problem for problem in log.problems)


def test_power_without_a_column_says_so(tmp_path: Path) -> None:
    path = tmp_path / "power-node1.csv"
    path.write_text("# host: node1\ntime_ns,gpu,uuid\n1,0,GPU\n")
    log = read_power(path)
    assert len(log.samples) == 0
    assert "no column power_mw" in log.problems[0]


def test_power_not_yet_written(tmp_path: Path) -> None:
    path = tmp_path / "power-node1.csv"
    path.write_bytes(b"")
    assert len(read_power(path).samples) == 0


def test_kernels_timed_on_the_host_are_of_the_same_clock(tmp_path: Path) -> None:
    """Timed with CUDA events, among others whose times are the GPU's: they neither bend its map nor are moved by it."""
    trace = TraceWriter(start_ns=1 * MS)
    for call in range(40):
        at_ns = (100 * call + 10) * MS
        timed = call % 2 == 1
        trace.call(call + 1, at_ns, 1024)
        trace.kernel(
            call + 1,
            at_ns,
            at_ns + 3 * MS,
            1024,
            ahead_ns=0 if timed else synthetic.GPU_AHEAD_NS,
            delay_ns=0 if timed else 20_000,
            flags=records.FLAG_HOST_TIMES if timed else 0,
        )
    trace.write(tmp_path)
    write_info(tmp_path, 5000 * MS)
    kernels = tables.kernels(read_run(tmp_path)).sort("call_id")
    expected = np.array([(100 * call + 10) * MS for call in range(40)])
    assert np.abs(kernels["start_ns"].to_numpy() - expected).max() < 25_000
    assert np.abs(kernels["duration_ns"].to_numpy() - 3 * MS).max() < 10


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_run(tmp_path / "nothing")


def test_an_empty_folder_reads(tmp_path: Path) -> None:
    run = read_run(tmp_path)
    assert run.problems == ["run.json is missing: command and times are not known"]


def test_columns_of_the_same_name_are_not_guessed_at(tmp_path: Path) -> None:
    path = synthetic.write_power(tmp_path, 1, 100 * MS, 50.0)
    path.write_text(path.read_text().replace("power_mw,energy_uj", "power_mw,power_mw", 1))
    log = read_power(path)
    assert len(log.samples) == 0
    assert "columns of the same name" in log.problems[0]


@pytest.mark.parametrize("changed", [False, True])
def test_a_newer_run_json_is_told(changed: bool, tmp_path: Path) -> None:
    """What is known of it is shown; where its form has changed, that is why it cannot be read."""
    folder = synthetic.training_run(tmp_path / "run")
    info = json.loads((folder / "run.json").read_text())
    info["schema"] = 2
    if changed:
        info["command"] = {"argv": info["command"]}
    (folder / "run.json").write_text(json.dumps(info))
    run = read_run(folder)
    assert [
        text for text in run.problems if text.startswith("run.json: written by a newer powerccl (schema 2, known: 1)")
    ]
    assert (run.info is None) == changed
    live = LiveRun(folder)
    live.read_info()
    assert "written by a newer powerccl" in live._info_problem


def test_sizes_that_no_gpu_holds_are_left_out(tmp_path: Path) -> None:
    trace = TraceWriter()
    for call, size in enumerate((1024, 1 << 63, (1 << 64) - 1, 1 << 50, 4096)):
        trace.call(call + 1, 2 * MS, size)
        trace.kernel(call + 1, (2 + call) * MS, (3 + call) * MS - 5_000, size)
    trace.write(tmp_path)
    write_info(tmp_path, 10 * MS)
    run = read_run(tmp_path)
    for table in (tables.calls(run), tables.kernels(run)):
        assert table["bytes"].to_list() == [1024, 4096]
    assert any("3 call records with impossible times or sizes" in problem for problem in run.problems)
    assert any("3 kernel records with impossible times or sizes" in problem for problem in run.problems)


@pytest.mark.parametrize("far_ns", [73 * 86_400_000 * MS, -2 * 3_600_000 * MS])
def test_records_far_outside_the_run_are_no_times_of_it(tmp_path: Path, far_ns: int) -> None:
    began = 4 * 3_600_000 * MS
    trace = TraceWriter(start_ns=began)
    for call in range(5):
        trace.call(call + 1, began + (2 + call) * MS, 1024)
    trace.call(6, began + far_ns, 1024)
    trace.write(tmp_path)
    write_info(tmp_path, began + 10 * MS)
    set_start(tmp_path, began)
    run = read_run(tmp_path)
    assert tables.calls(run)["call_id"].to_list() == [1, 2, 3, 4, 5]
    assert run.ranks[0].last_ns() < began + 10 * MS
    assert any("1 record more than an hour before or after the run" in problem for problem in run.problems)


def test_a_headers_start_far_from_its_records_is_not_believed(tmp_path: Path) -> None:
    began = 50 * 3_600_000 * MS
    trace = TraceWriter(start_ns=7)
    for call in range(5):
        trace.call(call + 1, began + (2 + call) * MS, 1024)
    trace.write(tmp_path)
    write_info(tmp_path, began + 10 * MS)
    set_start(tmp_path, began)
    run = read_run(tmp_path)
    assert run.ranks[0].start_ns == began + 2 * MS
    assert len(tables.calls(run)) == 5
    assert any("far from its records" in problem for problem in run.problems)


@pytest.mark.parametrize(("start_ms", "end_ms"), [(0, 50), (60, 100), (99, 100)])
def test_a_run_is_as_long_as_its_ranks_recorded(tmp_path: Path, start_ms: int, end_ms: int) -> None:
    """Whatever run.json says: no rank's time exceeds its run's."""
    trace = TraceWriter(start_ns=1 * MS)
    for call in range(9):
        trace.call(call + 1, (10 * call + 2) * MS, 1024)
        trace.kernel(call + 1, (10 * call + 3) * MS, (10 * call + 8) * MS, 1024)
    trace.write(tmp_path)
    write_info(tmp_path, end_ms * MS)
    set_start(tmp_path, max(start_ms * MS, 1))
    run = read_run(tmp_path)
    assert run.info
    assert run.info.start_ns <= run.ranks[0].start_ns
    assert run.info.end_ns >= run.ranks[0].last_ns()
    assert any("in run.json: the report includes" in problem for problem in run.problems)


def set_start(folder: Path, start_ns: int) -> None:
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**info, "start_ns": start_ns}))
