# SPDX-License-Identifier: Apache-2.0
"""Who is who: jobs of real launchers, workers that are started again, a folder that two jobs were given."""

from __future__ import annotations

import json
import os
from pathlib import Path

from harm import identity
from harness import Powerccl

from powerccl.traces.folder import read_run

RESTARTED = 'for start in 0 1 2; do TORCHELASTIC_RESTART_COUNT=$start "$@" > /dev/null; done'
COLLECTIVES = ("all_reduce", "-b", "1M", "-e", "1M", "-w", "1", "-n", "5", "-c", "0", "-g", "2", "--no-energy")


def test_jobs_of_real_launchers_have_a_folder_each(tmp_path: Path) -> None:
    assert identity.run_case(identity.real_launchers, tmp_path / "case", 0) == (False, False)


def test_restarted_workers_are_the_same_ranks(powerccl: Powerccl) -> None:
    command = ("sh", "-c", RESTARTED, "-", powerccl.bench, *COLLECTIVES)
    done = powerccl("run", "--emulate", "t4x8", "--policy", "observe", "--", *command)
    assert done.code == 0, done.err
    assert "2 ranks, 2 restarts" in done.err
    (folder,) = powerccl.runs
    assert len(list(folder.glob("rank-*.trace"))) == 6
    run = read_run(folder)
    assert [(trace.rank, trace.incarnations, trace.starts) for trace in run.ranks] == [(0, 3, 3), (1, 3, 3)]
    assert {trace.run_id for trace in run.ranks} == {json.loads((folder / "run.json").read_text())["run_id"]}
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    assert {trace.boot_id for trace in run.ranks} == {boot_id}


def test_a_folder_that_two_jobs_were_given(powerccl: Powerccl) -> None:
    """The second one's traces have another id: reports do not add them up."""
    script = 'other=$1; shift; "$@" > /dev/null; POWERCCL_RUN_ID=$other exec "$@" > /dev/null'
    command = ("sh", "-c", script, "-", os.urandom(16).hex(), powerccl.bench, *COLLECTIVES)
    done = powerccl("run", "--emulate", "t4x8", "--policy", "observe", "--", *command)
    assert done.code == 0, done.err
    (folder,) = powerccl.runs
    run = read_run(folder)
    assert [(trace.rank, trace.incarnations) for trace in run.ranks] == [(0, 1), (1, 1)]
    assert sum("of another run, left out" in problem for problem in run.problems) == 1
