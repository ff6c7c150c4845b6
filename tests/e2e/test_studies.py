# SPDX-License-Identifier: Apache-2.0
"""`powerccl study scaling` on emulated GPUs, examples/train_gpt.py on a CPU, and two networks in namespaces."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from harness import Powerccl, Running, alive, descendants, eventually

ROOT = Path(__file__).parents[2]
PLATFORMS = ROOT / "native/testbed/emulator/platforms"
# Study E's sequence with shorter computation.
SCENARIO = "compute 60\nreduce_scatter 700000000\ncompute 5\nall_gather 700000000\n"


def test_study_e_emulated(powerccl: Powerccl) -> None:
    (powerccl.folder / "short.scn").write_text(SCENARIO)
    emulated = ",".join(str(PLATFORMS / name) for name in ("a100x4.conf", "a100x8-two-nodes.conf"))
    job = (powerccl.bench, "scenario", "short.scn", "-g", "{gpus}", "--iterations", "4", "-w", "1", "--json", "{json}")
    study = ("study", "scaling", "--emulate", emulated, "--out", "kept")
    first = powerccl(*study, "--gpus", "1,4", "--json", "first.json", "--", *job)
    assert first.code == 0, first.err
    assert "emulated a100x4" in first.out
    assert "running" in first.err

    done = powerccl(*study, "--gpus", "4,8", "--json", "all.json", "--markdown", "all.md", "--", *job)
    assert done.code == 0, done.err
    assert done.err.count("running") == 1, "worlds that had run were run again"
    found = json.loads((powerccl.folder / "all.json").read_text())
    alone, node, two_nodes = found["worlds"]
    assert [world["gpus"] for world in found["worlds"]] == [1, 4, 8]
    assert alone["communication_pct"] == 0
    # As published: 4-5 ms a collective within a node, 62 ms between two. Other work on this machine's few cores can
    # let ranks start late, which waiting has, but not the transfer.
    for world, low_gbs, high_gbs in ((node, 105, 131), (two_nodes, 9.6, 10.2)):
        for each in world["collectives"]:
            assert each["per_iteration"] == pytest.approx(1)
            assert low_gbs < each["transfer_busbw_gbs"] < high_gbs, each
            assert low_gbs < each["sweep_busbw_gbs"] < high_gbs, each
    assert node["iteration_s"] < two_nodes["iteration_s"]
    assert two_nodes["communication_s"] == pytest.approx(0.124, rel=0.15)
    assert two_nodes["exposed_s"] == pytest.approx(two_nodes["communication_s"], rel=0.05)
    assert node["joules_per_iteration"] > 4 * alone["joules_per_iteration"] * 0.8
    # All-reduce by size, calibrated on the published table.
    for world, published in (
        (node, {16: 122.79, 96: 172.28, 192: 205.37}),
        (two_nodes, {16: 9.82, 32: 7.47, 192: 9.51}),
    ):
        swept = {row["size_bytes"] >> 20: row["busbw_gbs"] for row in world["sweep"] if row["pattern"] == "all_reduce"}
        for size, busbw_gbs in published.items():
            assert swept[size] == pytest.approx(busbw_gbs, rel=0.12), (world["gpus"], size)
    assert "both, published" in (powerccl.folder / "all.md").read_text()

    again = powerccl("study", "scaling", "--from", "kept", "--json", "-")
    assert again.code == 0, again.err
    assert json.loads(again.out)["worlds"] == found["worlds"]


@pytest.mark.slow  # needs PyTorch, which `make test` does not install
@pytest.mark.skipif(find_spec("torch") is None, reason="no torch")
def test_train_gpt_is_the_same_on_two_ranks(tmp_path: Path) -> None:
    """With data in which all sequences are alike, two ranks see what one sees: so must the weights go."""
    (tmp_path / "tokens").write_bytes(bytes([7, 0]) * 4000)
    told = {}
    for name, ranks, precision in (("one", 1, "bf16"), ("two", 2, "bf16"), ("fp16", 2, "fp16")):
        out = tmp_path / f"{name}.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command += [
            str(ROOT / "examples/train_gpt.py"),
            "--model",
            "tiny",
            "--cpu",
            "--iterations",
            "8",
            "--warmup",
            "0",
        ]
        command += ["--batch", "2", "--rate", "0.001", "--precision", precision]
        command += ["--data", str(tmp_path / "tokens"), "--json", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        told[name] = json.loads(out.read_text())
    losses = {name: [each["loss"] for each in each_told["iterations"]] for name, each_told in told.items()}
    assert losses["one"][-1] < losses["one"][0] - 1, "it learns"
    assert losses["two"] == pytest.approx(losses["one"], rel=0.01)
    assert losses["fp16"][-1] < losses["fp16"][0] - 0.5, "the loss is scaled until gradients fit"
    assert told["two"]["tokens_per_iteration"] == 2 * told["one"]["tokens_per_iteration"]


needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "unshare", "nsenter", "setpriv"))),
    reason="takes root, iproute2 and util-linux",
)


def networks(*options: str, out: Path) -> list[str]:
    return [sys.executable, str(ROOT / "evidence/scripts/two-networks.py"), str(out), "--rounds", "1", *options]


@needs_namespaces
def test_two_networks(clean_environment: dict[str, str], tmp_path: Path) -> None:
    command = networks("--short", "--figures", str(tmp_path / "figures.json"), out=tmp_path / "out")
    done = subprocess.run(command, env=clean_environment, capture_output=True, text=True, timeout=120, check=False)
    if "namespaces cannot be made here" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == ["powerccl", "compare"]
    slow, fast = (json.loads(Path(side.partition("=")[2]).read_text()) for side in done.stdout.split()[2:])
    assert {row["test"] for row in fast["results"]} == {"allreduce", "reduce_scatter", "latency"}
    largest = {
        name: next(row for row in each["results"] if row["test"] == "latency" and row["size_bytes"] == 4 << 20)
        for name, each in (("fast", fast), ("slow", slow))
    }
    # 4 MiB at 1 Gbit/s cannot take less than 33.5 ms, but for what the bucket lets through at once.
    assert largest["slow"]["median_us"] > 32_000
    assert largest["fast"]["median_us"] < largest["slow"]["median_us"] / 2
    table = subprocess.run(
        [str(Path(sys.executable).parent / "powerccl"), *done.stdout.split()[1:]],
        env=clean_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert table.returncode == 0, table.stderr
    assert "send-receive time, 4 MiB" in table.stdout
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["figures"]["networks.send_receive.largest.change_pct"]["value"] < -50
    assert all(figures[name] for name in ("command", "date", "machine", "conditions", "power"))


@needs_namespaces
def test_nothing_of_the_networks_is_left_behind(clean_environment: dict[str, str], tmp_path: Path) -> None:
    interfaces = set(Path("/sys/class/net").iterdir())
    for ended_by in (signal.SIGTERM, signal.SIGKILL):
        running = Running(networks(out=tmp_path / ended_by.name), tmp_path, clean_environment)
        begun = eventually(lambda pid=running.process.pid: len(descendants(pid)) > 8 or not alive(pid), 20)  # type: ignore[misc]
        below = descendants(running.process.pid)
        if not below and "namespaces cannot be made here" in running.err.read_text():
            pytest.skip("namespaces cannot be made here")
        assert begun
        running.process.send_signal(ended_by)
        running.process.wait(20)
        assert eventually(lambda pids=below: not any(alive(pid) for pid in pids), 20), ended_by.name  # type: ignore[misc]
        assert set(Path("/sys/class/net").iterdir()) == interfaces
