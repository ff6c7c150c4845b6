# SPDX-License-Identifier: Apache-2.0
"""The files of a node: kept on it while the job runs, one file of the run folder after it, and read in either place."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from fakes import RUN_ID, fail
from synthetic import TraceWriter, training_run, write_info

from powerccl.analysis.findings import SUMMARY_FILE
from powerccl.analysis.summary import summarise
from powerccl.commandline.run_index import NO_END, ON_NODES, run_rows
from powerccl.commandline.summaries import keep_summary
from powerccl.commands import cli
from powerccl.errors import PowercclError
from powerccl.files import MOST_TRACE
from powerccl.launch.local_folder import LocalFolder, await_nodes, collect, enter
from powerccl.live.run_folder import LiveRun
from powerccl.traces import records
from powerccl.traces.folder import read_run
from powerccl.traces.run_files import (
    NodeFolder,
    is_on_nodes,
    list_files,
    local_name,
    members,
    opened,
    place_of,
    read_bytes,
    run_files,
    this_boot,
)
from powerccl.traces.run_info import new_run_id, write_run_id


def packed(folder: Path, to: Path, directory: Path) -> Path:
    """A copy of a run folder whose traces and samples went through a node's folder; the tar."""
    shutil.copytree(folder, to)
    write_run_id(to, RUN_ID)
    local = enter(directory, to)
    for path in [*to.glob("*.trace"), *to.glob("*.csv")]:
        path.rename(local.folder / path.name)
    local.leave(fail)
    (tar,) = to.glob("node-*.tar")
    return tar


def test_a_packed_run_has_the_same_figures(tmp_path: Path, directory: Path) -> None:
    loose = training_run(tmp_path / "loose")
    tar = packed(loose, tmp_path / "packed", directory)
    assert not list(tar.parent.glob("*.trace"))
    one, other = (summarise(read_run(folder)) for folder in (loose, tar.parent))
    assert one.energy.joules
    assert one.ranks == 2
    other.folder = one.folder
    assert msgspec.to_builtins(one) == msgspec.to_builtins(other)
    live = LiveRun(tar.parent)
    look = live.look()
    assert [len(rows) for _, rows in look.traces] == [len(rows) for _, rows in LiveRun(loose).look().traces]
    assert look.power[0][1]
    live.close()


def test_the_tar_is_one_that_tar_reads(tmp_path: Path, directory: Path) -> None:
    loose = training_run(tmp_path / "loose")
    tar = packed(loose, tmp_path / "packed", directory)
    subprocess.run(["tar", "-xf", tar, "-C", directory], check=True)
    for path in [*loose.glob("*.trace"), *loose.glob("*.csv")]:
        assert (directory / path.name).read_bytes() == path.read_bytes() == read_bytes(tar / path.name, MOST_TRACE)


def test_what_was_unpacked_beside_its_tar_counts_once(tmp_path: Path, directory: Path) -> None:
    tar = packed(training_run(tmp_path / "loose"), tmp_path / "packed", directory)
    before = summarise(read_run(tar.parent))
    subprocess.run(["tar", "-xf", tar, "-C", tar.parent], check=True)
    shutil.copy(tar, tar.with_name("node-other-ffffffff.tar"))
    assert msgspec.to_builtins(summarise(read_run(tar.parent))) == msgspec.to_builtins(before)
    # Another host's file of the same name is no copy.
    (tar.parent / "rank-0.trace").write_bytes(TraceWriter(0, host="n2").bytes())
    assert len(read_run(tar.parent).ranks) == 3


def test_every_verb_reads_a_packed_run(tmp_path: Path, directory: Path) -> None:
    tar = packed(training_run(tmp_path / "loose"), tmp_path / "packed", directory)
    for verb in (["report"], ["compare", str(tmp_path / "loose")], ["report", "--html", str(tmp_path / "a.html")]):
        done = CliRunner().invoke(cli, [*verb, str(tar.parent)])
        assert done.exit_code == 0, done.output
    assert "node-" not in done.output


