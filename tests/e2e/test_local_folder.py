# SPDX-License-Identifier: Apache-2.0
"""`powerccl run --local-dir`: the node has the files while the job runs, the run folder one file of it at the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import EmulatedMachine, Powerccl, alive, descendants, eventually, is_whole, last_run, name_of
from support.hosts import hosts
from support.remote_shell import remote_shell
from support.several_hosts import MPIEXEC, OVER_TCP, STEP, finished, mpiexec, start

from powerccl.launch.native import NativeFiles
from powerccl.traces.folder import read_run
from powerccl.traces.run_files import members

pytestmark = pytest.mark.timeout(300)
COLLECTIVES = ("all_reduce", "-b", "1M", "-e", "1M", "-w", "1", "-n", "5", "-c", "0", "--no-energy")
OBSERVED = ("run", "--emulate", "t4x8", "--policy", "observe")
NAMES = ("node1", "node2")
# What the run folder and the node have while the job runs: the last thing that the job does is to look.
LOOK = '"$@" > /dev/null; find "$POWERCCL_RUN_FOLDER" "$POWERCCL_LOCAL_FOLDER" -type f -printf "%h %f %s\\n"'


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory of the node."""
    (tmp_path / "node").mkdir(mode=0o755)
    return tmp_path / "node"


def left(directory: Path) -> list[Path]:
    """What is left on the node."""
    return list(directory.glob("powerccl-*/*"))


def test_one_file_a_node_and_nothing_left_on_it(powerccl: Powerccl, directory: Path) -> None:
    (powerccl.folder / "step.scn").write_text("compute 10\nall_reduce 1M\n")
    steps = (powerccl.bench, "scenario", "step.scn", "--iterations", "110")
    powerccl.environment["POWERCCL_KERNEL_EVENTS"] = "all"  # for whatif
    done = powerccl(*OBSERVED, "--local-dir", str(directory), "--", "sh", "-c", LOOK, "-", *steps)
    assert done.code == 0, done.err
    (folder,) = powerccl.runs
    seen = [line.split() for line in done.out.splitlines()]
    in_run = {name for place, name, _ in seen if place == str(folder)}
    on_node = {name for place, name, _ in seen if place.startswith(str(directory))}
    (tar,) = folder.glob("node-*.tar")
    assert {f"rank-{rank}.trace" for rank in range(8)} < on_node
    assert not any(name.endswith((".trace", ".csv")) for name in in_run)
    assert f"{tar.stem}.local" in in_run
    assert {path.name for path in folder.iterdir() if not path.name.startswith("emulator-")} == {
        ".run-id",
        "run.json",
        "summary.json",
        tar.name,
    }
    assert left(directory) == []
    run, summary = last_run(powerccl)
    assert is_whole(run), run.problems
    # The same job in the usual way has files of the same names, and a report of the same kind.
    assert powerccl(*OBSERVED, "--", *steps).code == 0
    other, usual = last_run(powerccl)
    loose = {path.name for path in powerccl.runs[-1].iterdir()}
    kept = {name for name in loose if name.startswith(("rank-", "power-", "cpu-", "agent-")) and ".lock" not in name}
    assert set(members(tar).places) == kept
    assert (summary.ranks, len(summary.gpus), len(run.power), len(run.cpu)) == (
        usual.ranks,
        len(usual.gpus),
        len(other.power),
        len(other.cpu),
    )
    assert summary.communication.calls == usual.communication.calls > 0
    assert summary.energy.joules
    for verb in ("report", "whatif"):
        read = powerccl(verb, str(folder))
        assert read.code == 0, read.err
    assert powerccl("compare", *map(str, powerccl.runs)).code == 0


def test_a_directory_that_cannot_be_used_costs_one_line(powerccl: Powerccl, directory: Path) -> None:
    directory.chmod(0o777)
    done = powerccl(*OBSERVED, "--local-dir", str(directory), "--", powerccl.bench, *COLLECTIVES)
    assert done.code == 0, done.err
    assert f"others may rename what is in {directory}; traces and samples go to the run folder" in done.err
    assert len(list(powerccl.runs[-1].glob("rank-*.trace"))) == 8


def test_a_killed_job_is_packed_like_any_other(powerccl: Powerccl, directory: Path) -> None:
    long = ("all_reduce", "-b", "64M", "-e", "64M", "-c", "0", "-n", "5000")
    job = ("timeout", "-s", "KILL", "6", powerccl.bench, *long)
    done = powerccl(*OBSERVED, "--local-dir", str(directory), "--", *job)
    assert done.code == 137, done.err
    (folder,) = powerccl.runs
    assert len(list(folder.glob("node-*.tar"))) == 1
    assert left(directory) == []
    assert len(read_run(folder).ranks) == 8


