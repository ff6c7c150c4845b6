# SPDX-License-Identifier: Apache-2.0
"""Which run a process belongs to: launchers told apart, starts that meet, traces of other runs, restarted ranks."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import synthetic
from harm import identity

from powerccl.analysis.report import report
from powerccl.analysis.summary import summarise
from powerccl.launch import agreement, launchers
from powerccl.launch.folder import make_folder
from powerccl.live.job import Watcher
from powerccl.reports.job import ranks_text
from powerccl.traces.folder import read_run
from powerccl.traces.run_info import RunInfo, read_run_id, write_run_info

STEP = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"}
HEX = "0123456789abcdef" * 2


def task(rank: int, **more: str) -> launchers.JobLauncher:
    found = launchers.detect_launcher({**STEP, "SLURM_PROCID": str(rank), **more})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, None),  # a batch script, not a step
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "extern", "SLURM_STEP_NUM_TASKS": "4"}, None),
        ({**STEP, "SLURM_PROCID": "3"}, ("slurm", "slurm-77.2", 3, 1)),
        (
            {
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_RANK": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "PMIX_NAMESPACE": "prterun-n1-99@1",
            },
            ("openmpi", "mpi-prterun-n1-99-1", 2, 0),
        ),
        ({"PMI_SIZE": "1", "PMI_RANK": "0"}, None),
        ({"PMIX_NAMESPACE": "pbs-7", "PMIX_RANK": "3"}, ("pmix", "mpi-pbs-7", 3, -1)),
        ({"PMIX_NAMESPACE": "n", "PMIX_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, None),
    ],
)
def test_launchers_are_told_apart(environment: dict[str, str], expected: tuple[str, str, int, int] | None) -> None:
    found = launchers.detect_launcher(environment)
    assert (found and (found.name, found.job, found.rank, found.local_rank)) == expected


def test_hydra_without_its_proxy_in_sight_has_a_folder_a_node() -> None:
    found = launchers.detect_launcher({"PMI_SIZE": "4", "PMI_RANK": "2", "MPI_LOCALRANKID": "0"})
    assert found is not None
    assert found.job.startswith(f"mpi-{os.getppid()}-")
    assert found.leads  # the second node's first rank
    assert not dataclasses.replace(found, rank=3, local_rank=1).leads
    assert not dataclasses.replace(found, per_node=False).leads


def test_ranks_of_one_start_share_a_folder_and_its_id(tmp_path: Path) -> None:
    made = {make_folder(tmp_path, "app", task(rank)) for rank in range(4)}
    (folder,) = made
    assert folder.name.startswith("slurm-77.2-app-")
    write_run_info(folder, info := RunInfo(["app"]))
    assert info.run_id == read_run_id(folder)
    assert folder.name.endswith(info.run_id[:6])


AS_ROOT = (identity.two_users, identity.repeated_namespaces, identity.hydra_in_containers)
WITHOUT_MPI = [kind for kind in identity.KINDS if kind is not identity.real_launchers]  # that one is in tests/e2e


@pytest.mark.parametrize("kind", WITHOUT_MPI, ids=lambda kind: kind.__name__)
def test_jobs_and_folders(kind: Callable[[identity.Stage], None], tmp_path: Path) -> None:
    if kind in AS_ROOT and os.getuid():
        pytest.skip("only root makes PID namespaces and other users' processes")
    if kind is identity.two_users:  # other users may not enter pytest's folders
        shutil.rmtree(path := Path(f"/tmp/powerccl-identity-{os.getpid()}"), ignore_errors=True)
        assert identity.run_case(kind, path, 0) == (False, False)
    else:
        assert identity.run_case(kind, tmp_path / "case", 0) == (False, False)


def test_a_start_that_repeats_a_key_long_after_joins_nobody(tmp_path: Path) -> None:
    """The first start died before its second rank had come."""
    first = make_folder(tmp_path, "app", task(0))
    (entry,) = tmp_path.glob(".jobs-*/*/id")
    long_ago = time.time() - 2 * agreement.JOIN_S
    os.utime(entry, (long_ago, long_ago))
    others = {make_folder(tmp_path, "app", task(rank)) for rank in (1, 0, 3)}
    assert len(others) == 1
    assert first not in others


def test_nobody_joins_a_run_whose_leader_has_ended(tmp_path: Path) -> None:
    first = make_folder(tmp_path, "app", task(0))
    write_run_info(first, RunInfo(["app"], start_ns=1, end_ns=2))
    assert make_folder(tmp_path, "app", task(1)) == first, "it may be a little late"
    ended = time.time() - launchers.seconds_alive() - 2 * agreement.ENDED_S
    os.utime(first / "run.json", (ended, ended))
    assert make_folder(tmp_path, "app", task(2)) != first


def test_whatever_an_environment_may_hold(tmp_path: Path) -> None:
    odd = {"OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "\udcff/../é\n", "PMIX_SERVER_URI4": "\udcfe;\x1b[2J"}
    ranks = [launchers.detect_launcher({**odd, "OMPI_COMM_WORLD_RANK": str(rank)}) for rank in range(2)]
    (folder,) = {make_folder(tmp_path, "\udcff", rank) for rank in ranks}
    assert folder.parent == tmp_path
    assert folder.name.isascii()


def test_old_starts_are_forgotten(tmp_path: Path) -> None:
    make_folder(tmp_path, "app", task(0))
    (starts,) = tmp_path.glob(".jobs-*")
    (old,) = starts.iterdir()
    os.utime(old, (1, 1))
    make_folder(tmp_path, "app", task(0, SLURM_RESTART_COUNT="1"))
    assert not old.exists()
    assert len(list(starts.iterdir())) == 1


def test_a_start_may_come_while_old_ones_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = os.scandir

    def then_another_starts(starts: Path) -> list[os.DirEntry[str]]:
        found = list(look(starts))
        (Path(starts) / f"another{len(found)}.1").mkdir()
        return found

    monkeypatch.setattr(os, "scandir", then_another_starts)
    assert make_folder(tmp_path, "app", task(0)).exists()


def test_traces_of_another_run_are_left_out(tmp_path: Path) -> None:
    """Two jobs that were given one POWERCCL_RUN_FOLDER."""
    synthetic.training_run(tmp_path)
    synthetic.write_info(tmp_path, 1800 * synthetic.MS, run_id=HEX)
    other = synthetic.TraceWriter(0, 4, run_id=HEX[::-1], start_ns=5)
    other.call(1, 100 * synthetic.MS, 1 << 20)
    other.write(tmp_path, "rank-0.77.trace")
    synthetic.TraceWriter(5, 8, run_id=HEX).write(tmp_path)
    run = read_run(tmp_path)
    assert [trace.rank for trace in run.ranks] == [0, 1, 5]
    assert "rank-0.77.trace: of another run, left out" in run.problems
    live = Watcher(tmp_path).look(10**9, synthetic.HOST)
    assert [rank.rank for rank in live.ranks] == [0, 1, 5]
    assert "rank-0.77.trace: of another run, left out" in live.problems


@pytest.mark.parametrize("told", [True, False])
def test_restarted_ranks_are_the_same_ranks(tmp_path: Path, told: bool) -> None:
    folder = synthetic.elastic_run(tmp_path, [8, 8, 8], told)
    assert len(list(folder.glob("rank-*.trace"))) == 24
    found = report(folder).findings
    assert (found.summary.ranks, found.summary.restarts) == (8, 2)
    assert ranks_text(found.summary) == "8 ranks, 2 restarts"
    assert found.summary.communication.calls == 8 * 5 * 3 + 7 * 2
    # 10 ms of each all-reduce, and nothing of the 2 x 10 s in which seven ranks waited for a dead one.
    assert found.summary.communication.time_s == pytest.approx(0.15, rel=0.05)
    assert found.peers.reason == ""
    assert {row.rank: row.collectives for row in found.peers.ranks} == dict.fromkeys(range(8), 15)
    assert sum(gpu.ranks == [number] for number, gpu in enumerate(found.summary.gpus)) == 8
    live = Watcher(folder).look(40 * 10**9, synthetic.HOST)
    assert ([rank.rank for rank in live.ranks], live.restarts) == (list(range(8)), 2)


def test_a_job_that_goes_on_with_fewer_ranks(tmp_path: Path) -> None:
    summary = summarise(read_run(synthetic.elastic_run(tmp_path, [8, 6])))
    assert (summary.ranks, summary.restarts) == (8, 1)
    assert "the job was restarted with another number of ranks: 8, then 6" in summary.notes


def test_processes_of_one_rank_at_one_time_are_several(tmp_path: Path) -> None:
    for number in range(2):
        trace = synthetic.TraceWriter(0, 1, start_ns=1)
        trace.comm(synthetic.MS)
        trace.call(1, 500 * synthetic.MS, 1 << 20)
        trace.write(tmp_path, f"rank-0.{number}.trace")
    summary = summarise(read_run(tmp_path))
    assert (summary.ranks, summary.restarts) == (2, 0)


def test_two_hosts_of_one_name_are_two_hosts(tmp_path: Path) -> None:
    """Their agents wrote files of two names, with the boot in each."""
    for rank, name in enumerate(("power-node1.csv", "power-node1-000000000002.csv")):
        boot_id = f"{rank + 1:032x}"
        synthetic.TraceWriter(rank, 2, boot_id=boot_id).write(tmp_path)
        (tmp_path / name).write_text(f"# host: node1\n# boot_id: {boot_id}\n")
    run = read_run(tmp_path)
    assert [trace.host for trace in run.ranks] == ["node1", "node1~2"]
    assert {log.path.name: log.host for log in run.power} == {
        "power-node1.csv": "node1",
        "power-node1-000000000002.csv": "node1~2",
    }
