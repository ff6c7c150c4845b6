# SPDX-License-Identifier: Apache-2.0
"""Jobs found by their processes, and `powerccl top`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from printing import printed
from synthetic import HOST, MS, TraceWriter, training_run, uuid, write_info
from textual.widgets import Static

from powerccl.commands import cli
from powerccl.live import processes
from powerccl.live.job import Watcher
from powerccl.live.labels import run_label
from powerccl.live.node import LiveNode
from powerccl.live.processes import Processes, recent_folders
from powerccl.live.snapshot import HeldDevice, LiveJob, NodeView
from powerccl.live.top import print_top
from powerccl.live.top_app import Top

STEP = 600 * MS


def shown(view: NodeView, width: int = 80) -> str:
    return printed(print_top, view, width=width)


# Finding jobs.


def process(proc: Path, pid: int, **environment: str) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    text = "\0".join(f"{name}={value}" for name, value in environment.items())
    (folder / "environ").write_bytes(text.encode() + b"\0")


def test_jobs_are_found_by_their_processes(tmp_path: Path) -> None:
    proc, folder = tmp_path / "proc", tmp_path / "run"
    folder.mkdir()
    process(proc, 10, HOME="/root")
    process(proc, 11, POWERCCL_RUN_FOLDER=str(folder), POWERCCL_LEASE_SOCKET="/tmp/s")
    process(proc, 12, POWERCCL_RUN_FOLDER=str(folder))
    (proc / "self").mkdir()
    processes = Processes(proc)
    jobs = processes.jobs(0.0)
    assert {path: job.pids for path, job in jobs.items()} == {folder: [11, 12]}
    assert jobs[folder].lease_socket == Path("/tmp/s")
    process(proc, 13, POWERCCL_RUN_FOLDER=str(folder))
    assert jobs == processes.jobs(1.0)  # not looked again yet
    assert processes.jobs(6.0)[folder].pids == [11, 12, 13]


def test_a_process_that_calls_exec_is_found_later(tmp_path: Path) -> None:
    process(tmp_path, 10, HOME="/root")
    processes = Processes(tmp_path)
    assert not processes.jobs(0.0)
    (tmp_path / "10" / "environ").write_bytes(f"POWERCCL_RUN_FOLDER={tmp_path}\0".encode())
    assert processes.jobs(40.0)[tmp_path].pids == [10]


def test_a_containers_folder_is_seen_through_its_root(tmp_path: Path) -> None:
    process(tmp_path, 10, POWERCCL_RUN_FOLDER="/data/only-inside/run")
    inside = tmp_path / "10" / "root" / "data/only-inside/run"
    inside.mkdir(parents=True)
    assert list(Processes(tmp_path).jobs(0.0)) == [inside]


def test_processes_of_one_container_are_one_job(tmp_path: Path) -> None:
    """Each sees the folder below its own root, and the first one may end before the others."""
    folder, name = tmp_path / "of-the-container", "only-inside/run"
    (folder / name).mkdir(parents=True)
    for pid in (10, 11, 12):
        process(tmp_path / "proc", pid, POWERCCL_RUN_FOLDER=f"/{name}")
        (tmp_path / "proc" / str(pid) / "root").symlink_to(folder)
    processes = Processes(tmp_path / "proc")
    assert {path: job.pids for path, job in processes.jobs(0.0).items()} == {
        tmp_path / "proc/10/root" / name: [10, 11, 12]
    }
    shutil.rmtree(tmp_path / "proc/10")
    assert {path: job.pids for path, job in processes.jobs(6.0).items()} == {tmp_path / "proc/11/root" / name: [11, 12]}


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everybody's")
def test_processes_of_others_are_counted(tmp_path: Path) -> None:
    process(tmp_path, 10, HOME="/")
    (tmp_path / "10" / "environ").chmod(0)
    processes = Processes(tmp_path)
    assert not processes.jobs(0.0)
    assert processes.unreadable == 1


def test_this_machines_processes(tmp_path: Path) -> None:
    """The real /proc: a child that names a folder."""
    folder = training_run(tmp_path / "run")
    write_info(folder, 0, exit_code=None)
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env={**os.environ, "POWERCCL_RUN_FOLDER": str(folder)},
    )
    try:
        deadline = time.monotonic() + 20
        node, found = LiveNode(), None
        while found is None and time.monotonic() < deadline:
            view = LiveNode().look()
            found = next((job for job in view.jobs if job.folder == str(folder)), None)
        assert found is not None
        assert child.pid in found.pids
        assert not found.ended
        assert view.host == socket.gethostname()
        node.close()
    finally:
        child.communicate(b"\n")


def test_a_job_whose_processes_are_gone_has_ended_and_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = training_run(tmp_path / "run")
    write_info(folder, 0, exit_code=None, host=socket.gethostname())
    proc = tmp_path / "proc"
    process(proc, 10, POWERCCL_RUN_FOLDER=str(folder))
    monkeypatch.setattr(processes, "SCAN_EVERY_S", 0.0)
    monkeypatch.setattr("powerccl.live.node.Processes", lambda: Processes(proc))
    node = LiveNode(keep_s=0.3)
    (before,) = node.look().jobs
    assert not before.ended and before.user
    (proc / "10" / "environ").unlink()
    (proc / "10").rmdir()
    (after,) = node.look().jobs
    assert after.ended and after.user == before.user  # a label of its series
    time.sleep(0.4)
    assert node.look().jobs == [] and node.watchers == {}


@pytest.mark.skipif(os.getuid() != 0, reason="needs a mount namespace")
def test_a_job_of_a_container_is_one_series_for_its_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is seen through the root of one process after the other; the label is the container's own path."""
    folder = training_run(tmp_path / "run")
    write_info(folder, 0, exit_code=None, host=socket.gethostname(), run_id="0123456789abcdef" * 2)
    script = f"mount -t tmpfs tmpfs /mnt; mkdir /mnt/run; mount --bind {folder} /mnt/run; sleep 60 & sleep 60"
    environment = {**os.environ, "POWERCCL_RUN_FOLDER": "/mnt/run"}
    container = subprocess.Popen(["unshare", "-m", "sh", "-c", script], env=environment, start_new_session=True)
    monkeypatch.setattr(processes, "SCAN_EVERY_S", 0.0)
    monkeypatch.setattr(processes, "FORGET_EVERY_S", 0.0)  # of a process that was looked at within its exec
    node = LiveNode()

    def seen() -> list[LiveJob]:
        return [job for job in node.look().jobs if run_label(job.folder, job.run_id) == "/mnt/run#0123456789ab"]

    try:
        deadline = time.monotonic() + 20
        while not (seen() and len(seen()[0].pids) > 2) and time.monotonic() < deadline:
            time.sleep(0.05)
        (before,) = seen()
        # /proc/PID/root/...: the first process need not have the lowest number, since they begin again now and then.
        os.kill(int(before.folder.split("/")[2]), signal.SIGKILL)
        while (after := seen()[0]).folder == before.folder and time.monotonic() < deadline:
            container.poll()
            time.sleep(0.05)
        assert after.folder != before.folder and after.pids and not after.ended
    finally:
        os.killpg(container.pid, signal.SIGKILL)
        container.wait(10)
    while not seen()[0].ended and time.monotonic() < deadline + 20:
        time.sleep(0.05)
    (gone,) = seen()
    assert gone.ended
    node.close()


