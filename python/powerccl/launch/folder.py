# SPDX-License-Identifier: Apache-2.0
"""Making the run folder, alone or together with the other launchers of one job (`srun powerccl run -- ./app`)."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from pathlib import Path

from powerccl.errors import PowercclError
from powerccl.launch.agreement import join
from powerccl.launch.launchers import JobLauncher, boot_id, plain
from powerccl.traces.run_files import own_name
from powerccl.traces.run_info import new_run_id, write_run_id


def make_folder(runs: Path, name: str, launcher: JobLauncher | None, job: str = "") -> Path:
    """Make `runs/<time>-<name>` (or `runs/<job>-<name>-<id>`, shared by a job's launchers); return its absolute path.

    `job`: the batch job of a launcher that was started alone, such as `slurm-16.0`.

    Raises:
        PowercclError: it cannot be made or written.
    """
    try:
        runs.mkdir(parents=True, exist_ok=True)
        runs = runs.resolve()
        if launcher:
            run = join(runs, name, launcher)
            folder, run_id = runs / run.folder, run.run_id
            folder.mkdir(exist_ok=True)
        elif job:
            run_id = new_run_id()
            folder = _make_new(runs / f"{job}-{plain(name)}-{run_id[:6]}")
        else:
            folder, run_id = _make_new(runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{plain(name)}"), new_run_id()
        write_run_id(folder, run_id)
    except OSError as error:
        raise PowercclError(
            f"cannot make a run folder in {runs}: {error.strerror}",
            "name another folder with --runs-dir DIR",
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
    raise OSError(17, "a thousand runs with this name started within a second")


def job_name(command: list[str]) -> str:
    """A short name for a command: its script, else its program."""
    for word in command:
        if word.endswith((".py", ".sh")):
            return Path(word).stem
    return Path(command[0]).name


def socket_path(folder: Path) -> Path:
    """Where a run's emulator listens: short, since a socket's path holds 107 bytes, and in a folder of the user's own.

    Raises:
        PowercclError: another user owns that folder.
    """
    base = private_folder(Path(tempfile.gettempdir()), "set TMPDIR to a folder of your own")
    import hashlib

    # Nodes may share the folder for temporary files, too.
    of = os.fsencode(folder) + boot_id().encode()
    return base / f"{hashlib.sha1(of, usedforsecurity=False).hexdigest()[:12]}.sock"


def private_folder(parent: Path, hint: str) -> Path:
    """`powerccl-<uid>` in a directory that others may write to, such as /tmp.

    Raises:
        PowercclError: another user made it.
        OSError: it cannot be made.
    """
    base = parent / own_name()
    base.mkdir(mode=0o700, exist_ok=True)
    about = base.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise PowercclError(f"{base} belongs to another user", hint)
    return base
