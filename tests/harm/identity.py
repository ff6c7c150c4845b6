# SPDX-License-Identifier: Apache-2.0
"""Two jobs never share a run folder, one job always has one, and restarted ranks are counted once.

Launchers are simulated: their environment, the process above the ranks and its name are theirs, the ranks come in any
order and late. Jobs of one case repeat each other's ids, namespaces, ports, host names and PIDs.
"""

from __future__ import annotations

import importlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harm import Figures, count
from harm.launched import ROOT, Start, start_node
from powerccl.launch.native import NativeFiles

CASES = 15  # of each kind
RUNS_OF_RANKS = 60
LATE_S = 0.15
END_S = 60
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--uts")
MPI = ROOT / "build" / "deps" / "mpi"


@dataclass
class Job:
    """One start of one job: where its ranks write, and the processes of its nodes."""

    ranks: Path
    nodes: list[subprocess.Popen[bytes]]
    expected: int

    def folders(self) -> list[set[str]]:
        """The folders that its ranks had, a set for each of the runs that they made one after the other."""
        for node in self.nodes:
            if node.wait(END_S):
                raise RuntimeError(f"a simulated node ended with {node.returncode}")
        lines = [path.read_text().split("\n") for path in self.ranks.iterdir()]
        if len(lines) != self.expected:
            raise RuntimeError(f"{len(lines)} of {self.expected} ranks told their folder")
        return [set(each) for each in zip(*lines, strict=True)]


class Stage:
    """One case: a folder of runs, and the jobs that use it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.runs = folder / "runs"
        self.jobs: list[Job] = []
        folder.mkdir(parents=True)

    def start(
        self,
        launcher: str,
        nodes: list[list[int]],
        environment: dict[str, str],
        variables: Callable[[int, int, int], dict[str, str]],
        arguments: Callable[[int], tuple[str, ...]] = lambda node: (),
        around: tuple[str, ...] = (),
        times: int = 1,
        names: tuple[str, ...] = ("app",),
    ) -> Job:
        """Start a job whose ranks are spread over nodes; `variables` of rank, local rank and node."""
        ranks = self.folder / f"job-{len(self.jobs)}"
        ranks.mkdir()
        ranks.chmod(0o777)
        started = []
        for node, of_node in enumerate(nodes):
            each = {str(rank): variables(rank, local, node) for local, rank in enumerate(of_node)}
            late = {str(rank): [self.random.random() * LATE_S for _ in range(times)] for rank in of_node}
            named = {str(rank): self.random.choice(names) for rank in of_node}
            start = Start(str(self.runs), str(ranks), environment, each, late, named)
            started.append(start_node(self.folder / "links", launcher, start, *arguments(node), around=around))
        job = Job(ranks, started, sum(map(len, nodes)))
        self.jobs.append(job)
        return job

    def shape(self, most_nodes: int = 3) -> list[list[int]]:
        """Ranks by node."""
        per_node = self.random.randint(1, 4)
        count = max(self.random.randint(1, most_nodes), 1 if per_node > 1 else min(2, most_nodes))
        per_node = max(per_node, 2 if count == 1 else 1)
        return [list(range(node * per_node, (node + 1) * per_node)) for node in range(count)]

    def slurm(self, nodes: list[list[int]], more: dict[str, str], **options: object) -> Job:
        """Tasks of step 77.0."""
        environment = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(sum(map(len, nodes)))}
        environment |= {"SLURM_STEP_NUM_NODES": str(len(nodes)), **more}
        if sum(map(len, nodes)) < 2:
            raise RuntimeError("one task alone is no job of several")
        return self.start(
            "slurmstepd",
            nodes,
            environment,
            lambda rank, local, node: {
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(local),
                "SLURM_NODEID": str(node),
            },
            **options,  # type: ignore[arg-type]
        )

    def openmpi(self, nodes: list[list[int]], port: int, inside_slurm: bool = False, **options: object) -> Job:
        """Ranks of a namespace that every container's mpiexec has."""
        size = str(sum(map(len, nodes)))
        environment = {"OMPI_COMM_WORLD_SIZE": size, "PMIX_NAMESPACE": "prterun-node1-7@1"}
        return self.start(
            "prterun",
            nodes,
            environment,
            lambda rank, local, node: {
                "OMPI_COMM_WORLD_RANK": str(rank),
                "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
                "OMPI_COMM_WORLD_LOCAL_SIZE": str(len(nodes[node])),
                "PMIX_SERVER_URI41": f"prterun-node1-7@0.{node};tcp4://127.0.0.1:{port + node}",
                **(_of_proxy(len(nodes), node) if inside_slurm and node else {}),  # the first is in the batch script
            },
            **options,  # type: ignore[arg-type]
        )

    def hydra(self, nodes: list[list[int]], control: str, inside_slurm: bool = False, **options: object) -> Job:
        """Ranks of MPICH's or MVAPICH's launcher."""
        return self.start(
            "hydra_pmi_proxy",
            nodes,
            {"PMI_SIZE": str(sum(map(len, nodes)))},
            lambda rank, local, node: {
                "PMI_RANK": str(rank),
                "MPI_LOCALRANKID": str(local),
                "MPI_LOCALNRANKS": str(len(nodes[node])),
                **(_of_proxy(len(nodes), node) if inside_slurm else {}),
            },
            lambda node: ("--control-port", control, "--pgid", "0", "--proxy-id", str(node)),
            **options,  # type: ignore[arg-type]
        )

    def verdict(self) -> tuple[bool, bool]:
        """Whether two jobs share a folder, and whether one is in two."""
        found = [folders for job in self.jobs for folders in job.folders()]
        split = any(len(folders) != 1 for folders in found)
        merged = sum(map(len, found)) != len(set().union(*found))
        return merged, split


