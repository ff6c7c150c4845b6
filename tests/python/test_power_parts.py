# SPDX-License-Identifier: Apache-2.0
"""Samples read in parts: the same as read at once, and of very long runs fewer, with the same energy."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support.big_run import write_run
from synthetic import MS, write_power

from powerccl.analysis.energy import energy_curves, gpu_curve
from powerccl.analysis.report import report
from powerccl.analysis.summary import summarise
from powerccl.live.job import Watcher
from powerccl.traces import cpu, power, sample_file
from powerccl.traces.cpu import read_cpu
from powerccl.traces.folder import read_run
from powerccl.traces.power import read_power

S = 1000 * MS


def rough(path: Path) -> Path:
    """Samples with a gap in power and counter, a jump of the counter and times that go back, far from each other."""
    write_power(path, 3, 40 * S, lambda gpu, now: 40 + 10 * gpu + now // S % 7, name="power-a.csv")
    found = path / "power-a.csv"
    rows = []
    for line in found.read_text().splitlines():
        fields = line.split(",")
        if fields[0].isdigit() and fields[1] == "1":
            if 10 * S < int(fields[0]) < 13 * S:
                continue
            if fields[0] == str(20 * S):
                fields[4] = "0"
            if int(fields[0]) > 30 * S:
                fields[4] = str(int(fields[4]) + (1 << 40))
            if fields[0] == str(35 * S):
                fields[0] = "7"
        rows.append(",".join(fields))
    found.write_text("\n".join(rows) + "\n")
    return found


@pytest.mark.parametrize("piece", [1 << 12, 50_000])
def test_in_parts_is_as_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    path = rough(tmp_path)
    whole = read_power(path)
    monkeypatch.setattr(sample_file, "PIECE", piece)
    monkeypatch.setattr(sample_file, "LONGEST", 2000)  # the first piece
    parts = read_power(path)
    assert parts.samples.equals(whole.samples)
    assert parts.problems == whole.problems
    assert parts.about == whole.about
    for key, known in whole.gpus.items():
        assert parts.gpus[key].gaps.tolist() == known.gaps.tolist()
        assert parts.gpus[key].breaks.tolist() == known.breaks.tolist()
    assert whole.gpus[1, whole.samples.filter(gpu=1)["uuid"][0]].gaps.tolist() == [[10 * S, 13 * S]]


@pytest.mark.parametrize("counter", [True, False])
def test_of_a_long_run_neighbours_are_one_and_energy_stays(tmp_path: Path, counter: bool) -> None:
    path = rough(tmp_path)
    if not counter:
        lines = path.read_text().splitlines()
        fields = [line.split(",") for line in lines]
        path.write_text(
            "\n".join(
                ",".join([*f[:4], "-1", *f[5:]]) if len(f) == 10 and f[0].isdigit() else ",".join(f) for f in fields
            )
            + "\n"
        )
    whole, fewer = read_power(path), read_power(path, most_rows=600)
    assert len(fewer.samples) < 700 < len(whole.samples)
    assert any("each 10 in a row are merged" in text or "11 in a row" in text for text in fewer.problems)
    for gpu in range(3):
        fine, coarse = (gpu_curve(log, log.samples.filter(gpu=gpu)) for log in (whole, fewer))
        assert fine is not None and coarse is not None
        assert coarse.joules[-1] == pytest.approx(fine.joules[-1], rel=0.005)
        both = np.array([[5 * S, 15 * S], [5 * S, 9 * S], [16 * S, 24 * S]])
        assert coarse.covers(both).tolist() == fine.covers(both).tolist()
        for span in both[1:]:
            assert coarse.within(span[None, :]) == pytest.approx(fine.within(span[None, :]), rel=0.03)


def test_plain_and_rough_lines_read_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What polars' reader takes is what lines taken apart one by one come to, whatever stands in them."""
    random.seed(5)
    path = tmp_path / "power-a.csv"
    lines = write_power(tmp_path, 2, 4 * S, 50.0, name=path.name).read_text().splitlines()
    odd = ["", "x", "-1", " 5", "1.5", "+7", "1e3", "\x00", '"', "é", "9" * 25, "5,6", "#", "007", "5\r", "nan"]
    for _ in range(60):
        spoilt = list(lines)
        for _ in range(random.randrange(3)):
            at = random.randrange(13, len(lines))
            fields = spoilt[at].split(",")
            fields[random.randrange(10)] = random.choice(odd)
            spoilt[at] = ",".join(fields[: random.choice([10, 10, 10, 4])])
        path.write_text("\n".join(spoilt) + "\n")
        monkeypatch.setattr(sample_file, "LONGEST", 900)  # the head is a piece of its own, else nothing is quick
        quick = read_power(path)
        with monkeypatch.context() as slowly:
            slowly.setattr(sample_file.SampleFile, "_quick", lambda *_: None)
            slow = read_power(path)
        assert quick.samples.equals(slow.samples)
        assert quick.problems == slow.problems


def test_processors_of_a_long_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cpu-a.csv"
    rows = [f"{n * 100 * MS},package-0,{n * 7_000_000 % 1_000_000_000},-1,-1" for n in range(2000)]
    head = "# package-0_max_energy_range_uj: 1000000000\n# interval_ns: 100000000\n"
    path.write_text(head + "time_ns,domain,energy_uj,cpu_busy_ns,cpu_idle_ns\n" + "\n".join(rows) + "\n")
    whole = read_cpu(path)
    monkeypatch.setattr(cpu, "MOST_ROWS", 200)
    fewer = read_cpu(path)
    assert len(fewer.samples) < 250 < len(whole.samples) == 2000
    assert fewer.samples.row(-1) == whole.samples.row(-1)
    assert whole.samples["energy_uj"].to_list() == [n * 7_000_000 for n in range(2000)]
    assert not whole.breaks and not fewer.breaks


def test_a_run_of_hours_has_the_energy_of_its_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "long", 200, 2, seconds=1200)
    monkeypatch.setattr(power, "MOST_ROWS", 10_000)
    run = read_run(folder)
    assert 5_000 < len(run.power[0].samples) < 13_000
    assert {len(curve.blurred) for curve in energy_curves(run).values()} == {0}
    first = pl.read_csv(folder / "power-node1.csv", comment_prefix="#")
    truth = sum(np.ptp(rows["energy_uj"].to_numpy()) / 1e6 for _, rows in first.group_by("gpu"))
    assert summarise(run).energy.joules == pytest.approx(truth, rel=2e-3)
    assert report(folder).findings.summary.energy.missing == []


def test_values_that_are_no_numbers_are_counted(tmp_path: Path) -> None:
    """A NaN of a driver or another program's file: left out, and said for each column."""
    path = write_power(tmp_path, 1, 1000 * MS, 50.0)
    lines = path.read_text().splitlines()
    for row in (-1, -3):
        fields = lines[row].split(",")
        fields[3] = "NaN"
        lines[row] = ",".join(fields)
    lines[-5] = lines[-5].replace(",50000,", ",,")  # not known
    path.write_text("\n".join(lines) + "\n")
    log = read_power(path)
    assert log.problems == ["power-node1.csv: 2 values of power_mw left out: not a whole number"]
    assert log.samples["power_mw"].null_count() == 3
    live = Watcher(tmp_path).look(1000 * MS, "node1")
    assert "node1 GPU 0: 2 values left out: not a whole number" in live.problems
