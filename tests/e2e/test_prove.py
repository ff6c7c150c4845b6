# SPDX-License-Identifier: Apache-2.0
"""`powerccl prove` on emulated servers: its file, dry runs, and what is left of one that is killed."""

from __future__ import annotations

import getpass
import json
import os
import signal
import socket
import statistics
from pathlib import Path

import pytest
from harness import IDLE_MHZ, EmulatedMachine, Powerccl, Running, eventually

from powerccl.launch.native import NativeFiles

# Calls and transitions of one length: the median of few draws is not the platform's.
SERVER = "h100x8:gpus=2,set_clock_call_spread=0,clock_transition_spread=0"
LOADS = ["idle", "copy", "product", "decode", "all-reduce"]


@pytest.fixture(scope="module")
def proved(
    native: NativeFiles, clean_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A proof of an emulated server with two GPUs, and what was printed. It takes a minute."""
    folder = tmp_path_factory.mktemp("proved")
    done = Powerccl(native, folder, clean_environment)("prove", "--emulate", SERVER, "--quick", "--out", "proof.json")
    assert done.code == 0, done.err
    return folder / "proof.json", done.out


def test_the_file_has_what_was_measured(proved: tuple[Path, str]) -> None:
    file, printed = proved
    text = file.read_text()
    found = json.loads(text)
    assert (found["proof_version"], found["gpus"], found["emulated"], found["quick"]) == (1, 2, True, True)
    assert list(dict.fromkeys(each["load"] for each in found["loads"])) == LOADS
    assert len(found["loads"]) == len(LOADS) * 5
    assert 4500 <= found["calls"]["median_us"] < 6000, "set_clock_call_us of the platform, and the daemon's own"
    assert len(found["transitions"]) == 5
    # Of three switches each, a busy host spoils some.
    # The platform's clock_transition_us is 32,000.
    assert 25 < statistics.median(each["median_ms"] for each in found["transitions"]) < 40
    assert [each["load"] for each in found["stalls"]] == ["all-reduce", "product"]
    assert found["training"]["saved_pct"]["n"] == 1
    of_copy = [each for each in found["loads"] if each["load"] == "copy"]
    assert [each["clock_mhz"] for each in of_copy] == sorted((each["clock_mhz"] for each in of_copy), reverse=True)
    assert of_copy[0]["watts"] == pytest.approx(375, rel=0.1), "as the platform's copies draw at 1980 MHz"
    assert of_copy[-1]["watts"] < 0.6 * of_copy[0]["watts"]
    assert printed.startswith("emulated 2 x NVIDIA H100")
    assert "every clock is back" in printed


def test_the_file_names_nobody(proved: tuple[Path, str]) -> None:
    text = proved[0].read_text()
    for private in (
        socket.gethostname(),
        getpass.getuser() + "@",
        str(Path.home()) + "/",
        "GPU-",
        str(proved[0].parent),
    ):
        assert private not in text


def test_the_file_is_an_emulated_platform_and_a_profile(proved: tuple[Path, str], powerccl: Powerccl) -> None:
    file, _ = proved
    found = json.loads(file.read_text())
    best = max(point["busbw_gbs"] for point in found["points"])
    done = powerccl(
        *("bench", "--emulate", str(file), "all_reduce", "-b", "64M", "-e", "64M", "-c", "0", "--json-lines", "-")
    )
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    (point,) = [line for line in lines if line["type"] == "point"]
    assert lines[0]["ranks"] == 2
    assert point["busbw_gbs"] == pytest.approx(best, rel=0.05)
    assert point["watts_per_gpu"] == pytest.approx(
        next(each["watts"] for each in found["loads"] if each["load"] == "all-reduce"), rel=0.05
    )
    policy = ("run", "--emulate", str(file), "--policy", "per-call", "--platform", str(file), "--")
    assert powerccl(*policy, powerccl.bench, "all_reduce", "-b", "64M", "-e", "64M", "-c", "0").code == 0


def test_a_dry_run_sets_no_clock_and_needs_no_right(on_machine: Powerccl, machine: EmulatedMachine) -> None:
    refused = {"CUDA_VISIBLE_DEVICES": "0", "POWERCCL_EMULATOR_MAY_SET_CLOCKS": "0"}
    done = on_machine("prove", "--dry", "--quick", "--out", "dry.json", **refused)
    assert done.code == 0, done.err
    found = json.loads((on_machine.folder / "dry.json").read_text())
    assert (found["dry"], found["clocks_set"], found["calls"], found["restored"]) == (True, False, None, None)
    assert found["transitions"] == found["stalls"] == []
    assert [each["load"] for each in found["loads"]] == LOADS[:-1], "one GPU has nothing to reduce"
    assert found["training"]["step_ms"]["value"] > 50
    assert "no clock was set" in done.out
    assert eventually(lambda: machine.clocks_mhz() == [IDLE_MHZ] * 8)
    forced = on_machine("prove", "--quick", "--plan", POWERCCL_CLOCKS="dry", **refused)
    assert "no clock is set" in forced.out
    without = on_machine("prove", "--quick", **refused)
    assert without.code == 1
    assert "cannot set clocks" in without.err
    assert "POWERCCL_CLOCKS=dry measures at the present clock" in without.err


def begin(on_machine: Powerccl, until: str) -> Running:
    """A run that has come so far."""
    running = on_machine.start("prove", "--quick", "--out", "proof.json", CUDA_VISIBLE_DEVICES="0,1")
    assert eventually(lambda: until in running.err.read_text(), 120), running.err.read_text()
    return running


def is_locked(machine: EmulatedMachine) -> bool:
    """Whether a GPU is at a clock that only a lock gives a T4 that copies."""
    return any(IDLE_MHZ < clock < 1590 for clock in machine.clocks_mhz())


@pytest.mark.parametrize("whole_group", [False, True])
def test_a_killed_run_leaves_no_clock(on_machine: Powerccl, machine: EmulatedMachine, whole_group: bool) -> None:
    running = begin(on_machine, "the load copy")
    assert eventually(lambda: is_locked(machine))
    if whole_group:
        os.killpg(running.process.pid, signal.SIGKILL)
    else:
        running.process.kill()
    assert eventually(lambda: machine.clocks_mhz() == [IDLE_MHZ] * 8, 10), machine.clocks_mhz()


@pytest.mark.slow
def test_a_run_that_is_killed_in_training_ends_the_job(on_machine: Powerccl, machine: EmulatedMachine) -> None:
    running = begin(on_machine, "the training step")
    running.process.kill()
    assert eventually(lambda: machine.clocks_mhz() == [IDLE_MHZ] * 8, 10), machine.clocks_mhz()


def test_without_a_gpu_there_is_the_plan(powerccl: Powerccl) -> None:
    done = powerccl("prove", "--dry", LD_LIBRARY_PATH="", CUDA_VISIBLE_DEVICES="")
    assert done.code == 0, done.err
    assert "in all, at most" in done.out
