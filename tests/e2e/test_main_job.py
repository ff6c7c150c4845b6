# SPDX-License-Identifier: Apache-2.0
"""The main job: collectives and a training step under `powerccl run`, the demo and a small profile, all emulated.

Bounds on energy are wider than the documented figures (results/demo-emulated.json), for busy machines.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import polars as pl
import pytest
from harness import Powerccl, eventually, points_are_right

from powerccl.commandline.summaries import summary_of
from powerccl.patterns import PATTERNS
from powerccl.traces import tables
from powerccl.traces.folder import RunData, read_run


def only_run(powerccl: Powerccl) -> RunData:
    """The one run folder there is, read."""
    (folder,) = powerccl.runs
    return read_run(folder)


def test_all_nine_patterns_are_recorded(powerccl: Powerccl) -> None:
    """Every rank's trace tells the patterns apart and times them, and the data arrives right."""
    done = powerccl(
        *("run", "--emulate", "t4x8", "--policy", "observe", "--", powerccl.bench, "all", "-b", "1M", "-e", "4M"),
        *("-n", "2", "-c", "1", "--no-energy"),
    )
    assert done.code == 0, done.err
    assert points_are_right(done.out)
    run = only_run(powerccl)
    calls = tables.calls(run)
    assert calls["rank"].n_unique() == 8
    seen = calls.filter(pl.col("bytes") == 1 << 20).group_by("pattern").agg(pl.col("rank").n_unique())
    ranks = dict(seen.iter_rows())
    everywhere = set(PATTERNS) - {"scatter", "gather"}
    assert {name for name, count in ranks.items() if count == 8} >= everywhere
    assert ranks["scatter"] == 1  # on the root; the others see one receive
    assert ranks["gather"] == 1
    assert tables.kernels(run).height > 0


@pytest.mark.parametrize("mode", [["--threads"], ["--graph", "3"], ["--grouped"]])
def test_threads_graphs_and_groups(powerccl: Powerccl, mode: list[str]) -> None:
    """Other ways to make the calls give right results; captured calls are recorded as captured, and not managed."""
    command = [powerccl.bench, "all_to_all", "-b", "4M", "-e", "4M", "-n", "2", "-c", "1", "--no-energy", *mode]
    done = powerccl("run", "--emulate", "t4x8", "--policy", "per-call", "--platform", "t4x8", "--", *command)
    assert done.code == 0, done.err
    assert points_are_right(done.out)
    calls = tables.calls(only_run(powerccl))
    captured = calls.filter(pl.col("captured"))
    assert captured.is_empty() != (mode[0] == "--graph")
    assert not captured["managed"].any()


def test_demo_in_json(powerccl: Powerccl) -> None:
    """`powerccl demo --json` writes the figures that the README quotes."""
    done = powerccl("demo", "--iterations", "4", "--json", "demo.json", "--html", "demo.html", "--runs-dir", "runs")
    assert done.code == 0, done.err
    assert "emulated" in done.out
    figures = json.loads((powerccl.folder / "demo.json").read_text())
    assert 15 < figures["demo.microllama.per-call.comm_energy_saved_pct"]["value"] < 40
    assert figures["demo.microllama.per-call.energy_saved_pct"]["value"] > 8
    assert figures["demo.microllama.per-call.slowdown_pct"]["value"] < 10
    page = (powerccl.folder / "demo.html").read_text()
    assert "emulated" in page
    assert 'src="http' not in page  # it opens offline
    # The replayed step: the same time, less energy, and the clock low in communication alone.
    observed, managed = (
        summary_of(next(powerccl.folder.glob(f"runs/*microllama-{policy}"))) for policy in ("observe", "per-call")
    )
    before, after = observed.communication, managed.communication
    assert (before.clock_mhz or 0) > 1400
    assert 0 < (after.clock_mhz or 0) < 800
    assert before.joules and before.time_s and after.joules and after.time_s
    assert after.joules < 0.85 * before.joules
    assert after.time_s < 1.1 * before.time_s
    assert managed.clocks.requests > 0


