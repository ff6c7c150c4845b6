# SPDX-License-Identifier: Apache-2.0
"""`powerccl report --slurm-energy`, with a stand-in for sacct."""

from __future__ import annotations

from pathlib import Path

import fakes
import pytest
import synthetic
from click.testing import CliRunner

from powerccl.commands import cli

LABELS = {"slurm_cluster": "lab", "slurm_job_id": "16_1", "slurm_raw_job_id": "17", "slurm_step_id": "0"}
SACCT = (
    '#!/bin/sh\n[ "$*" = "--noheader --parsable2 --format=ConsumedEnergyRaw --jobs=17.0 --clusters=lab" ] || exit 9\n'
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of a step of Slurm, and a PATH for a sacct."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    folder = synthetic.exposed_run(tmp_path / "run", iterations=4)
    synthetic.write_info(folder, 2_400 * synthetic.MS, labels=LABELS)
    return folder


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("echo 12300", "Slurm counted 12.3 kJ for 17.0 (ConsumedEnergy: whole nodes"),
        ("echo 0", "Slurm counted no energy for 17.0: its nodes have no energy plugin"),
        ("echo", "Slurm counted no energy for 17.0"),
    ],
)
def test_joules_of_slurm(run: Path, answer: str, said: str) -> None:
    fakes.write_program(run.parent / "bin/sacct", f"{SACCT}{answer}\n")
    done = CliRunner().invoke(cli, ["report", str(run), "--slurm-energy"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert said in " ".join(done.output.split())


def test_what_sacct_says_is_passed_on(run: Path) -> None:
    fakes.write_program(
        run.parent / "bin/sacct", '#!/bin/sh\necho "Slurm accounting storage is disabled" >&2\nexit 1\n'
    )
    done = CliRunner().invoke(cli, ["report", str(run), "--slurm-energy"])
    assert done.exit_code != 0
    assert "sacct: Slurm accounting storage is disabled" in done.output


def test_a_run_of_no_job(run: Path) -> None:
    synthetic.write_info(run, 2_400 * synthetic.MS)
    done = CliRunner().invoke(cli, ["report", str(run), "--slurm-energy"])
    assert "the run names no Slurm job" in done.output
