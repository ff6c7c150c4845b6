# SPDX-License-Identifier: Apache-2.0
"""The launcher that started this process as one rank of several, and what tells its starts apart.

A start is identified by `key`, which is the same for all ranks, and by `here`, the same for all ranks of one node.
Ranks cannot see another node's processes, so whatever is read from /proc belongs to `here`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from powerccl.host_clock import shift_ns
from powerccl.traces.job_labels import slurm_name

MOST_ANCESTORS = 16
HYDRA = ("hydra_pmi_proxy", "hydra_bstrap")
# Names as the kernel keeps them: 15 characters at most.
OPEN_MPI = ("prterun", "prted", "prte", "mpirun", "mpiexec", "orterun", "orted")
SLURM = ("slurmstepd",)
# What Slurm tells all tasks of a step alike. A requeued job keeps its id; its restart count and start time change.
SLURM_KEY = (
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
    "SLURM_JOB_START_TIME",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_HET_JOB_ID",
)


@dataclass(frozen=True)
class JobLauncher:
    """One rank of a start: its launcher, a name for its job, and which rank it is.

    `key`: equal for all ranks of one start, and different between starts as far as the launcher tells.
    `node`: which of the launcher's nodes this is, where several of them may be one host.
    `here`: equal for the ranks of one start on this node, different for any other start; empty if nothing tells.
    `per_node`: ranks on other nodes cannot know the same key, so each node has a run folder of its own.
    """

    name: str
    job: str
    rank: int
    local_rank: int
    key: tuple[str, ...] = ()
    node: str = ""
    here: str = ""
    per_node: bool = False

    @property
    def leads(self) -> bool:
        """Whether we are the one of a folder's launchers who writes and reports for all."""
        return self.rank <= 0 or (self.per_node and self.local_rank <= 0)

    @staticmethod
    def alone_on_node(environment: Mapping[str, str]) -> bool:
        """Whether the launcher started no other rank on this node; False where it does not say."""
        if (count := _number(environment, "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")) > 0:
            return count == 1
        return re.fullmatch(r"1(\(x\d+\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", "")) is not None

    @property
    def speaks_mpi(self) -> bool:
        """Whether it starts nothing but MPI programs, as a rule."""
        return self.name != "slurm"


@dataclass(frozen=True)
class Process:
    """A process as /proc shows it; its start is in clock ticks since boot."""

    pid: int = 0
    name: str = ""
    parent: int = 0
    start: int = 0


def detect_launcher(environment: Mapping[str, str]) -> JobLauncher | None:
    """The launcher whose environment says that we are one of several ranks; None when started alone.

    Inside a Slurm job, an MPI launcher's job has the Slurm job's name. Nodes may differ about the step: it is left out.
    """
    launcher = _detect(environment)
    slurm_job = slurm_name(environment, step=False)
    if launcher is None or not launcher.speaks_mpi or not slurm_job:
        return launcher
    return dataclasses.replace(launcher, job=slurm_job)


def _detect(environment: Mapping[str, str]) -> JobLauncher | None:
    """The launcher, its job named as the launcher does.

    An MPI launcher inside a Slurm job comes first. It has Slurm start a proxy on each node, and its ranks inherit the
    proxy's task number. Slurm's own `--mpi=pmi2` sets PMI_SIZE as well, but not Hydra's MPI_LOCALRANKID.
    """
    step = environment.get("SLURM_STEP_ID", "")
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    of_slurm = bool(environment.get("SLURM_JOB_ID")) and step.isdigit() and tasks > 1
    if _number(environment, "OMPI_COMM_WORLD_SIZE") > 1:
        return _open_mpi(environment)
    if _number(environment, "PMI_SIZE") > 1 and not (of_slurm and "MPI_LOCALRANKID" not in environment):
        return _hydra(environment)
    if of_slurm:
        return _slurm(environment)
    if environment.get("PMIX_NAMESPACE") and _number(environment, "PMIX_RANK") >= 0:
        if "OMPI_COMM_WORLD_SIZE" in environment:
            return None
        # Some other launcher that speaks PMIx. It tells neither how many there are nor which are on this node.
        job, uris = f"mpi-{plain(environment['PMIX_NAMESPACE'])}", _server_uris(environment)
        return JobLauncher("pmix", job, _number(environment, "PMIX_RANK"), -1, (job,), _server_of(uris), uris)
    return None


def _number(environment: Mapping[str, str], *names: str) -> int:
    """The first of the variables that is a number; -1 if none is."""
    return next((int(environment[name]) for name in names if environment.get(name, "").isdecimal()), -1)


def _slurm(environment: Mapping[str, str]) -> JobLauncher:
    job = slurm_name(environment) or "slurm"
    rank, local_rank = _number(environment, "SLURM_PROCID"), _number(environment, "SLURM_LOCALID")
    key, here = tuple(environment.get(name, "") for name in SLURM_KEY), _start_of(ancestor(SLURM))
    alone = _number(environment, "SLURM_STEP_NUM_NODES", "SLURM_NNODES") == 1
    node = environment.get("SLURM_NODEID", "")
    return JobLauncher("slurm", job, rank, local_rank, (*key, here if alone else ""), node, here)