def test_a_killed_launcher_leaves_files_that_are_read_and_collected(on_machine: Powerccl, directory: Path) -> None:
    """The job goes on without `powerccl run`, and with it its records."""
    powerccl = on_machine
    long = ("all_reduce", "-b", "64M", "-e", "64M", "-c", "0", "-n", "5000")
    running = powerccl.start("run", "--policy", "observe", "--local-dir", str(directory), "--", powerccl.bench, *long)
    assert eventually(lambda: len(list(directory.glob("powerccl-*/*/rank-*.trace"))) == 8), running.err.read_text()
    assert eventually(lambda: all(path.stat().st_size > 4096 for path in directory.glob("*/*/rank-*.trace")))
    job = [pid for pid in descendants(running.process.pid) if name_of(pid) == "powerccl-bench"]
    assert len(job) == 9
    (folder,) = powerccl.runs
    # While the job runs, this node's readers find it.
    shown = json.loads(powerccl("top", "--once", "--json", "-", str(folder)).out)["jobs"][0]
    assert (len(shown["ranks"]), len(shown["gpus"])) == (8, 8)
    listed = json.loads(powerccl("runs", "--json", "-").out)["runs"]
    assert [row["state"] for row in listed] == ["recording"]
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait()
    refused = powerccl("collect", str(folder))
    assert refused.code == 1
    assert "processes of the job still run" in refused.err
    for pid in job:
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not any(alive(pid) for pid in job))
    report = powerccl("report", str(folder))
    assert report.code == 0, report.err
    assert "8 ranks" in report.out
    assert f"powerccl collect {folder}" in report.out.replace("\n", "")
    assert powerccl("collect", str(folder)).code == 0
    assert left(directory) == []
    assert len(read_run(folder).ranks) == 8
    assert "powerccl collect" not in powerccl("report", str(folder)).out


def test_several_tasks_of_a_node_make_one_file(
    native: NativeFiles, powerccl: Powerccl, machine: EmulatedMachine, directory: Path
) -> None:
    """As `srun -n2 powerccl run -- ./app` starts them: the first to end leaves the packing to the last."""
    bench = f"{powerccl.bench} {' '.join(COLLECTIVES)} -g 2 > /dev/null"
    tasks = []
    for task in range(2):
        step = {**STEP, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task), "SLURM_STEP_NUM_TASKS": "2"}
        step |= {"SLURM_NODEID": "0", "SLURM_STEP_NUM_NODES": "1", "POWERCCL_LOCAL_DIR": str(directory)}
        # The first ends while the second, which has begun, still runs.
        waits = ("until test -e begun; do sleep 0.1; done", "touch begun; sleep 3")[task]
        job = ("sh", "-c", f"{waits}; {bench}")
        tasks.append(powerccl.start("run", "--policy", "observe", "--", *job, **machine.environment, **step))
    done = [task.wait() for task in tasks]
    assert [each.code for each in done] == [0, 0], done
    (folder,) = powerccl.runs
    (tar,) = folder.glob("node-*.tar")
    assert not list(folder.glob("*.trace")) + list(folder.glob("*.csv")) + list(folder.glob("*.local"))
    assert sum(name.endswith(".trace") for name in members(tar).places) == 4
    assert left(directory) == []


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2")
def test_two_hosts_make_a_file_each(
    native: NativeFiles, machine: EmulatedMachine, tmp_path: Path, directory: Path
) -> None:
    gpus = {**machine.environment, "POWERCCL_LOCAL_DIR": str(directory)}
    with hosts(NAMES, tmp_path) as nodes:
        folder = finished(start(native, nodes, tmp_path, gpus, "compute 10\nall_reduce 1M\n", 20), tmp_path)
    assert eventually(lambda: len(list(folder.glob("node-*.tar"))) == 2)
    assert not list(folder.glob("*.trace")) + list(folder.glob("*.csv")) + list(folder.glob("*.local"))
    run = read_run(folder)
    assert {rank.host for rank in run.ranks} == set(NAMES)
    assert len(run.ranks) == 4
    assert run.problems == []
    assert left(directory) == []


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2")
def test_hosts_that_mpiexec_starts_record_in_the_run_folder(
    native: NativeFiles,
    clean_environment: dict[str, str],
    tmp_path: Path,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not MPIEXEC.exists():
        pytest.skip("needs the MPICH beside this Python")
    monkeypatch.chdir(tmp_path)
    environment = {**clean_environment, **OVER_TCP}
    bench = [str(native.path("bin/powerccl-bench-mpi")), "allreduce", "-b", "8", "-e", "8", "-n", "200", "-w", "2"]
    with hosts(NAMES, tmp_path) as nodes, remote_shell(tmp_path, [node.enter() for node in nodes], NAMES) as shell:
        # All hosts of this test see one /tmp. The name of the other host's folder is another one.
        hide = [
            "sh",
            "-c",
            f'test "$(uname -n)" = node1 || export POWERCCL_LOCAL_FOLDER={tmp_path}/none; exec "$@"',
            "-",
        ]
        job = [*mpiexec(shell, NAMES, 2), *hide, *bench]
        powerccl = [
            str(Path(sys.executable).parent / "powerccl"),
            "run",
            "--quiet",
            "--local-dir",
            str(directory),
            "--",
        ]
        done = subprocess.run(
            nodes[0].enter(*powerccl, *job), env=environment, capture_output=True, text=True, check=False, timeout=100
        )
    assert done.returncode == 0, done.stderr
    assert "--local-dir is for this host: 1 other host" in done.stderr
    (folder,) = tmp_path.glob("runs/[!.]*/")
    (tar,) = folder.glob("node-node1-*.tar")
    assert [name for name in members(tar).places if name.startswith("mpi-")] == ["mpi-0.trace"]
    assert (folder / "mpi-1.trace").exists()
    assert (folder / "cpu-node2.csv").exists()
    run = read_run(folder)
    assert {trace.host for trace in run.mpi} == set(NAMES)
    assert run.problems == []
    assert left(directory) == []
