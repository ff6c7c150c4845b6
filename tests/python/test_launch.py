# SPDX-License-Identifier: Apache-2.0
"""Starting jobs: native files, run folders, environment, GPUs and emulated platforms."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from powerccl.errors import PowercclError, choose
from powerccl.launch import folder as folders
from powerccl.launch.emulation import emulated_platform, platform_name
from powerccl.launch.environment import (
    emulated_environment,
    job_environment,
    preload_wanted,
    recorded,
    slowdown_budget_pct,
    with_preload,
)
from powerccl.launch.gpus import Gpus, query_gpus, query_gpus_in
from powerccl.launch.native import NativeFiles, find_native


def test_native_files_by_environment(native: NativeFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POWERCCL_NATIVE", str(native.root))
    assert find_native().root == native.root
    assert sorted(native.emulated_platforms()) == ["h200x4", "t4x8"]
    monkeypatch.setenv("POWERCCL_NATIVE", str(tmp_path / "none"))
    with pytest.raises(PowercclError, match="is not a folder"):
        find_native()


def test_a_missing_native_file_says_how_to_get_it(native: NativeFiles) -> None:
    native.path("bin/powerccl-bench").unlink()
    with pytest.raises(PowercclError, match="powerccl-bench is missing") as error:
        native.path("bin/powerccl-bench")
    assert "make native" in error.value.hint


def test_folders_of_one_second_are_distinct(tmp_path: Path) -> None:
    made = {folders.make_folder(tmp_path / "runs", "job name/x", None) for _ in range(5)}
    assert len(made) == 5
    assert all("job-name-x" in path.name for path in made)
    assert len({(path / ".run-id").read_text() for path in made}) == 5


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file in the way")
    with pytest.raises(PowercclError) as error:
        folders.make_folder(tmp_path / "runs", "job", None)
    assert "cannot make a run folder" in error.value.message
    assert "--runs-dir" in error.value.hint


def test_socket_paths_are_short_private_and_distinct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    long = tmp_path / ("x" * 200)
    first, second = folders.socket_path(long), folders.socket_path(tmp_path)
    assert first != second
    assert len(first.name) < 20
    assert first.parent.stat().st_mode & 0o777 == 0o700
    first.parent.chmod(0o777)
    with pytest.raises(PowercclError, match="belongs to another user"):
        folders.socket_path(long)


def test_the_jobs_environment(native: NativeFiles, tmp_path: Path) -> None:
    base = {"LD_LIBRARY_PATH": "/opt/x", "POWERCCL_POLICY_TABLE": "stale", "SECRET_TOKEN": "s", "NCCL_DEBUG": "INFO"}
    emulated = emulated_environment(base, native, tmp_path / "s.sock")
    assert emulated["LD_LIBRARY_PATH"] == f"{native.root}/emulator:/opt/x"
    assert emulated["POWERCCL_EMULATOR_SOCKET"] == str(tmp_path / "s.sock")
    job = job_environment(base, native, tmp_path, "observe", None, "none")
    assert job["NCCL_PROFILER_PLUGIN"] == f"{native.root}/lib/libpowerccl-nccl.so"
    assert job["POWERCCL_RUN_FOLDER"] == str(tmp_path)
    assert "POWERCCL_POLICY_TABLE" not in job
    assert recorded(base).keys() == {"LD_LIBRARY_PATH", "POWERCCL_POLICY_TABLE", "NCCL_DEBUG"}


def test_ours_are_preloaded_last_or_not_at_all(tmp_path: Path) -> None:
    ours = [tmp_path / "nccl.so", tmp_path / "mpi.so"]
    base = {"LD_PRELOAD": "libmine.so /opt/other.so"}
    added = with_preload(base, ours, ours)
    assert added == {"LD_PRELOAD": f"libmine.so:/opt/other.so:{ours[0]}:{ours[1]}"}
    assert with_preload(added, ours, ours) == added  # not twice in a run within a run
    assert with_preload(base, ours, []) == base
    assert with_preload(added, ours, []) == {"LD_PRELOAD": "libmine.so:/opt/other.so"}  # an outer run's are taken out
    assert with_preload(with_preload({}, ours, ours), ours, []) == {}
    assert with_preload(base, [], [tmp_path / "a folder/x.so"]) == base
    own_nccl = with_preload({"LD_PRELOAD": "libasan.so.8:/opt/libnccl.so.2"}, ours, ours[:1])
    assert own_nccl == {"LD_PRELOAD": f"libasan.so.8:{ours[0]}:/opt/libnccl.so.2"}
    assert preload_wanted({})
    assert not preload_wanted({}, asked=False)
    assert not preload_wanted({"POWERCCL_PRELOAD": "0"})


def test_the_budget_of_slowdown(native: NativeFiles, tmp_path: Path) -> None:
    base = {"POWERCCL_MAX_SLOWDOWN": "2.5"}
    kept = job_environment(base, native, tmp_path, "auto", None, "lease")
    assert kept["POWERCCL_MAX_SLOWDOWN"] == "2.5"
    assert job_environment(base, native, tmp_path, "auto", None, "lease", 0.5)["POWERCCL_MAX_SLOWDOWN"] == "0.5"
    assert slowdown_budget_pct(kept) == 2.5
    # As the runtime: what is no number in range is not taken.
    assert [slowdown_budget_pct({"POWERCCL_MAX_SLOWDOWN": text}) for text in ("", "lots", "nan", "101", "-1")] == [
        1.0
    ] * 5
    assert slowdown_budget_pct({"POWERCCL_MAX_SLOWDOWN": "0"}) == 0.0  # only what costs nothing measurable
    assert slowdown_budget_pct({}) == 1.0


def test_no_driver_is_a_reason_not_an_error() -> None:
    found = query_gpus("libno-such-nvml.so.1")
    assert found.names == []
    assert "no NVIDIA driver on this machine" in found.describe()
    assert query_gpus("libc.so.6").reason.startswith("this NVML is too old")
    assert query_gpus_in({**os.environ, "LD_LIBRARY_PATH": ""}).names == query_gpus().names


def test_mixed_gpus_are_described() -> None:
    assert Gpus(names=["A", "A", "B"]).describe() == "2 x A + 1 x B"


def test_choices_suggest() -> None:
    assert choose("policy", "observe", ["observe", "per-call"]) == "observe"
    with pytest.raises(PowercclError) as error:
        choose("policy", "per-cal", ["observe", "per-call"])
    assert error.value.hint == "did you mean 'per-call'? known: observe, per-call"


def test_emulated_platforms_by_name_or_file(native: NativeFiles, tmp_path: Path) -> None:
    assert emulated_platform(native, "t4x8").name == "t4x8.conf"
    mine = tmp_path / "mine.conf"
    mine.write_text("")
    assert emulated_platform(native, str(mine)) == mine
    with pytest.raises(PowercclError) as error:
        emulated_platform(native, "t4x9")
    assert "did you mean 't4x8'?" in error.value.hint
    with pytest.raises(PowercclError, match="no platform file"):
        emulated_platform(native, "./none.conf")


def test_an_emulated_platform_can_be_changed(native: NativeFiles, tmp_path: Path) -> None:
    built_in = emulated_platform(native, "t4x8")
    assert str(emulated_platform(native, "t4x8:link_scale=4")) == f"{built_in}:link_scale=4"
    odd = tmp_path / "a:b" / "mine.conf"
    odd.parent.mkdir()
    odd.write_text("")
    assert emulated_platform(native, str(odd)) == odd
    with pytest.raises(PowercclError, match="unknown emulated platform 't4x9'"):
        emulated_platform(native, "t4x9:link_scale=4")


def test_what_a_platform_is_called() -> None:
    assert [platform_name(text) for text in ("t4x8", "t4x8:link_scale=0.5", "a/mine.conf", "a/mine.json", "")] == [
        *("t4x8", "t4x8:link_scale=0.5", "mine", "mine", "")
    ]
