# SPDX-License-Identifier: Apache-2.0
"""Other users' run folders, read by root with their rights."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tarfile
import threading
import time
from pathlib import Path

import pytest
from synthetic import training_run, write_info

from powerccl.live import foreign, processes
from powerccl.live.node import LiveNode
from powerccl.live.snapshot import NodeView

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that belongs to another user, all above it open to him."""
    for path in (tmp_path, *tmp_path.parents):
        if path.owner() == "root" and str(path).startswith("/tmp/"):
            path.chmod(0o755)
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    monkeypatch.setattr(processes, "SCAN_EVERY_S", 0.0)
    return folder


def started(folder: Path, name: str = "") -> subprocess.Popen[bytes]:
    """A process of nobody's that names a run folder."""
    return subprocess.Popen(
        ["/bin/cat"],  # Python may lie where only root comes to
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env={"POWERCCL_RUN_FOLDER": name or str(folder)},
        cwd="/",
    )


def owned(folder: Path) -> Path:
    for path in (folder, *folder.iterdir()):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return folder


@as_root
def test_root_reads_others_folders_with_their_rights(theirs: Path) -> None:
    good = owned(training_run(theirs / "good"))
    write_info(good, 0, exit_code=None)
    link = theirs / "link"
    link.mkdir()
    secret = theirs.parent / "run.json"
    secret.write_text('{"command": ["secret"], "name": "secret"}')
    secret.chmod(0o600)
    (link / "run.json").symlink_to(secret)
    fifo = theirs / "fifo"
    fifo.mkdir()
    os.mkfifo(fifo / "run.json")
    children = [started(folder) for folder in (good, owned(link), owned(fifo))]
    node = LiveNode(totals=True)
    try:
        jobs = {Path(job.folder).name: job for job in node.look().jobs if str(theirs) in job.folder}
        assert set(jobs) == {"good", "link", "fifo"}
        assert len(jobs["good"].ranks) == 2
        assert jobs["good"].user == "nobody"
        assert jobs["good"].pids == [children[0].pid]
        assert node.counts[good].ranks[0].kinds[0][0] == 9
        assert jobs["link"].command == []
        assert jobs["link"].problems == ["run.json: Permission denied"]
        assert jobs["fifo"].problems == ["run.json: a FIFO, not a regular file"]
        assert not node.watchers.keys() & {good, link, fifo}  # nothing was read by this process
        helpers = list(node._foreign._helpers.values())
        assert len(helpers) == 1
        status = Path(f"/proc/{helpers[0]._process.pid}/status").read_text()
        assert re.search(rf"^Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}$", status, re.MULTILINE)
        assert re.search(r"^Groups:\t *$", status, re.MULTILINE)
        assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
        assert re.search(r"^CapPrm:\t0+$", status, re.MULTILINE)
    finally:
        node.close()
        for child in children:
            child.communicate(b"\n")


@as_root
def test_a_folder_that_does_not_answer_is_left_out(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "ANSWER_S", 0.5)
    good = owned(training_run(theirs / "good"))
    child = started(good)
    said: list[str] = []
    node = LiveNode(totals=True, say=said.append)
    try:
        assert any(job.folder == str(good) for job in node.look().jobs)
        (helper,) = node._foreign._helpers.values()
        os.kill(helper._process.pid, signal.SIGSTOP)
        begin_s = time.monotonic()
        view = node.look()
        assert time.monotonic() - begin_s < 10
        assert not any(job.folder == str(good) for job in view.jobs)
        assert any("did not answer" in problem for problem in view.problems)
        assert not Path(f"/proc/{helper._process.pid}").exists()
        for _ in range(3):
            assert any("left out for a while" in problem for problem in node.look().problems)
        assert said == [f"{good} of user {NOBODY} did not answer within 0.5 s; trying again in 60 s"]
    finally:
        node.close()
        child.communicate(b"\n")


@as_root
def test_a_helper_outlives_the_thread_that_started_it(theirs: Path) -> None:
    """A server for metrics has a thread a request."""
    said: list[str] = []
    followed = foreign.ForeignRuns(5.0, True, "node1", 30.0, said.append)
    wanted = {(NOBODY, NOBODY): {str(owned(training_run(theirs / "run"))): [1]}}
    try:
        for _ in range(3):
            thread = threading.Thread(target=followed.look, args=(wanted, time.monotonic()))
            thread.start()
            thread.join()
            (helper,) = followed._helpers.values()
            time.sleep(0.05)
            assert helper._process.poll() is None
        assert said == []
    finally:
        followed.close()


@as_root
def test_how_many_folders_a_user_can_name_is_bounded(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "MOST_FOLDERS", 2)
    said: list[str] = []
    followed = foreign.ForeignRuns(5.0, True, "node1", 30.0, said.append)
    names = {str(theirs / str(number)): [os.getpid()] for number in range(5)}
    try:
        for _ in range(3):
            found = followed.look({(NOBODY, NOBODY): names}, time.monotonic())
            assert len(found.answers) == 2
        assert said == [f"user {NOBODY} has 5 run folders: only 2 are read"]
    finally:
        followed.close()


