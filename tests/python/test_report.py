# SPDX-License-Identifier: Apache-2.0
"""`powerccl report` on synthetic runs, whole and broken, and everything it writes."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from browser import show
from click.testing import CliRunner
from perfetto_tracks import tracks
from printing import printed
from synthetic import MS, TraceWriter, profile_of, training_run, write_info, write_power
from test_breakdown import STEP, chrome_trace, late_run
from test_shares import training as start_up_run

import powerccl
from powerccl.analysis.drawing import draw
from powerccl.analysis.report import ReportFindings, encode, report
from powerccl.analysis.report_findings import LinkRow
from powerccl.commandline.references import reference_of
from powerccl.commands import cli
from powerccl.commands.report import command
from powerccl.platforms.store import load_profile
from powerccl.quantities import byte_size
from powerccl.reports import report_tables
from powerccl.reports.perfetto import write_perfetto
from powerccl.reports.report import print_report
from powerccl.reports.report_page import report_page
from powerccl.reports.tabular import write_csv


def text_of(found: ReportFindings, width: int = 120) -> str:
    return printed(print_report, found, width=width)


def run_command(*arguments: str) -> tuple[int, str]:
    """Exit code and everything printed; errors as the user sees them."""
    try:
        cli.main(["report", *arguments], prog_name="powerccl")
    except SystemExit as end:
        return int(end.code or 0), ""
    return 0, ""


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_says_where_the_time_went(tmp_path: Path, width: int) -> None:
    text = text_of(report(late_run(tmp_path / "run", iterations=20)).findings, width)
    assert max(map(len, text.splitlines())) <= width
    flat = " ".join(text.split())
    first, sentence = [line for line in text.splitlines() if line][:2]
    assert first.startswith("powerccl · run") and sentence.startswith("Communication is exposed for 8.3 % of the work")
    for words in (
        "where the time went emulated",
        "19 iterations of 2 operations, 100 ms",
        "exposed: transfer",
        "rank 2 most often, in 50 %",
        "bus bandwidth",
    ):
        assert words in flat, words
    assert "no waiting profile" not in flat  # none is named: no column of dashes beside


def test_what_takes_no_time_is_counted_and_not_shown(tmp_path: Path) -> None:
    found = report(late_run(tmp_path / "run", iterations=20)).findings
    for pattern in ("broadcast", "gather"):
        found.link.append(
            LinkRow(pattern=pattern, size_class_bytes=32, operations=2, busbw_gbs=0.02, time_all_ranks_s=1e-6)
        )
    text = text_of(found)
    assert "… 2 more" in text and "broadcast" not in text


def test_every_output_at_once(tmp_path: Path) -> None:
    folder = late_run(tmp_path / "run", iterations=20)
    profile = chrome_trace(tmp_path / "rank0.json", 3e9)
    machine = profile_of(folder, tmp_path / "machine.json")
    options = ["--kineto", f"{profile}:0", "--platform", str(machine), "-q"]
    for name, file in (("html", "r.html"), ("perfetto", "r.pftrace"), ("csv", "tables")):
        options += [f"--{name}", str(tmp_path / file)]
    result = CliRunner().invoke(command, [str(folder), *options, "--json", str(tmp_path / "r.json")])
    assert result.exception is None, result.output
    found = msgspec.json.decode((tmp_path / "r.json").read_bytes(), type=ReportFindings)
    assert found.ranks[0].by_profiler
    assert (tmp_path / "r.html").stat().st_size < 6_000_000
    assert (tmp_path / "r.pftrace").stat().st_size > 1000
    assert {path.stem for path in (tmp_path / "tables").iterdir()} >= {"ranks", "iterations", "stragglers", "counts"}


def test_json_goes_to_stdout_and_nothing_else(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [str(training_run(tmp_path / "run")), "--json", "-"])
    assert json.loads(result.stdout)["summary"]["ranks"] == 2
    assert "where the time went" in result.stderr
    page = tmp_path / "r.html"
    assert f"page     {page}" in CliRunner().invoke(command, [str(tmp_path / "run"), "--html", str(page)]).stdout


def test_numbers_of_numpy_cost_nobody_the_output(tmp_path: Path) -> None:
    found = report(late_run(tmp_path / "run")).findings
    found.ranks[0].span_s = np.float64(1.5)
    found.ranks[1].span_s = float("nan")
    rows = json.loads(encode(found))["ranks"]
    assert (rows[0]["span_s"], rows[1]["span_s"]) == (1.5, None)
    write_csv(found, tmp_path / "tables")


def test_the_page_needs_nothing_from_anywhere(tmp_path: Path) -> None:
    page = report_page(report(late_run(tmp_path / "run")))
    assert not re.search(r"<(?:link|script|img|iframe)[^>]+(?:src|href)=", page)
    assert "emulated" in page.split("</h1>")[0]


@pytest.mark.parametrize("width", [1400, 420])
def test_the_page_in_a_browser(tmp_path: Path, width: int) -> None:
    shown = show(report_page(report(late_run(tmp_path / "run", iterations=20))), tmp_path, width)
    assert shown.console == []
    assert shown.found["drawn"] == "all"
    assert shown.found["width"] == width
    assert not shown.found["wider"], "the page scrolls sideways"
    assert shown.found["cut"] == []
    assert shown.found["details"] >= 7
    assert shown.found["opened"] == pytest.approx([0, 2.2]), "the working time is nearly all of the run"
    charts = {chart["id"]: chart for chart in shown.found["charts"]}
    assert {"gpu-0", "gpu-3", "ranks", "iterations-0", "counts", "times", "stragglers"} <= set(charts)
    assert all(chart["marks"] > 0 and not chart["wide"] for chart in charts.values()), charts
    # Zooming into one GPU zooms into all, and draws what is there.
    assert shown.found["zoomed"] == pytest.approx([0.2, 0.4])
    assert min(shown.found["points"]) == pytest.approx(0.2, abs=0.021)
    assert len(shown.found["points"]) == pytest.approx(11, abs=2)


def test_the_timeline_opens_on_the_working_time(tmp_path: Path) -> None:
    made = report(start_up_run(tmp_path / "run"))
    assert made.working is not None
    shown = show(report_page(made), tmp_path)
    assert shown.console == []
    assert shown.found["opened"] == pytest.approx([24, 30], abs=0.2)
    assert shown.found["whole"] == pytest.approx([0, 30.1], abs=0.1)


def test_the_page_of_a_run_without_anything_opens(tmp_path: Path) -> None:
    write_info(tmp_path, 0, exit_code=None)
    shown = show(report_page(report(tmp_path)), tmp_path)
    assert shown.console == []
    assert shown.found["drawn"] == "all"


def test_a_drawing_keeps_extremes_and_its_budget(tmp_path: Path) -> None:
    folder = late_run(tmp_path / "run", iterations=60, jitter_ns=9 * MS)
    noise = random.Random(4)
    write_power(folder, 4, 62 * STEP, lambda *_: noise.uniform(20, 90), interval_ns=10 * MS)
    made = report(folder)
    full, thin = draw(made), draw(made, budget_bytes=2500)
    assert not full.thinned
    assert full.closed_us == 0
    assert thin.thinned
    assert len(thin.words) + len(thin.halves) <= 2500
    for one, other in zip(full.lanes, thin.lanes, strict=True):
        assert len(other.time) < len(one.time)
        assert (other.power.min(), other.power.max()) == (one.power.min(), one.power.max())
        assert (other.time[0], other.time[-1]) == (one.time[0], one.time[-1])
        assert (other.stop - other.start).sum() >= (one.stop - one.start).sum()  # gaps are closed, never opened


def test_a_windows_picture_says_when_it_was(tmp_path: Path) -> None:
    made = report(late_run(tmp_path / "run", iterations=20), window_s=(0.5, 1.5))
    drawing = draw(made)
    assert (drawing.offset_s, drawing.length * drawing.unit_us) == (0.5, 1e6)
    text = text_of(made.findings)
    assert "of seconds 0.5 to 1.5 only" in text and "this window" in text and "whole run" not in text
    assert drawing.lanes[0].start[0] * drawing.unit_us == pytest.approx(40e3, abs=100)  # 540 ms into the run


def test_perfetto_keeps_the_length_of_kernels_that_overlap(tmp_path: Path) -> None:
    trace = TraceWriter(0, 1, start_ns=5 * MS)
    trace.comm(6 * MS)
    lengths = []
    for number, (start, stop) in enumerate(((100, 160), (150, 210), (200, 260))):
        trace.call(number + 1, 90 * MS, 1 << 20, flags=0x40)
        trace.kernel(number + 1, start * MS, stop * MS, 1 << 20, "all_reduce", 20_000)
        lengths.append((stop - start) * MS)
    trace.write(tmp_path)
    write_info(tmp_path, 300 * MS)
    assert write_perfetto(report(tmp_path), tmp_path / "out") == ""
    found = [track for track in tracks((tmp_path / "out").read_bytes()) if track.name.startswith("NCCL kernels")]
    assert [len(track.slices) for track in found] == [2, 1]
    assert sorted(stop - start for track in found for start, stop in track.slices) == sorted(lengths)


def test_perfettos_slices_begin_and_end_in_turn(tmp_path: Path) -> None:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

    folder = late_run(tmp_path / "run", iterations=4)
    assert write_perfetto(report(folder), tmp_path / "out") == ""
    trace = Trace()
    trace.ParseFromString((tmp_path / "out").read_bytes())
    names = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}
    open_at: dict[int, int] = {}
    lengths: dict[str, list[int]] = {}
    counters = 0
    for packet in trace.packet:
        event = packet.track_event
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            assert event.track_uuid not in open_at
            open_at[event.track_uuid] = packet.timestamp
            assert "MiB" in event.name or "waiting" in event.name
        elif event.type == TrackEvent.TYPE_SLICE_END:
            length = packet.timestamp - open_at.pop(event.track_uuid)
            lengths.setdefault(names[event.track_uuid].name, []).append(length)
        elif event.type == TrackEvent.TYPE_COUNTER:
            counters += 1
    assert not open_at
    assert len(lengths["NCCL kernels, communicator 0"]) == 4 * 4 * 2
    assert counters == 4 * 2 * 31  # GPUs, power and clock, samples
    processes = [d.process.process_name for d in names.values() if d.HasField("process")]
    assert processes[0] == "rank 0 (emulated) node1"


def test_tables_have_the_findings(tmp_path: Path) -> None:
    found = report(late_run(tmp_path / "run")).findings
    write_csv(found, tmp_path / "tables")
    with (tmp_path / "tables/ranks.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["waiting_s"]) for row in rows] == pytest.approx([r.waiting_s for r in found.ranks])
    assert all(row["idle_s"] == "" for row in rows)  # not known


def test_the_profile_at_its_highest_clock() -> None:
    profile = load_profile("t4x8")
    found = reference_of(profile)
    assert found.gpus == 8
    assert found.provenance == "emulated"
    for pattern, points in found.points.items():
        assert [point[0] for point in points] == sorted({p.size_bytes for p in profile.points if p.pattern == pattern})


# Folders in whatever state.


def test_an_empty_folder_is_an_error_with_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(str(tmp_path))[0] == 1
    said = capsys.readouterr().err
    assert "is no run folder" in said
    assert "hint: " in said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere"], "no run nowhere"),
        (["run", "--window", "9:3"], "--window 9:3: not understood"),
        (["run", "--kineto", "nothing.json:1"], "no profiler trace nothing.json"),
        (["run", "--platform", "nothing"], "unknown platform 'nothing'"),
        (["run", "--html", "no/such/folder.html"], "cannot write no/such/folder.html"),
    ],
)
def test_errors_say_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    training_run(tmp_path / "runs/run")
    assert run_command(*arguments)[0] == (2 if "not understood" in expected or "unknown" in expected else 1)
    said = capsys.readouterr().err
    assert f"error: {expected}" in said
    assert "hint: " in said


def test_what_a_killed_job_left_is_reported(tmp_path: Path) -> None:
    folder = late_run(tmp_path / "run")
    write_info(folder, 0, exit_code=None)
    for rank, cut in ((1, 70), (3, 40 * 64)):
        trace = folder / f"rank-{rank}.trace"
        trace.write_bytes(trace.read_bytes()[:-cut])
    power = folder / "power-node1.csv"
    power.write_text(power.read_text()[:-30])
    found = report(folder).findings
    text = " ".join(text_of(found).split())
    assert "unfinished" in text
    for words in ("rank-1.trace", "rank-3.trace", "cut off", "last line cut off"):
        assert words in text
    assert len(found.ranks) == 4
    assert found.peers.ranks[0].rank == 2
    assert report_page(report(folder)).count("cut off") >= 3


@pytest.mark.parametrize(
    ("own_ms", "said"), [((6, 3, 1), "recording took about 0.5 %"), ((0, 0, 0), ""), ((9**9,) * 3, "")]
)
def test_what_recording_took_is_told_where_it_is_known(tmp_path: Path, own_ms: tuple[int, ...], said: str) -> None:
    folder = late_run(tmp_path / "run", iterations=20)
    for trace in folder.glob("rank-*.trace"):
        with trace.open("r+b") as file:
            file.seek(320)  # docs/reference/trace-format.md
            file.write(struct.pack("<3Q", *(each * MS for each in own_ms)))
    found = report(folder).findings
    text = " ".join(text_of(found).split())
    assert said in text if said else "recording took" not in text
    assert ("recording took" in report_page(report(folder))) == bool(said)


def test_a_rank_without_a_trace_is_missed_by_name_of_nobody(tmp_path: Path) -> None:
    folder = late_run(tmp_path / "run")
    (folder / "rank-2.trace").unlink()
    found = report(folder).findings
    assert [row.rank for row in found.ranks] == [0, 1, 3]
    assert all(row.last == 0 for row in found.peers.ranks)  # whom they waited for is gone
    assert any("3 of 4 ranks left a readable trace" in text for text in found.summary.problems)


def test_traces_of_another_version_and_no_traces_at_all_are_named(tmp_path: Path) -> None:
    folder = late_run(tmp_path / "run")
    TraceWriter(1, 4, version=2).write(folder)
    (folder / "rank-3.trace").write_bytes(b"not a trace at all" * 400)
    (folder / "rank-9.trace").write_bytes(b"")
    found = report(folder).findings
    problems = " ".join(found.summary.problems)
    assert "trace version 2" in problems
    assert "rank-3.trace: not a PowerCCL trace" in problems
    assert "rank-9.trace: 0 bytes" in problems
    assert [row.rank for row in found.ranks] == [0, 2]


@pytest.mark.parametrize("lost", ["run.json", "power-node1.csv", "traces"])
def test_each_part_may_be_missing(tmp_path: Path, lost: str) -> None:
    folder = late_run(tmp_path / "run")
    for path in folder.glob("*.trace") if lost == "traces" else [folder / lost]:
        path.unlink()
    made = report(folder)
    text = " ".join(text_of(made.findings).split())
    assert report_page(made)
    if lost == "traces":
        assert "the job has not ended, or `powerccl run` was killed" in text
    elif lost == "run.json":
        assert "run.json is missing" in text
    else:
        assert made.findings.summary.energy.joules is None
        assert "samples" in text
    write_perfetto(made, tmp_path / "out")


def test_run_json_of_nonsense_and_columns_that_are_not_known(tmp_path: Path) -> None:
    folder = late_run(tmp_path / "run")
    (folder / "run.json").write_text('{"command": 7}')
    power = folder / "power-node1.csv"
    power.write_text(power.read_text().replace("energy_uj", "energy_kwh", 1))
    found = report(folder).findings
    assert any("run.json" in problem for problem in found.summary.problems)
    assert any("no column energy_uj" in problem for problem in found.summary.problems)
    assert found.ranks


def test_records_of_noise_never_stop_a_report(tmp_path: Path) -> None:
    noise = np.random.default_rng(11)
    folder = late_run(tmp_path / "run")
    for attempt in range(12):
        path = folder / f"rank-{attempt % 4}.trace"
        data = bytearray(path.read_bytes())
        for _ in range(6):
            at = 4096 + int(noise.integers(0, len(data) - 4096 - 64))
            data[at : at + 48] = noise.bytes(48)
        path.write_bytes(bytes(data))
        made = report(folder)
        text_of(made.findings)
        report_page(made)


def test_an_mpi_run_has_a_report_too(tmp_path: Path) -> None:
    from synthetic import mpi_run

    made = report(mpi_run(tmp_path / "run"))
    text = text_of(made.findings)
    assert "MPI" in text
    assert "where the time went" not in text
    page = report_page(made)
    assert "waiting for peers" not in text + page  # of NCCL's collectives, of which the run has none
    body = page[page.index("<h1>") :]
    assert "2 MPI ranks" in body and "MPI_Allreduce" in body
    assert "0 ranks" not in body and "0 GPUs" not in body


def test_without_run_it_is_the_last_one_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def said(*arguments: str) -> list[str]:
        return CliRunner().invoke(cli, arguments).stderr.splitlines()

    assert said("report")[0] == "error: no run is named, and runs/ has none"
    for seconds, name in enumerate(("b-first", "a-last", "c-nothing")):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        if name != "c-nothing":
            training_run(folder)
            os.utime(folder / "run.json", (1e9 + seconds, 1e9 + seconds))
    for verb in (["report"], ["whatif", "--platform", "t4x8"]):
        assert said(*verb)[0] == "powerccl: the last run of runs/: a-last"
    assert not said("report", "-q")
    error, hint = said("compare")
    assert error == "error: compare needs two sides, none is named"
    assert "powerccl compare runs/b-first runs/a-last" in hint


def test_every_table_calls_a_size_the_same(tmp_path: Path) -> None:
    found = report(training_run(tmp_path / "run")).findings
    sizes = {byte_size(row.median_bytes) for row in found.summary.patterns}
    classes = {byte_size(row.size_class_bytes) for row in found.summary.patterns}
    assert sizes.isdisjoint(classes)
    shown = text_of(found)
    assert not [name for name in classes if name in shown]
    tables = report_tables.tables(found)
    assert {line[1] for line in tables["link"]["rows"]} == sizes


def test_two_reports_of_a_run_are_equal(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys; from powerccl.analysis.report import encode, report;"
        "sys.stdout.buffer.write(encode(report(pathlib.Path(sys.argv[1])).findings))"
    )
    call = [sys.executable, "-c", script, str(late_run(tmp_path / "run"))]
    assert len({subprocess.run(call, capture_output=True, check=True).stdout for _ in range(3)}) == 1


def test_groups_that_sums_are_made_of_come_in_one_order() -> None:
    """Polars deals groups out to threads: without `maintain_order`, sums differ in their last digit from run to run."""
    for file in (Path(powerccl.__file__).parent / "analysis").rglob("*.py"):
        for call in re.findall(r"for [^\n]* in [^\n]*group_by\((?:[^()]|\([^()]*\))*\)", file.read_text()):
            assert "maintain_order=True" in call, f"{file}: {call}"


def test_a_large_sparse_trace_does_not_fail(tmp_path: Path) -> None:
    from support.big_run import write_run

    folder = write_run(tmp_path / "big", 3000, 2, records_in_all=4_000_000)
    assert (folder / "rank-0.trace").stat().st_size > 100_000_000
    found = report(folder).findings
    assert sum(row.calls for row in found.counts) == 6000
    assert any("kinds this version does not know" in problem for problem in found.summary.problems)
    assert found.ranks
    assert found.peers.matched_pct == pytest.approx(100, abs=2)


def test_two_jobs_in_one_folder_are_not_compared_with_each_other(tmp_path: Path) -> None:
    folder = late_run(tmp_path / "run")
    again = TraceWriter(0, 4, pid=99, start_ns=1 * MS)  # beside the other: no restart of it
    again.comm(2 * MS)
    again.call(1, 5010 * MS, 1 << 20)
    again.kernel(1, 5010 * MS, 5020 * MS, 1 << 20)
    again.write(folder, "rank-0.99.trace")
    found = report(folder).findings
    assert sorted(row.rank for row in found.peers.ranks) == [0, 1, 2, 3], "of the first job"
    assert [row.waiting_s is None for row in found.ranks] == [False] * 4 + [True]
    assert found.summary.rank_names == {0: "0 on node1 (1)", 4: "0 on node1 (2)"}