# A cut, a damaged or a hostile tar.


@pytest.mark.parametrize("kept", [0.2, 0.6, 0.95])
def test_a_cut_tar_costs_what_is_behind_the_cut(tmp_path: Path, directory: Path, kept: float) -> None:
    tar = packed(training_run(tmp_path / "loose"), tmp_path / "packed", directory)
    whole = members(tar)
    os.truncate(tar, int(tar.stat().st_size * kept))
    run = read_run(tar.parent)
    assert any(tar.name in text and "cut off" in text for text in run.problems), run.problems
    cut = members(tar)
    assert 0 < len(cut.places) <= len(whole.places)
    (tmp_path / "cut").mkdir()
    for name in cut.places:
        (tmp_path / "cut" / name).write_bytes(read_bytes(tar / name, MOST_TRACE))
    loose = read_run(tmp_path / "cut")
    assert [len(rank.kinds[records.CALL]) for rank in run.ranks] == [len(r.kinds[records.CALL]) for r in loose.ranks]
    assert [len(log.samples) for log in run.power] == [len(log.samples) for log in loose.power]


def test_a_tar_without_its_end_is_said_to_be_cut(tmp_path: Path, directory: Path) -> None:
    tar = packed(training_run(tmp_path / "loose"), tmp_path / "packed", directory)
    begin, size = max(members(tar).places.values())
    os.truncate(tar, begin + -(-size // 512) * 512)
    assert "cut off" in members(tar).problem


def test_damage_ends_the_walk(tmp_path: Path, directory: Path) -> None:
    tar = packed(training_run(tmp_path / "loose"), tmp_path / "packed", directory)
    names = list(members(tar).places)
    begin, _ = members(tar).places[names[1]]
    with tar.open("r+b") as file:
        file.seek(begin - 512)
        file.write(b"\xff" * 100)
    index = members(tar)
    assert list(index.places) == names[:1]
    assert "damaged behind 1 file" in index.problem


def hostile_tar(tar: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> None:
    with tarfile.TarFile(tar, "w", format=tarfile.GNU_FORMAT) as file:
        for about, content in entries:
            file.addfile(about, io.BytesIO(content))


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    about = tarfile.TarInfo(name)
    about.type, about.linkname, about.size = kind, link, size
    return about


def test_names_and_links_of_a_hostile_tar_lead_nowhere(tmp_path: Path) -> None:
    secret = tmp_path / "rank-7.trace"
    secret.write_bytes(b"secret")
    folder = training_run(tmp_path / "run")
    names = ("../rank-7.trace", str(secret), "a/rank-8.trace", ".run-id", "")
    hostile_tar(
        folder / "node-evil.tar",
        *((entry(name, size=6), b"secret") for name in names),
        (entry("rank-9.trace", tarfile.SYMTYPE, str(secret)), b""),
        (entry("rank-10.trace", tarfile.LNKTYPE, "../rank-7.trace"), b""),
        (entry("rank-11.trace", tarfile.FIFOTYPE), b""),
        (entry("rank-12.trace", tarfile.DIRTYPE), b""),
        (entry("power-b.csv", size=5), b"first"),
        (entry("power-b.csv", size=6), b"second"),
    )
    index = members(folder / "node-evil.tar")
    assert list(index.places) == ["power-b.csv"]
    assert "no files of a run" in index.problem
    assert read_bytes(folder / "node-evil.tar" / "power-b.csv", 100) == b"first"
    run = read_run(folder)
    assert len(run.ranks) == 2
    assert any("node-evil.tar" in text for text in run.problems)
    with pytest.raises(FileNotFoundError), opened(folder / "node-evil.tar" / "rank-9.trace", 100):
        pass


def test_many_damaged_tars_are_named_in_part(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    for number in range(50):
        (folder / f"node-{number}.tar").write_bytes(b"x" * 512)
    problems = run_files(folder).problems
    assert len(problems) == 21
    assert "30 more files of nodes" in problems[-1]


def test_a_size_beyond_the_tar_is_read_as_far_as_there_is(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    header = entry("rank-9.trace", size=1 << 60).tobuf(tarfile.GNU_FORMAT)
    (folder / "node-evil.tar").write_bytes(header + TraceWriter(9).bytes())
    index = members(folder / "node-evil.tar")
    assert index.places["rank-9.trace"][1] == len(TraceWriter(9).bytes())
    assert "cut off" in index.problem
    header = entry("rank-9.trace", size=-(1 << 40)).tobuf(tarfile.GNU_FORMAT)
    (folder / "node-evil.tar").write_bytes(header * 4)
    assert "damaged" in members(folder / "node-evil.tar").problem


@pytest.mark.parametrize("how", ["a FIFO", "a directory", "bytes"])
def test_whatever_is_in_the_place_of_a_tar_is_a_problem_of_the_run(tmp_path: Path, how: str) -> None:
    folder = training_run(tmp_path / "run")
    tar = folder / "node-a.tar"
    if how == "a FIFO":
        os.mkfifo(tar)
    elif how == "a directory":
        tar.mkdir()
        (tar / "rank-5.trace").write_bytes(b"")
    else:
        with tar.open("wb") as file:
            file.truncate(1 << 43)
    run = read_run(folder)
    assert any("node-a.tar" in text and how in text for text in run.problems), run.problems
    assert len(run.ranks) == 2


def test_a_folder_with_a_tars_name_is_read_like_any_other(tmp_path: Path) -> None:
    assert len(read_run(training_run(tmp_path / "node-a.tar")).ranks) == 2


# The node's folder.


def test_files_are_read_on_the_node_while_the_job_runs(tmp_path: Path, directory: Path) -> None:
    loose = training_run(tmp_path / "loose")
    run = tmp_path / "run"
    run.mkdir()
    write_run_id(run, RUN_ID)
    shutil.copy(loose / "run.json", run)
    local = enter(directory, run)
    live = LiveRun(run)
    live.look()
    for path in [*loose.glob("*.trace"), *loose.glob("*.csv")]:
        shutil.copy(path, local.folder)
    look = live.look()
    assert len(look.traces) == 2
    rows = sum(len(each) for _, each in look.traces)
    assert rows
    assert any("read from" in text and "powerccl collect" in text for text in read_run(run).problems)
    local.leave(fail)
    # Nothing is counted twice when the files move.
    assert sum(len(each) for _, each in live.look().traces) == 0
    assert not any(each for _, each in live.look().power)
    assert not live.problems
    live.close()
    assert not any("powerccl collect" in text for text in read_run(run).problems)


def test_the_last_launcher_of_a_node_packs(run: Path, directory: Path) -> None:
    first, second = enter(directory, run), enter(directory, run)
    assert first.folder == second.folder
    assert first.pointer == second.pointer
    assert first.folder.stat().st_mode & 0o777 == 0o700
    (first.folder / "rank-0.trace").write_bytes(b"a")
    first.leave(fail)
    assert first.folder.exists()
    assert not list(run.glob("*.tar"))
    (second.folder / "rank-1.trace").write_bytes(b"b")
    second.leave(fail)
    assert [path.name for path in list_files(run, "", ".trace")[0]] == ["rank-0.trace", "rank-1.trace"]
    assert list(directory.glob("powerccl-*/*")) == []
    assert not list(run.glob("node-*.local"))
    # A rank that begins after that has another file.
    third = enter(directory, run)
    (third.folder / "rank-2.trace").write_bytes(b"c")
    third.leave(fail)
    assert len(list(run.glob("node-*.tar"))) == 2
    assert len(list_files(run, "", ".trace")[0]) == 3


def test_containers_with_a_directory_each_lose_nothing(run: Path, directory: Path) -> None:
    """They have one host name and boot, and name one path, behind which each has a folder of its own."""
    first = enter(directory, run)
    (first.folder / "rank-0.trace").write_bytes(b"a")
    directory.rename(directory.with_name("first"))
    directory.mkdir(mode=0o755)
    second = enter(directory, run)
    (second.folder / "rank-0.trace").write_bytes(b"b")
    assert first.pointer != second.pointer
    second.leave(fail)
    directory.rename(directory.with_name("second"))
    directory.with_name("first").rename(directory)
    first.leave(fail)
    assert sorted(read_bytes(path, 10) for path in list_files(run, "", ".trace")[0]) == [b"a", b"b"]


def test_locks_and_shared_memory_are_not_packed(run: Path, directory: Path) -> None:
    local = enter(directory, run)
    for name in ("agent-a.lock", ".node-0", "mpi-member-3", "agent-a.log"):
        (local.folder / name).write_bytes(b"")
    (local.folder / "rank-0.trace").symlink_to("/etc/passwd")
    local.leave(fail)
    (tar,) = run.glob("node-*.tar")
    assert list(members(tar).places) == ["agent-a.log"]


def test_a_full_disk_loses_nothing(run: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = enter(directory, run)
    (local.folder / "rank-0.trace").write_bytes(b"a" * 4096)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        local.leave(said.append)
    assert "No space left" in said[0]
    assert f"powerccl collect {run}" in said[0]
    assert not list(run.glob("*node-*.tar*"))
    assert [node.folder for node in run_files(run).here] == [str(local.folder)]
    assert collect(run, said.append)
    assert [path.name for path in list_files(run, "", ".trace")[0]] == ["rank-0.trace"]


@pytest.mark.parametrize("what", ["no such directory", "a file", "others may rename", "a link", "a folder of others"])
def test_a_directory_that_cannot_be_used(run: Path, directory: Path, what: str) -> None:
    own = directory / f"powerccl-{os.getuid()}"
    if what == "no such directory":
        directory.rmdir()
    elif what == "a file":
        directory.rmdir()
        directory.write_text("")
    elif what == "others may rename":
        directory.chmod(0o777)
    elif what == "a link":
        own.symlink_to(run)
    else:
        own.mkdir()
        own.chmod(0o777)
    with pytest.raises(PowercclError) as caught:
        enter(directory, run)
    assert str(directory) in caught.value.message
    assert not list(run.glob("node-*"))


def test_a_sticky_directory_is_good(run: Path, directory: Path) -> None:
    directory.chmod(0o1777)
    enter(directory, run).leave(fail)
    assert not list(run.glob("node-*"))  # nothing was recorded


# Killed launchers, and hosts elsewhere.


def killed(run: Path, directory: Path) -> LocalFolder:
    """A node's folder whose launcher was killed."""
    local = enter(directory, run)
    (local.folder / "rank-0.trace").write_bytes(TraceWriter(0).bytes())
    os.close(local._lock)
    return local


def test_collect_brings_home_what_a_killed_launcher_left(run: Path, directory: Path) -> None:
    local = killed(run, directory)
    (run / f".{local.pointer.with_suffix('.tar').name}.0a1b").write_bytes(b"half")
    assert any(f"powerccl collect {run}" in text for text in read_run(run).problems)
    done = CliRunner().invoke(cli, ["collect", str(run)])
    assert done.exit_code == 0, done.output
    assert not local.folder.exists()
    assert len(read_run(run).ranks) == 1
    assert sorted(path.name for path in run.iterdir()) == [".run-id", local.pointer.with_suffix(".tar").name]
    assert CliRunner().invoke(cli, ["collect", str(run)]).exit_code == 0  # nothing is left to do


def test_collect_leaves_a_job_alone_that_runs(run: Path, directory: Path) -> None:
    local = enter(directory, run)
    said: list[str] = []
    assert not collect(run, said.append)
    assert "the job still runs" in said[0]
    os.close(local._lock)
    rank = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        env={**os.environ, "POWERCCL_LOCAL_FOLDER": str(local.folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert rank.stdout
    rank.stdout.readline()
    try:
        assert not collect(run, said.append)
        assert f"processes of the job still run: {rank.pid}" in said[1]
    finally:
        rank.communicate(b"\n")
    assert collect(run, said.append)


def test_what_is_on_another_host_is_said(run: Path) -> None:
    node = NodeFolder("node17", "f" * 32, "/tmp/powerccl-0/x")
    (run / "node-node17-ffffffff.local").write_bytes(node.to_json())
    read = read_run(run)
    (text,) = (text for text in read.problems if "node17" in text)
    assert "not here: they are in /tmp/powerccl-0/x" in text
    assert "powerccl collect" in text
    assert "on the nodes" in read.unrecorded
    done = CliRunner().invoke(cli, ["collect", str(run)])
    assert done.exit_code == 1
    assert "node17: its files are in /tmp/powerccl-0/x on that host" in done.output
    live = LiveRun(run)
    live.look()
    assert [each.host for each in live.elsewhere] == ["node17"]
    live.close()


TEXTS = {
    "no JSON": "{",
    "a list": "[1]",
    "numbers": '{"host":1,"boot_id":2,"folder":3,"place":4}',
    "nested": "[" * 99_999,
}


@pytest.mark.parametrize("what", ["a folder of the user", "another run's", "another folder of this name", *TEXTS])
def test_a_hostile_pointer_leads_nowhere_and_removes_nothing(run: Path, directory: Path, what: str) -> None:
    home = directory / "home"
    home.mkdir()
    if what == "another run's":
        home = directory / f"powerccl-{os.getuid()}" / f"{local_name(new_run_id(), this_boot())}a"
        home.mkdir(parents=True)
    elif what == "another folder of this name":
        home = directory / f"powerccl-{os.getuid()}" / f"{local_name(RUN_ID, this_boot())}a"
        home.mkdir(parents=True, mode=0o700)
    (home / "rank-0.trace").write_bytes(TraceWriter(0).bytes())
    said = {"host": "a\x1b]0;PWN", "boot_id": this_boot(), "folder": str(home), "place": "1:2"}
    if what != "another folder of this name":
        said["place"] = place_of(home.lstat())
    (run / "node-evil.local").write_text(TEXTS.get(what, json.dumps(said)))
    (run / "node-evil.tar").write_bytes(b"")
    assert not any(name == "rank-0.trace" for name in (path.name for _, path in run_files(run).files))
    (run / "node-evil.tar").unlink()
    read = read_run(run)
    assert not read.ranks
    assert any("powerccl collect" in text for text in read.problems)
    assert not any("\x1b" in text for text in read.problems)
    CliRunner().invoke(cli, ["collect", str(run)])
    (run / "node-evil.tar").write_bytes(b"")
    CliRunner().invoke(cli, ["collect", str(run)])
    assert (home / "rank-0.trace").exists()


def test_rank_0_waits_for_the_other_nodes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "node-node17-ffffffff.local").write_text("{}")
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        (run / "node-node17-ffffffff.local").unlink()

    monkeypatch.setattr(time, "sleep", sleep)
    await_nodes(run, None)
    assert len(looks) == 1


def test_no_summary_is_kept_and_no_state_is_guessed_while_files_are_on_nodes(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "runs/a")
    run = read_run(folder)
    keep_summary(summarise(run), run)
    assert (folder / SUMMARY_FILE).exists()
    (folder / SUMMARY_FILE).unlink()
    pointer = folder / "node-node17-ffffffff.local"
    pointer.write_bytes(NodeFolder("node17", "f" * 32, "/tmp/powerccl-0/x").to_json())
    assert is_on_nodes(folder)
    run = read_run(folder)
    keep_summary(summarise(run), run)
    assert not (folder / SUMMARY_FILE).exists()
    write_info(folder, 0, None)  # without an end
    for path in (folder, *folder.iterdir()):
        os.utime(path, (1, 1))
    assert [row.state for row in run_rows(tmp_path / "runs")] == [ON_NODES]
    pointer.unlink()
    os.utime(folder, (1, 1))
    assert [row.state for row in run_rows(tmp_path / "runs")] == [NO_END]
