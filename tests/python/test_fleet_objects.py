# SPDX-License-Identifier: Apache-2.0
"""`powerccl index` of run folders in an object store, by fsspec's store in memory and by file addresses."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_runs import late_run, run_of
from test_fleet import answer, invoke, make, refused, silent

pytest.importorskip("fsspec", reason="fsspec is not installed")
import fsspec

from powerccl.commands.index import _analyse
from powerccl.errors import PowercclError
from powerccl.fleet import store
from powerccl.fleet.ask import ask, connect
from powerccl.fleet.index import Pass, index
from powerccl.fleet.source import ObjectStore

URL = "memory://bucket/runs"


@pytest.fixture
def bucket() -> Iterator[Any]:
    """A store in memory, which all of this process see."""
    files = fsspec.filesystem("memory")
    yield files
    files.rm("/bucket", recursive=True)


def put(bucket: Any, folder: Path, name: str) -> None:
    """Copy a run folder into the store."""
    for file in folder.iterdir():
        bucket.put_file(str(file), f"/bucket/runs/{name}/{file.name}")


def pass_over(to: Path, url: str = URL, analyse: Any = None) -> Pass:
    return index(url, to, analyse, silent)


def rows(to: Path, sql: str) -> list[dict[str, Any]]:
    return ask(connect(to), "", sql).dicts()


def test_runs_of_a_store_are_those_of_a_directory(tmp_path: Path, bucket: Any) -> None:
    for name in ("a", "deep/b"):
        put(bucket, run_of(tmp_path / "runs" / name, user="alice"), name)
    put(bucket, tmp_path / "runs/a", ".hidden/x")
    put(bucket, tmp_path / "runs/a", "a/copy")  # in a run folder
    make(tmp_path / "runs")
    to = tmp_path / "index"
    done = pass_over(to)
    assert (done.seen, done.read, done.failed, done.unreadable) == (2, 2, 0, [])
    (overview,) = ask(connect(to), "overview").dicts()
    assert overview == answer(tmp_path / "runs", "overview")[0]
    found = rows(to, "SELECT folder, user_name, group_name FROM runs ORDER BY folder")
    assert [row["folder"] for row in found] == ["memory:///bucket/runs/a", "memory:///bucket/runs/deep/b"]
    # A store does not say whose a folder is: run.json does.
    assert {(row["user_name"], row["group_name"]) for row in found} == {("alice", "")}


def test_only_what_changed_is_fetched(tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bucket, run_of(tmp_path / "a"), "a")
    put(bucket, run_of(tmp_path / "b"), "b")
    fetched: list[str] = []
    real = type(bucket).get_file

    def counted(self: Any, path: str, to: str, **more: Any) -> Any:
        fetched.append(path)
        return real(self, path, to, **more)

    monkeypatch.setattr(type(bucket), "get_file", counted)
    assert pass_over(tmp_path / "index").read == 2
    assert {Path(path).name for path in fetched} == {"run.json", "summary.json"}, "no traces without --analyse"
    fetched.clear()
    assert pass_over(tmp_path / "index").read == 0 and not fetched
    time.sleep(0.01)
    put(bucket, run_of(tmp_path / "new", joules=7.2e6), "b")
    assert pass_over(tmp_path / "index").read == 1
    assert {Path(path).parent.name for path in fetched} == {"b"}
    bucket.rm("/bucket/runs/a", recursive=True)
    assert pass_over(tmp_path / "index").removed == 1


def test_traces_are_analysed_from_a_copy(tmp_path: Path, bucket: Any) -> None:
    late_run(tmp_path / "runs/late")
    put(bucket, tmp_path / "runs/late", "late")
    make(tmp_path / "runs", _analyse)
    pass_over(tmp_path / "index", analyse=_analyse)
    for question in ("waiting-gpu", "overview"):
        emulated = connect(tmp_path / "index", modelled=True), connect(tmp_path / "runs" / store.FOLDER, modelled=True)
        first, second = (ask(each, question).dicts() for each in emulated)
        assert first and first == second
    assert pass_over(tmp_path / "index", analyse=_analyse).read == 0


def test_a_run_that_goes_on_is_not_fetched_whole(tmp_path: Path, bucket: Any) -> None:
    run = late_run(tmp_path / "runs/late")
    put(bucket, run, "late")
    info = (run / "run.json").read_text().replace('"end_ns"', '"was_end_ns"')
    bucket.pipe_file("/bucket/runs/late/run.json", info.encode())
    opened = ObjectStore(URL)
    ((folder, _),) = opened.runs()
    with opened.local(folder, True) as copy:
        assert copy is not None and {file.name for file in copy.iterdir()} <= {"run.json", ".run-id", "summary.json"}
        kept = copy
    assert not kept.exists()


def test_a_run_that_the_store_does_not_give_stays_as_it_was(
    tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bucket, run_of(tmp_path / "a"), "a")
    pass_over(tmp_path / "index")
    time.sleep(0.01)
    put(bucket, run_of(tmp_path / "b"), "a")

    def denied(*_: Any, **__: Any) -> None:
        raise ValueError("Access Denied")  # stores raise what they like

    monkeypatch.setattr(type(bucket), "get_file", denied)
    done = pass_over(tmp_path / "index")
    assert (done.read, done.removed) == (0, 0) and "Access Denied" in done.unreadable[0]
    assert len(rows(tmp_path / "index", "SELECT * FROM chosen")) == 1


def test_file_addresses_and_the_command(tmp_path: Path) -> None:
    run_of(tmp_path / "runs/a")
    url = f"file://{tmp_path}/runs"
    refused("name one: --to DIR", "index", url)
    assert invoke("index", url, "--to", tmp_path / "index").exit_code == 0
    assert rows(tmp_path / "index", "SELECT folder FROM chosen") == [{"folder": f"file://{tmp_path}/runs/a"}]
    before = sorted((tmp_path / "runs/a").iterdir())
    shutil.rmtree(tmp_path / "index")
    invoke("index", url, "--to", tmp_path / "index", "--analyse")
    assert sorted((tmp_path / "runs/a").iterdir()) == before, "run folders stay as they are"


def test_addresses_that_cannot_be_read(tmp_path: Path) -> None:
    for url, words in (
        ("memory://nowhere/runs", "does not exist"),
        ("nosuch://bucket/runs", "cannot read nosuch://bucket/runs"),
    ):
        with pytest.raises(PowercclError, match=words):
            pass_over(tmp_path / "index", url)


def test_a_store_whose_package_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(PowercclError, match="s3fs") as raised:
        pass_over(tmp_path / "index", "s3://bucket/runs")
    assert "powerccl[s3]" in raised.value.hint
