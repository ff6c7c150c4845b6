# SPDX-License-Identifier: Apache-2.0
"""Runs on several hosts: ranks, GPUs and energy are each host's and job's own. tests/harm/hosts.py has all layouts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from accounts.hosts import Layout, is_swapped
from harm.layouts import LAYOUTS, SECONDS, WATTS, Expected, Folder
from printing import printed

from powerccl.analysis.report import report
from powerccl.analysis.summary import summarise
from powerccl.commands import cli
from powerccl.live.job import Watcher
from powerccl.reports.report import print_report
from powerccl.reports.report_page import report_page
from powerccl.traces.cpu import CpuLog
from powerccl.traces.folder import read_run
from powerccl.traces.identity import Life, Names, count_expected, find_ranks, number_ranks

GPU_JOULES = WATTS * SECONDS


def life(
    number: int, size: int, host: str = "node1", begin: int = 0, end: int = 10, starts: int = 0, comm: int = 0
) -> Life:
    return Life(number, frozenset([size]), host, starts, begin, end, frozenset([comm] if comm else []))


def test_ranks_of_one_job_keep_their_numbers() -> None:
    lives = [life(4, 8), life(5, 8, "node2"), life(6, 8, "node3")]
    assert number_ranks(lives, of_processes=False) == [
        (number, 0, f"{number} on {host}") for number, host in ((4, "node1"), (5, "node2"), (6, "node3"))
    ]
    assert number_ranks(lives[:1], of_processes=False) == [(4, 0, "")]
    assert count_expected(find_ranks(lives)) == 8


def test_ranks_of_jobs_that_repeat_numbers_are_counted_on() -> None:
    lives = [life(0, 3, "node2"), life(2, 3, "node2"), life(1, 3, "node2"), life(0, 2), life(1, 2)]
    names = ["0 on node2", "2 on node2", "1 on node2", "0 on node1", "1 on node1"]
    assert number_ranks(lives, of_processes=False) == [
        (number, job, name) for number, job, name in zip((2, 4, 3, 0, 1), (1, 1, 1, 0, 0), names, strict=True)
    ]
    assert count_expected(find_ranks(lives)) == 5


@pytest.mark.parametrize(
    ("lives", "ranks"),
    [
        ([life(0, 1), life(0, 1)], 2),  # beside each other
        ([life(0, 1), life(0, 1, begin=20, end=30)], 1),  # one after the other
        ([life(0, 1), life(0, 1, "node2", begin=20, end=30)], 2),  # the same on another host: no restart
        ([life(0, 1, starts=1), life(0, 1, "node2", begin=20, end=30, starts=2)], 1),  # an elastic restart elsewhere
        ([life(0, 1, starts=2), life(0, 1, "node2", begin=20, end=30, starts=1)], 2),  # two launchers
        ([life(-1, 0), life(-1, 0), life(-1, 0)], 3),  # not known
        ([life(0, 2, comm=5), life(0, 2, comm=6), life(1, 2, comm=6), life(1, 2, comm=5)], 4),
    ],
)
def test_ranks_are_counted_by_host_and_job(lives: list[Life], ranks: int) -> None:
    found = find_ranks(lives)
    assert len(found) == ranks
    assert len({number for number, _, _ in number_ranks(lives, of_processes=True)}) == ranks
    assert len({number for number, _, _ in number_ranks(lives, of_processes=False)}) == len(lives)


def test_a_communicator_says_which_ranks_are_of_one_job() -> None:
    lives = [life(0, 2, comm=5), life(0, 2, comm=6), life(1, 2, comm=6), life(1, 2, comm=5)]
    jobs = [job for _, job, _ in number_ranks(lives, of_processes=False)]
    assert jobs[0] == jobs[3] != jobs[1] == jobs[2]


def made(tmp_path: Path, name: str) -> tuple[Folder, Expected]:
    folder = Folder(tmp_path / "run")
    return folder, LAYOUTS[name](folder)


def test_a_job_on_each_host_is_reported_with_its_own_ranks_and_energy(tmp_path: Path) -> None:
    folder, _ = made(tmp_path, "jobs of other sizes")
    page = report(folder.path)
    found, summary = page.findings, page.findings.summary
    assert [row.rank for row in found.ranks] == [*range(6)]
    assert [(row.host, summary.rank_name(row.rank)) for row in found.ranks] == [
        ("node1", "0 on node1"),
        ("node2", "0 on node2"),
        ("node2", "1 on node2"),
        ("node2", "2 on node2"),
        ("node3", "0 on node3"),
        ("node3", "1 on node3"),
    ]
    assert summary.ranks == len(summary.gpus) == 6
    assert summary.energy.joules == pytest.approx(6 * GPU_JOULES, rel=0.02)
    assert [each.host for each in found.iterations] == ["node1", "node2", "node3"]
    text = printed(print_report, found)
    assert "2 on node2" in text
    assert "rank 1 on node3" in report_page(page)


def test_jobs_on_one_host_have_iterations_of_their_own(tmp_path: Path) -> None:
    folder, _ = made(tmp_path, "two jobs on one host")
    found = report(folder.path).findings
    assert [(each.host, each.ranks) for each in found.iterations] == [("node1", [0, 1]), ("node1", [2, 3])]
    assert "node1, rank 0 on node1 (2) and others: " in printed(print_report, found)


def test_gpus_of_one_uuid_on_two_hosts_are_two_gpus(tmp_path: Path) -> None:
    folder, _ = made(tmp_path, "same uuids")
    found = summarise(read_run(folder.path))
    assert [(gpu.host, gpu.ranks) for gpu in found.gpus] == [
        ("node1", [0]),
        ("node1", [1]),
        ("node2", [2]),
        ("node2", [3]),
    ]
    assert [gpu.joules for gpu in found.gpus] == pytest.approx([GPU_JOULES] * 4, rel=0.02)
    job = Watcher(folder.path, totals=True).look(10**10, "node1")
    assert len(job.gpus) == 4
    assert job.joules == pytest.approx(4 * GPU_JOULES, rel=0.02)
    assert [rank.name for rank in job.ranks] == ["0 on node1", "0 on node2", "1 on node1", "1 on node2"]


@pytest.mark.parametrize("ranks_name", ["uuid", "pci", "both"])
@pytest.mark.parametrize("boots", ["own", "same"])
def test_hosts_of_equal_addresses_have_their_own_joules(tmp_path: Path, boots: str, ranks_name: str) -> None:
    for number, uuids in enumerate(("own", "same")):
        layout = Layout(uuids=uuids, ranks_name=ranks_name, boots=boots)
        assert not is_swapped(layout, tmp_path / str(number))


def test_a_rank_in_a_container_has_the_gpu_of_its_machine() -> None:
    names = Names()
    log = CpuLog(Path("power-node.csv"), {"host": "node", "boot_id": "b" * 32, "gpu0_pci": "0:01"}, None)  # type: ignore[arg-type]
    assert names.sampled(log, 0, "GPU-1") == "GPU-1"
    inside = SimpleNamespace(host="container", boot_id="b" * 32, gpu_uuid="GPU-1", gpu_pci="0:01", rank=0)
    assert names.used(inside) == "GPU-1"  # type: ignore[arg-type]
    inside.boot_id = "c" * 32
    assert names.used(inside) == "GPU-1~2"  # type: ignore[arg-type]


def test_gpus_are_found_by_their_address_on_their_host(tmp_path: Path) -> None:
    folder, _ = made(tmp_path, "no uuids")
    found = summarise(read_run(folder.path))
    assert [gpu.gpu for gpu in found.gpus] == ["GPU-node1-0", "GPU-node1-1", "GPU-node2-0", "GPU-node2-1"]
    assert found.energy.joules == pytest.approx(4 * GPU_JOULES, rel=0.02)


def test_a_host_that_left_only_samples_is_named(tmp_path: Path) -> None:
    folder, _ = made(tmp_path, "only samples of a host")
    energy = summarise(read_run(folder.path)).energy
    assert energy.joules is None
    assert energy.joules_at_least == pytest.approx(2 * GPU_JOULES, rel=0.02)
    assert energy.missing == ["node2: 2 GPUs sampled, and no rank there left a trace: not counted"]


def test_missing_ranks_are_counted_by_job(tmp_path: Path) -> None:
    folder, _ = made(tmp_path, "a trace of one job is missing")
    assert any(text.startswith("only 3 of 4 ranks left") for text in read_run(folder.path).problems)


def test_no_prediction_is_made_of_several_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = made(tmp_path, "a job on each host")
    with pytest.raises(SystemExit) as ended:
        cli.main(["whatif", str(folder.path)], prog_name="powerccl")
    assert ended.value.code == 1
    assert "2 jobs that ran beside each other" in capsys.readouterr().err


def test_names_of_a_host_that_has_them_alone_stay() -> None:
    names = Names()
    assert [names.host("node1", boot) for boot in ("a", "b", "a", "")] == ["node1", "node1~2", "node1", "node1"]
    assert names.host("node1~2", "b") == "node1~2"
