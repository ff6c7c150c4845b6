# SPDX-License-Identifier: Apache-2.0
"""`powerccl run` is transparent: how jobs end, their signals, their arguments, and faults of recording."""

from __future__ import annotations

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bench.harm import ends, injected, signals
from harness import Powerccl

from powerccl.launch.native import NativeFiles
from powerccl.traces.run_info import parse_run_info


def test_every_job_ends(native: NativeFiles, tmp_path: Path) -> None:
    chosen = ends.ends(36, 12)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda index: ends.run(chosen[index], tmp_path / str(index), native), range(len(chosen))))
    assert [text for text in found if text] == []


def test_each_signal_reaches_the_job_once(native: NativeFiles, tmp_path: Path) -> None:
    chosen = [
        (signals.to_us, signal.SIGINT),
        (signals.to_us, signal.SIGTSTP),
        (signals.to_us, signal.SIGCHLD),
        (signals.to_us, signal.SIGRTMAX),
        (signals.to_group, signal.SIGINT),
        (signals.to_group, signal.SIGTERM),
        (signals.to_session, signal.SIGUSR1),
        (signals.from_terminal, signal.SIGINT),
        (signals.from_terminal, signal.SIGWINCH),
    ]
    jobs = [
        signals.start(tmp_path / f"job-{i}", native, send is signals.from_terminal)
        for i, (send, _) in enumerate(chosen)
    ]
    for job, (send, number) in zip(jobs, chosen, strict=True):
        assert job.ready()
        send(job, number)
    assert [job.outcome() for job in jobs] == [{int(number): 1} for _, number in chosen]


@pytest.mark.parametrize("case", injected.CASES, ids=lambda case: case.name)
def test_no_fault_of_recording_is_a_fault_of_the_job(case: injected.Case, native: NativeFiles, tmp_path: Path) -> None:
    names = injected.functions(case, native, tmp_path)
    assert len(names) > 50
    chosen = [f"{name}!{kind}" for name, kind in zip(names[::13], 100 * injected.EXCEPTIONS, strict=False)]
    with ThreadPoolExecutor(2) as pool:
        found = list(
            pool.map(lambda i: injected.outcome(case, chosen[i], native, tmp_path / str(i)), range(len(chosen)))
        )
    assert {
        name: text for name, text in zip(chosen, found, strict=True) if text not in ("", injected.NOT_STARTED)
    } == {}


def test_bytes_that_are_no_text(powerccl: Powerccl) -> None:
    """Whatever exec accepts, the job gets, and run.json keeps it."""
    command = ["sh", "-c", 'printf "%s|%s|" "$1" "$BYTES" | od -An -tx1; exit 7', "sh", os.fsdecode(b"a\xffb")]
    done = powerccl("run", "--runs-dir", os.fsdecode(b"runs\xfe"), "--", *command, BYTES=os.fsdecode(b"\xfe\xff"))
    assert done.code == 7
    assert done.out.split() == ["61", "ff", "62", "7c", "fe", "ff", "7c"]
    assert "surrogates" not in done.err
    (run,) = (powerccl.folder / os.fsdecode(b"runs\xfe")).glob("*/run.json")
    assert parse_run_info(run.read_bytes()).command == command
    assert json.loads(run.read_text("ascii"))["command"][-1] == "a\udcffb"


def test_a_working_directory_that_is_gone(powerccl: Powerccl, tmp_path: Path) -> None:
    run = f"{sys.executable} -m powerccl run -q --runs-dir {tmp_path}/runs -- sh -c 'exit 7'"
    done = powerccl("run", "-q", "--", "sh", "-c", f"mkdir gone; cd gone; rmdir ../gone; exec {run}")
    assert done.code == 7
