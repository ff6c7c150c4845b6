# SPDX-License-Identifier: Apache-2.0
"""Bad input and faults: a clear message with what to do, the job's own result unharmed, clocks as before, and a run
folder that still reads.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from harness import (
    IDLE_MHZ,
    LOCK_MHZ,
    Done,
    EmulatedMachine,
    Powerccl,
    is_whole,
    last_run,
    points_are_right,
    profile_of,
)

from powerccl.analysis.summary import summarise
from powerccl.traces import records
from powerccl.traces.folder import RunData, read_run

pytestmark = pytest.mark.timeout(300)

OBSERVED = ("--emulate", "t4x8", "--policy", "observe")
SHORT = ("all_reduce", "-b", "1M", "-e", "4M", "-c", "1", "--min-time", "0.1")
MANAGED = ("all_reduce", "-b", "64M", "-e", "64M", "-c", "0", "--min-time", "0.3")


def advised(done: Done) -> bool:
    """Whether an error came with what to do."""
    return "\nhint: " in done.err and "Traceback" not in done.err


def notes(run: RunData) -> str:
    """What the ranks noted in their traces."""
    texts = [
        bytes(text) for rank in run.ranks if records.NOTE in rank.kinds for text in rank.kinds[records.NOTE]["text"]
    ]
    return "\n".join(text.rstrip(b"\0").decode() for text in texts)


def clock_requests(run: RunData) -> int:
    """How often a clock was asked for, or would have been."""
    return sum(len(rank.kinds[records.CLOCK]) for rank in run.ranks)


# ---- Commands that cannot be carried out: nothing is started.


def test_command_that_cannot_be_started(powerccl: Powerccl) -> None:
    unknown = powerccl("run", "--emulate", "t4x8", "--", "no-such-program")
    assert unknown.code == 127
    assert "no-such-program" in unknown.err
    assert advised(unknown)
    (powerccl.folder / "data").write_text("no program\n")
    refused = powerccl("run", "--", "./data")
    assert refused.code == 126
    assert advised(refused)


def test_profile_of_another_machine_is_refused(on_machine: Powerccl, tmp_path: Path) -> None:
    for gpu, gpus in (("NVIDIA H200", 8), ("Tesla T4", 4)):
        foreign = tmp_path / "foreign.json"
        foreign.write_bytes(profile_of(gpu, gpus))
        arguments = ("--policy", "per-call", "--platform", str(foreign), "--", "touch", "started")
        done = on_machine("run", *arguments)
        assert done.code == 125
        assert f"measured on {gpus} x {gpu}" in done.err
        assert advised(done)
        assert not (on_machine.folder / "started").exists()


# ---- Policy tables that cannot be followed: the job runs, nothing is managed.

GOOD_TABLE = f"""powerccl-policy-table 1
platform test
gpu Tesla T4
gpus 8
clock_max_mhz 1590
overhead_bytes all_reduce 1048576
min_clock_mhz all_reduce 1048576 inf {LOCK_MHZ}
end 6
"""
# tests/native/clock/policy_table_test.cpp has all that may be wrong with one.
BAD_TABLES = {
    "truncated": GOOD_TABLE[: GOOD_TABLE.index("end")],
    "other GPU": GOOD_TABLE.replace("Tesla T4", "NVIDIA H200"),
}


def with_table(powerccl: Powerccl, path: Path) -> Done:
    """A job whose runtime is given the table directly, as in a container without `powerccl run`."""
    variables = ("env", "POWERCCL_POLICY=per-call", f"POWERCCL_POLICY_TABLE={path}", "POWERCCL_CLOCKS=dry")
    return powerccl("run", *OBSERVED, "--", *variables, powerccl.bench, *MANAGED)


def test_good_table_is_followed(powerccl: Powerccl) -> None:
    table = powerccl.folder / "table"
    table.write_text(GOOD_TABLE)
    done = with_table(powerccl, table)
    run, _ = last_run(powerccl)
    assert done.code == 0, done.err
    assert clock_requests(run) > 0, "or the tests of bad tables show nothing"


@pytest.mark.parametrize("fault", [*BAD_TABLES, "missing"])
def test_bad_table_leaves_clocks_alone(powerccl: Powerccl, fault: str) -> None:
    table = powerccl.folder / "table"
    if fault != "missing":
        table.write_text(BAD_TABLES[fault])
    done = with_table(powerccl, table)
    assert done.code == 0, done.err
    assert points_are_right(done.out)
    assert "powerccl: " in done.err
    assert "observe" in done.err
    assert "hint: " in done.err
    run, summary = last_run(powerccl)
    assert is_whole(run)
    assert clock_requests(run) == 0
    assert notes(run), "the trace says why nothing was managed"
    assert summary.communication.time_s and summary.communication.time_s > 0, "recorded all the same"


# ---- Machines that cannot do what was hoped for.


def test_no_gpu(powerccl: Powerccl) -> None:
    done = powerccl("run", "--", "sh", "-c", "echo result; exit 7")
    assert (done.code, done.out) == (7, "result\n")
    assert "Nothing was recorded: the job ended with exit code 7" in done.err
    assert "hint: install the NVIDIA driver" not in done.err  # it is no matter of a job without a GPU part
    assert powerccl("run", "-q", "--", "true").err == ""
    run, _ = last_run(powerccl)
    assert not run.problems
    bench = powerccl("bench", "all_reduce")
    assert bench.code == 3
    assert "--emulate" in bench.err
    assert advised(bench)


def percall(powerccl: Powerccl, profile: Path, **environment: str) -> Done:
    """A job under per-call on an emulated server of its own."""
    options = ("--emulate", "t4x8", "--policy", "per-call", "--platform", str(profile))
    return powerccl("run", *options, "--", powerccl.bench, *MANAGED, **environment)


def test_no_right_to_set_clocks(powerccl: Powerccl, profile: Path) -> None:
    done = percall(powerccl, profile, POWERCCL_EMULATOR_MAY_SET_CLOCKS="0")
    assert done.code == 0, done.err
    assert points_are_right(done.out)
    assert "no permission" in done.err
    assert "CAP_SYS_ADMIN" in done.err, "what it would take"
    run, summary = last_run(powerccl)
    assert is_whole(run)
    assert summary.communication.time_s and summary.communication.time_s > 0


def test_dry_in_the_environment_wins(on_machine: Powerccl, machine: EmulatedMachine, profile: Path) -> None:
    arguments = ("--policy", "per-call", "--platform", str(profile))
    running = on_machine.start("run", *arguments, "--", on_machine.bench, *MANAGED, POWERCCL_CLOCKS="dry")
    seen: set[int] = set()
    while running.process.poll() is None:
        seen.update(machine.clocks_mhz())
    done = running.wait()
    assert done.code == 0, done.err
    assert "POWERCCL_CLOCKS=dry" in done.err
    assert LOCK_MHZ not in seen
    run, _ = last_run(on_machine)
    assert clock_requests(run) > 0, "decided and recorded"


def test_nvml_missing(on_machine: Powerccl, machine: EmulatedMachine, profile: Path) -> None:
    """CUDA works, NVML does not: containers are built like this."""
    options = ("--emulate", "t4x8", "--policy", "per-call", "--platform", str(profile))
    missing = {"POWERCCL_NVML_LIBRARY": "/nowhere/libnvidia-ml.so.1"}
    done = on_machine("run", *options, "--", on_machine.bench, *SHORT, **missing)
    assert done.code == 0, done.err
    assert points_are_right(done.out)
    assert done.err.count("cannot load NVML") >= 1
    assert "hint: " in done.err
    run, summary = last_run(on_machine)
    assert is_whole(run)
    assert summary.communication.time_s and summary.communication.time_s > 0
    assert summary.energy.joules is None
    assert machine.clocks_mhz() == [IDLE_MHZ] * 8


@pytest.mark.parametrize(
    "failure",
    [
        "set_locked_clocks:after=2:code=15",
        "set_locked_clocks:after=0:code=999",
        "reset_locked_clocks:after=1:code=999",
        "power:after=40:code=15,energy:after=40:code=15,clock:after=40:code=15",
        "init:after=0:code=9",
    ],
)
def test_nvml_failing_midway(powerccl: Powerccl, profile: Path, failure: str) -> None:
    done = percall(powerccl, profile, POWERCCL_EMULATOR_NVML_FAIL=failure)
    assert done.code == 0, done.err
    assert points_are_right(done.out)
    assert "Traceback" not in done.err
    assert "powerccl" in done.err
    run, summary = last_run(powerccl)
    assert not run.problems
    assert summary.communication.time_s and summary.communication.time_s > 0
    if "locked" in failure:
        assert "PowerCCL sets no more clocks in this process" in done.err


@pytest.mark.parametrize("since_s", [0, 1])
def test_gpu_whose_nvml_hangs_costs_no_other_its_samples(powerccl: Powerccl, since_s: int) -> None:
    """From the start or in the middle; and the job waits for it neither at its start nor at its end."""
    hang = f"3:hang:from={since_s}:in=powerccl-agent"
    started = time.monotonic()
    done = powerccl(
        *("run", *OBSERVED, "--", powerccl.bench, "all_reduce", "-b", "16M", "-e", "16M", "-c", "0", "--min-time", "2"),
        POWERCCL_EMULATOR_NVML_GPU=hang,
    )
    took_s = time.monotonic() - started
    assert done.code == 0, done.err
    run, _ = last_run(powerccl)
    assert not run.problems
    (log,) = run.power
    interval_ns = int(log.about["interval_ns"])
    rows = log.samples.group_by("gpu").agg(
        first_ns=pl.col("time_ns").min(),
        last_ns=pl.col("time_ns").max(),
        counted_uj=pl.col("energy_uj").filter(pl.col("energy_uj") >= 0).max()
        - pl.col("energy_uj").filter(pl.col("energy_uj") >= 0).min(),
    )
    of = {row["gpu"]: row for row in rows.iter_rows(named=True)}
    assert sorted(of) == [gpu for gpu in range(8) if gpu != 3 or since_s > 0]
    end_ns = max(row["last_ns"] for row in of.values())
    for gpu in set(of) - {3}:
        assert of[gpu]["counted_uj"] > 40e6, "two seconds at more than 20 W"
        assert end_ns - of[gpu]["last_ns"] < 50 * interval_ns, "sampled to the end"
        assert log.about[f"gpu{gpu}_power_limit_mw"] == log.about[f"gpu{gpu}_power_limit_max_mw"] == "70000"
    if since_s:
        assert end_ns - of[3]["last_ns"] > 1e9, "what a GPU that hangs uses is not known"
    words = (run.folder / f"agent-{log.host}.log").read_text()
    assert words.count("GPU 3: an NVML call has not returned for ") == 1
    assert took_s < 30, "two seconds of the job, one of waiting, the rest for a loaded machine"


# ---- Run folders that cannot be written.


def test_run_folder_not_writable(powerccl: Powerccl) -> None:
    (powerccl.folder / "file").write_text("")
    for place in ("file/runs", "/proc/runs"):
        done = powerccl("run", "--runs-dir", place, "--", "echo", "result")
        assert (done.code, done.out) == (0, "result\n")
        assert "cannot make a run folder" in done.err
        assert "the job runs unrecorded" in done.err


@pytest.fixture(params=[60, 300])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of so many KiB: it fills while the traces or the samples are written."""
    with mounted_disk(tmp_path, request.param) as place:
        yield place


