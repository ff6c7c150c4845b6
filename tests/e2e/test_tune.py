# SPDX-License-Identifier: Apache-2.0
"""`powerccl tune` on an emulated server over sockets, and `powerccl run --tuned` with what it found."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from harness import Done, Powerccl

from powerccl.platforms.parameters import Machine, make_space

TUNED_S = 25
EMULATED = ("--emulate", "h200x4-sockets")
# What the emulated sockets gain by, and one parameter that does nothing for this size.
SEARCHED = ("NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS", "NCCL_BUFFSIZE")


def tune(powerccl: Powerccl, *options: str, seconds: int = 25, **environment: str) -> Done:
    return powerccl("tune", *EMULATED, "--time", f"{seconds}s", *options, **environment)


def result(powerccl: Powerccl, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((powerccl.folder / "tune" / name / "result.json").read_text())
    return found


@pytest.fixture(scope="module")
def tuned(native: object, clean_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Powerccl:
    """A folder in which 64 MiB were tuned."""
    command = Powerccl(native, tmp_path_factory.mktemp("tuned"), clean_environment)  # type: ignore[arg-type]
    done = tune(command, "all_reduce", "--sizes", "16K,64M", "--name", "here", seconds=TUNED_S)
    assert done.code == 0, done.err
    assert "emulated" in done.out and "powerccl run --tuned here" in done.out
    return command


def test_a_confirmed_gain_is_written(tuned: Powerccl) -> None:
    profile = result(tuned, "here")["profile"]
    large = next(each for each in profile["confirmed"] if each["size_bytes"] == 64 << 20)
    assert large["time_high"] < 0.8
    assert profile["emulated"] and profile["links"] == ["sockets"] and profile["ranks"] == 4
    assert profile["variables"]


def test_the_time_bounds_all_of_it(tuned: Powerccl) -> None:
    assert result(tuned, "here")["profile"]["seconds"] <= 1.1 * TUNED_S


def test_a_job_runs_with_it_and_is_faster(tuned: Powerccl) -> None:
    times = []
    for more in ((), ("--tuned", "here")):
        output = tuned.folder / f"sweep{len(more)}.json"
        bench = (tuned.bench, "all_reduce", "-b", "64M", "-e", "64M", "-n", "5", "-c", "0", "--json", str(output))
        done = tuned("run", *EMULATED, *more, "--", *bench)
        assert done.code == 0, done.err
        sweep = json.loads(output.read_text())
        times.append(sweep["results"][0]["device_time_us"])
    profile = result(tuned, "here")["profile"]
    large = next(each for each in profile["confirmed"] if each["size_bytes"] == 64 << 20)
    assert times[1] / times[0] == pytest.approx(large["time"], rel=0.25)
    recorded = json.loads((tuned.runs[-1] / "run.json").read_text())["environment"]
    assert recorded["POWERCCL_TUNED"].startswith("here@")
    assert {name: recorded[name] for name in profile["variables"]} == profile["variables"]


def test_what_the_user_has_set_is_kept_and_said(tuned: Powerccl) -> None:
    variables = result(tuned, "here")["profile"]["variables"]
    name = next(iter(variables))
    done = tuned("run", *EMULATED, "--tuned", "here", "--", "sh", "-c", f"echo kept=${name}", **{name: "7"})
    assert "kept=7" in done.out and f"your {name}=7 is kept" in done.err


def test_it_is_refused_elsewhere(tuned: Powerccl) -> None:
    for options, environment, words in (
        (("--emulate", "t4x8"), {}, "is for NVIDIA H200; this machine has Tesla T4"),
        (EMULATED, {"WORLD_SIZE": "2"}, "is for 4 ranks; this job has 2"),
    ):
        done = tuned("run", *options, "--tuned", "here", "--", "touch", "started", **environment)
        assert done.code == 125 and words in done.err
        assert not (tuned.folder / "started").exists()
    done = tuned("run", *EMULATED, "--tuned", "here@000000000000", "--", "true")
    assert done.code == 125 and "digest" in done.err
    done = tuned("run", *EMULATED, "--tuned", "hear", "--", "true")
    assert done.code == 2 and "did you mean 'here'" in done.err


def test_it_can_be_verified(tuned: Powerccl) -> None:
    done = tune(tuned, "--verify", "here", seconds=2)
    assert done.code == 0 and "all_reduce 64 MiB" in done.out


@pytest.mark.slow
def test_a_killed_search_goes_on(powerccl: Powerccl) -> None:
    options = ("all_reduce", "--sizes", "1M", "--name", "cut", "--trials", "10", "--no-rules")
    running = powerccl.start("tune", *EMULATED, "--time", "60s", *options)
    journal = powerccl.folder / "tune/cut/study.journal"
    until = time.monotonic() + 60
    while time.monotonic() < until and not (journal.exists() and journal.read_text().count('"status"') > 4):
        time.sleep(0.05)
    running.process.send_signal(signal.SIGKILL)
    running.wait()
    before = journal.read_text()
    done = tune(powerccl, *options, seconds=60)
    assert done.code == 0, done.err
    assert journal.read_text().startswith(before)
    assert len(result(powerccl, "cut")["outcomes"]) >= 11


def test_what_fails_or_hangs_does_not_end_the_search(powerccl: Powerccl) -> None:
    hangs = "NCCL_SOCKET_NTHREADS=2"
    only = [word for name in SEARCHED[2:] for word in ("--forbid", name)]
    done = tune(
        powerccl,
        *("all_reduce", "--sizes", "1M", "--name", "hang", "--timeout", "1", "--no-rules", *only),
        seconds=20,
        POWERCCL_EMULATOR_HANGS=hangs,
    )
    assert done.code == 0, done.err
    outcomes = result(powerccl, "hang")["outcomes"]
    hung = [each for each in outcomes if each["status"] == "hung"]
    assert 1 <= len(hung) <= 5 and all(each["configuration"]["NCCL_SOCKET_NTHREADS"] == "2" for each in hung)
    assert sum(each["status"] == "done" for each in outcomes) > 5


@pytest.mark.slow
def test_what_nccl_refuses_does_not_end_the_search(powerccl: Powerccl) -> None:
    only = ("NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_CGA_CLUSTER_SIZE")
    forbid = [word for name in only for word in ("--forbid", name)]
    options = ("all_reduce", "all_gather", "--sizes", "1M", "--name", "refused", "--no-rules")
    done = tune(powerccl, *options, "--parameter", "NCCL_ALGO=NVLS,Ring", *forbid)
    assert done.code == 0, done.err
    outcomes = result(powerccl, "refused")["outcomes"]
    failed = [each for each in outcomes if each["status"] == "failed"]
    assert failed and all("NVLS" in each["configuration"]["NCCL_ALGO"] for each in failed)
    assert sum(each["status"] in ("done", "pruned") for each in outcomes) > 5


@pytest.mark.slow
def test_energy_can_be_the_objective(powerccl: Powerccl) -> None:
    options = ("all_reduce", "--sizes", "64M", "--name", "energy", "--no-rules")
    done = tune(powerccl, *options, "--objective", "energy@slowdown=1%", seconds=40)
    assert done.code == 0, done.err
    profile = result(powerccl, "energy")["profile"]
    assert profile["confirmed"][0]["energy_high"] < 0.9 and profile["confirmed"][0]["time"] < 1.01


@pytest.mark.slow
def test_a_run_says_what_is_tuned(powerccl: Powerccl) -> None:
    bench = (powerccl.bench, "all_reduce", "all_gather", "-b", "1M", "-e", "16M", "-f", "16", "-c", "0", "-n", "5")
    assert powerccl("run", *EMULATED, "--name", "job", "--", *bench).code == 0
    done = tune(powerccl, "--from", str(powerccl.runs[-1]), "--name", "of-run", "--no-rules")
    assert done.code == 0, done.err
    assert "all_gather" in done.out and "█" in done.out
    cases = {(each["pattern"], each["size_bytes"]) for each in result(powerccl, "of-run")["profile"]["confirmed"]}
    assert ("all_reduce", 16 << 20) in cases and ("all_gather", 16 << 20) in cases


def test_wrong_words_are_refused(powerccl: Powerccl) -> None:
    """Those that are known to be wrong once the machine is known; tests/python/test_commands.py has the others."""
    for option, value, code, words in (
        ("--fix", "NCCL_X", 2, "not of the form NAME=VALUE"),
        ("--fix", "NCCL_FOO=1", 1, "reads no such variable"),
        ("--parameter", "NCCL_BUFSIZE=1,2", 1, "did you mean 'NCCL_BUFFSIZE'?"),
    ):
        done = tune(powerccl, option, value)
        assert done.code == code and words in done.err and "hint:" in done.err
    listed = tune(powerccl, "--list", "all_reduce")
    assert listed.code == 0 and "NCCL_NSOCKS_PERTHREAD" in listed.out and "NCCL_IB_TC" not in listed.out
    assert "NCCL_IB_ADAPTIVE_ROUTING is left out: only for ib" in listed.out
    assert not Path(powerccl.folder / "tune/all_reduce/study.journal").exists()


def test_buffers_in_symmetric_windows_have_a_search_of_their_own(powerccl: Powerccl) -> None:
    searched = {"NCCL_CTA_POLICY", "NCCL_SYM_CTAS", "NCCL_SYM_TMA_ENABLE"}
    h200 = Machine("NVIDIA H200", 4, 1, "2.30.7", ("nvlink",))
    space = make_space(h200, ["all_gather"], {}, windows=True)
    forbidden = [f"--forbid={each.name}" for each in space.parameters if each.name not in searched]
    done = powerccl(
        *("tune", "all_gather", "--symmetric", "--sizes", "256M", "--emulate", "h200x4", "--time", "20s"),
        *("--name", "windows", *forbidden),
        POWERCCL_EMULATOR_NCCL_VERSION="2.30.7",
        POWERCCL_EMULATOR_MOVE_DATA="0",
    )
    assert done.code == 0, done.err
    profile = result(powerccl, "windows")["profile"]
    # Copy engines, which no rule of a tuner can choose, are 1.4 % faster there than symmetric kernels.
    assert profile["variables"].get("NCCL_CTA_POLICY") == "ZERO"
    assert profile["windows"] and not profile["rules"]
    assert profile["confirmed"][0]["time_high"] < 1
