# SPDX-License-Identifier: Apache-2.0
"""Terminal tables and pictures, and pages."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from printing import printed
from rich.console import Console
from rich.text import Text
from synthetic import MS, training_run, write_info
from test_platforms import profile

from powerccl.analysis.summary import summarise
from powerccl.demo.chart import power_and_clock
from powerccl.demo.iterations import Iteration, Training, TrainResult, read_training
from powerccl.demo.page import demo_page
from powerccl.demo.report import DemoResult, print_demo
from powerccl.demo.savings import savings
from powerccl.demo.series import GpuSeries, gpu_series
from powerccl.platforms.schema import ClockSwitch, OverheadSample
from powerccl.profile.page import profile_page
from powerccl.profile.report import print_profile
from powerccl.quantities import NOT_KNOWN
from powerccl.reports.job import Line, has_figures, summary_lines, write
from powerccl.reports.sections import page, titled
from powerccl.reports.table import Table
from powerccl.reports.terminal import print_summary
from powerccl.traces.folder import read_run


def test_summary_in_the_terminal(tmp_path: Path) -> None:
    shown = printed(print_summary, summarise(read_run(training_run(tmp_path / "run"))))
    assert "powerccl · run  emulated" in shown
    assert "2 ranks · policy observe · nccl 2.28.9 profiler v5 · exit 0" in shown
    assert "communicating 82 %" in shown
    assert "energy counter, sampled every 20 ms" in shown
    assert "\x1b" not in shown
    line = next(line for line in shown.splitlines() if line.startswith("all-reduce"))
    assert line.split() == ["all-reduce", "581", "MiB", "6", "1.11", "s", "370", "ms", "1.65", "16.7", "J", "6"]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, width: int) -> None:
    found = summarise(read_run(training_run(tmp_path / "run")))
    lines = printed(print_summary, found, width=width)
    assert max(len(line) for line in lines.splitlines()) <= width


def test_problems_are_shown_and_bounded(tmp_path: Path) -> None:
    found = summarise(read_run(training_run(tmp_path / "run")))
    found.clocks.requests, found.clocks.failed, found.clocks.dry = 5, 2, 5
    found.notes = [f"note {i}" for i in range(21)]
    shown = printed(print_summary, found)
    assert "2 clock requests failed" in shown
    assert "dry run, no clock was set" in shown
    assert "14 more in summary.json" in shown


def test_a_run_without_traces_and_without_a_cause_says_so(tmp_path: Path) -> None:
    write_info(tmp_path, 100 * MS)
    assert "`powerccl run` was killed before its end" in printed(print_summary, summarise(read_run(tmp_path)))


def test_a_run_without_figures_reads_the_same_with_and_without_rich(tmp_path: Path) -> None:
    write_info(tmp_path, 100 * MS)
    found = summarise(read_run(tmp_path))
    found.problems = ["half of it is missing"]
    plain = io.StringIO()
    write(summary_lines(found), plain)
    assert not has_figures(found)
    assert printed(print_summary, found, width=200).split("\n") == plain.getvalue().split("\n")
    write([Line("\x1b[31mof another", "dim")], plain)
    assert plain.getvalue().endswith("\n\\x1b[31mof another\n"), "names of others can do nothing"


def two_trainings(tmp_path: Path) -> tuple[Training, Training]:
    found = []
    for policy, watts, step_ms in (("observe", 45.0, 600.0), ("per-call", 33.0, 606.0)):
        folder = training_run(tmp_path / policy, iterations=6, comm_watts=watts)
        write_info(folder, 3600 * MS, policy=policy)
        iterations = [Iteration(i, i == 0, step_ms, 450.0, i * 600 * MS, (i + 1) * 600 * MS) for i in range(6)]
        found.append(read_training(folder, TrainResult(True, True, 2, "Tesla T4", iterations)))
    return found[0], found[1]


def test_savings_of_a_training(tmp_path: Path) -> None:
    observed, managed = two_trainings(tmp_path)
    figures = savings(observed, managed, "per-call")
    assert figures["per-call.comm_energy_saved_pct"].value == pytest.approx((45 - 33) / 45 * 100, abs=0.3)
    before = 0.45 * 45 + 0.15 * 70
    assert figures["per-call.energy_saved_pct"].value == pytest.approx(0.45 * 12 / before * 100, abs=0.4)
    assert figures["per-call.slowdown_pct"].value == pytest.approx(1.0, abs=0.01)
    assert figures["per-call.slowdown_pct"].n == 5  # the warm-up is left out
    for figure in figures.values():
        assert figure.low <= figure.value <= figure.high


def test_training_without_iterations_or_samples_is_refused(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    with pytest.raises(ValueError, match="no iteration was measured"):
        read_training(folder, TrainResult(True, True, 2, "Tesla T4", [Iteration(0, True, 1, 1, 0, 1)]))
    (folder / "power-node1.csv").unlink()
    with pytest.raises(ValueError, match="no power samples"):
        read_training(folder, TrainResult(True, True, 2, "Tesla T4", [Iteration(0, False, 600, 450, 0, 600 * MS)]))


def test_demo_in_the_terminal_labels_and_compares(tmp_path: Path) -> None:
    observed, managed = two_trainings(tmp_path)
    shown = printed(
        print_demo,
        DemoResult("microllama", "t4x8", observed, managed, savings(observed, managed, "per-call")),
        width=100,
    )
    assert "emulated t4x8" in shown
    assert "published (8 x T4)" in shown
    assert "17.3 %" in shown
    assert "█" in shown
    assert max(len(line) for line in shown.splitlines()) <= 100


def test_demo_page_is_self_contained_and_labelled(tmp_path: Path) -> None:
    observed, managed = two_trainings(tmp_path)
    page = demo_page([DemoResult("microllama", "t4x8", observed, managed, savings(observed, managed, "per-call"))])
    assert "emulated t4x8" in page
    assert 'id="picture-0-per-call"' in page
    count = len(observed.iterations)
    assert f" {count} iterations per policy." in page
    del managed.iterations[-1]  # its samples are missing
    page = demo_page([DemoResult("microllama", "t4x8", observed, managed, savings(observed, managed, "per-call"))])
    assert f" {count - 1} to {count} iterations per policy." in page
    assert "<script src" not in page
    assert "<link" not in page


def series(width_ms: float = 100.0) -> GpuSeries:
    time = np.arange(0, width_ms, 10.0)
    return GpuSeries("GPU", time, np.where(time < 50, 40.0, 80.0), time * 0 + 800.0, np.array([[0.0, 50.0]]), width_ms)


def test_terminal_picture() -> None:
    lines = [line.plain for line in power_and_clock(series(), 80.0, 1600.0, 30, rows=2)]
    assert lines[0] == " 1600 MHz " + " " * 20
    assert lines[1] == "        0 " + "█" * 20
    assert lines[2] == "     80 W " + " " * 10 + "█" * 10
    assert lines[4] == " " * 10 + "━" * 10 + "╌" * 10
    assert lines[5].endswith("100 ms")


def test_series_are_cut_to_the_stretch(tmp_path: Path) -> None:
    run = read_run(training_run(tmp_path / "run"))
    found = gpu_series(run, 620 * MS, 1200 * MS)
    assert found is not None
    assert found.time_ms[0] == 0
    assert found.time_ms[-1] == 580
    assert found.communication_ms.tolist() == [[pytest.approx(130, abs=0.1), pytest.approx(580, abs=0.1)]]
    assert gpu_series(run, 0, 1, "GPU-other") is None


def test_profile_in_the_terminal() -> None:
    samples = [
        OverheadSample(pattern="all_reduce", size_bytes=1 << 20, plain_us=100, managed_us=105, provenance="emulated")
    ]
    switch = ClockSwitch(call_us=3000, latency_us=4500, requests=10, provenance="emulated")
    shown = printed(print_profile, profile(overhead_samples=samples, clock_switch=switch, notes=["a note"]))
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line.startswith("all-reduce")}
    assert "t4x8: 8 x Tesla T4  emulated" in shown
    assert rows["all-reduce"] == ["all-reduce", "2", "MiB", "1", "MiB", "5.0", "%"]
    assert "3.00 ms in the driver" in shown
    assert "a note" in shown


def test_profile_without_clocks_says_so() -> None:
    assert "clocks could not be set: no --set-clocks" in printed(
        print_profile, profile(clocks_set=False, clocks_reason="no --set-clocks")
    )
    assert "Clocks could not be set" in profile_page(profile(clocks_set=False, clocks_reason="no --set-clocks"))


def test_profile_page() -> None:
    page = profile_page(profile())
    assert 'id="bandwidth-all_reduce"' in page
    assert 'id="power-all_reduce"' not in page  # no power was measured
    assert "<td>all-reduce</td>" in page


def test_a_page_has_the_tables_of_the_terminal() -> None:
    table = Table()
    table.add_column("minimum clock")
    table.add_column("size", justify="right")
    table.add_column("why", style="dim")
    table.add_row("all-reduce", Text("480", style="bright_cyan"), "[red]")
    table.add_row("all-gather", NOT_KNOWN, "", style="dim")
    text = page("<title>", [titled(table, key=[("shaded", "var:badge/0.5")])], "footer")
    assert "<h2>Minimum clock</h2>" in text
    assert '<tr class="head"><th></th><th>size</th><th class="left">why</th></tr>' in text
    assert '<td>all-reduce</td><td data-head="size" class="low">480</td>' in text
    assert '<td data-head="why" class="quiet left">[red]</td>' in text
    assert '<tr class="quiet"><td>all-gather</td><td data-head="size">not known</td>' in text
    assert "color-mix(in srgb, var(--badge) 50%, transparent)" in text
    assert "&lt;title&gt;" in text


def test_no_cell_is_cut_whatever_the_width() -> None:
    table = Table()
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("communicating", justify="right", no_wrap=True)
    table.add_column("chosen")
    table.add_row("1023", NOT_KNOWN, "GPUs that wait for others alone")
    table.add_row("7", "12.3 ms", "job at 1080 MHz")
    table.add_more(3)
    for width in (24, 40, 60, 400):
        text = printed(Console.print, table, width=width)
        shown = " ".join(text.split())
        for word in ("rank", "1023", "7", "communicating", "12.3 ms", "others", "1080", "–", "… 3 more"):
            assert word in shown, (width, word)
        assert "…" not in shown.replace("… 3", ""), width
        assert max(map(len, text.splitlines())) <= width
    assert "rank  1023" in printed(Console.print, table, width=24)
