# SPDX-License-Identifier: Apache-2.0
"""The guide of Slurm on a Slurm of two nodes, with and without control groups: each block runs as it is written.

Slurm is real. Its nodes are namespaces (tests/support/hosts.py), their GPUs are emulated, and programs of users are
stand-ins. It needs root, iproute2 and Debian's `slurmctld slurmd slurm-client munge`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import FOREIGN, EmulatedMachine
from support.hosts import hosts
from support.pages import ROOT, Block, blocks_of
from support.slurm import Cluster, has_cgroups, missing_programs, until

from powerccl.analysis.summary import summarise
from powerccl.launch.native import NativeFiles
from powerccl.traces.folder import read_run

PAGE = ROOT / "docs/guides/slurm-cluster.md"
STAND_INS = Path(__file__).parent / "stand_ins"
PROGRAMS = ("torchrun", "app")  # of users
# A profile measures for minutes on real GPUs; test_guides.py runs it on emulated ones.
NOT_OF_SLURM = ("powerccl profile", "--emulate")
# A machine without such control groups skips one test (below), not all of a variant.
VARIANTS = ["linux", "cgroup"] if has_cgroups() else ["linux"]
SCRIPTS = [block for block in blocks_of(PAGE) if block.kind == "bash"]


class Site(Cluster):
    """The cluster with PowerCCL installed, and a folder of a user."""

    def __init__(self, native: NativeFiles, folder: Path, nodes: list, machine: EmulatedMachine) -> None:  # type: ignore[type-arg]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        super().__init__(folder, nodes, {**kept, **machine.environment, "POWERCCL_NATIVE": str(native.root)})
        programs = folder / "programs"
        programs.mkdir()
        for name in PROGRAMS:
            (programs / name).symlink_to(STAND_INS / name)
        self.powerccl = Path(sys.executable).parent / "powerccl"
        own = [programs, self.powerccl.parent, native.root / "bin"]
        self.environment["PATH"] = ":".join([*map(str, own), self.environment["PATH"]])
        self.environment |= {"POWERCCL": str(self.powerccl), "TMPDIR": "/dev/shm", "STAND_IN_NATIVE": str(native.root)}
        self.environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path.endswith("python"))
        for name in ("task-prolog", "task-epilog"):
            shutil.copy(ROOT / "packaging/slurm" / name, folder / name)

    def user(self, name: str) -> Path:
        """A new working directory with the user's program."""
        place = self.folder / name
        place.mkdir()
        (place / "app").symlink_to(STAND_INS / "app")
        return place

    def submit(self, text: str, place: Path) -> str:
        """A batch script, to its end: its state and exit code, as Slurm has them."""
        (place / "script.sh").write_text(text)
        done = self.run("sbatch", "--parsable", f"--chdir={place}", "--output=out", "script.sh", folder=place)
        assert done.returncode == 0, done.stderr
        assert until(self.is_idle), self.logs()
        fields = self.run("scontrol", "--oneliner", "show", "job", done.stdout.strip()).stdout.split()
        return " ".join(field for field in fields if field.startswith(("JobState=", "ExitCode=")))


