# SPDX-License-Identifier: Apache-2.0
"""Limits on processes: how many more there is room for, and jobs that come first."""

from __future__ import annotations

import errno
import os
import resource
import signal
import threading
from pathlib import Path

import pytest

from powerccl.launch import node_agent, places
from powerccl.launch import record as record_module
from powerccl.launch.child import ChildNotStartedError
from powerccl.launch.native import NativeFiles
from powerccl.launch.request import Request


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of /proc and of control groups, and a user without a limit."""
    for folder in ("proc/self/ns", "cgroup/pids/slice/job", "cgroup/unified"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
    monkeypatch.setattr(places, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(places, "_CGROUPS", tmp_path / "cgroup")
    limit_user(monkeypatch, resource.RLIM_INFINITY)
    return tmp_path


def limit_user(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """RLIMIT_NPROC."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))


def limit_group(folder: Path, most: str, current: int) -> None:
    """A control group's files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pids.max").write_text(f"{most}\n")
    (folder / "pids.current").write_text(f"{current}\n")


def test_no_limit_leaves_room(machine: Path) -> None:
    assert places.scarcity() is None
    (machine / "proc/self/cgroup").write_text("8:pids:/slice/job\n0::/\n")
    limit_group(machine / "cgroup/pids/slice/job", "max", 5)
    limit_group(machine / "cgroup/pids/slice", "1000", 5)
    assert places.scarcity() is None


@pytest.mark.parametrize(
    ("line", "folder"),
    [
        ("8:cpu,pids:/slice/job", "cgroup/pids/slice"),  # a group above limits as well
        ("0::/slice/job", "cgroup/slice/job"),
        ("0::/slice/job", "cgroup/unified/slice/job"),
        ("4:pids:/docker/x", "cgroup/pids"),  # a container sees its own group as the root
    ],
)
def test_a_control_group_without_room(machine: Path, line: str, folder: str) -> None:
    (machine / "proc/self/cgroup").write_text(f"7:memory:/x\n{line}\n")
    limit_group(machine / folder, "66", 3)
    assert str(places.scarcity()) == "the control group (pids.max) leaves room for 63 more processes"
    limit_group(machine / folder, "67", 3)
    assert places.scarcity() is None


def test_a_user_without_room(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "proc/self/uid_map").write_text("0 0 4294967295\n")
    (machine / "proc/self/status").write_text("Name:\tx\nCapEff:\t0000000000000000\n")
    (machine / "proc/loadavg").write_text("0.1 0.1 0.1 2/900 77\n")
    (machine / "proc/12").mkdir()
    (machine / "proc/12/status").write_text("Threads:\t7\n")
    (machine / "proc/13").mkdir()  # it has ended
    monkeypatch.setattr(os, "getuid", lambda: machine.stat().st_uid or 1)
    if machine.stat().st_uid == 0:
        for name in ("12", "13"):
            os.chown(machine / "proc" / name, 1, 1)
    limit_user(monkeypatch, 10)
    assert str(places.scarcity()) == "the user's limit (ulimit -u) leaves room for 3 more processes"
    limit_user(monkeypatch, 7 + places.NEEDED)
    assert places.scarcity() is None
    limit_user(monkeypatch, 10)
    (machine / "proc/self/status").write_text("CapEff:\t0000000001000000\n")
    assert places.scarcity() is None, "with CAP_SYS_RESOURCE it does not apply"
    (machine / "proc/self/uid_map").write_text("0 1000 1\n")
    assert places.scarcity() is not None, "in a user namespace it does"


def test_a_user_of_whom_not_all_is_seen(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "proc/self/uid_map").write_text("0 1000 1\n")
    (machine / "proc/self/ns/pid").unlink()
    (machine / "proc/self/ns/pid").symlink_to("pid:[4026532000]")
    limit_user(monkeypatch, 10)
    threads = threading.active_count()
    assert places.scarcity() is None, "this test has room for more threads"
    assert threading.active_count() == threads
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize("helper", [False, True], ids=["job", "helper"])
def test_a_job_that_finds_no_place_takes_ours(
    helper: bool, native: NativeFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A limit that shows only when a process is started."""
    no_place = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    became: list[list[str]] = []
    said: list[str] = []

    class BecameError(BaseException):
        pass

    def refuse(*_: object, **__: object) -> None:
        raise no_place if helper else ChildNotStartedError("true", no_place)

    def become(command: list[str], _: object) -> None:
        became.append(command)
        raise BecameError

    monkeypatch.setenv("POWERCCL_NATIVE", str(native.root))
    monkeypatch.setattr(record_module, "become", become)
    monkeypatch.setattr(*((node_agent, "Service") if helper else (record_module, "run_child")), refuse)
    with pytest.raises(BecameError):
        record_module.record(Request(["true"], runs=tmp_path / "runs", best_effort=True), said.append)
    assert became == [["true"]]
    assert [line for line in said if line.endswith("; the job runs unrecorded, in the place of PowerCCL")] == said[-1:]