def _open_mpi(environment: Mapping[str, str]) -> JobLauncher:
    server, uris = ancestor(OPEN_MPI), _server_uris(environment)
    here = " ".join(filter(None, (uris, _start_of(server))))
    space = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid")
    alone = environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == environment["OMPI_COMM_WORLD_SIZE"]
    job = f"mpi-{plain(space or str(server.pid or parent_of()))}"
    rank = _number(environment, "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
    local_rank = _number(environment, "OMPI_COMM_WORLD_LOCAL_RANK")
    key = (job, here if alone or not space else "")
    return JobLauncher("openmpi", job, rank, local_rank, key, _server_of(uris), here, per_node=not space)


def _hydra(environment: Mapping[str, str]) -> JobLauncher:
    """Hydra gives its ranks no job id. Its proxy on each node has the one port on which mpiexec listens."""
    rank, local_rank = _number(environment, "PMI_RANK"), _number(environment, "MPI_LOCALRANKID", "PMI_RANK")
    proxy = ancestor(HYDRA)
    options = _options(proxy.pid)
    here = _start_of(proxy) or environment.get("PMI_PORT", "") or _start_of(_process(parent_of()))
    control = options.get("--control-port", "")
    if not control:
        pid = proxy.pid or parent_of()
        job = f"mpi-{pid}-{_process(pid).start}"
        return JobLauncher("hydra", job, rank, local_rank, (job, here), "", here, per_node=True)
    alone = environment.get("MPI_LOCALNRANKS") == environment.get("PMI_SIZE")
    key = (control, options.get("--pgid", ""), here if alone else "")
    return JobLauncher("hydra", f"mpi-{plain(control)}", rank, local_rank, key, options.get("--proxy-id", ""), here)


def _options(pid: int) -> dict[str, str]:
    """The words of a process's command line by the word before each."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return dict(itertools.pairwise(words))


def _server_uris(environment: Mapping[str, str]) -> str:
    """Where this node's PMIx server listens, in each version of the protocol."""
    return " ".join(environment[name] for name in sorted(environment) if name.startswith("PMIX_SERVER_URI"))


def _server_of(uris: str) -> str:
    """Which of a job's PMIx servers is this node's: `1` of `prterun-n1-99@0.1;tcp4://…`."""
    match = re.match(r"[^;]*\.(\d+);", uris)
    return match[1] if match else ""


def parent_of() -> int:
    """Our parent's pid as /proc counts, which may be another PID namespace's than getppid counts in."""
    return _process("self").parent


def ancestor(names: tuple[str, ...]) -> Process:
    """The nearest process above us whose name starts with one of `names`; an empty one if there is none."""
    pid = parent_of()
    for _ in range(MOST_ANCESTORS):
        process = _process(pid)
        if process.name.startswith(names):
            return process
        if not process.parent:
            break
        pid = process.parent
    return Process()


def _start_of(process: Process) -> str:
    """What no other process ever was: boot, PID namespace, pid in it and start. Empty for an empty process.

    The pid is the one in the process's own namespace, so that ranks in namespaces of their own read the same.
    """
    if not process.pid:
        return ""
    space, pid = "", str(process.pid)
    with contextlib.suppress(OSError):  # root's launcher, as Slurm's is: this user may not ask
        space = str(Path(f"/proc/{process.pid}/ns/pid").readlink())
    with contextlib.suppress(OSError, IndexError):
        status = Path(f"/proc/{process.pid}/status").read_text("utf-8", "replace")
        pid = status.partition("\nNSpid:")[2].splitlines()[0].split()[-1]
    return f"{boot_id()} {space} {pid} {process.start}"


def boot_id() -> str:
    """What this boot of this host has in common with no other; empty if the kernel does not say."""
    try:
        # Bytes: a helper with another user's rights may not be able to load a codec.
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip().decode("utf-8", "replace")
    except OSError:
        return ""


def _process(pid: int | str) -> Process:
    """A process, or an empty one if it cannot be seen."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        fields = text[text.rindex(")") + 2 :].split()
        name = text[text.index("(") + 1 : text.rindex(")")]
        # The kernel states the start on our own clock; ranks in other time namespaces are to read the same.
        shift_ticks = shift_ns("boottime") // (10**9 // os.sysconf("SC_CLK_TCK"))
        return Process(int(text.split(" ", 1)[0]), name, int(fields[1]), int(fields[19]) - shift_ticks)
    except (OSError, ValueError, IndexError):
        return Process()


def seconds_alive() -> float:
    """How long ago this process started."""
    start = _process("self").start / os.sysconf("SC_CLK_TCK")
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - shift_ns("boottime") / 1e9 - start, 0.0)


def plain(name: str) -> str:
    """A name as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:48] or "run"
