# SPDX-License-Identifier: Apache-2.0
"""Run folders on a file system that refuses shared mappings, as FUSE with `direct_io` does: files are only written."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Powerccl, points_are_right

from powerccl.traces.folder import read_run


@pytest.fixture
def unmappable(tmp_path: Path) -> Iterator[Path]:
    """A folder in which no file can be mapped and shared."""
    if os.getuid() != 0 or not shutil.which("bindfs") or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("needs root and /dev/fuse" if shutil.which("bindfs") else "there is no bindfs")
    below, folder = tmp_path / "below", tmp_path / "runs"
    below.mkdir()
    folder.mkdir()
    if subprocess.run(["bindfs", "-o", "direct_io", str(below), str(folder)], check=False).returncode:
        pytest.skip("needs the right to mount")
    try:
        yield folder
    finally:
        for _ in range(50):
            if subprocess.run(["umount", str(folder)], check=False).returncode == 0:
                break
            time.sleep(0.1)


def test_files_cannot_be_mapped_there(unmappable: Path) -> None:
    with (unmappable / "file").open("w+b") as file:
        file.truncate(4096)
        with pytest.raises(OSError, match="No such device"):
            mmap.mmap(file.fileno(), 4096)


def test_a_job_is_recorded_there(powerccl: Powerccl, unmappable: Path) -> None:
    sizes = ["-b", "8M", "-e", "8M", "-n", "30", "-g", "2"]
    options = ["--quiet", "--emulate", "t4x8", "--set-clocks", "--runs-dir", str(unmappable)]
    done = powerccl("run", *options, "--", powerccl.bench, "all_reduce", *sizes)
    assert done.code == 0, done.err
    assert points_are_right(done.out)
    (folder,) = unmappable.glob("[!.]*/")
    run = read_run(folder)
    assert run.problems == []
    assert len(run.ranks) == 2
    assert all(len(trace.kinds[3]) for trace in run.ranks)
    assert all(len(log.samples) for log in run.power)