def _of_proxy(nodes: int, node: int) -> dict[str, str]:
    """What ranks inherit from a proxy that Slurm started: its own task, one a node."""
    step = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": str(nodes)}
    return {**step, "SLURM_STEP_NUM_NODES": str(nodes), "SLURM_PROCID": str(node), "SLURM_LOCALID": "0"}


def requeued(stage: Stage) -> None:
    """Slurm starts a job again under its id, on any nodes, also where the first start lost some ranks on the way."""
    nodes = stage.shape()
    first = [each[: stage.random.randint(1, len(each))] for each in nodes]
    first = first if sum(map(len, first)) > 1 else nodes
    stage.slurm(first, {"SLURM_RESTART_COUNT": "0"})
    if stage.random.random() < 0.5:
        stage.jobs[0].folders()
    stage.slurm(nodes, {"SLURM_RESTART_COUNT": "1"})


def requeued_untold(stage: Stage) -> None:
    """The same from a Slurm that tells no restart count; the first start is over."""
    nodes = stage.shape()
    stage.slurm(nodes, {}).folders()
    stage.slurm(nodes, {}).folders()
    stage.slurm(nodes, {})


def lost_on_the_way(stage: Stage) -> None:
    """The same where the first start's nodes failed before all of their ranks had come."""
    nodes = [[0, 1, 2], [3, 4, 5]]
    stage.slurm([each[: stage.random.randint(1, 2)] for each in nodes], {"SLURM_STEP_NUM_TASKS": "6"}).folders()
    stage.slurm(nodes, {})


def one_after_the_other(stage: Stage) -> None:
    """`srun sh -c 'powerccl run -- a; powerccl run -- b'`: each rank makes its second run when it comes to it."""
    stage.slurm(stage.shape(), {}, times=3, names=("a", "b"))


def repeated_namespaces(stage: Stage) -> None:
    """Containers on one host whose mpiexec, PIDs, host names, namespaces and even ports are the same."""
    port = 40000
    for _ in range(stage.random.randint(2, 3)):
        stage.openmpi([list(range(stage.random.randint(2, 4)))], port, around=NAMESPACE)


def repeated_namespaces_of_nodes(stage: Stage) -> None:
    """The same over several nodes, where only ports tell them apart, one after the other.

    At once, nothing that a node sees relates it to one of the two.
    """
    nodes = stage.shape()
    if len(nodes) < 2:
        nodes = [[0, 1], [2, 3]]
    stage.openmpi(nodes, 40000)
    stage.jobs[0].folders()
    stage.openmpi(nodes, 41000)


def hydra_in_containers(stage: Stage) -> None:
    """Proxies of different mpiexecs that were told the same port, one host each, at once."""
    for _ in range(2):
        stage.hydra([list(range(stage.random.randint(2, 4)))], "node1:40001", around=NAMESPACE)


def hydra_on_nodes(stage: Stage) -> None:
    """One mpiexec over several nodes, beside another."""
    for job in range(2):
        stage.hydra(stage.shape() if job else [[0, 1], [2]], f"node1:{40001 + job}")


def inside_slurm(stage: Stage) -> None:
    """MPI launchers in a Slurm job, which has started their proxies."""
    stage.hydra([[0, 1, 2], [3, 4]], "node1:40001", inside_slurm=True)
    stage.openmpi([[0, 1], [2, 3, 4]], 40000, inside_slurm=True)
    stage.slurm([[0], [1]], {"PMI_SIZE": "2", "PMI_RANK": "0"})  # of --mpi=pmi2, but for the rank, which is not read


def several_programs(stage: Stage) -> None:
    """A job whose ranks run different programs."""
    stage.slurm([[0, 1], [2, 3]], {}, names=("ocean", "atmosphere", "coupler"))
    stage.openmpi([[0, 1, 2, 3]], 40000, names=("ocean", "atmosphere"))


def other_pmix(stage: Stage) -> None:
    """Launchers that speak PMIx and nothing else; the same namespace again on another server."""
    for port in (40000, 41000):
        job = stage.start(
            "launcher",
            [[0, 1, 2]],
            {"PMIX_NAMESPACE": "job-7", "PMIX_SERVER_URI4": f"job-7.0;tcp4://127.0.0.1:{port}"},
            lambda rank, local, node: {"PMIX_RANK": str(rank)},
        )
        job.folders()


