# SPDX-License-Identifier: Apache-2.0
"""`powerccl bench` and the wheel's `powerccl-bench`: tables, lines, signals, and clocks through leases."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import IDLE_MHZ, LOCK_MHZ, EmulatedMachine, Powerccl, Running, eventually, last_run

FEW = ("all_reduce", "-b", "1M", "-e", "1M", "-n", "2", "-g", "2", "--min-time", "0")
LONG = ("all_reduce", "-b", "64M", "-e", "64M", "-c", "0", "-n", "2000", "--no-energy")
RIGHT = "# Out of bounds values : 0 OK"


@pytest.fixture
def entry_point(tmp_path: Path) -> Path:
    """The `powerccl-bench` of an installed wheel."""
    file = tmp_path / "installed/powerccl-bench"
    file.parent.mkdir()
    file.write_text(f"#!{sys.executable}\nfrom powerccl.commands.bench import become_bench\nbecome_bench()\n")
    file.chmod(0o755)
    return file


def measuring(running: Running) -> bool:
    """Whether its table has begun."""
    return eventually(lambda: "# time:" in running.out.read_text())


def test_tables_and_lines(powerccl: Powerccl) -> None:
    table = powerccl("bench", "--emulate", "t4x8", *FEW, "--in-place")
    assert table.code == 0, table.err
    rows = [line.split() for line in table.out.splitlines() if line and not line.startswith("#")]
    assert [(row[0], row[1], row[9]) for row in rows] == [("all_reduce", "1048576", "0")] * 2
    assert [row[-1] == "in-place" for row in rows] == [False, True]
    assert RIGHT in table.out
    for option in (("--json-lines", "-"), ("--json-lines=-",)):
        lines = powerccl("bench", "--emulate", "t4x8", *FEW, *option)
        assert lines.code == 0, lines.err
        assert [json.loads(line)["type"] for line in lines.out.splitlines()] == ["header", "point", "summary"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("-g", "x", "--clocks", "600"), "'x' is not a number"),
        (("-g", "2", "--clocks"), "--clocks needs a value"),
        (("-g", "2", "--clocks", "abc"), "'abc' is not a number"),
    ],
)
def test_a_wrong_value_is_named(powerccl: Powerccl, options: tuple[str, ...], said: str) -> None:
    done = powerccl("bench", "--emulate", "t4x8", "all_reduce", *options)
    assert done.code == 2
    assert said in done.err
    assert "unexpected" not in done.err


def test_a_scenario_has_a_row_an_iteration(powerccl: Powerccl) -> None:
    (powerccl.folder / "a.scn").write_text("compute 5\nsync compute\nall_reduce 1M\n")
    done = powerccl("bench", "--emulate", "t4x8", "scenario", "a.scn", "-g", "2", "--iterations", "2", "-w", "1")
    assert done.code == 0, done.err
    rows = [line.split()[0] for line in done.out.splitlines() if not line.startswith("#")]
    assert rows == ["warm-up", "0", "1"]
    assert "# Median iteration      : " in done.out
    assert "# Energy per iteration  : not known (the run takes less than a second" in done.out


def test_ways_stand_side_by_side(powerccl: Powerccl) -> None:
    options = ("-b", "1M", "-e", "1M", "-n", "2", "-g", "2", "--way", "plain,symmetric", "--beside", "memory")
    done = powerccl("bench", "--emulate", "h200x4", "all_gather", *options, "--min-time", "0.02")
    assert done.code == 0, done.err
    assert [line for line in done.out.splitlines() if line.startswith("# way: ")] == [
        "# way: plain",
        "# way: symmetric",
    ]
    rows = [line.split()[1:] for line in done.out.splitlines() if line.startswith("#     all_gather")]
    assert [(row[1], row[2], row[-1][-1]) for row in rows] == [("1048576", way, "%") for way in ("plain", "symmetric")]


def test_under_run_both_programs_measure(powerccl: Powerccl, entry_point: Path) -> None:
    for program, says in ((str(entry_point), RIGHT), (powerccl.bench, '"wrong": 0')):
        done = powerccl("run", "--quiet", "--emulate", "t4x8", "--", program, *FEW)
        assert done.code == 0, done.err
        assert says in done.out
        assert len(last_run(powerccl)[0].ranks) == 2


def test_each_rank_of_a_launcher_may_be_the_entry_point(on_machine: Powerccl, entry_point: Path) -> None:
    ranks = [
        Running(
            [str(entry_point), *FEW[:7], "--rendezvous", str(on_machine.folder)],
            on_machine.folder,
            {**on_machine.environment, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
        )
        for rank in ("0", "1")
    ]
    first, second = (each.wait() for each in ranks)
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert RIGHT in first.out
    assert second.out == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_program(on_machine: Powerccl, number: int) -> None:
    running = on_machine.start("bench", *LONG)
    assert measuring(running)
    os.kill(running.process.pid, number)
    done = running.wait()
    assert done.code == 128 + number, done.err
    assert done.err.count("interrupted: ") == 1


def test_a_reader_that_goes_away_ends_it(on_machine: Powerccl) -> None:
    sizes = ("-b", "8", "-e", "16M", "-c", "0", "-n", "20", "-w", "1", "--min-time", "0.1", "--no-energy")
    command = [str(Path(sys.executable).parent / "powerccl"), "bench", "all_reduce", *sizes]
    environment = {**on_machine.environment}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
        assert bench.stdout
        assert bench.stderr
        assert bench.stdout.readline().startswith("# powerccl-bench version")
        bench.stdout.close()
        said = bench.stderr.read()  # until the ranks have ended as well
        assert bench.wait(60) == 128 + signal.SIGPIPE, said


@pytest.mark.parametrize(("target", "code"), [("/dev/full", 1), ("closed", 128 + signal.SIGPIPE)])
def test_tables_that_cannot_be_printed_are_no_success(on_machine: Powerccl, target: str, code: int) -> None:
    if target == "closed":
        gone, out = os.pipe()
        os.close(gone)
    else:
        out = os.open(target, os.O_WRONLY)
    command = [str(Path(sys.executable).parent / "powerccl"), "bench", *FEW]
    done = subprocess.run(command, env={**on_machine.environment}, stdout=out, stderr=subprocess.PIPE, text=True)
    os.close(out)
    assert done.returncode in (code, 128 + signal.SIGPIPE), done.stderr
    assert "unexpected" not in done.stderr


def test_clocks_are_set_and_restored(on_machine: Powerccl, machine: EmulatedMachine) -> None:
    options = ("all_reduce", "-b", "32M", "-e", "32M", "-c", "0", "-n", "2", "--min-time", "0.1", "--json", "a.json")
    done = on_machine("bench", *options, "--clocks", "1500,600")
    assert done.code == 0, done.err
    found = json.loads((on_machine.folder / "a.json").read_text())
    assert found["clock_control"] == "set"
    assert [round(point["sm_clock_mhz"]) for point in found["results"]] == [1500, 600]
    assert eventually(lambda: machine.clocks_mhz() == [IDLE_MHZ] * 8)


@pytest.mark.parametrize("whole", [False, True])
def test_clocks_are_restored_after_sigkill(on_machine: Powerccl, machine: EmulatedMachine, whole: bool) -> None:
    """Of powerccl-bench alone, or of everything but the daemon."""
    running = on_machine.start("bench", *LONG, "--clock", str(LOCK_MHZ))
    assert measuring(running)
    assert eventually(lambda: machine.clocks_mhz() == [LOCK_MHZ] * 8)
    children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
    for pid in map(int, children):
        if Path(f"/proc/{pid}/comm").read_text().strip() == "powerccl-bench":
            os.kill(pid, signal.SIGKILL)
    if whole:
        os.kill(running.process.pid, signal.SIGKILL)
    assert running.wait().code == (-signal.SIGKILL if whole else 128 + signal.SIGKILL)
    assert eventually(lambda: machine.clocks_mhz() == [IDLE_MHZ] * 8)