def test_folders_that_have_not_ended(tmp_path: Path) -> None:
    here = socket.gethostname()
    for name, end_ns, host in (("a", 0, here), ("b", 5, here), ("c", 0, "elsewhere")):
        (tmp_path / name).mkdir()
        write_info(tmp_path / name, end_ns, host=host)
    (tmp_path / "other").mkdir()
    assert [path.name for path in recent_folders(tmp_path)] == ["a"]


# Showing.


def example(tmp_path: Path, ranks: int = 8) -> NodeView:
    folder = training_run(tmp_path / "20260101-120000-train", ranks=ranks)
    write_info(folder, 1_800_000_000, emulated="t4x8", policy="auto", clocks="lease")
    job = Watcher(folder).look(0, HOST)
    for gpu in job.gpus[:2]:
        gpu.lease = "450 MHz"
    held = HeldDevice(
        device=uuid(30), user="bob", pid=77, run="other", min_mhz=900, max_mhz=900, held_s=5, pending=False
    )
    return NodeView(host=HOST, unix_s=0, jobs=[job], leases=[held], unreadable_processes=3)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, width: int) -> None:
    text = shown(example(tmp_path), width)
    assert max(map(len, text.splitlines())) <= width
    assert "emulated" in text


def test_eighty_columns_show_all_numbers(tmp_path: Path) -> None:
    text = shown(example(tmp_path), 80)
    line = next(line for line in text.splitlines() if line.startswith("  7"))
    assert line.split() == ["7", "7", "1100", "MHz", "51.2", "W", "75", "%", "5.00", "all-reduce", "62.5", "MiB"]
    assert "450 MHz" in text
    assert f"{uuid(30)}: 900 MHz, bob's process 77 (other)" in text.replace("\n", "")
    assert "3 processes of other users cannot be read" in text
    assert len(text.splitlines()) <= 24