@pytest.fixture(scope="module", params=VARIANTS)
def site(
    request: pytest.FixtureRequest, native: NativeFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A Slurm of two nodes with eight GPUs each."""
    missing = missing_programs()
    if os.getuid() != 0 or missing:
        pytest.skip(f"needs root and {', '.join(missing) or 'nothing else'}")
    folder = tmp_path_factory.mktemp(request.param)
    machine = EmulatedMachine(native, folder)
    try:
        with hosts(("node1", "node2"), folder) as nodes:
            made = Site(native, folder, nodes, machine)
            prologs = f"TaskProlog={folder}/task-prolog\nTaskEpilog={folder}/task-epilog\n"
            made.start(prologs, cgroups=request.param == "cgroup", gpus=8)
            yield made
    finally:
        machine.stop()


def runs_of(place: Path) -> list[Path]:
    """Run folders that were made there."""
    return sorted((place / "runs").glob("[!.]*/"))


@pytest.mark.parametrize("block", SCRIPTS, ids=lambda block: f"line {block.line}")
def test_a_batch_script_runs_as_written(site: Site, block: Block) -> None:
    place = site.user(f"user-{block.line}")
    ended = site.submit(block.text, place)
    said = (place / "out").read_text() if (place / "out").exists() else ""
    assert ended == "JobState=COMPLETED ExitCode=0:0", f"{said}{site.logs()}"
    (folder,) = runs_of(place)
    run = read_run(folder)
    assert folder.name.startswith("slurm-")
    assert {trace.host for trace in run.ranks} == {"node1", "node2"}
    assert {log.host for log in run.power} == {"node1", "node2"}
    assert not any("killed" in problem for problem in run.problems)
    files_of_nodes = {path.name.split("-")[1] for path in folder.glob("node-*.tar")}
    assert files_of_nodes == ({"node1", "node2"} if "--local-dir" in block.text else set())
    assert not any("powerccl collect" in problem for problem in run.problems)
    if "--html" in block.text:
        (page,) = place.glob("report-*.html")
        assert "Slurm job" in page.read_text()


def test_control_groups_are_among_the_variants() -> None:
    if not has_cgroups():
        pytest.skip("needs control groups of version 1 that can be made")
    assert "cgroup" in VARIANTS


def test_other_blocks_are_of_configuration_or_run_elsewhere() -> None:
    """What is not run here is output, a part of slurm.conf, or a command that has nothing of Slurm."""
    others = [block for block in blocks_of(PAGE) if block.kind in ("console", "sh")]
    assert len(SCRIPTS) >= 3
    assert all(any(word in block.text for word in NOT_OF_SLURM) for block in others)


@pytest.mark.parametrize("local", ["", "/tmp"])
def test_a_step_is_recorded_without_a_change(site: Site, local: str) -> None:
    """Its command, both nodes and its job are known; who does not ask is not recorded, and exit codes pass."""
    place = site.user(f"unchanged{len(local)}")
    step = ["srun", "-N2", "-n4", "--gpus-per-node=2", f"--chdir={place}"]
    asked = {"POWERCCL_RECORD": "1", "POWERCCL_LOCAL_DIR": local}
    site.environment |= asked
    try:
        done = site.run(*step, "sh", "-c", "./app && exit $SLURM_PROCID", folder=place)
    finally:
        for name in asked:
            del site.environment[name]
    assert done.returncode == 3, done.stderr
    assert done.stdout == ""
    (folder,) = runs_of(place)
    info = json.loads((folder / "run.json").read_text())
    assert info["command"][1:] == ["-c", "./app && exit $SLURM_PROCID"]
    assert info["end_ns"] > info["start_ns"]
    assert info["exit_code"] is None
    # The task epilog tells the recorder that the step has ended; the recorder packs after that.
    assert until(lambda: len(list(folder.glob("node-*.tar"))) == (2 if local else 0))
    summary = summarise(read_run(folder))
    assert summary.finished
    assert summary.hosts == ["node1", "node2"]
    assert summary.ranks == 8
    assert site.run("sh", "-c", "ls -d /dev/shm/powerccl-*/step-*").stdout == ""
    assert site.run(*step, "true", folder=place).returncode == 0
    assert len(runs_of(place)) == 1


def test_one_powerccl_run_on_the_first_node_has_the_jobs_name(site: Site) -> None:
    place = site.user("single")
    done = site.run(
        "srun", "-N1", "-n1", f"--chdir={place}", "powerccl", "run", "-q", "--", "torchrun", "train.py", folder=place
    )
    assert done.returncode == 0, done.stderr
    (folder,) = runs_of(place)
    assert folder.name.startswith("slurm-")
    assert ".0-train-" in folder.name


# What starts four ranks on two nodes in a batch script, whether the prolog is asked, and where ranks are recorded.
LAUNCHERS = {
    "Hydra": ("mpiexec.hydra -n 4", "1", {"node1": 2, "node2": 2}),
    "Open MPI": ("mpirun.openmpi --allow-run-as-root -n 4", "1", {"node2": 2}),
    "Open MPI, named": ("mpirun.openmpi --allow-run-as-root -n 4 powerccl run -q --", "0", {"node1": 2, "node2": 2}),
}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_daemons_of_an_mpi_launcher_are_tasks_of_a_step(site: Site, name: str) -> None:
    """All of Hydra's are; Open MPI's mpirun starts the ranks of its own node itself, outside of any step."""
    launcher, record, expected = LAUNCHERS[name]
    if not shutil.which(launcher.split()[0], path=site.environment["PATH"]):
        pytest.skip(f"needs {launcher.split()[0]}")
    place = site.user(name.replace(" ", "-"))
    head = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=2\n"
    bench = "powerccl-bench-mpi allreduce -b 8 -e 8 -n 50 -w 2"
    ended = site.submit(f"{head}export POWERCCL_RECORD={record}\n{launcher} {bench}\n", place)
    assert ended == "JobState=COMPLETED ExitCode=0:0", (place / "out").read_text() + site.logs()
    (folder,) = runs_of(place)
    hosts_of_ranks = [trace.host for trace in read_run(folder).mpi]
    assert {host: hosts_of_ranks.count(host) for host in hosts_of_ranks} == expected
