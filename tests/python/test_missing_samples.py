# SPDX-License-Identifier: Apache-2.0
"""Samples that are missing or cannot be: no sum passes for whole, and nothing impossible is believed.

Truth is a run of two GPUs of which both counters and powers are known; each test spoils the samples of one of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from printing import printed
from synthetic import HOST, MS, mpi_run, training_run, uuid, write_info, write_power

from powerccl.analysis.drawing import draw
from powerccl.analysis.energy import energy_curves
from powerccl.analysis.findings import RunSummary
from powerccl.analysis.report import report
from powerccl.analysis.summary import summarise
from powerccl.commandline.references import gpu_names
from powerccl.compare.side_by_side import compare_sides
from powerccl.live.job import Watcher
from powerccl.live.metrics import JobCollector, as_text
from powerccl.live.node import LiveNode
from powerccl.reports.report import print_report
from powerccl.traces import plausible
from powerccl.traces.folder import read_run
from powerccl.traces.plausible import sustained
from powerccl.traces.power import read_power
from powerccl.ways.forecast import power_limit

S = 1000 * MS
WATTS = (50.0, 60.0)
END_S = 60
EMPTY_ROW = "-1,-1,-1,-1,-1,-1,-1"

Row = list[str]  # time_ns, gpu, uuid, power_mw, energy_uj, then the rest
Spoil = Callable[[Row], Row | None]


def node(folder: Path, spoil: Spoil | None = None, counter: bool = True, seldom_ns: int = 0, limit_w: int = 0) -> Path:
    """A run of a minute; `spoil` changes each row of GPU 1, or takes it out. Counters are read every seldom_ns."""
    folder.mkdir()
    path = write_power(folder, 2, END_S * S, lambda gpu, _: WATTS[gpu], counter=counter)
    head, rows = [], []
    for line in path.read_text().splitlines():
        fields = line.split(",")
        if len(fields) < 10 or not fields[0].isdigit():
            head.append(line)
            continue
        if seldom_ns and int(fields[0]) % seldom_ns:
            fields[4] = "-1"
        spoilt = spoil(fields) if spoil and fields[1] == "1" else fields
        if spoilt is not None:
            rows.append(",".join(spoilt))
    if limit_w:
        head[-1:-1] = [f"# gpu{gpu}_power_limit_max_mw: {limit_w * 1000}" for gpu in range(2)]
    path.write_text("\n".join([*head, *rows]) + "\n")
    write_info(folder, END_S * S)
    return folder


def between(begin_s: float, end_s: float, change: Callable[[Row], Row | None]) -> Spoil:
    """`change` for samples of that time alone."""
    return lambda row: change(row) if begin_s * S <= int(row[0]) < end_s * S else row


def with_(place: int, value: object) -> Callable[[Row], Row]:
    """A row with another value in one place; a callable takes the old one."""
    return lambda row: [
        str(value(int(field)) if callable(value) else value) if n == place else field for n, field in enumerate(row)
    ]


def gone(_: Row) -> None:
    """No sample."""


def shown(folder: Path) -> str:
    return printed(print_report, report(folder).findings, width=160)


def energy_of(folder: Path) -> RunSummary:
    return summarise(read_run(folder))


@pytest.mark.parametrize("limit_w", [0, 70])
@pytest.mark.parametrize("counter", [True, False])
@pytest.mark.parametrize("mw", [(1 << 32) - 1, -7, 9_999_000])
def test_power_that_cannot_be_is_left_out(tmp_path: Path, mw: int, counter: bool, limit_w: int) -> None:
    seen = node(tmp_path / "run", between(30, 30.03, with_(3, mw)), counter, limit_w=limit_w)
    found = energy_of(seen)
    assert found.energy.joules == pytest.approx(sum(WATTS) * END_S, rel=0.005)
    said = [problem for problem in found.problems if problem.startswith("GPU 1: ")]
    assert said == [f"GPU 1: 2 power samples left out: below 0 or above {'140 W' if limit_w else '4.00 kW'}"]
    assert not any(problem.startswith("GPU 0") for problem in found.problems)


@pytest.mark.parametrize("limit_w", [0, 70])
@pytest.mark.parametrize("jump", [1 << 32, (1 << 32) * 1000])
@pytest.mark.parametrize("stays", [True, False])
def test_a_counter_that_jumps_is_not_believed(tmp_path: Path, stays: bool, jump: int, limit_w: int) -> None:
    end_s = 99.0 if stays else 30.02
    seen = node(tmp_path / "run", between(30, end_s, with_(4, lambda uj: uj + jump)), limit_w=limit_w)
    found = energy_of(seen)
    assert found.energy.joules == pytest.approx(sum(WATTS) * END_S, rel=0.005)
    assert [problem for problem in found.problems if "energy counter" in problem]


@pytest.mark.parametrize("counter_from", [0, 5_000_000])
def test_a_counter_that_starts_anew(tmp_path: Path, counter_from: int) -> None:
    begin = int(30 * WATTS[1] * 1e6)
    spoil = between(30, 99, with_(4, lambda uj: uj - begin + counter_from))
    found = energy_of(node(tmp_path / "run", spoil))
    assert found.energy.joules == pytest.approx(sum(WATTS) * END_S, rel=0.005)
    assert "GPU 1: its energy counter jumped or went back 1 time" in found.problems


def test_one_reading_of_nothing_changes_nothing(tmp_path: Path) -> None:
    found = energy_of(node(tmp_path / "run", between(30, 30.02, with_(4, 0))))
    assert found.energy.joules == pytest.approx(sum(WATTS) * END_S, rel=0.002)
    assert found.energy.source == "counter"


def test_a_gap_that_power_alone_could_tell_is_not_known(tmp_path: Path) -> None:
    folder = node(tmp_path / "run", between(20, 32.4, gone), counter=False)
    found = energy_of(folder)
    assert found.energy.joules is None
    assert found.energy.joules_at_least == pytest.approx(WATTS[0] * 60 + WATTS[1] * 47.6, rel=0.005)
    assert found.energy.missing == ["GPU 1: no power samples for 12.4 s of 60.0 s"]
    first, second = found.gpus
    assert first.joules == pytest.approx(3000, rel=0.005)
    assert second.joules is None
    assert second.joules_at_least == pytest.approx(60 * 47.6, rel=0.005)
    assert second.missing_s == pytest.approx(12.4, abs=0.05)
    assert second.average_watts == pytest.approx(60, rel=0.001)  # of what was sampled
    words = shown(folder)
    assert "at least 5.85 kJ" in words
    assert "GPU 1: no power samples for 12.4 s of 60.0 s" in words


def test_a_short_gap_is_none(tmp_path: Path) -> None:
    found = energy_of(node(tmp_path / "run", between(20, 20.03, gone), counter=False))  # samples 60 ms apart
    assert found.energy.joules == pytest.approx(sum(WATTS) * END_S, rel=0.005)
    found = energy_of(node(tmp_path / "other", between(20, 20.05, gone), counter=False))
    assert found.energy.joules is None


def test_a_gap_between_two_counter_readings_has_their_difference(tmp_path: Path) -> None:
    """The sum is known, its course is not."""
    folder = node(tmp_path / "run", between(20, 32.4, gone))
    found = energy_of(folder)
    assert found.energy.joules == pytest.approx(sum(WATTS) * END_S, rel=0.005)
    assert found.energy.missing == []
    curve = energy_curves(read_run(folder))[uuid(1)]
    assert curve.blurred.tolist() == [[pytest.approx(20 * S, abs=40 * MS), pytest.approx(32.4 * S, abs=40 * MS)]]
    asked = np.array([[10 * S, 19 * S], [25 * S, 28 * S], [10 * S, 40 * S], [19 * S, 21 * S]])
    assert curve.covers(asked).tolist() == [True, False, True, False]
    part = summarise(read_run(folder), (10 * S, 25 * S))
    assert part.energy.missing == ["GPU 1: no power samples for 5.02 s of 15.0 s"]
    assert part.energy.joules_at_least == pytest.approx(15 * 50 + 10 * 60, rel=0.01)


def test_gpus_of_others_are_not_the_jobs(tmp_path: Path) -> None:
    """A host of four GPUs, of which CUDA_VISIBLE_DEVICES gave the job two."""
    folder = training_run(tmp_path / "run")
    path = write_power(folder, 4, 2 * S, lambda gpu, _: 50 + 10.0 * gpu)
    limits = "".join(f"# gpu{gpu}_power_limit_mw: {100_000 * (gpu + 1)}\n" for gpu in range(4))
    path.write_text(limits + path.read_text())
    run = read_run(folder)
    assert list(energy_curves(run)) == [uuid(0), uuid(1)]
    assert power_limit(run) == 100 + 200
    assert summarise(run).energy.joules == pytest.approx((50 + 60) * 1.8, rel=0.02)
    assert gpu_names(run, of_job=True) == {HOST: ["Tesla T4"] * 2}
    assert gpu_names(run) == {HOST: ["Tesla T4"] * 4}
    run.ranks = []  # nobody names any
    assert len(energy_curves(run)) == 4
    assert gpu_names(run, of_job=True) == {HOST: ["Tesla T4"] * 4}


def test_a_seldom_counter_tells_what_power_missed(tmp_path: Path) -> None:
    folder = node(tmp_path / "run", between(20, 32.4, with_(3, -1)), seldom_ns=2400 * MS)
    found = energy_of(folder)
    assert found.energy.source == "power+counter"
    assert found.energy.joules == pytest.approx(sum(WATTS) * END_S, rel=0.005)
    # Where the counter is dead behind the gap, nothing tells.
    dead = node(
        tmp_path / "dead",
        lambda row: with_(4, -1)(row) if int(row[0]) > 20 * S else row,
        seldom_ns=2400 * MS,
    )
    text = (dead / f"power-{HOST}.csv").read_text().splitlines()
    kept = [line for line in text if not re.match(r"(2\d|30)\d{9},1,", line)]
    (dead / f"power-{HOST}.csv").write_text("\n".join(kept) + "\n")
    found = energy_of(dead)
    assert found.energy.joules is None
    assert found.energy.missing == ["GPU 1: no power samples for 11.0 s of 60.0 s"]


@pytest.mark.parametrize("counter", [True, False])
@pytest.mark.parametrize("rows", ["none", "empty"])
def test_a_gpu_lost_in_the_middle(tmp_path: Path, rows: str, counter: bool) -> None:
    lost = gone if rows == "none" else lambda row: [*row[:3], *EMPTY_ROW.split(",")]
    folder = node(tmp_path / "run", between(40, 99, lost), counter)
    found = energy_of(folder)
    assert found.energy.joules is None
    assert found.energy.joules_at_least == pytest.approx(WATTS[0] * 60 + WATTS[1] * 40, rel=0.005)
    assert found.energy.missing[0].startswith("GPU 1: no power samples for 20.0 s of 60.0 s")
    assert len(found.energy.missing) == 1
    (folder / "run.json").unlink()  # nor where the job was killed: the other GPU tells how long it was
    found = energy_of(folder)
    assert found.energy.joules is None
    assert found.energy.missing[0].startswith("GPU 1: no power samples for 20.0 s of 60.0 s")


def test_samples_that_all_lie_before_the_run(tmp_path: Path) -> None:
    folder = node(tmp_path / "run", between(40, 99, gone))
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**info, "start_ns": 45 * S, "end_ns": 55 * S}))
    assert energy_of(folder).energy.missing == ["GPU 1: no power samples for 10.0 s of 10.0 s"]


@pytest.mark.parametrize("interval_s", [0.5, 2, 5, 10])
def test_readings_beside_the_job_are_of_its_start_and_end(tmp_path: Path, interval_s: float) -> None:
    """The agent samples 10 ms before the job and 10 ms behind it, and every interval from then on.

    What the GPU used in these 20 ms is none of the job's.
    """
    first_ns, end_ns = 10 * S, 10 * S + 12_400 * MS
    grid = range(first_ns, end_ns - 10 * MS, round(interval_s * S))
    kept = {int(t) // (20 * MS) for t in [*grid, end_ns]}
    folder = node(tmp_path / "run", lambda row: row if int(row[0]) // (20 * MS) in kept else None)
    path = folder / f"power-{HOST}.csv"
    path.write_text(path.read_text().replace(f"# interval_ns: {20 * MS}", f"# interval_ns: {round(interval_s * S)}"))
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**info, "start_ns": first_ns + 10 * MS, "end_ns": end_ns - 10 * MS}))
    found = energy_of(folder)
    assert found.energy.missing == []
    assert found.gpus[1].joules == pytest.approx(60 * 12.38, rel=0.0001)
    job = Watcher(folder).look(END_S * S, HOST)
    assert job.gpus[1].joules == pytest.approx(60 * 12.38, rel=0.0001)


def test_an_end_without_a_reading_is_at_least(tmp_path: Path) -> None:
    """A fault of half a percent shows: the last reading is 0.4 s before the end."""
    found = energy_of(node(tmp_path / "run", between(59.6, 99, gone)))
    assert found.energy.joules is None
    assert found.gpus[1].joules_at_least == pytest.approx(60 * 59.6, rel=0.001)


@pytest.mark.parametrize("seldom_ns", [0, 2400 * MS])
@pytest.mark.parametrize("mw", [0, 118_000, 20_000])
def test_power_that_stands_still_lowers_no_sum_and_is_flagged(tmp_path: Path, mw: int, seldom_ns: int) -> None:
    found = energy_of(node(tmp_path / "run", between(10, 55, with_(3, mw)), seldom_ns=seldom_ns))
    assert found.energy.joules == pytest.approx(sum(WATTS) * END_S, rel=0.001)
    said = [problem for problem in found.problems if problem.startswith("GPU 1: ")]
    assert len(said) == 1
    assert ("0 W" if not mw else "power stayed at one value") in said[0]


@pytest.mark.parametrize("mw", [0, 118_000])
@pytest.mark.parametrize(("seldom_ns", "back_j"), [(0, 30), (0, 1700), (2400 * MS, 500), (2400 * MS, 1700)])
def test_a_counter_that_goes_back_without_power_to_tell_is_at_least(
    tmp_path: Path, seldom_ns: int, back_j: int, mw: int
) -> None:
    def back(row: Row) -> Row:
        return [*row[:3], str(mw), str(int(row[4]) - back_j * 1_000_000 if row[4] != "-1" else -1), *row[5:]]

    found = energy_of(node(tmp_path / "run", between(30, 99, back), seldom_ns=seldom_ns))
    assert found.energy.joules is None
    assert 0.8 * 3600 < (found.gpus[1].joules_at_least or 0) <= 3600
    assert found.energy.missing


def test_a_gpu_that_was_never_sampled(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run", ranks=2)
    whole = energy_of(folder)
    path = folder / f"power-{HOST}.csv"
    path.write_text("\n".join(line for line in path.read_text().splitlines() if f",1,{uuid(1)}" not in line) + "\n")
    found = energy_of(folder)
    assert whole.energy.joules is not None
    assert whole.communication.joules is not None
    assert found.energy.joules is None
    assert found.energy.joules_at_least == pytest.approx(whole.energy.joules / 2, rel=0.01)
    assert found.energy.missing == [f"GPU {uuid(1)}: no power samples"]
    assert found.communication.joules is None
    assert found.communication.joules_at_least == pytest.approx(whole.communication.joules / 2, rel=0.02)
    made = report(folder).findings
    assert made.energy.joules_total is None
    assert all(each.joules is None for each in made.iterations)


def test_communication_in_a_gap_is_not_known(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run", ranks=2, iterations=12)
    write_power(folder, 2, 7200 * MS, 50.0, counter=False)
    path = folder / f"power-{HOST}.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not re.match(r"[23]\d{9},1,", line)) + "\n")  # 2 to 4 s
    made = report(folder).findings
    found = made.summary
    assert found.communication.joules is None
    assert 0 < (found.communication.joules_at_least or 0) < 2 * 50 * 12 * 0.45
    # Iterations that a gap touches have no energy; the others do.
    assert made.iterations[0].found > made.iterations[0].joules_of > 0
    assert made.iterations[0].joules == pytest.approx(2 * 0.6 * 50, rel=0.02)


@pytest.mark.parametrize("how", ["back", "twice", "far", "ahead"])
def test_time_that_steps(tmp_path: Path, how: str) -> None:
    times = {"back": lambda t: t - 10 * S, "twice": lambda _: 30 * S, "far": lambda t: t + (1 << 60)}
    change = times.get(how, lambda t: t + 25 * S)
    folder = node(tmp_path / "run", between(30.02, 30.3, with_(0, change)))
    found = energy_of(folder)
    assert found.energy.joules == pytest.approx(sum(WATTS) * END_S, rel=0.005)
    words = "far outside the run" if how == "far" else "GPU 1: 14 samples left out: time does not go forward"
    assert any(words in problem for problem in found.problems)
    time = read_power(folder / f"power-{HOST}.csv").samples.filter(gpu=1)["time_ns"].to_numpy()
    assert np.all(np.diff(time) > 0)


def test_the_longest_run_of_rising_times_stays() -> None:
    time = np.array([1, 2, 9, 3, 4, 4, 5])
    assert time[plausible.forward(time)].tolist() == [1, 2, 3, 4, 5]
    assert plausible.forward(np.array([], np.int64)).tolist() == []


def test_a_comparison_says_why_there_is_no_energy(tmp_path: Path) -> None:
    whole, part = node(tmp_path / "a", counter=False), node(tmp_path / "b", between(20, 32, gone), counter=False)
    found = compare_sides([str(whole), str(part)], Path)
    assert energy_of(whole).energy.joules == pytest.approx(6600, rel=0.005)
    assert not {"energy", "average power"} & {row.what for row in found.rows}
    assert "b: GPU 1: no power samples for 12.0 s of 60.0 s" in found.caveats


def test_json_has_no_partial_sum_under_the_name_of_a_whole(tmp_path: Path) -> None:
    folder = node(tmp_path / "run", between(20, 32, gone), counter=False)
    from powerccl.analysis.report import encode

    found = json.loads(encode(report(folder).findings))["summary"]
    assert found["energy"]["joules"] is None
    assert found["energy"]["joules_at_least"] > 0
    assert [gpu["joules"] is None for gpu in found["gpus"]] == [False, True]


def test_no_line_is_drawn_through_a_gap(tmp_path: Path) -> None:
    lanes = draw(report(node(tmp_path / "run", between(20, 32, gone), counter=False))).lanes
    whole, part = ((lane.time * 1e-6, lane.power) for lane in lanes)
    assert (whole[1][1:] > 0).all()
    inside = (part[0] > 19.97) & (part[0] < 31.99)
    assert part[1][inside].tolist() == [600, 0]
    assert np.all(np.diff(part[0]) > 0)


def test_a_gap_of_the_processors(tmp_path: Path) -> None:
    def cpu(skip: range, jump: int = 0) -> str:
        head = "# host: node1\n# interval_ns: 100000000\n# package-0_max_energy_range_uj: 262143000000\n"
        rows = [
            f"{n * 100 * MS},package-0,{n * 5_000_000 + (jump if n >= 10 else 0)},-1,-1"
            for n in range(22)
            if n not in skip
        ]
        return head + "time_ns,domain,energy_uj,cpu_busy_ns,cpu_idle_ns\n" + "\n".join(rows) + "\n"

    whole = energy_of(mpi_run(tmp_path / "whole", cpu=cpu(range(0)))).mpi
    hole = energy_of(mpi_run(tmp_path / "hole", cpu=cpu(range(5, 15)))).mpi
    tail = energy_of(mpi_run(tmp_path / "tail", cpu=cpu(range(11, 22)))).mpi
    jumps = energy_of(mpi_run(tmp_path / "jumps", cpu=cpu(range(0), 1 << 40))).mpi
    back = energy_of(mpi_run(tmp_path / "back", cpu=cpu(range(0), -40_000_000))).mpi
    assert whole and hole and tail and jumps and back
    assert whole.energy.joules == pytest.approx(105)
    assert hole.energy.joules == pytest.approx(105)  # the counter stands on both sides
    assert tail.energy.joules is None
    assert tail.energy.joules_at_least == pytest.approx(50)
    assert tail.energy.missing == ["package-0: no valid energy samples for 1.01 s"]
    for each in (jumps, back):
        assert each.energy.joules is None
        assert each.energy.joules_at_least == pytest.approx(100)


def test_a_processor_counter_that_stands_still_tells_nothing(tmp_path: Path) -> None:
    """50 W for half a second, then the counter stands: what it had gained is a part."""
    rows = [f"{n * 100 * MS},package-0,{min(n, 5) * 5_000_000},-1,-1" for n in range(22)]
    cpu = f"# host: {HOST}\n# interval_ns: 100000000\ntime_ns,domain,energy_uj,cpu_busy_ns,cpu_idle_ns\n"
    found = energy_of(mpi_run(tmp_path / "run", cpu=cpu + "\n".join(rows) + "\n")).mpi
    assert found and found.energy.joules is None
    assert found.energy.joules_at_least == pytest.approx(25)
    assert found.energy.missing and "package-0: no valid energy samples for 1." in found.energy.missing[0]


# While the job runs.


def test_a_gpu_without_recent_samples_shows_no_power(tmp_path: Path) -> None:
    folder = node(tmp_path / "run", between(57, 99, gone))
    write_info(folder, 0)
    watcher = Watcher(folder)
    job = watcher.look(END_S * S, HOST)
    first, second = job.gpus
    assert first.power_w == pytest.approx(50, rel=0.01)
    assert (second.power_w, second.clock_mhz, second.utilization_pct) == (None, None, None)
    assert second.age_s == pytest.approx(3, abs=0.1)
    assert job.power_w is None
    assert job.power_at_least_w == pytest.approx(50, rel=0.01)
    assert job.joules is None
    assert job.joules_at_least == pytest.approx(50 * 60 + 60 * 57, rel=0.01)


def test_live_counters_that_jump_are_not_believed(tmp_path: Path) -> None:
    """Power tells what a counter gained while it jumped; each look goes on where the last one ended."""
    for n, end_s in enumerate((59.02, 99.0)):
        folder = node(tmp_path / str(n), between(59, end_s, with_(4, lambda uj: uj + (1 << 32))))
        write_info(folder, 0)
        job = Watcher(folder).look(END_S * S, HOST)
        assert job.gpus[1].power_w == pytest.approx(60, rel=0.01)
        if n == 0:
            assert job.gpus[1].joules == pytest.approx(60 * 60, rel=0.01)
            assert (job.gpus[1].missing_s, job.missing) == (0, [])
        else:  # of a long file the middle is not read: power alone does not tell it
            told, missing_s = job.gpus[1].joules_at_least, job.gpus[1].missing_s
            assert told is not None and missing_s is not None
            assert told + 60 * missing_s == pytest.approx(60 * 60, rel=0.01)


@pytest.mark.parametrize("counter", [-1, 60 * 40_000_000], ids=["lost", "stuck"])
@pytest.mark.parametrize("power", [60_000, -1])
def test_energy_behind_a_counters_end_is_of_power_in_every_output(tmp_path: Path, counter: int, power: int) -> None:
    """The counter is lost, or stands, 40 s into a run of 60 s; power is known to its end, or from 50 s on."""

    def spoil(row: Row) -> Row:
        time_s = int(row[0]) / S
        known = power if time_s < 50 else 60_000
        return [*row[:3], str(known), str(counter) if time_s >= 40 else row[4], *row[5:]]

    folder = node(tmp_path / "run", spoil)
    found, job = energy_of(folder), Watcher(folder).look(END_S * S, HOST)
    if power > 0:
        assert found.gpus[1].joules == job.gpus[1].joules == pytest.approx(60 * 60, rel=0.001)
        assert not job.missing and not found.energy.missing
        return
    assert found.energy.joules is job.joules is None
    assert found.gpus[1].joules_at_least == job.gpus[1].joules_at_least == pytest.approx(60 * 50, rel=0.01)
    assert found.gpus[1].missing_s == job.gpus[1].missing_s == pytest.approx(10, abs=0.3)


def test_a_bounded_process_reads_no_run_a_second_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper that reads another user's runs may take 256 MiB; a report's reader aborts the process there."""
    folder = node(tmp_path / "run")
    whole = Watcher(folder, totals=True).look(END_S * S, HOST)

    def refused(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("powerccl.live.job.used_by", refused)
    job = Watcher(folder, totals=True, again=False).look(END_S * S, HOST)
    assert job.ended and job.joules == pytest.approx(whole.joules, rel=0.001)


def test_an_ended_jobs_live_energy_says_what_it_lacks(tmp_path: Path) -> None:
    folder = node(tmp_path / "run", between(40, 99, gone))
    job = Watcher(folder).look(END_S * S, HOST)
    first, second = job.gpus
    assert (first.missing_s, second.joules, job.joules) == (0, None, None)
    assert first.joules == pytest.approx(50 * 60, rel=0.01)
    assert second.missing_s == pytest.approx(20, abs=0.3)
    assert second.joules_at_least == pytest.approx(60 * 40, rel=0.01)
    assert job.joules_at_least == pytest.approx(50 * 60 + 60 * 40, rel=0.01)
    assert len(job.missing) == 1 and "GPU 1: no valid energy samples for" in job.missing[0]
    live = LiveNode((folder,), totals=True)
    view = as_text(JobCollector(live.look, lambda: live.counts, named=True)).decode()
    live.close()
    told = [line for line in view.splitlines() if line.startswith("powerccl_gpu_unsampled_seconds{")]
    assert [float(line.split()[-1]) for line in told] == [0, second.missing_s]


@pytest.mark.parametrize("how", ["gone", "empty", "headless"])
def test_a_rank_without_a_trace_is_missed_everywhere(tmp_path: Path, how: str) -> None:
    folder = training_run(tmp_path / "run", ranks=2, iterations=3)
    whole = energy_of(folder).energy.joules
    lost = folder / "rank-1.trace"
    if how == "gone":
        lost.unlink()
    else:
        lost.write_bytes(b"" if how == "empty" else bytes(64) + lost.read_bytes()[64:])
    found, job = energy_of(folder), Watcher(folder).look(END_S * S, HOST)
    for energy in (found.energy, job):
        assert energy.joules is None
        assert energy.joules_at_least is not None and whole and energy.joules_at_least < 0.6 * whole
        assert any("1 of 2 ranks left a readable trace" in text for text in energy.missing)
    assert any("1 of 2 ranks" in text for text in found.problems)
    assert any("1 of 2 ranks" in text for text in job.problems)
    assert (job.ranks_found, job.ranks_expected) == (1, 2)


def test_an_mpi_rank_without_a_trace_is_missed(tmp_path: Path) -> None:
    folder = mpi_run(tmp_path / "run")
    assert not any("left a trace" in text for text in energy_of(folder).problems)
    (folder / "mpi-1.trace").unlink()
    assert any("1 of 2 ranks left a readable trace" in text for text in energy_of(folder).problems)


def test_records_that_were_never_written_are_told_live(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run", ranks=2, iterations=3)
    path = folder / "rank-1.trace"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    problems = Watcher(folder, totals=True).look(END_S * S, HOST).problems
    assert any(text.startswith("rank-1.trace: ") and "of unknown kinds, skipped" in text for text in problems)


def test_live_power_that_cannot_be(tmp_path: Path) -> None:
    folder = node(tmp_path / "run", between(58, 58.1, with_(3, (1 << 32) - 1)), counter=False)
    write_info(folder, 0)
    assert Watcher(folder).look(END_S * S, HOST).gpus[1].power_w == pytest.approx(60, rel=0.01)


def test_power_that_stays_above_the_limit_cannot_be() -> None:
    time = np.arange(0, 10_000_000_000, 20_000_000, dtype=np.int64)
    watts = np.full(len(time), 500.0)
    watts[100] = 1000.0  # a peak
    assert not sustained(time, watts, 700.0).any()
    watts[200:400] = 1000.0
    found = sustained(time, watts, 700.0)
    assert found[215:385].all()
    assert not found[:175].any() and not found[425:].any()
    assert not sustained(time, watts, 0.0).any()


def test_a_peak_of_half_a_second_can_be() -> None:
    """At the start of a run too: a governor may take as long to act."""
    time = np.arange(0, 10_000_000_000, 20_000_000, dtype=np.int64)
    watts = np.full(len(time), 60.0)
    watts[:25] = watts[200:225] = watts[-25:] = 100.0
    assert not sustained(time, watts, 70.0).any()
    assert not sustained(time[:26], watts[:26], 70.0).any()