def alone(stage: Stage) -> None:
    """Users who start at the same second under one name, where the folder of runs is a link and the umask strict."""
    (stage.folder / "real").mkdir()
    stage.runs.symlink_to("real")
    around = ("sh", "-c", 'umask 077; exec "$@"', "-")
    for _ in range(4):
        stage.start("bash", [[0]], {}, lambda rank, local, node: {}, around=around)


def two_users(stage: Stage) -> None:
    """A folder of runs that all may write, and job ids that two clusters gave."""
    stage.folder.chmod(0o755)
    stage.runs.mkdir()
    stage.runs.chmod(0o1777)
    stage.slurm([[0, 1]], {})
    stage.slurm([[0, 1]], {}, around=("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"))


def real_launchers(stage: Stage) -> None:
    """Two mpiexecs of MPICH and two of Open MPI at once."""
    rank = stage.folder / "rank.py"
    rank.write_text(
        "import os, random, sys, time\n"
        "from pathlib import Path\n"
        "from powerccl.launch.folder import make_folder\n"
        "from powerccl.launch.launchers import detect_launcher\n"
        f"time.sleep(random.random() * {LATE_S})\n"
        "found = detect_launcher(os.environ)\n"
        "Path(sys.argv[2], str(found.rank)).write_text(str(make_folder(Path(sys.argv[1]), 'app', found)))\n"
    )
    for number in range(4):
        prefix = MPI / ("mpich", "openmpi")[number % 2]
        ranks = stage.folder / f"job-{number}"
        ranks.mkdir()
        environment = {"PATH": os.environ["PATH"], "HOME": str(stage.folder), "PYTHONPATH": str(ROOT / "python")}
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        options = []
        if prefix.name == "openmpi":
            environment["OPAL_PREFIX"] = str(prefix)
            options = ["--oversubscribe"]
        command = [str(prefix / "bin/mpiexec"), *options, "-n", "3", sys.executable, str(rank), str(stage.runs)]
        job = subprocess.Popen([*command, str(ranks)], env=environment, stdin=subprocess.DEVNULL)
        stage.jobs.append(Job(ranks, [job], 3))


KINDS: tuple[Callable[[Stage], None], ...] = (
    requeued,
    requeued_untold,
    lost_on_the_way,
    one_after_the_other,
    repeated_namespaces,
    repeated_namespaces_of_nodes,
    hydra_in_containers,
    hydra_on_nodes,
    inside_slurm,
    several_programs,
    other_pmix,
    alone,
    two_users,
    real_launchers,
)


def run_case(kind: Callable[[Stage], None], folder: Path, seed: int) -> tuple[bool, bool]:
    """One case; whether jobs were merged, and whether one was split."""
    stage = Stage(folder, seed)
    try:
        kind(stage)
        return stage.verdict()
    finally:
        for job in stage.jobs:
            for node in job.nodes:
                if node.poll() is None:
                    node.kill()
                    node.wait()
        shutil.rmtree(folder, ignore_errors=True)


def elastic_run(folder: Path, seed: int) -> tuple[int, int]:
    """A folder as elastic workers leave it, the last start with the most records; its ranks and restarts."""
    synthetic = importlib.import_module("synthetic")
    chance = random.Random(seed)
    ranks, again, told = chance.randint(1, 8), chance.randint(0, 4), chance.random() < 0.5
    sizes = [ranks] + [chance.randint(1, ranks) if chance.random() < 0.3 else ranks for _ in range(again)]
    synthetic.elastic_run(folder, sizes, told)
    return ranks, again


def wrong_ranks(folder: Path) -> int:
    """How many folders of restarted ranks are counted wrong."""
    from powerccl.analysis.summary import summarise
    from powerccl.traces.folder import read_run

    wrong = 0
    for seed in range(RUNS_OF_RANKS):
        expected = elastic_run(folder / f"elastic-{seed}", seed)
        found = summarise(read_run(folder / f"elastic-{seed}"))
        wrong += (found.ranks, found.restarts) != expected
        shutil.rmtree(folder / f"elastic-{seed}")
    return wrong


def measure(native: NativeFiles, folder: Path) -> Figures:
    """Cases of each kind, and folders of restarted ranks."""
    folder.chmod(0o755)
    found = {
        (kind.__name__, seed): run_case(kind, folder / f"{kind.__name__}-{seed}", seed)
        for kind in KINDS
        for seed in range(CASES)
    }
    for (name, seed), (merged, split) in found.items():
        if merged or split:
            print(f"identity: {name} {seed}: {'merged ' * merged}{'split' * split}", file=sys.stderr)
    return {
        "harm.identity.merged": count(sum(merged for merged, _ in found.values()), len(found)),
        "harm.identity.split": count(sum(split for _, split in found.values()), len(found)),
        "harm.identity.ranks_wrong": count(wrong_ranks(folder), RUNS_OF_RANKS),
    }
