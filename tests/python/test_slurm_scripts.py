# SPDX-License-Identifier: Apache-2.0
"""packaging/slurm/: what the scripts ask of `powerccl clocks`, and what they log."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fakes
import pytest

SLURM = Path(__file__).parents[2] / "packaging/slurm"
UUIDS = tuple(f"GPU-{n:08x}-79cb-8a1e-7996-22f2e0b95d52" for n in (0x11111111, 0x11112222, 0x33333333))
# What is asked for it writes down; what it shows is in the file `shown`.
SAYS = '#!/bin/sh\necho "asked: $*" >> LOG\n[ "$2" != --json ] || cat SHOWN\necho "$SAID" >&2\nexit "${CODE:-0}"\n'
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "54321"}


def slurm(script: str, tmp_path: Path, powerccl: str = SAYS, **environment: str) -> list[str]:
    """What the script asked of powerccl and of logger; it has to succeed and keep quiet."""
    text = powerccl.replace("LOG", str(tmp_path / "log")).replace("SHOWN", str(tmp_path / "shown"))
    fakes.write_program(tmp_path / "powerccl", text)
    fakes.write_program(tmp_path / "bin/logger", f'#!/bin/sh\nshift 3\necho "log: $*" >> {tmp_path}/log\n')
    text = (SLURM / script).read_text().replace("PATH=/usr/local/sbin:", f"PATH={tmp_path}/bin:", 1)
    fakes.write_program(tmp_path / script, text)
    (tmp_path / "log").write_text("")
    done = subprocess.run(
        [str(tmp_path / script)],
        env={"POWERCCL": str(tmp_path / "powerccl"), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return (tmp_path / "log").read_text().splitlines()


def show(tmp_path: Path, *holders: tuple[int, int, str] | None) -> None:
    """Have powerccl show those GPUs: each with user, process and run of its holder, in the form of `clocks --json`."""
    devices = [
        {
            "device": uuid,
            "name": "NVIDIA H200",
            "pending": False,
            "holder": holder and {"uid": holder[0], "user": "alice", "pid": holder[1], "run": holder[2]},
        }
        for uuid, holder in zip(UUIDS, holders, strict=False)
    ]
    (tmp_path / "shown").write_text(json.dumps({"schema": 1, "devices": devices}, indent=2) + "\n")


@pytest.fixture
def pids() -> Iterator[list[int]]:
    """Processes of job 7, of job 77, and of none."""
    started = [
        subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], **environment})
        for environment in ({"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "77"}, {"NOT": "SLURM_JOB_ID=7"})
    ]
    yield [process.pid for process in started]
    for process in started:
        process.kill()
        process.wait()


def test_prolog_speaks_up_only_where_no_daemon_answers(tmp_path: Path) -> None:
    show(tmp_path)
    assert slurm("prolog", tmp_path, SLURM_JOB_ID="7") == ["asked: clocks --json"]
    said = slurm("prolog", tmp_path, SLURM_JOB_ID="7", CODE="1", SAID="error: no powerccld")
    assert said[1:] == ["log: job 7: jobs get no clocks here: error: no powerccld"]
    assert slurm("prolog", tmp_path, POWERCCL="/none") == ["log: job ?: no /none on this node"]


def test_epilog_ends_what_the_jobs_processes_hold(tmp_path: Path, pids: list[int]) -> None:
    ours, theirs, nobodys = pids
    revoked = f"asked: clocks --revoke {UUIDS[1]} --user 54321"
    show(tmp_path, None, (54321, ours, 'said "uid": 1, "pid": 2'), (54321, theirs, "x"))
    assert slurm("epilog", tmp_path, **JOB) == ["asked: clocks --json", revoked]
    said = slurm("epilog", tmp_path, **JOB, SAID="powerccl: ended the lease of x")
    assert said[1:] == [revoked, "log: job 7: powerccl: ended the lease of x"]
    for holder in ((0, ours, "x"), (543210, ours, "x"), (54321, nobodys, "x"), (54321, 0, "x"), (54321, 1 << 22, "x")):
        show(tmp_path, holder, None)
        assert slurm("epilog", tmp_path, **JOB) == ["asked: clocks --json"], holder


def test_epilog_asks_once_where_no_daemon_answers(tmp_path: Path, pids: list[int]) -> None:
    show(tmp_path, (54321, pids[0], "x"))
    said = slurm("epilog", tmp_path, "#!/bin/sh\necho 'error: silent' >&2\nexit 1\n", **JOB)
    assert said == ["log: job 7: error: silent"]
    refusing = SAYS.replace("exit", '[ "$2" = --json ] || exit 1; exit')
    show(tmp_path, (54321, pids[0], "x"), (54321, pids[0], "x"))
    said = slurm("epilog", tmp_path, refusing, **JOB, SAID="error: no")
    assert said[1:] == [f"asked: clocks --revoke {UUIDS[0]} --user 54321", "log: job 7: error: no"]


def test_epilog_of_no_job_does_nothing(tmp_path: Path) -> None:
    for job in ({}, {"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "7.*", "SLURM_JOB_UID": "1"}):
        assert slurm("epilog", tmp_path, **job) == [], job
    assert slurm("epilog", tmp_path, **JOB, POWERCCL="/none") == []


@pytest.mark.parametrize("script", ["prolog", "epilog"])
def test_slurms_scripts_are_bounded_in_time(script: str, tmp_path: Path) -> None:
    fakes.write_program(tmp_path / "bin/timeout", '#!/bin/sh\nshift 3\nexec /usr/bin/timeout -k 0.1 0.2 "$@"\n')
    (said,) = slurm(script, tmp_path, "#!/bin/sh\nexec sleep 60\n", **JOB)
    assert said.endswith("powerccl clocks took too long")
    assert "timeout -k 2 8" in (SLURM / script).read_text()