def test_profile_is_resumable_and_finds_low_clocks(powerccl: Powerccl, tmp_path: Path) -> None:
    """A small profile: large all-reduces keep their bandwidth at 480 MHz and not at 300."""
    options = ["--emulate", "t4x8", "--patterns", "all_reduce", "--sizes", "8M", "--clocks", "1590,900,480,300"]
    done = powerccl("profile", *options, "--out", "small.json")
    assert done.code == 0, done.err
    steps = [line for line in done.err.splitlines() if line.startswith("powerccl: plain NCCL, every clock: ")]
    assert 1 <= len(steps) <= 11, done.err  # no terminal: a line a step, and no more of them however long it takes
    profile = json.loads((tmp_path / "small.json").read_text())
    bandwidth = {point["clock_mhz"]: point["busbw_gbs"] for point in profile["points"]}
    assert bandwidth[480] > 0.95 * bandwidth[1590]
    assert bandwidth[300] < 0.95 * bandwidth[1590]
    assert all(point["provenance"] == "emulated" for point in profile["points"])


def test_an_interrupted_profile_goes_on(powerccl: Powerccl, tmp_path: Path) -> None:
    """Ctrl-C keeps what was measured, says how to go on, and --resume keeps those points as they were."""
    options = ["profile", "--emulate", "t4x8", "--patterns", "all_reduce", "--sizes", "1M:16M:2"]
    options += ["--clocks", "1590,900,480", "--out", "resumed.json"]
    running = powerccl.start(*options)

    def measured() -> list[dict[str, float]]:
        files = (tmp_path / "resumed.profiling").glob("*.jsonl")
        lines = [json.loads(line) for path in files for line in path.read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if line["type"] == "point"]

    assert eventually(lambda: len(measured()) > 3)
    os.kill(running.process.pid, signal.SIGINT)
    stopped = running.wait()
    assert stopped.code != 0
    assert "--resume" in stopped.err
    kept = measured()
    assert kept
    done = powerccl(*options, "--resume")
    assert done.code == 0, done.err
    points = json.loads((tmp_path / "resumed.json").read_text())["points"]
    assert len(points) == 5 * 3
    times = {(point["size_bytes"], point["clock_mhz"]): point["time_us"] for point in points}
    for point in kept:
        assert times[point["size_bytes"], point["clock_requested_mhz"]] == pytest.approx(point["time_us"], rel=1e-3)


def test_nothing_is_resumed_on_another_machine(powerccl: Powerccl, tmp_path: Path) -> None:
    """Another emulated platform, the same with a change, fewer GPUs, other variables: refused, files untouched."""
    sweep = ("all_reduce", "-c", "0", "-n", "2", "--no-energy", "-b", "1M", "--json-lines", "kept.jsonl")
    assert powerccl("bench", "--emulate", "h200x4", *sweep, "-e", "2M").code == 0
    kept = (tmp_path / "kept.jsonl").read_bytes()
    more = (*sweep, "-e", "4M", "--resume")
    for emulate, options, variables, differs in (
        ("h200x4-sockets", (), {}, "emulated platform: h200x4 "),
        ("h200x4:link_scale=2", (), {}, "emulated platform: h200x4 "),
        ("t4x8", (), {}, "GPUs: 4 x NVIDIA H200 there, 8 x Tesla T4 here"),
        ("h200x4", ("-g", "2"), {}, "GPUs: 4 x NVIDIA H200 there, 2 x NVIDIA H200 here"),
        ("h200x4", (), {"NCCL_P2P_DISABLE": "1"}, "NCCL's variables: none there, NCCL_P2P_DISABLE=1 here"),
    ):
        done = powerccl("bench", "--emulate", emulate, *more, *options, **variables)
        assert done.code == 2, (emulate, done.err)
        assert "--resume: kept.jsonl is from another machine (" in done.err and differs in done.err
        assert "hint: measure into a new file" in done.err
        assert (tmp_path / "kept.jsonl").read_bytes() == kept
    assert powerccl("bench", "--emulate", "h200x4", *more).code == 0
    assert len((tmp_path / "kept.jsonl").read_text().splitlines()) == 1 + 3

    profiling = ("--patterns", "all_reduce", "--sizes", "1M", "--clocks", "1980", "--out", "p.json")
    work = tmp_path / "p.profiling"
    work.mkdir()
    (work / "points.jsonl").write_bytes(kept)
    done = powerccl("profile", "--emulate", "h200x4-sockets", *profiling, "--resume")
    assert done.code == 1
    assert "cannot resume the interrupted profile here" in done.err and "is from another machine" in done.err
    assert "omit --resume to start a new one" in done.err
    assert (work / "points.jsonl").read_bytes() == kept
    assert not (tmp_path / "p.json").exists()