def test_a_rank_that_is_silent_stands_out(tmp_path: Path) -> None:
    trace = TraceWriter(0, 2)
    trace.comm(MS)
    trace.call(1, 100 * MS, 1 << 20, flags=0x40)
    trace.write(tmp_path)
    write_info(tmp_path, 0, exit_code=None)
    job = Watcher(tmp_path).look(42_100 * MS, HOST)
    assert "all-reduce 1 MiB 42 s ago, 1 pending" in shown(NodeView(host=HOST, unix_s=0, jobs=[job]), 120)


def test_nothing_runs() -> None:
    text = shown(NodeView(host="n", unix_s=0))
    assert "no job runs under powerccl on this node" in text
    assert "powerccl run -- COMMAND" in text


def test_once_in_text_and_json(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "run")
    runner = CliRunner()
    done = runner.invoke(cli, ["top", str(folder)])  # stdout is no terminal
    assert done.exit_code == 0, done.output
    assert "75 % of the time in communication" in done.stdout and "\x1b" not in done.stdout
    done = runner.invoke(cli, ["top", "run", "--runs-dir", str(tmp_path), "--once", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["schema"] == 1
    assert found["jobs"][0]["share_pct"] == pytest.approx(75, abs=0.1)
    done = runner.invoke(cli, ["top", "nowhere", "--once"])
    assert done.exit_code == 1 and "no run nowhere" in done.stderr


@pytest.mark.parametrize("size", [(80, 24), (40, 10), (160, 50)])
def test_the_live_view(tmp_path: Path, size: tuple[int, int]) -> None:
    """Looks again by itself, pauses, changes its pace, scrolls, is resized and quits; a look that fails is shown."""
    view = example(tmp_path)
    looks: list[float] = []
    failing = [False]

    def look() -> NodeView:
        looks.append(time.monotonic())
        if failing[0]:
            raise OSError("the disk is gone")
        return view

    async def use() -> None:
        app = Top(look, 0.25)
        async with app.run_test(size=size) as pilot:
            for _ in range(200):
                await pilot.pause(0.05)
                if len(looks) >= 3 and app.view is not None:
                    break
            assert len(looks) >= 3
            assert "powerccl" in app.export_screenshot()
            await pilot.press("space")
            assert app.paused
            await pilot.pause(0.1)
            before = len(looks)
            await pilot.pause(0.7)
            assert len(looks) <= before + 1
            await pilot.press("minus")
            assert app.interval_s == 0.5
            await pilot.press("plus", "plus", "plus")
            assert app.interval_s == 0.25
            await pilot.press("j", "k", "down", "up")
            await pilot.resize_terminal(60, 20)
            await pilot.pause(0.1)
            failing[0] = True
            await pilot.press("r")
            for _ in range(100):
                await pilot.pause(0.05)
                if "disk" in app.export_screenshot():
                    break
            assert "disk" in app.export_screenshot()
            await pilot.press("q")
        assert app.return_code == 0

    asyncio.run(use())


def test_ended_jobs_are_shown_as_ended(tmp_path: Path) -> None:
    jobs = []
    for code in (0, 3, None):
        folder = training_run(tmp_path / f"run-{code}", ranks=2)
        write_info(folder, 1_800_000_000, exit_code=code)
        jobs.append(Watcher(folder).look(0, HOST))
    text = shown(NodeView(host=HOST, unix_s=0, jobs=jobs), 120)
    assert "0 jobs, 3 ended" in text
    for words in ("run-0  ended, exit 0 ·", "run-3  ended, exit 3 ·", "run-None  ended ·"):
        assert words in text, text


def test_ranks_out_of_sight_are_counted(tmp_path: Path) -> None:
    view = example(tmp_path)

    async def use() -> None:
        app = Top(lambda: view, 60)
        async with app.run_test(size=(80, 12)) as pilot:

            async def becomes(pattern: str) -> re.Match[str]:
                """The line above the keys, once it is like this."""
                for _ in range(100):
                    await pilot.pause(0.05)
                    if found := re.fullmatch(pattern, str(app.query_one("#rest", Static).render())):
                        return found
                raise AssertionError(f"{pattern}: {app.query_one('#rest', Static).render()}")

            below = await becomes(r"── (\d) more ranks below ─+")
            assert 0 < int(below[1]) < 8
            await pilot.press(*["j"] * 11)
            await becomes(r"── (\d) more ranks? above(, \d more ranks? below)? ─+")
            await pilot.resize_terminal(80, 50)
            await becomes(r"─{80}")

    asyncio.run(use())


def test_a_job_is_named_by_its_folder() -> None:
    job = LiveJob(run="train", folder="/x/20260101-120000-train")
    assert "20260101-120000-train" in shown(NodeView(host="n", unix_s=0, jobs=[job]))
