# SPDX-License-Identifier: Apache-2.0
"""Which run folder a verb is of: the one named, or the last one recorded."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from powerccl.errors import PowercclError, nearest

# Of the verbs that record runs or find them by name.
runs_dir_option = click.option(
    "--runs-dir",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    metavar="DIR",
    help="Directory of run folders.",
)


def last_runs(runs_dir: Path) -> list[Path]:
    """Run folders in `runs_dir`, the last first: by when run.json was written, as clocks of nodes may differ."""
    dated_folders: list[tuple[int, Path]] = []
    with contextlib.suppress(OSError):  # a folder that is being removed, or is not ours to read
        dated_folders.extend((file.stat().st_mtime_ns, file.parent) for file in runs_dir.glob("*/run.json"))
    return [folder for _, folder in sorted(dated_folders, reverse=True)]


def find_run(name: str, runs_dir: Path, quiet: bool = False) -> Path:
    """The run folder of a path or of a name in `runs_dir`; without a name the last one, which stderr then names.

    Raises:
        PowercclError: there is none.
    """
    if name:
        folder = next((path for path in (Path(name), runs_dir / name) if path.is_dir()), None)
        if folder is None:
            last = last_runs(runs_dir)
            meant = nearest(Path(name).name, [folder.name for folder in last])
            such = last[0] if last else f"{runs_dir}/…"
            raise PowercclError(f"no run {name}", f"{meant}name a run folder, such as {such}")
        return folder
    last = last_runs(runs_dir)
    if not last:
        raise PowercclError(
            f"no run is named, and {runs_dir}/ has none", "name a run folder, or record one: powerccl run -- COMMAND"
        )
    if not quiet:
        from powerccl.commandline.output import say

        say(f"the last run of {runs_dir}/: {last[0].name}")
    return last[0]