@contextlib.contextmanager
def mounted_disk(tmp_path: Path, kib: int) -> Iterator[Path]:
    """A file system of so many KiB, as long as it is used."""
    place = tmp_path / "small"
    place.mkdir()
    size = f"size={kib}k"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system takes root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_disk_full(powerccl: Powerccl, profile: Path, small_disk: Path) -> None:
    options = ("--emulate", "t4x8", "--policy", "per-call", "--platform", str(profile), "--runs-dir", str(small_disk))
    done = powerccl("run", *options, "--interval-ms", "1", "--", powerccl.bench, *MANAGED)
    assert done.code == 0, done.err
    assert points_are_right(done.out)
    assert "Traceback" not in done.err
    assert "No space left on device" in done.err or "disk" in done.err
    assert "hint: " in done.err
    folder = max(small_disk.glob("*/"), key=lambda path: path.stat().st_mtime_ns)
    summarise(read_run(folder))


def test_disk_full_from_the_start(powerccl: Powerccl, profile: Path, tmp_path: Path) -> None:
    with mounted_disk(tmp_path, 4) as disk:
        options = ("--emulate", "t4x8", "--policy", "per-call", "--platform", str(profile), "--runs-dir", str(disk))
        done = powerccl("run", *options, "--", powerccl.bench, *SHORT)
        assert done.code == 0, done.err
        assert "No space left on device; the job runs unrecorded" in done.err
        assert points_are_right(done.out)
