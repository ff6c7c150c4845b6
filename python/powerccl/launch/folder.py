# SPDX-License-Identifier: Apache-2.0
"""Making the run folder, alone or together with the other launchers of one job (`srun powerccl run -- ./app`)."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from powerccl.errors import PowercclError


@dataclass(frozen=True)
class JobLauncher:
    """What started several of us as one job: its name, its job's id, and which process of it we are."""

    name: str
    job: str
    rank: int
    local_rank: int

    @property
    def leads(self) -> bool:
        """Whether we are the one of a folder's launchers who writes and reports for all."""
        return self.rank <= 0 or (self.name == "hydra" and self.local_rank <= 0)  # its nodes have folders of their own

    @property
    def speaks_mpi(self) -> bool:
        """Whether it starts nothing but MPI programs, as a rule."""
        return self.name != "slurm"


def detect_launcher(environment: Mapping[str, str]) -> JobLauncher | None:
    """The launcher whose environment says that we are one of several ranks; None when started alone."""

    def number(*names: str) -> int:
        for name in names:
            if environment.get(name, "").isdigit():
                return int(environment[name])
        return -1

    step = environment.get("SLURM_STEP_ID", "")
    if environment.get("SLURM_JOB_ID") and step.isdigit() and number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") > 1:
        job = f"slurm-{environment['SLURM_JOB_ID']}.{step}"
        return JobLauncher("slurm", job, number("SLURM_PROCID"), number("SLURM_LOCALID"))
    if number("OMPI_COMM_WORLD_SIZE") > 1:
        space = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid") or str(os.getppid())
        rank, local_rank = number("OMPI_COMM_WORLD_RANK", "PMIX_RANK"), number("OMPI_COMM_WORLD_LOCAL_RANK")
        return JobLauncher("openmpi", f"mpi-{_plain(space)}", rank, local_rank)
    if number("PMI_SIZE") > 1:
        return JobLauncher("hydra", _hydra_job(), number("PMI_RANK"), number("MPI_LOCALRANKID", "PMI_RANK"))
    if environment.get("PMIX_NAMESPACE") and number("PMIX_RANK") >= 0 and "OMPI_COMM_WORLD_SIZE" not in environment:
        # Some other launcher that speaks PMIx. It tells neither how many there are nor which are on this node.
        return JobLauncher("pmix", f"mpi-{_plain(environment['PMIX_NAMESPACE'])}", number("PMIX_RANK"), -1)
    return None


def _hydra_job() -> str:
    """Hydra gives its ranks no job id. What those of one node share is their proxy, an ancestor of this process.

    Its pid and when it started tell jobs apart, on one node: ranks on two nodes have two folders.
    """
    pid = os.getppid()
    for _ in range(16):
        name, parent, _ = _process(pid)
        if name.startswith(("hydra_pmi_proxy", "hydra_bstrap")) or not parent:
            break
        pid = parent
    if not name.startswith("hydra"):
        pid = os.getppid()
    return f"mpi-{pid}-{_process(pid)[2]}"


def _process(pid: int) -> tuple[str, int, int]:
    """Name, parent and start (clock ticks since boot) of a process; empty and zeros if it cannot be seen."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
        fields = text[text.rindex(")") + 2 :].split()
        return text[text.index("(") + 1 : text.rindex(")")], int(fields[1]), int(fields[19])
    except (OSError, ValueError, IndexError):
        return "", 0, 0


def make_folder(runs: Path, name: str, launcher: JobLauncher | None) -> Path:
    """Make `runs/<time>-<name>` (or `runs/<job>-<name>`, shared by a job's launchers) and return its absolute path.

    Raises:
        PowercclError: it cannot be made or written.
    """
    stem = f"{launcher.job}-{_plain(name)}" if launcher else f"{time.strftime('%Y%m%d-%H%M%S')}-{_plain(name)}"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        folder = (runs / stem).resolve()
        if launcher:
            folder.mkdir(exist_ok=True)
        else:
            folder = _make_new(folder)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise PowercclError(
            f"cannot write a run folder in {runs}: {error.strerror}",
            "name another place with --runs-dir DIR",
        ) from error
    return folder


def _make_new(folder: Path) -> Path:
    for attempt in range(1, 1000):
        candidate = folder if attempt == 1 else folder.with_name(f"{folder.name}-{attempt}")
        try:
            candidate.mkdir()
        except FileExistsError:
            continue
        return candidate
    raise OSError(17, "a thousand runs of this name within a second")


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:48] or "run"


def job_name(command: list[str]) -> str:
    """A short name for a command: its script, else its program."""
    for word in command:
        if word.endswith((".py", ".sh")):
            return Path(word).stem
    return Path(command[0]).name


def socket_path(folder: Path) -> Path:
    """Where a run's emulator listens: short, since a socket's path holds 107 bytes, and in a folder of the user's own.

    Raises:
        PowercclError: somebody else owns that folder.
    """
    base = Path(tempfile.gettempdir()) / f"powerccl-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    about = base.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise PowercclError(f"{base} belongs to somebody else", "set TMPDIR to a folder of your own")
    return base / f"{hashlib.sha1(os.fsencode(folder), usedforsecurity=False).hexdigest()[:12]}.sock"
