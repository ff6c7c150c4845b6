# SPDX-License-Identifier: Apache-2.0
"""The end of a run whose files are on the node, where something went wrong."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import shutil
import signal
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from fakes import fail
from synthetic import MS, mpi_run, training_run

from powerccl.analysis.summary import summarise
from powerccl.commands import cli
from powerccl.errors import PowercclError
from powerccl.launch import local_folder
from powerccl.launch import record as record_module
from powerccl.launch.child import InterruptionError
from powerccl.launch.local_folder import await_nodes, collect, enter
from powerccl.launch.native import NativeFiles
from powerccl.launch.request import Request
from powerccl.traces.folder import read_run
from powerccl.traces.run_files import Listed, NodeFolder, list_files, run_files


def test_rank_0_does_not_wait_for_what_it_could_not_pack(
    run: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = enter(directory, run)
    (local.folder / "rank-0.trace").write_bytes(b"a")
    shutil.rmtree(local.folder)  # by the job
    said: list[str] = []
    assert not local.leave(said.append)
    assert said == [f"{local.folder} was removed while the job ran: the traces and samples in it are lost"]
    monkeypatch.setattr(time, "sleep", fail)
    await_nodes(run, local.pointer)


def test_a_removed_run_folder_is_said(run: Path, directory: Path) -> None:
    local = enter(directory, run)
    (local.folder / "rank-0.trace").write_bytes(b"a")
    shutil.rmtree(run)
    said: list[str] = []
    assert not local.leave(said.append)
    assert said == [f"{run} was removed while the job ran: traces and samples stay in {local.folder}"]
    assert (local.folder / "rank-0.trace").exists()


def test_a_signal_while_files_are_packed_is_said(run: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = enter(directory, run)
    (local.folder / "rank-0.trace").write_bytes(b"a")

    def interrupt(_: int) -> None:
        raise InterruptionError(signal.SIGTERM)

    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(InterruptionError):
            local.leave(said.append)
    assert (
        f"traces and samples stay in {local.folder}: a signal ended the packing; run `powerccl collect {run}`"
        in said[0]
    )
    assert collect(run, said.append)


def test_a_signal_before_the_job_leaves_nothing_on_the_node(
    native: NativeFiles, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[Path] = []

    def interrupt(*_: object, **__: object) -> None:
        entered.extend(directory.glob("powerccl-*/*"))
        raise InterruptionError(signal.SIGTERM)

    monkeypatch.setenv("POWERCCL_NATIVE", str(native.root))
    monkeypatch.setattr(record_module, "run_child", interrupt)
    request = Request(["true"], runs=tmp_path / "runs", local_dir=directory, best_effort=True)
    with pytest.raises(InterruptionError):
        record_module.record(request, print)
    assert entered
    assert not list(directory.glob("powerccl-*/*"))
    assert not list(tmp_path.glob("runs/*/node-*.local"))


def test_a_file_system_without_locks_does_not_hold_up_the_job(
    run: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(time, "sleep", fail)
    with pytest.raises(PowercclError) as caught:
        enter(directory, run)
    assert "No locks available" in caught.value.message


def test_a_folder_that_the_job_made_stays(run: Path, directory: Path) -> None:
    local = enter(directory, run)
    (local.folder / "rank-0.trace").write_bytes(b"a")
    (local.folder / "own").mkdir()
    (local.folder / "own/model.bin").write_bytes(b"b")
    assert local.leave(fail)
    assert [path.name for path in local.folder.iterdir()] == ["own"]
    assert (local.folder / "own/model.bin").read_bytes() == b"b"


def test_files_on_the_disk_of_a_node_that_was_restarted_are_collected(
    run: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(local_folder, "this_boot", lambda: "f" * 32)
        local = enter(directory, run)
    (local.folder / "rank-0.trace").write_bytes(b"a")
    os.close(local._lock)
    listing = run_files(run)
    assert (listing.files, len(listing.elsewhere)) == ([Listed(".run-id", run / ".run-id")], 1)
    with monkeypatch.context() as patch:
        patch.setattr(platform, "node", lambda: "another")
        assert not collect(run, print)
    assert local.folder.exists()
    assert collect(run, print)
    assert [path.name for path in list_files(run, "", ".trace")[0]] == ["rank-0.trace"]
    assert not local.folder.exists()


def test_figures_of_a_part_of_the_nodes_are_none_of_the_whole(tmp_path: Path) -> None:
    folder = training_run(tmp_path / "a")
    whole = summarise(read_run(folder)).energy
    assert whole.joules
    (folder / "node-node17-ffffffff.local").write_bytes(NodeFolder("node17", "f" * 32, "/tmp/powerccl-0/x").to_json())
    part = summarise(read_run(folder)).energy
    assert (part.joules, part.joules_at_least) == (None, whole.joules)
    assert part.missing == ["node17: the GPUs are not known here: not counted"]
    done = CliRunner().invoke(cli, ["whatif", str(folder), "--platform", "none"])
    assert "node17: traces and samples are not here" in done.stderr


def test_what_a_process_records_after_the_job_is_said_to_be_lost(run: Path, directory: Path) -> None:
    local = enter(directory, run)
    (local.folder / "rank-0.trace").write_bytes(b"a")
    said: list[str] = []
    with (local.folder / "rank-1.trace").open("wb") as file:
        file.write(b"b" * 4096)
        file.flush()
        assert local.leave(said.append)
    assert [text.split(";")[0] for text in said] == [
        "processes of the job still run: the end of 1 trace is lost, such as that of rank-1.trace"
    ]
    assert len(list_files(run, "", ".trace")[0]) == 2


def test_energy_of_a_part_of_the_processors_is_at_least(tmp_path: Path) -> None:
    head = "# host: node1\n# interval_ns: 100000000\ntime_ns,domain,energy_uj,cpu_busy_ns,cpu_idle_ns\n"
    rows = [f"{n * 100 * MS},package-0,{n * 5_000_000},-1,-1\n" for n in range(22)]
    folder = mpi_run(tmp_path / "a", cpu=head + "".join(rows))
    (folder / "node-node17-ffffffff.local").write_bytes(NodeFolder("node17", "f" * 32, "/tmp/powerccl-0/x").to_json())
    found = summarise(read_run(folder)).mpi
    assert found
    assert found.energy.joules is None
    assert found.energy.joules_at_least == pytest.approx(105)
    assert found.energy.missing == ["node17: its samples are not here"]


def test_a_name_that_no_directory_can_have_costs_the_node_folder_alone(run: Path) -> None:
    with pytest.raises(PowercclError) as caught:
        enter(Path("/a\0b"), run)
    assert "null byte" in caught.value.message
