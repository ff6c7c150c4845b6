# SPDX-License-Identifier: Apache-2.0
"""`powerccl-sim --run-folder`: what reports, comparisons and what-if say of a job that was simulated."""

from __future__ import annotations

import filecmp
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from harness import Powerccl

SCENARIOS = Path(__file__).parents[2] / "bench/scenarios"


def simulate(
    powerccl: Powerccl, scenario: str, folder: str, *options: str, platform: str = "t4x8.conf"
) -> dict[str, Any]:
    """Simulate a scenario; what powerccl-sim itself found of it."""
    platform = str(powerccl.native.root / "share/platforms" / platform)
    command = [str(powerccl.native.path("bin/powerccl-sim")), str(SCENARIOS / f"{scenario}.scn")]
    command += ["--platform", platform, "--run-folder", folder, "--json", "found.json"]
    command += options if "--seconds" in options else ("--seconds", "10", *options)
    done = subprocess.run(command, cwd=powerccl.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((powerccl.folder / "found.json").read_text())
    return found


def reported(powerccl: Powerccl, folder: str) -> dict[str, Any]:
    done = powerccl("report", folder, "--json", "-")
    assert done.code == 0, done.err
    report: dict[str, Any] = json.loads(done.out)
    return report


def same_files(one: Path, other: Path) -> bool:
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    return filecmp.cmpfiles(one, other, names, shallow=False) == (names, [], [])


# Marks of `tp` pause after three seconds, for most of the run. The report then extrapolates by communication time, the
# simulator by line.
@pytest.mark.parametrize(
    ("scenario", "policy", "apart"),
    [("ddp", "observe", 0.01), ("tp", "observe", 0.02), ("pp", "observe", 0.01), ("exposed", "auto", 0.01)],
)
def test_the_report_agrees_with_the_simulator(powerccl: Powerccl, scenario: str, policy: str, apart: float) -> None:
    found = simulate(powerccl, scenario, "run", "--policy", policy)
    report = reported(powerccl, "run")
    summary, iterations = report["summary"], report["iterations"][0]
    assert iterations["mean_s"] * 1e3 == pytest.approx(found["iteration_ms"], rel=0.01)
    assert iterations["joules"] == pytest.approx(found["joules_per_iteration"], rel=0.01)
    assert summary["wall_s"] == pytest.approx(found["virtual_s"], rel=1e-6)
    exposed_s = summary["shares"]["exposed_pct"] / 100 * summary["shares"]["span_s"]
    assert exposed_s * 1e3 / (found["first"] + found["iterations"]) == pytest.approx(found["exposed_ms"], rel=apart)
    assert summary["energy"]["joules"] == pytest.approx(
        found["joules_per_iteration"] / found["iteration_ms"] * summary["wall_s"] * 1e3, rel=0.01
    )
    assert not [text for text in summary["problems"] if "unexplained" not in text]


def test_the_same_seed_gives_the_same_bytes(powerccl: Powerccl) -> None:
    for folder, seed in (("one", "1"), ("again", "1"), ("other", "2")):
        simulate(powerccl, "exposed", folder, "--policy", "auto", "--seconds", "20", "--seed", seed)
    one, again, other = (powerccl.folder / name for name in ("one", "again", "other"))
    assert same_files(one, again)
    assert not filecmp.cmp(one / "rank-0.trace", other / "rank-0.trace", shallow=False)
    ids = [json.loads((folder / "run.json").read_text())["run_id"] for folder in (one, again, other)]
    assert ids[0] == ids[1] != ids[2]


def test_recording_changes_nothing(powerccl: Powerccl) -> None:
    recorded = simulate(powerccl, "tp", "run", "--policy", "auto")
    platform = powerccl.native.root / "share/platforms/t4x8.conf"
    program = str(powerccl.native.path("bin/powerccl-sim"))
    command = [program, str(SCENARIOS / "tp.scn"), "--platform", str(platform), "--policy", "auto"]
    subprocess.run([*command, "--seconds", "10", "--json", "plain.json"], cwd=powerccl.folder, check=True)
    assert json.loads((powerccl.folder / "plain.json").read_text()) == recorded


def test_no_figure_stands_without_the_word(powerccl: Powerccl) -> None:
    for policy in ("observe", "auto"):
        simulate(powerccl, "exposed", policy, "--policy", policy, "--seconds", "30", "--seed", "7")
    pages = ("--html", "run.html", "--perfetto", "run.pftrace")
    for command in (
        ("report", "observe", *pages),
        ("compare", "observe", "auto", "--html", "compare.html"),
        ("whatif", "observe"),
        ("export", "--once", "auto"),
        ("top", "--once", "auto"),
    ):
        done = powerccl(*command)
        assert done.code == 0, done.err
        text = done.out + done.err
        assert "simulated" in text, command
        assert "emulated t4x8" not in text, command
    for page in ("run.html", "compare.html"):
        text = (powerccl.folder / page).read_text()
        assert 'class="badge">simulated' in text, page
        assert "mulated: all figures" in text or "are simulated." in text, page
    assert b"(simulated t4x8)" in (powerccl.folder / "run.pftrace").read_bytes()
    about = json.loads((powerccl.folder / "observe/run.json").read_text())
    assert about["simulated"]["platform"] == "t4x8"
    assert about["simulated"]["seed"] == 7
    assert about["simulated"]["scenarios"] == [str(SCENARIOS / "exposed.scn")]
    # Traces and samples say it themselves.
    for gone in ("run.json", "power-simulated-0.csv"):
        (powerccl.folder / "observe" / gone).unlink()
        assert reported(powerccl, "observe")["summary"]["emulated"] == "simulated"


def test_clocks_are_recorded(powerccl: Powerccl) -> None:
    found = simulate(powerccl, "exposed", "run", "--policy", "auto", "--seconds", "30")
    clocks = reported(powerccl, "run")["summary"]["clocks"]
    assert clocks["requests"] == pytest.approx(found["switches_per_s"] * found["virtual_s"] * 8)
    assert clocks["mean_call_us"] > 100


def test_several_hosts_are_reported(powerccl: Powerccl) -> None:
    found = simulate(powerccl, "fsdp", "run", platform="h100x8.conf:gpus=16,hosts=2")
    report = reported(powerccl, "run")
    summary = report["summary"]
    assert summary["ranks"] == len(summary["gpus"]) == 16
    assert {each["host"] for each in report["iterations"]} == {"simulated-0", "simulated-1"}
    joules = sum(each["joules"] for each in report["iterations"])
    assert joules == pytest.approx(found["joules_per_iteration"], rel=0.01)
    assert summary["energy"]["missing"] == []


def test_a_folder_with_files_is_left_alone(powerccl: Powerccl) -> None:
    folder = powerccl.folder / "mine"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    platform = powerccl.native.root / "share/platforms/t4x8.conf"
    command = [str(powerccl.native.path("bin/powerccl-sim")), str(SCENARIOS / "ddp.scn"), "--platform", str(platform)]
    command += ["--run-folder", "mine"]
    done = subprocess.run(command, cwd=powerccl.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "mine: has files already\nhint: --run-folder takes a folder that is new or empty" in done.stderr
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
