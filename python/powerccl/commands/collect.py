# SPDX-License-Identifier: Apache-2.0
"""`powerccl collect`."""

from __future__ import annotations

from pathlib import Path

import click

from powerccl.commandline.output import say
from powerccl.commandline.runs import complete_run, find_run, runs_dir_option
from powerccl.errors import PowercclError


@click.command("collect")
@click.argument("run", metavar="RUN", shell_complete=complete_run)
@runs_dir_option
def command(run: str, runs_dir: Path) -> int:
    """Bring the files of a run from this node into its run folder.

    `powerccl run --local-dir` keeps the files of a node on the node while the job runs, and does this at the job's end.
    If `powerccl run` itself was killed, they stay there, and `powerccl report` names the nodes. Run this command on
    each of them. RUN is a folder, `latest`, or the name of a run.

    \b
    powerccl collect runs/20261125-101500-train
    srun --nodelist node17 powerccl collect runs/slurm-16.0-train-4744b7
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from powerccl.launch.local_folder import collect

    folder = find_run(run, runs_dir)
    if not collect(folder, say):
        raise PowercclError("some files are on nodes still", "the lines above say where, and what to do")
    return 0