@as_root
def test_what_only_some_folders_need_was_imported_before(theirs: Path) -> None:
    """Python's own folder may be root's alone, as this test's is on many machines."""
    folder = training_run(theirs / "run")
    write_info(folder, 0, started_at="2026-11-01T10:00:00+0100")
    owned(folder)
    tar = folder / "node-a-01234567.tar"
    with tarfile.open(tar, "w", format=tarfile.GNU_FORMAT) as packed:
        for trace in sorted(folder.glob("rank-*.trace")):
            packed.add(trace, trace.name)
            trace.unlink()
    os.chown(tar, NOBODY, NOBODY)
    followed = foreign.ForeignRuns(5.0, True, "node1", 30.0)
    try:
        found = followed.look({(NOBODY, NOBODY): {str(folder): [1]}}, time.monotonic())
        assert found.problems == []
        ((_, answer, _),) = found.answers
        assert answer.job is not None
        assert len(answer.job.ranks) == 2
    finally:
        followed.close()


@as_root
def test_a_name_that_is_no_text(theirs: Path) -> None:
    name = os.fsdecode(b"\xff\n\x1b")
    folder = owned(training_run(theirs / name))
    (folder / os.fsdecode(b"rank-\xff\n.trace")).write_bytes(b"")
    followed = foreign.ForeignRuns(5.0, True, "node1", 30.0)
    long_name = "/" + "x" * 5000
    try:
        found = followed.look({(NOBODY, NOBODY): {str(folder): [1], long_name: [2]}}, time.monotonic())
        ((_, answer, _),) = found.answers
        assert answer.job is not None
        assert len(answer.job.ranks) == 2
        assert answer.folder.endswith(r"\xff\x0a\x1b")
        assert found.problems == []
    finally:
        followed.close()


def test_metrics_of_one_name_and_of_one_user_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from powerccl.live import metrics as export
    from powerccl.live.snapshot import LiveGpu, LiveJob, LiveRank

    monkeypatch.setattr(export, "MOST_OF_USER", 50)
    same = [LiveGpu(gpu="x" * 300 + str(number), index=0, host="a", power_w=1.0) for number in range(3)]
    ranks = [LiveRank(rank=number, host="a", pid=1, gpu="", calls=1, per_s=1.0) for number in range(100)]
    jobs = [
        LiveJob(run="a", folder="/a/\x1b", user="one", gpus=same, ranks=ranks, hosts_here=["a"]),
        LiveJob(run="a", folder="/a/\\x1b", user="two"),
    ]
    found = {family.name: family.samples for family in export.families(NodeView(host="a", unix_s=0, jobs=jobs), {})}
    assert len(found["powerccl_gpu_power_watts"]) == 1
    assert len(found["powerccl_job_running"]) == 1  # two folders that look alike
    assert sum(len(samples) for samples in found.values()) < 70
    assert [sample.labels["user"] for sample in found["powerccl_job"]] == ["one"]  # two could not be joined


@as_root
def test_two_users_who_name_one_folder(theirs: Path) -> None:
    """Metrics of one name twice would make a scrape fail: the folder is of its owner."""
    folder = owned(training_run(theirs / "run"))
    folder.chmod(0o755)
    node = LiveNode(totals=True)
    try:
        view = NodeView(host="", unix_s=0.0)
        others = {(NOBODY - 1, NOBODY): {str(folder): [1]}, (NOBODY, NOBODY): {str(folder): [2]}}
        node._add_others(view, others, time.monotonic())
        assert [(job.folder, job.user, job.pids) for job in view.jobs] == [(str(folder), "nobody", [2])]
    finally:
        node.close()


@as_root
def test_a_helper_never_is_root() -> None:
    from powerccl.live.foreign_helper import become

    with pytest.raises(PermissionError):
        become(0, 0)


def test_who_a_process_belongs_to(tmp_path: Path) -> None:
    """The owner of /proc/PID is root where a process cannot be traced: its status tells."""
    (tmp_path / "status").write_text("Name:\tx\nUid:\t1000\t0\t0\t0\nGid:\t1001\t0\t0\t0\n")
    assert processes._owner(tmp_path) == (1000, 1001)


def test_what_a_helper_sends_is_not_trusted() -> None:
    helper = foreign.Helper.__new__(foreign.Helper)
    for data in (b"\xff\xff\xff\xff", b"\x04\0\0\0abcd", b"\x01\0\0\0\xc0"):
        reading, writing = os.pipe()
        helper.answers, helper.broken, helper._in, helper.output = [], False, bytearray(), reading
        helper.received = 0
        os.write(writing, data)
        helper.receive()
        assert helper.broken
        os.close(reading)
        os.close(writing)
